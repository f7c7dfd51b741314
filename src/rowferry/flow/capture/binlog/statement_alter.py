"""ALTER TABLE in the log: columns, keys, partitions, names."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind
from rowferry.change.ddl_alter import Draft, read_alterations
from rowferry.change.ddl_cursor import Cursor
from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.server_form import Untold
from rowferry.flow.capture.binlog.statement_reader import Reader

_OF_PARTITIONS: Final = {
    "ADD": DdlKind.ADD_PARTITION,
    "DROP": DdlKind.DROP_PARTITION,
    "TRUNCATE": DdlKind.TRUNCATE_PARTITION,
    "EXCHANGE": DdlKind.EXCHANGE_PARTITION,
    "REORGANIZE": DdlKind.REORGANIZE_PARTITION,
    "COALESCE": DdlKind.REORGANIZE_PARTITION,
}
_CARE_OF_PARTITIONS: Final = frozenset({"REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REPAIR"})
# Types that become the next longer one where a character set needs more bytes.
_GROWING: Final = frozenset({"tinytext", "text", "mediumtext"})


def alter(reader: Reader) -> None:
    """Read what follows ALTER."""
    cursor = reader.cursor
    if cursor.accept_any("DATABASE", "SCHEMA"):
        unnamed = cursor.at_any("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT")
        name = reader.database if unnamed else cursor.name()
        reader.of_database(DdlKind.DATABASE_CHARSET, name)
        return
    while cursor.accept_any("ONLINE", "OFFLINE", "IGNORE"):
        pass
    cursor.expect("TABLE")
    cursor.accept("IF", "EXISTS")
    _alter_table(reader, reader.table_name())


def _alter_table(reader: Reader, name: TableId) -> None:
    if _of_partitions(reader, name):
        return
    new = _new_name(reader, name)
    if name in reader.scope.known:
        reader.redefine(
            name,
            lambda draft: _read_into(reader, draft, new),
            DdlKind.MULTI_SCHEMA_CHANGE,
            new,
        )
    elif reader.scope.keeps(new):
        if new == name:
            reader.untold(DdlKind.MULTI_SCHEMA_CHANGE, name)
        else:
            reader.arrived(new)


def _read_into(reader: Reader, draft: Draft, new: TableId) -> None:
    cursor = reader.cursor
    begin = reader.partitions_start()
    partitions = cursor.tokens[begin:]
    del cursor.tokens[begin:]
    converts = ("CONVERT", "TO") in [
        (first.word, second.word)
        for first, second in zip(cursor.tokens, cursor.tokens[1:], strict=False)
    ]
    read_alterations(cursor, draft)
    draft.name = new
    if partitions:
        by = partitions[0].word == "PARTITION"
        draft.kinds.append(DdlKind.ALTER_PARTITIONING if by else DdlKind.REMOVE_PARTITIONING)
    if DdlKind.TABLE_CHARSET in draft.kinds:
        if {DdlKind.ADD_COLUMN, DdlKind.MODIFY_COLUMN} & set(draft.kinds):
            raise Untold  # columns of the same statement may have the old one or the new one
        if converts and any(c.type.name in _GROWING for c in draft.table.columns):
            raise Untold


def _new_name(reader: Reader, name: TableId) -> TableId:
    """Return the name that the table has after the statement; nothing is consumed."""
    tokens, here = reader.cursor.tokens, reader.cursor.place
    for place in range(here, len(tokens)):
        starts = place == here or tokens[place - 1].word == ","
        if not starts or tokens[place].word != "RENAME":
            continue
        ahead = Cursor("")
        ahead.tokens, ahead.place = tokens, place + 1
        if ahead.at_any("COLUMN", "INDEX", "KEY"):
            continue
        ahead.accept_any("TO", "AS", "=")
        database, table = ahead.qualified_name()
        return reader.scope.name(TableId(database or reader.database or name.database, table))
    return name


# --- partitions ----------------------------------------------------------------------------------


def _of_partitions(reader: Reader, name: TableId) -> bool:
    """Read what is done to single partitions; return whether that is what the statement does.

    Definitions stay, but rows may come and go without a trace in the log.
    """
    cursor = reader.cursor
    verb = cursor.peek().word
    if cursor.accept("CONVERT", "TABLE"):
        reader.dropped(reader.table_name())
        _same(reader, name, DdlKind.EXCHANGE_PARTITION)
    elif cursor.peek(1).word != "PARTITION" or cursor.at("PARTITION"):
        return False
    elif verb == "CONVERT":
        _same(reader, name, DdlKind.DROP_PARTITION)
        made = _other_table(reader)
        if reader.scope.keeps(made):
            reader.arrived(made)
    elif verb in _OF_PARTITIONS:
        _same(reader, name, _OF_PARTITIONS[verb])
        if verb == "EXCHANGE":
            _same(reader, _other_table(reader), DdlKind.EXCHANGE_PARTITION)
    else:
        return verb in _CARE_OF_PARTITIONS
    return True


def _other_table(reader: Reader) -> TableId:
    """Consume up to the word TABLE, and the name after it."""
    while not reader.cursor.accept("TABLE"):
        reader.cursor.take()
    return reader.table_name()


def _same(reader: Reader, name: TableId, kind: DdlKind) -> None:
    """Note a change that leaves a captured table's definition as it is."""
    if (table := reader.scope.known.get(name)) is not None:
        reader.change(kind, name, replace(table, version=0))
