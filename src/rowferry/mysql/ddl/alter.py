"""ALTER TABLE: the next definition of a table from its last one and the statement's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.chunk import DdlKind
from rowferry.change.table import Column, Index, Partitioning, TableId, TablePartition, TableSchema
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.clauses import accept_new_name
from rowferry.mysql.ddl.column import Key, at_key, key_parts, read_column, read_key, settle
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import Head
from rowferry.mysql.ddl.table import (
    TableOptions,
    check_partitions,
    read_options,
    read_partitions,
    with_new_ids,
)
from rowferry.mysql.ddl.type import (
    accept_charset,
    charset_of_collation,
    collation_of,
    narrowed,
    read_default,
    with_charset,
)

_UNDERSTOOD: Final = (
    "ADD, DROP, MODIFY, CHANGE, RENAME, ALTER COLUMN, CONVERT TO, ADD/DROP/TRUNCATE PARTITION, "
    "table options"
)
_OPTION_STARTS: Final = frozenset(
    "DEFAULT CHARACTER CHARSET CHAR COLLATE COMMENT AUTO_INCREMENT ENGINE ROW_FORMAT "
    "KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS AVG_ROW_LENGTH STATS_PERSISTENT STATS_AUTO_RECALC "
    "STATS_SAMPLE_PAGES CHECKSUM COMPRESSION ENCRYPTION PACK_KEYS TABLESPACE CONNECTION "
    "INSERT_METHOD DELAY_KEY_WRITE AUTO_ID_CACHE SHARD_ROW_ID_BITS PAGE_COMPRESSED".split()
)
_WITHOUT_MEANING: Final = (
    "ALGORITHM",
    "LOCK",
    "FORCE",
    "ENABLE",
    "DISABLE",
    "ORDER",
    "WITH",
    "WITHOUT",
)


@dataclass(slots=True)
class _Slot:
    """A column of the table being altered; `was` is its lower-case name before the statement."""

    was: str
    column: Column


class Draft:
    """A table between two versions.

    All parts of one ALTER TABLE speak of the columns as they were before it (so that two columns
    can swap names); new positions and new keys speak of them as they are after it.
    """

    def __init__(
        self, table: TableSchema, next_id: Callable[[], int], as_mysql: bool = False
    ) -> None:
        self.table = table
        self.as_mysql = as_mysql  # new keys over prefixes name no rows
        self.name: TableId = table.id
        self.kinds: list[DdlKind] = []
        self.slots = [_Slot(c.name.lower(), c) for c in table.columns]
        self._first_before = self.slots[0].was if self.slots else ""
        self.indexes: list[Index] = list(table.indexes)
        self.keys: list[Key] = []
        self.partitioning: Partitioning | None = table.partitioning
        self.charset = table.collation or table.charset
        self.comment = table.comment
        self.next_id = next_id
        self.dropped_column_id = table.dropped_column_id

    # --- columns ---------------------------------------------------------------------------------

    def slot(self, name: str) -> _Slot:
        """Return a column by the name that it had before the statement."""
        for slot in self.slots:
            if slot.was == name.lower():
                return slot
        raise BadStatement(f"table {self.table.id} has no column {name!r}")

    def has(self, name: str) -> bool:
        """Return whether the table had a column of that name before the statement."""
        return any(s.was == name.lower() for s in self.slots)

    def add(self, column: Column) -> _Slot:
        """Append a new column, with an id that no column of this table ever had."""
        used = max([self.dropped_column_id, *(s.column.id for s in self.slots)])
        slot = _Slot("", replace(column, id=used + 1, filled=column.default))
        self.slots.append(slot)
        return slot

    def drop(self, name: str) -> None:
        """Take a column away; keys lose it when the draft is finished."""
        slot = self.slot(name)
        if self.partitioning and self.partitioning.column.lower() == slot.was:
            raise BadStatement(f"table {self.table.id} is partitioned by the column {name!r}")
        self.slots.remove(slot)
        self.dropped_column_id = max(self.dropped_column_id, slot.column.id)

    def move(self, slot: _Slot, cursor: TokenCursor) -> None:
        """Consume FIRST or AFTER, if there is one, and put the column there."""
        if cursor.accept("FIRST"):
            self.slots.remove(slot)
            self.slots.insert(0, slot)
        elif cursor.accept("AFTER"):
            name = cursor.name()
            self.slots.remove(slot)
            near = [s for s in self.slots if s.column.name.lower() == name.lower()]
            if not near:
                raise BadStatement(f"table {self.table.id} has no column {name!r} to put one after")
            self.slots.insert(self.slots.index(near[0]) + 1, slot)

    def _keep_made_key_first(self) -> None:
        """Put a primary key that MySQL made by itself in front of all columns, where it stays."""
        for slot in self.slots:
            made = slot.column.name == "my_row_id" and slot.column.invisible
            if made and slot.column.auto_increment and slot.was == self._first_before:
                self.slots.remove(slot)
                self.slots.insert(0, slot)
                return

    # --- keys and partitions ---------------------------------------------------------------------

    def index(self, name: str) -> Index:
        """Return an index by name, in any case."""
        for index in self.indexes:
            if index.name.lower() == name.lower():
                return index
        raise BadStatement(f"table {self.table.id} has no key {name!r}")

    def has_index(self, name: str) -> bool:
        """Return whether the table has an index of that name."""
        return any(i.name.lower() == name.lower() for i in self.indexes)

    def parts(self) -> Partitioning:
        """Return the table's partitioning, or refuse."""
        if self.partitioning is None:
            raise BadStatement(f"table {self.table.id} is not partitioned")
        return self.partitioning

    def named_parts(self, names: list[str]) -> set[str]:
        """Return the names in lower case, or refuse unknown ones."""
        known = {p.name.lower() for p in self.parts().partitions}
        for name in names:
            if name.lower() not in known:
                raise BadStatement(f"table {self.table.id} has no partition {name!r}")
        return {n.lower() for n in names}

    # --- end -------------------------------------------------------------------------------------

    @property
    def kind(self) -> DdlKind:
        """What the statement does as a whole."""
        return self.kinds[0] if len(self.kinds) == 1 else DdlKind.MULTI_SCHEMA_CHANGE

    def finish(self) -> TableSchema:
        """Return the definition after the statement, or refuse what does not fit together."""
        self._keep_made_key_first()
        now = {s.was: s.column.name for s in self.slots if s.was}
        kept = []
        for index in self.indexes:
            names = tuple(now[c.lower()] for c in index.columns if c.lower() in now)
            if names or not index.columns:
                kept.append(replace(index, columns=names))
        now_there = [s.column for s in self.slots]
        columns, indexes = settle(self.name, now_there, kept, self.keys, self.as_mysql)
        parts = self.partitioning
        if parts is not None:
            parts = replace(parts, column=now[parts.column.lower()])
            check_partitions(self.name, parts)
        return replace(
            self.table,
            id=self.name,
            version=0,
            columns=columns,
            indexes=indexes,
            partitioning=parts,
            charset=charset_of_collation(self.charset),
            collation=collation_of(self.charset),
            comment=self.comment,
            dropped_column_id=self.dropped_column_id,
        )


