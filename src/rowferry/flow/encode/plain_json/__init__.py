"""The plain JSON codec."""
