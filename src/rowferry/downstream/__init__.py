"""What stands behind a changefeed: reads, checks, rebuilds and compares what was written."""
