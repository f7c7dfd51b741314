"""The open-protocol codec."""
