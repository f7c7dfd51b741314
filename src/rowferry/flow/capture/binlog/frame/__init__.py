"""Frames the log on the driver: transactions, commit timestamps, segments, statements."""
