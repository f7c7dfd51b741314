"""Every change of one row that a changefeed delivered, and where it went."""
