"""CREATE, DROP, TRUNCATE and RENAME in the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement
from rowferry.flow.capture.binlog.ddl.alter import alter
from rowferry.flow.capture.binlog.ddl.reader import NotUnderstood, StatementReader
from rowferry.mysql.ddl.alter import Draft, drop_index
from rowferry.mysql.ddl.column import key_parts
from rowferry.mysql.ddl.table import copied, read_definition
from rowferry.mysql.server_form import Untold

_OR_REPLACE: Final = re.compile(r"(?<=\bCREATE)\s+OR\s+REPLACE\b", re.IGNORECASE)

# --- CREATE --------------------------------------------------------------------------------------


def _create(reader: StatementReader) -> None:
    cursor = reader.cursor
    replacing = cursor.accept("OR", "REPLACE")
    if cursor.accept_any("DATABASE", "SCHEMA"):
        cursor.accept("IF", "NOT", "EXISTS")
        reader.of_database(DdlKind.CREATE_DATABASE, cursor.name())
        return
    if cursor.accept("TABLE"):
        _create_table(reader, replacing)
        return
    cursor.accept_any("ONLINE", "OFFLINE")
    unique = cursor.at("UNIQUE")
    cursor.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
    cursor.expect("INDEX")
    _create_index(reader, unique, replacing)


def _create_table(reader: StatementReader, replacing: bool) -> None:
    cursor, scope = reader.cursor, reader.scope
    unless = cursor.accept("IF", "NOT", "EXISTS")
    name = reader.table_name()
    if not scope.concerns(name) or (unless and name in scope.known):
        return
    if replacing:
        reader.dropped(name)
        reader.query = _OR_REPLACE.sub("", reader.query, count=1)  # nothing is left to replace
    if cursor.accept("LIKE") or cursor.accept("(", "LIKE"):
        like = scope.known.get(reader.table_name())
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
    del reader.cursor.tokens[reader.partitions_start() :]
    collation = reader.scope.settings.collation_of(name.database)
    # The id comes last: a text that does not tell enough uses none up.
    table = read_definition(reader.cursor, name, lambda: 0, collation, as_mysql=True)
    table = reader.in_server_form(table, None)
    return replace(table, table_id=reader.scope.next_id())


def _create_index(reader: StatementReader, unique: bool, replacing: bool) -> None:
    cursor = reader.cursor
    unless = cursor.accept("IF", "NOT", "EXISTS")
    index = cursor.name()
    if cursor.accept("USING"):
        cursor.name()
    cursor.expect("ON")
    name = reader.table_name()

    def add(draft: Draft) -> None:
        if draft.has_index(index):
            if unless:
                return
            if replacing:
                draft.indexes.remove(draft.index(index))
        draft.keys.append(key_parts(cursor, index, unique=unique))
        draft.kinds.append(DdlKind.ADD_INDEX)

    reader.redefine(name, add, DdlKind.ADD_INDEX)
    _of_a_stranger(reader, name, DdlKind.ADD_INDEX)


def _of_a_stranger(reader: StatementReader, name: TableId, kind: DdlKind) -> None:
    """Note a change of a table that the filter keeps but that is not captured, maybe for a key."""
    if name not in reader.scope.known and reader.scope.keeps(name):
        reader.change_to_read(kind, name)


# --- DROP, TRUNCATE ------------------------------------------------------------------------------


def _drop(reader: StatementReader) -> None:
    cursor = reader.cursor
    if cursor.accept_any("DATABASE", "SCHEMA"):
        cursor.accept("IF", "EXISTS")
        database = reader.database_name(cursor.name())
        for table in [n for n in reader.scope.known if n.database == database]:
            reader.dropped(table)
        reader.of_database(DdlKind.DROP_DATABASE, database)
    elif cursor.accept("INDEX"):
        unless = cursor.accept("IF", "EXISTS")
        index = cursor.name()
        cursor.expect("ON")
        name = reader.table_name()
        reader.redefine(name, lambda d: drop_index(d, index, unless), DdlKind.DROP_INDEX)
        _of_a_stranger(reader, name, DdlKind.DROP_INDEX)
    else:
        _expect_table(reader)
        cursor.accept("IF", "EXISTS")
        names = reader.table_names()
        for name in names:
            reader.dropped(name, reader.query if len(names) == 1 else None)


def _expect_table(reader: StatementReader) -> None:
    if not reader.cursor.accept_any("TABLE", "TABLES"):
        raise NotUnderstood


def _truncate(reader: StatementReader) -> None:
    reader.cursor.accept("TABLE")
    name = reader.table_name()
    if (old := reader.scope.known.get(name)) is not None:
        new = replace(copied(old, name, reader.scope.next_id), version=0)
        reader.change(DdlKind.TRUNCATE_TABLE, name, new, dropped=old.table_id)


# --- RENAME --------------------------------------------------------------------------------------


def _rename(reader: StatementReader) -> None:
    cursor = reader.cursor
    _expect_table(reader)
    unless = cursor.accept("IF", "EXISTS")
    pairs: list[tuple[TableId, TableId]] = []
    while True:
        old = reader.table_name()
        cursor.expect("TO")
        pairs.append((old, reader.table_name()))
        if not cursor.accept(","):
            break
    _move(reader, _carried_out(pairs, reader.scope.known) if unless else pairs)


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


VERBS: Final[dict[str, Callable[[StatementReader], None]]] = {
    "ALTER": alter,
    "CREATE": _create,
    "DROP": _drop,
    "RENAME": _rename,
    "TRUNCATE": _truncate,
}
