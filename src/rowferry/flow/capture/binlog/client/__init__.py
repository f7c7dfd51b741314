"""Talks to the source server: its log as a stream, its rights, how long it keeps its log."""
