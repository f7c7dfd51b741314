"""Spark for tests: a standalone cluster, other releases, a shared class archive."""
