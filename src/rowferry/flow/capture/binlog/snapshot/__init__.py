"""Where a changefeed begins, how tables are read first, and how later ones join."""
