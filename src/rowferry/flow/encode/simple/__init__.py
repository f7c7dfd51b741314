"""The simple codec."""