def read_alterations(cursor: TokenCursor, draft: Draft) -> None:
    """Consume everything after `ALTER TABLE name` into the draft."""
    while True:
        _read_one(cursor, draft)
        if not cursor.accept(","):
            break
    cursor.finish()


def _read_one(cursor: TokenCursor, draft: Draft) -> None:
    word = cursor.peek().word
    if word in _OPTION_STARTS:
        _options(cursor, draft)
    elif word in _WITHOUT_MEANING or cursor.done():
        cursor.skip_to_comma()
    elif word in _ACTIONS:
        cursor.take()
        _ACTIONS[word](cursor, draft)
    else:
        cursor.fail(f"ALTER TABLE … {word} is not understood; understood: {_UNDERSTOOD}")


# --- one function for each first word ------------------------------------------------------------


def _add(cursor: TokenCursor, draft: Draft) -> None:
    if cursor.accept("PARTITION"):
        _add_partitions(cursor, draft)
    elif at_key(cursor):
        _add_key(cursor, draft)
    else:
        cursor.accept("COLUMN")
        unless = cursor.accept("IF", "NOT", "EXISTS")
        if not cursor.accept("("):
            _add_column(cursor, draft, unless)
            return
        while True:
            _add_key(cursor, draft) if at_key(cursor) else _add_column(cursor, draft, unless)
            if not cursor.accept(","):
                break
        cursor.expect(")")


def _add_column(cursor: TokenCursor, draft: Draft, unless: bool) -> None:
    column, keys = read_column(cursor, draft.charset)
    if unless and draft.has(column.name):
        cursor.skip_to_comma()
        return
    draft.move(draft.add(column), cursor)
    draft.keys += keys
    draft.kinds.append(DdlKind.ADD_COLUMN)


