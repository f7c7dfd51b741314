"""The master of a store: which ranges there are, who leads them, timestamps, schema changes."""
