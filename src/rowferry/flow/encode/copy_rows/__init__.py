"""Rows as lines of PostgreSQL's COPY: the codec, its options, its reader."""