def _add_key(cursor: TokenCursor, draft: Draft) -> None:
    start = cursor.place
    key = read_key(cursor)
    unless = any(t.word == "EXISTS" for t in cursor.tokens[start : start + 5])
    if isinstance(key, str):
        draft.kinds += [DdlKind.ADD_FOREIGN_KEY] if key == "FOREIGN" else []
    # A key without a name is there, for MariaDB, if one has the name of its first column.
    elif not (unless and draft.has_index(key.name or "".join(key.columns[:1]))):
        draft.keys.append(key)
        draft.kinds.append(DdlKind.ADD_PRIMARY_KEY if key.primary else DdlKind.ADD_INDEX)


def _add_partitions(cursor: TokenCursor, draft: Draft) -> None:
    cursor.accept("IF", "NOT", "EXISTS")
    parts = draft.parts()
    if parts.method != "range":
        cursor.fail("ADD PARTITION is understood for RANGE only: others would move rows")
    added = read_partitions(cursor, True, draft.next_id)
    draft.partitioning = replace(parts, partitions=(*parts.partitions, *added))
    draft.kinds.append(DdlKind.ADD_PARTITION)


def _drop(cursor: TokenCursor, draft: Draft) -> None:
    if cursor.accept("PRIMARY", "KEY"):
        drop_index(draft, "PRIMARY", unless=False)
    elif cursor.accept_any("INDEX", "KEY"):
        unless = cursor.accept("IF", "EXISTS")
        drop_index(draft, cursor.name(), unless)
    elif cursor.accept("FOREIGN", "KEY"):
        cursor.accept("IF", "EXISTS")
        cursor.name()
        draft.kinds.append(DdlKind.DROP_FOREIGN_KEY)
    elif cursor.accept("CHECK"):
        cursor.name()
    elif cursor.accept("CONSTRAINT"):
        cursor.accept("IF", "EXISTS")
        name = cursor.name()
        if draft.has_index(name):  # else a foreign key or a check
            drop_index(draft, name, unless=False)
    elif cursor.accept("PARTITION"):
        _drop_partitions(cursor, draft)
    else:
        cursor.accept("COLUMN")
        unless = cursor.accept("IF", "EXISTS")
        name = cursor.name()
        cursor.accept_any("RESTRICT", "CASCADE")
        if draft.has(name) or not unless:
            draft.drop(name)
            draft.kinds.append(DdlKind.DROP_COLUMN)


def add_index(cursor: TokenCursor, draft: Draft, head: Head) -> None:
    """Consume what CREATE INDEX says behind its head, and put the index in."""
    key = key_parts(cursor, head.index, unique="UNIQUE" in head.between)
    if draft.has_index(head.index):
        if head.conditional:
            return
        if head.replaces:
            draft.indexes.remove(draft.index(head.index))
    draft.keys.append(key)
    draft.kinds.append(DdlKind.ADD_INDEX)


def drop_index(draft: Draft, name: str, unless: bool) -> None:
    """Take an index away; `unless`: one that does not exist is no error."""
    if unless and not draft.has_index(name):
        return
    index = draft.index(name)
    draft.indexes.remove(index)
    draft.kinds.append(DdlKind.DROP_PRIMARY_KEY if index.primary else DdlKind.DROP_INDEX)


def _drop_partitions(cursor: TokenCursor, draft: Draft) -> None:
    unless = cursor.accept("IF", "EXISTS")
    names = _partition_names(cursor)
    parts = draft.parts()
    gone = {n.lower() for n in names} if unless else draft.named_parts(names)
    kept: tuple[TablePartition, ...] = tuple(
        p for p in parts.partitions if p.name.lower() not in gone
    )
    if parts.method != "range" or not kept:
        cursor.fail("DROP PARTITION is understood for RANGE only, and one partition must stay")
    draft.partitioning = replace(parts, partitions=kept)
    draft.kinds.append(DdlKind.DROP_PARTITION)


def _partition_names(cursor: TokenCursor) -> list[str]:
    """Consume partition names; they stand last in a statement, so every comma is theirs."""
    return cursor.names()


def _truncate(cursor: TokenCursor, draft: Draft) -> None:
    cursor.expect("PARTITION")
    parts = draft.parts()
    if cursor.accept("ALL"):
        names = [p.name for p in parts.partitions]
    else:
        names = _partition_names(cursor)
    draft.partitioning = with_new_ids(parts, list(draft.named_parts(names)), draft.next_id)
    draft.kinds.append(DdlKind.TRUNCATE_PARTITION)


def _modify(cursor: TokenCursor, draft: Draft) -> None:
    cursor.accept("COLUMN")
    unless = cursor.accept("IF", "EXISTS")
    _redefine(cursor, draft, cursor.peek().text, unless)


