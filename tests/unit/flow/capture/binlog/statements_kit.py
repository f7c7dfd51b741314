"""What the tests of statements share: a few captured tables, and effects in few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.binlog.ddl.statements import Effects, effects
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.server_form import ServerSettings, server_form
from rowferry.mysql.session import Flavour, ServerFacts

MYSQL = ServerFacts(Flavour.MYSQL, (9, 7, 4), "9.7.4", 1, "uuid")
MARIADB = ServerFacts(Flavour.MARIADB, (10, 11, 6), "10.11.6-MariaDB", 1, "server-id 1")
TOLD = ServerSettings(0, True, {"d": "utf8mb4", "e": "latin1"})

_CREATED = (
    "CREATE TABLE d.t (id int primary key, a int, b varchar(10), c text)",
    "CREATE TABLE d.u (id int primary key)",
    "CREATE TABLE e.w (id int primary key)",
    "CREATE TABLE d.`odd name` (id int primary key)",
)


def captured(facts: ServerFacts = MYSQL) -> dict[TableId, TableSchema]:
    found = [server_form(parse_create(sql), None, facts, TOLD) for sql in _CREATED]
    return {t.id: TableSchema(**{**vars(t), "table_id": n}) for n, t in enumerate(found, 1)}


def keeps(name: TableId) -> bool:
    """Keep the databases d and e, but no table whose name begins with _."""
    return name.database in ("d", "e") and not name.table.startswith("_")


def run(
    sql: str,
    facts: ServerFacts = MYSQL,
    database: str = "d",
    known: Mapping[TableId, TableSchema] | None = None,
    kept: Callable[[TableId], bool] = keeps,
    settings: ServerSettings | None = TOLD,
    sql_mode: int = 0,
    is_announced: Callable[[TableId], bool] = lambda name: True,
) -> Effects | None:
    ids = count(100)
    tables = captured(facts) if known is None else known
    number = partial(next, ids)
    return effects(sql, database, tables, kept, number, facts, settings, sql_mode, is_announced)


def words(found: Effects | None) -> str:
    """Return effects in few words: `KIND old>new` of each change, `?` where it must be read."""
    if found is None:
        return ""
    parts = []
    for change in found.changes:
        moved = f"{change.previous}>" if change.previous else ""
        asked = " ?" if change.table in found.unread else ""
        parts.append(f"{change.kind.name} {moved}{change.table}{asked}")
    parts += [f"{table} is {copy}" for table, copy in found.swapped]
    return "; ".join(parts)
