"""What logged statements do to the captured tables."""
