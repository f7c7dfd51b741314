"""Alembic's scripts; `connection.migrate` runs them when a store is opened."""
