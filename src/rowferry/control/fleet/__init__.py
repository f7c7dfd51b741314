"""Servers together: which of them runs which changefeeds, and what is measured."""
