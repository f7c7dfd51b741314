"""What the tests of definitions share: a database of one's own, and definitions to compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from rowferry.change.table import TableId, TableSchema
from rowferry.mysql.catalog import read_settings, read_table, read_tables
from rowferry.mysql.server_form import ServerSettings
from rowferry.mysql.session import Login, ServerFacts, connected, facts, rows
from rowferry.testing.servers import Server


@dataclass
class Desk:
    """A connection to a database of one's own."""

    connection: Any
    login: Login
    facts: ServerFacts
    database: str

    def __post_init__(self) -> None:
        self.ids = count(1)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return rows(self.connection, self.login, sql)

    def settings(self) -> ServerSettings:
        return read_settings(self.connection, self.login)

    def tables(self) -> dict[str, TableSchema]:
        found = read_tables(
            self.connection,
            self.login,
            self.facts,
            lambda name: name.database == self.database,
            lambda: next(self.ids),
        )
        return {t.id.table: t for t in found}

    def table(self, name: str) -> TableSchema | None:
        return read_table(self.connection, self.login, self.facts, TableId(self.database, name), 7)


@contextmanager
def desk(server: Server, charset: str = "utf8mb4") -> Iterator[Desk]:
    """Make a database; it goes away at the end."""
    database = f"d{uuid4().hex[:12]}"
    with connected(server.login) as connection:
        found = Desk(connection, server.login, facts(connection, server.login), database)
        found.run(f"CREATE DATABASE {database} CHARACTER SET {charset}")
        found.run(f"USE {database}")
        try:
            yield found
        finally:
            found.run("SET foreign_key_checks = 0")
            found.run(f"DROP DATABASE {database}")


def comparable(table: TableSchema) -> dict[str, Any]:
    """Return what a statement's text and the server must agree about.

    Ids are ours; the server writes expressions anew, so only their being there counts.
    """
    return {
        "name": str(table.id),
        "charset": table.charset,
        "comment": table.comment,
        "columns": [
            {
                "name": c.name,
                "type": c.type,
                "nullable": c.nullable,
                "default": c.default,
                "generated": c.generated,
                "comment": c.comment,
                "invisible": c.invisible,
                "auto_increment": c.auto_increment,
                "computed": bool(c.expression),
            }
            for c in table.columns
        ],
        "indexes": [(i.id, i.name, i.columns, i.unique, i.primary) for i in table.indexes],
    }
