"""The canal codec."""
