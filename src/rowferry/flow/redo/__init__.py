"""The redo log: what the downstream gets, kept elsewhere before it gets any of it."""
