"""One changefeed: its loop, its lease, what happens after an error."""
