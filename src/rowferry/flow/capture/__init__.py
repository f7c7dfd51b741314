"""Stage 1: read a source's log (and its present content) into chunks."""
