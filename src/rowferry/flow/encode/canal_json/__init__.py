"""The canal-json codec."""