def _change(cursor: TokenCursor, draft: Draft) -> None:
    cursor.accept("COLUMN")
    unless = cursor.accept("IF", "EXISTS")
    _redefine(cursor, draft, cursor.name(), unless)


def _redefine(cursor: TokenCursor, draft: Draft, name: str, unless: bool) -> None:
    column, keys = read_column(cursor, draft.charset)
    if unless and not draft.has(name):
        cursor.skip_to_comma()
        return
    slot = draft.slot(name)
    slot.column = replace(column, id=slot.column.id, filled=slot.column.filled)
    draft.keys += keys
    draft.move(slot, cursor)
    draft.kinds.append(DdlKind.MODIFY_COLUMN)


def _rename(cursor: TokenCursor, draft: Draft) -> None:
    if cursor.accept("COLUMN"):
        cursor.accept("IF", "EXISTS")
        slot = draft.slot(cursor.name())
        cursor.expect("TO")
        slot.column = replace(slot.column, name=cursor.name())
        draft.kinds.append(DdlKind.MODIFY_COLUMN)
    elif cursor.accept_any("INDEX", "KEY"):
        cursor.accept("IF", "EXISTS")
        index = draft.index(cursor.name())
        cursor.expect("TO")
        new = replace(index, name=cursor.name())
        if draft.has_index(new.name) and new.name.lower() != index.name.lower():
            raise BadStatement(f"table {draft.table.id} already has a key {new.name!r}")
        draft.indexes[draft.indexes.index(index)] = new
        draft.kinds.append(DdlKind.RENAME_INDEX)
    else:
        cursor.place -= 1
        written = accept_new_name(cursor)
        if written is None:
            cursor.fail("expected the name of a table")
        draft.name = written.within(draft.table.id.database)
        draft.kinds.append(DdlKind.RENAME_TABLE)


def _alter(cursor: TokenCursor, draft: Draft) -> None:
    if cursor.accept_any("INDEX", "KEY"):
        cursor.accept("IF", "EXISTS")
        draft.index(cursor.name())
        cursor.skip_to_comma()
        draft.kinds.append(DdlKind.INDEX_VISIBILITY)
        return
    if cursor.accept_any("CHECK", "CONSTRAINT"):
        cursor.skip_to_comma()
        return
    cursor.accept("COLUMN")
    cursor.accept("IF", "EXISTS")
    slot = draft.slot(cursor.name())
    old = slot.column
    if cursor.accept("DROP", "DEFAULT"):
        # What a generated column is computed by is no default: it stays.
        kept = old.expression if old.generated else ""
        slot.column = replace(old, default=None, expression=kept)
        draft.kinds.append(DdlKind.SET_DEFAULT)
    elif cursor.accept("SET", "DEFAULT"):
        value, expression = read_default(cursor, old.type, old.name)
        slot.column = replace(old, default=value, expression=expression)
        draft.kinds.append(DdlKind.SET_DEFAULT)
    else:
        cursor.expect("SET")
        word = cursor.accept_any("VISIBLE", "INVISIBLE")
        if not word:
            cursor.fail("expected DEFAULT, VISIBLE or INVISIBLE")
        slot.column = replace(old, invisible=word == "INVISIBLE")
        draft.kinds.append(DdlKind.MODIFY_COLUMN)


def _convert(cursor: TokenCursor, draft: Draft) -> None:
    cursor.expect("TO")
    charset = accept_charset(cursor)
    if not charset:
        cursor.fail("expected CHARACTER SET")
    charset = narrowed(charset, accept_charset(cursor) or charset)
    cursor.skip_to_comma()
    draft.charset = charset
    for slot in draft.slots:
        slot.column = replace(slot.column, type=with_charset(slot.column.type, charset))
    draft.kinds.append(DdlKind.TABLE_CHARSET)


def _options(cursor: TokenCursor, draft: Draft) -> None:
    options = TableOptions()
    read_options(cursor, options)
    if options.charset is not None:
        draft.charset = options.charset
        draft.kinds.append(DdlKind.TABLE_CHARSET)
    if options.comment is not None:
        draft.comment = options.comment
        draft.kinds.append(DdlKind.TABLE_COMMENT)
    if options.auto_increment is not None:
        draft.kinds.append(DdlKind.REBASE_AUTO_ID)


_ACTIONS: Final[dict[str, Callable[[TokenCursor, Draft], None]]] = {
    "ADD": _add,
    "DROP": _drop,
    "TRUNCATE": _truncate,
    "MODIFY": _modify,
    "CHANGE": _change,
    "RENAME": _rename,
    "ALTER": _alter,
    "CONVERT": _convert,
}
