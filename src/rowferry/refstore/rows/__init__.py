"""Rows as keys and values: how a store encodes them, and what a transaction writes."""
