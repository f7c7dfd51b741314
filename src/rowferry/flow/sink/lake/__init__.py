"""Tables of a lake: each captured table is one, kept up to date commit by commit."""
