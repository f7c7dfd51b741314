"""What sinks into databases share: connections, the ledger, windows of rows, checks of tables."""
