"""Decodes rows events into columns, in the task."""
