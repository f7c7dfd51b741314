"""Stage 3: where a row goes."""
