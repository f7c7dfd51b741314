"""ALTER TABLE in the log: columns, keys, partitions, names."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.ddl.reader import StatementReader
from rowferry.mysql.charsets import longest_character
from rowferry.mysql.ddl.alter import Draft, read_alterations
from rowferry.mysql.ddl.clauses import (
    accept_modifiers,
    accept_new_name,
    accept_of_partitions,
    partitions_start,
    split_clauses,
)
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import Head
from rowferry.mysql.ddl.table import quoted_table
from rowferry.mysql.server_form import Untold
from rowferry.mysql.type_facts import display_width

_OF_PARTITIONS: Final = {
    "ADD": DdlKind.ADD_PARTITION,
    "DROP": DdlKind.DROP_PARTITION,
    "TRUNCATE": DdlKind.TRUNCATE_PARTITION,
    "EXCHANGE": DdlKind.EXCHANGE_PARTITION,
    "REORGANIZE": DdlKind.REORGANIZE_PARTITION,
    "COALESCE": DdlKind.REORGANIZE_PARTITION,
}
# With IGNORE, MariaDB deletes the rows that do not fit these, and the log does not tell which.
_TAKES_ROWS: Final = frozenset({"UNIQUE", "PRIMARY", "PARTITION"})
_TAKEN_AWAY: Final = frozenset({DdlKind.DROP_COLUMN, DdlKind.DROP_INDEX, DdlKind.DROP_PRIMARY_KEY})
# Keys may be over the beginning of these kinds' values.
_WITH_PREFIXES: Final = frozenset({Kind.TEXT, Kind.BINARY})
_LONG: Final = 1 << 32
# Types that become the next longer one where a character set needs more bytes.
_GROWING: Final = frozenset({"tinytext", "text", "mediumtext"})


def alter_database(reader: StatementReader, head: Head) -> None:
    """Note what ALTER DATABASE does."""
    name = head.database.database if head.database else reader.database
    reader.of_database(DdlKind.DATABASE_CHARSET, name)


def alter_table(reader: StatementReader, head: Head) -> None:
    """Read what follows the head of ALTER TABLE."""
    name = reader.name(head.table)
    if "IGNORE" in head.between and name in reader.scope.known:
        words = {token.word for token in reader.cursor.tokens}
        reader.thinned += [name] if words & _TAKES_ROWS else []
    accept_modifiers(reader.cursor)
    if _of_tablespace(reader, name) or _of_partitions(reader, name):
        return
    new, rest = _new_name(reader, name)
    if rest and name in reader.scope.known:
        _rename(reader, name, new, rest)
        name = new
        if not reader.scope.keeps(new):
            return
    if name in reader.scope.known:
        reader.redefine(
            name,
            lambda draft: _read_into(reader, draft, new),
            DdlKind.MULTI_SCHEMA_CHANGE,
            new,
        )
    elif reader.scope.keeps(new):
        if new == name:
            reader.change_to_read(DdlKind.MULTI_SCHEMA_CHANGE, name)
        else:
            reader.arrived(new)


def _of_tablespace(reader: StatementReader, name: TableId) -> bool:
    """Read what takes files with a table's rows away, or brings others; return whether it does.

    Nothing of that is in the log: the table is gone, and another one comes in its place.
    """
    verb = reader.cursor.accept_any("DISCARD", "IMPORT")
    if verb:
        reader.dropped(name)
    if verb == "IMPORT" and reader.scope.keeps(name):
        reader.arrived(name)
    return bool(verb)


def _rename(reader: StatementReader, name: TableId, new: TableId, rest: str) -> None:
    """Note a rename beside which the statement does more, as a change before all that.

    Consumers find a rename in a statement of its own only.
    """
    known = dict(reader.scope.known)
    known[new] = moved = replace(known.pop(name), id=new, version=0)
    reader.change(DdlKind.RENAME_TABLE, new, moved, previous=name)
    reader.scope = replace(reader.scope, known=known)
    reader.query = f"ALTER TABLE {quoted_table(new)} {rest}"


def _read_into(reader: StatementReader, draft: Draft, new: TableId) -> None:
    cursor = reader.cursor
    begin = partitions_start(cursor)
    partitions = cursor.tokens[begin:]
    del cursor.tokens[begin:]
    pairs = [
        (first.word, second.word)
        for first, second in zip(cursor.tokens, cursor.tokens[1:], strict=False)
    ]
    converts = ("CONVERT", "TO") in pairs
    read_alterations(cursor, draft)
    draft.name = new
    if draft.table.id == new:  # it was renamed before
        draft.kinds = [kind for kind in draft.kinds if kind is not DdlKind.RENAME_TABLE]
    if partitions:
        by = partitions[0].word == "PARTITION"
        draft.kinds.append(DdlKind.ALTER_PARTITIONING if by else DdlKind.REMOVE_PARTITIONING)
    if _may_count_now(draft) or _may_move_key(draft):
        raise Untold
    if ("NOT", "EXISTS") in pairs and _TAKEN_AWAY & set(draft.kinds):
        raise Untold  # what was there before the statement counts as existing, dropped by it or not
    if DdlKind.TABLE_CHARSET in draft.kinds:
        if {DdlKind.ADD_COLUMN, DdlKind.MODIFY_COLUMN} & set(draft.kinds):
            raise Untold  # columns of the same statement may have the old one or the new one
        if converts and any(c.type.name in _GROWING for c in draft.table.columns):
            raise Untold


def _may_count_now(draft: Draft) -> bool:
    """Return whether a key that counted as not unique, for a prefix in it, may have none now.

    Definitions do not tell such keys from those that are not unique.
    """
    now = {slot.was: slot.column.type for slot in draft.slots}
    lost = set()
    for column in draft.table.columns:
        name, was = column.name.lower(), column.type
        if was.kind in _WITH_PREFIXES:
            new = now.get(name)
            if new is None or new.kind not in _WITH_PREFIXES or _bytes(new) < _bytes(was):
                lost.add(name)
    for index in draft.indexes:
        names = {c.lower() for c in index.columns}
        if not index.unique and not names.isdisjoint(lost) and not names.isdisjoint(now):
            return True
    return False


def _may_move_key(draft: Draft) -> bool:
    """Return whether a key may be over a new column now, which has the name of one of its old ones.

    Servers look for the columns of keys by name among all that the table then has: a key outlives
    DROP COLUMN where the same statement adds a column of that name.
    """
    added = {slot.column.name.lower() for slot in draft.slots if not slot.was}
    return any(name.lower() in added for index in draft.indexes for name in index.columns)


def _bytes(kind: SqlType) -> int:
    """Return how long values may be; of types without a width, longer than any."""
    return (display_width(kind) or _LONG) * longest_character(kind.charset)


def _new_name(reader: StatementReader, name: TableId) -> tuple[TableId, str]:
    """Return the name that the table has after the statement; nothing is consumed.

    Also returns what else a statement that renames the table does to it, as text.
    """
    cursor = reader.cursor.at_place(reader.cursor.place)
    here, end = cursor.place, len(cursor.tokens)
    for clause in split_clauses(cursor, strict=False):
        ahead = cursor.at_place(clause.first)
        written = accept_new_name(ahead)
        if written is None:
            continue
        new = reader.scope.name(written.within(reader.database or name.database))
        first, last = clause.first, ahead.place
        if first > here:
            first -= 1  # the comma before it
        elif ahead.at(","):
            last += 1
        parts = (_text(cursor, here, first), _text(cursor, last, end))
        return new, "" if new == name else "".join(parts).strip(" ;")
    return name, ""


def _text(cursor: TokenCursor, first: int, last: int) -> str:
    """Return the text from one token to before another."""
    begin, end = (
        cursor.tokens[place].start if place < len(cursor.tokens) else len(cursor.sql)
        for place in (first, last)
    )
    return cursor.sql[begin:end]


# --- partitions ----------------------------------------------------------------------------------


def _of_partitions(reader: StatementReader, name: TableId) -> bool:
    """Read what is done to single partitions; return whether that is what the statement does.

    Definitions stay, but rows may come and go without a trace in the log.
    """
    done = accept_of_partitions(reader.cursor)
    if done is None:
        return False
    other = reader.name(done.other) if done.other is not None else name
    if done.verb == "CONVERT" and done.takes:
        _same(reader, name, DdlKind.EXCHANGE_PARTITION)
        # Whoever runs the statement needs the table for it, and has it no more then.
        reader.dropped(other, f"DROP TABLE IF EXISTS {quoted_table(other)}")
    elif done.verb == "CONVERT":
        _same(reader, name, DdlKind.DROP_PARTITION)
        if reader.scope.keeps(other):
            reader.arrived(other)
    elif done.verb in _OF_PARTITIONS:
        _same(reader, name, _OF_PARTITIONS[done.verb])
        if done.verb == "EXCHANGE":
            is_known = name in reader.scope.known
            # The statement stands once: run a second time it would change them back.
            text = "" if is_known else None
            _same(reader, other, DdlKind.EXCHANGE_PARTITION, text)
    return True


def _same(reader: StatementReader, name: TableId, kind: DdlKind, query: str | None = None) -> None:
    """Note a change that leaves a captured table's definition as it is."""
    if (table := reader.scope.known.get(name)) is not None:
        reader.change(kind, name, replace(table, version=0), query=query)
