"""Columns and compiled pieces that every stage may use; knows no source, format or sink."""
