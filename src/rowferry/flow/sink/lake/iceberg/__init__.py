"""Iceberg tables: format version 2, merge-on-read by position deletes."""
