"""The csv codec."""
