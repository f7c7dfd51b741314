"""Parquet: typed change files for tables of a lake."""
