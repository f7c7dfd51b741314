"""Changefeeds as files declare them: brought to that, and written in that form."""
