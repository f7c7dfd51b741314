"""Runs the migrations on the connection that the caller hands over, inside its transaction."""

from alembic import context

from rowferry.control.store.tables import VERSION_TABLE, MetaTable

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=MetaTable.metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
