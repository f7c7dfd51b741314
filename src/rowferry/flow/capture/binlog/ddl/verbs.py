"""CREATE, DROP, TRUNCATE and RENAME in the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement
from rowferry.flow.capture.binlog.ddl.alter import alter_database, alter_table
from rowferry.flow.capture.binlog.ddl.reader import StatementReader
from rowferry.mysql.ddl.alter import add_index, drop_index
from rowferry.mysql.ddl.clauses import partitions_start
from rowferry.mysql.ddl.head import Head
from rowferry.mysql.ddl.table import copied, read_definition
from rowferry.mysql.server_form import Untold

_OR_REPLACE: Final = re.compile(r"(?<=\bCREATE)\s+OR\s+REPLACE\b", re.IGNORECASE)

# --- CREATE --------------------------------------------------------------------------------------


def _create_database(reader: StatementReader, head: Head) -> None:
    if head.database is not None:
        reader.of_database(DdlKind.CREATE_DATABASE, head.database.database)


def _create_table(reader: StatementReader, head: Head) -> None:
    scope, name = reader.scope, reader.name(head.table)
    if not scope.concerns(name) or (head.conditional and name in scope.known):
        return
    if head.replaces:
        reader.dropped(name)
        reader.query = _OR_REPLACE.sub("", reader.query, count=1)  # nothing is left to replace
    if head.like is not None:
        like = scope.known.get(reader.name(head.like))
        if like is None or not scope.is_announced(
            like.id
        ):  # to readers the statement would mean nothing
            reader.arrived(name)
        else:
            table = replace(copied(like, name, scope.next_id), version=0)
            reader.change(DdlKind.CREATE_TABLE, name, table)
        return
    if _is_filled(reader):
        reader.filled.append(name)
    try:
        reader.change(DdlKind.CREATE_TABLE, name, _definition(reader, name))
    except (BadStatement, Untold):
        reader.change_to_read(DdlKind.CREATE_TABLE, name)


def _is_filled(reader: StatementReader) -> bool:
    """Return whether the table is made of a query: a log of rows has these, and not the query."""
    cursor, depth = reader.cursor, 0
    for token in cursor.tokens[cursor.place :]:
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if token.word == "SELECT" or (not depth and token.word in ("TABLE", "VALUES")):
            return True
    return cursor.at("(", "TABLE") or cursor.at("(", "VALUES")


def _definition(reader: StatementReader, name: TableId) -> TableSchema:
    del reader.cursor.tokens[partitions_start(reader.cursor) :]
    collation = reader.scope.settings.collation_of(name.database)
    # The id comes last: a text that does not tell enough uses none up.
    table = read_definition(reader.cursor, name, lambda: 0, collation, as_mysql=True)
    table = reader.in_server_form(table, None)
    return replace(table, table_id=reader.scope.next_id())


def _create_index(reader: StatementReader, head: Head) -> None:
    name = reader.name(head.table)
    reader.redefine(name, lambda d: add_index(reader.cursor, d, head), DdlKind.ADD_INDEX)
    _of_a_stranger(reader, name, DdlKind.ADD_INDEX)


def _of_a_stranger(reader: StatementReader, name: TableId, kind: DdlKind) -> None:
    """Note a change of a table that the filter keeps but that is not captured, maybe for a key."""
    if name not in reader.scope.known and reader.scope.keeps(name):
        reader.change_to_read(kind, name)


# --- DROP, TRUNCATE ------------------------------------------------------------------------------


def _drop_database(reader: StatementReader, head: Head) -> None:
    if head.database is None:
        return
    database = reader.database_name(head.database.database)
    for table in [n for n in reader.scope.known if n.database == database]:
        reader.dropped(table)
    reader.of_database(DdlKind.DROP_DATABASE, database)


def _drop_index(reader: StatementReader, head: Head) -> None:
    name = reader.name(head.table)
    reader.redefine(name, lambda d: drop_index(d, head.index, head.conditional), DdlKind.DROP_INDEX)
    _of_a_stranger(reader, name, DdlKind.DROP_INDEX)


def _drop_tables(reader: StatementReader, head: Head) -> None:
    for written in head.tables:
        text = reader.query if len(head.tables) == 1 else None
        reader.dropped(reader.name(written), text)


def _truncate(reader: StatementReader, head: Head) -> None:
    name = reader.name(head.table)
    if (old := reader.scope.known.get(name)) is not None:
        new = replace(copied(old, name, reader.scope.next_id), version=0)
        reader.change(DdlKind.TRUNCATE_TABLE, name, new, dropped=old.table_id)


# --- RENAME --------------------------------------------------------------------------------------


def _rename(reader: StatementReader, head: Head) -> None:
    pairs = [(reader.name(old), reader.name(new)) for old, new in head.pairs]
    _move(reader, _carried_out(pairs, reader.scope.known) if head.conditional else pairs)


def _carried_out(
    pairs: list[tuple[TableId, TableId]], known: Collection[TableId]
) -> list[tuple[TableId, TableId]]:
    """Return the renames of a statement with IF EXISTS, less those that nothing came of.

    MariaDB passes over a table that is not there, also where another one has the new name. Were it
    there, the statement would have been refused.
    """
    names = set(known)
    carried_out: list[tuple[TableId, TableId]] = []
    for old, new in pairs:
        if old in names:
            names.discard(old)
            names.add(new)
        elif new in names:
            continue
        carried_out.append((old, new))
    return carried_out


def _move(reader: StatementReader, pairs: list[tuple[TableId, TableId]]) -> None:
    """Follow tables from name to name: where each ends decides what became of it."""
    known, keeps = reader.scope.known, reader.scope.keeps
    origins: dict[TableId, TableId] = {}  # where the table that has this name now came from
    for old, new in pairs:
        origins[new] = origins.pop(old, old)
    ends = {origin: name for name, origin in origins.items()}
    strangers = [(n, o) for n, o in origins.items() if o not in known and keeps(n)]
    reader.swapped += [(n, o) for n, o in strangers if n in known and not keeps(ends.get(n, n))]
    swapped = [name for name, _ in reader.swapped]
    reader.unread += swapped

    at: dict[TableId, TableId] = {}
    for old, new in pairs:
        origin = at[new] = at.pop(old, old)
        if origin in known and origin not in swapped:
            table = replace(known[origin], id=new, version=0)
            reader.change(DdlKind.RENAME_TABLE, new, table, previous=old)
    for name, _ in strangers:
        if name not in swapped:
            reader.arrived(name)


EFFECTS: Final[dict[tuple[str, str], Callable[[StatementReader, Head], None]]] = {
    ("ALTER", "DATABASE"): alter_database,
    ("ALTER", "TABLE"): alter_table,
    ("CREATE", "DATABASE"): _create_database,
    ("CREATE", "INDEX"): _create_index,
    ("CREATE", "TABLE"): _create_table,
    ("DROP", "DATABASE"): _drop_database,
    ("DROP", "INDEX"): _drop_index,
    ("DROP", "TABLE"): _drop_tables,
    ("RENAME", "TABLE"): _rename,
    ("TRUNCATE", "TABLE"): _truncate,
}
