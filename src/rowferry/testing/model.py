"""The oracle: every committed transaction of the source, as it was acknowledged.

A writer notes each commit after the source acknowledged it; MySQL cannot be read in the past, so
this is what a feed is measured against. Row values are canonical (see `rowferry.change.sqltype`)
and rows hold the columns that codecs write, i.e. all but virtual generated ones.
"""

from __future__ import annotations

import base64
import json
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import pyarrow as pa

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput
from rowferry.testing.evolve import (
    column_origins,
    convert_value,
    default_value,
    refuse_unmodelled,
)

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]


class RowChange(NamedTuple):
    """One acknowledged change of one row.

    `key` is the handle key in table order, of `after` (of `before` for a delete). A writer that
    does not know the row's previous state may leave `before` None; the oracle then fills it in.
    """

    table: TableId
    op: Op
    key: Key
    before: Row | None
    after: Row | None


def key_of(table: TableSchema, row: Mapping[str, Any]) -> Key:
    """Return a row's handle key; of a keyless table, all its values."""
    return tuple(row[c] for c in table.handle_key or [c.name for c in table.visible])


def canonical_row(table: TableSchema, row: Mapping[str, Any]) -> Row:
    """Return `row` with every value as a chunk would hold it (FLOAT rounded, integers checked)."""
    return {
        name: pa.scalar(value, table.column(name).type.arrow).as_py() for name, value in row.items()
    }


@dataclass(slots=True)
class TableStates:
    """The rows of all tables at one moment, moved on by changes and schema changes."""

    rows: dict[TableId, dict[Key, Row]] = field(default_factory=dict)
    schemas: dict[TableId, TableSchema] = field(default_factory=dict)

    def apply(self, change: RowChange, moved_from: Key | None = None) -> None:
        """Apply one change as upsert or delete; `moved_from` is the key that an update left."""
        here = self.rows.setdefault(change.table, {})
        if moved_from is not None:
            here.pop(moved_from, None)
        if change.after is None:
            here.pop(change.key, None)
        else:
            here[change.key] = change.after

    def apply_schema_change(self, change: SchemaChange) -> set[TableId]:
        """Apply one DDL; return the tables whose rows may have changed.

        Raises:
            BadInput: the DDL moves rows in a way that cannot be known here.
        """
        refuse_unmodelled(change.kind, change.query)
        if change.kind is DdlKind.DROP_DATABASE:
            gone = {t for t in self.rows if t.database == change.table.database}
            for table in gone:
                self._forget(table)
            return gone
        if change.kind is DdlKind.DROP_TABLE:
            self._forget(change.table)
            return {change.table}
        if change.schema is None:
            return set()
        touched = {change.table}
        if change.kind is DdlKind.RENAME_TABLE and change.previous is not None:
            touched.add(change.previous)
            self.rows[change.table] = self.rows.get(change.previous, {})
            if change.previous in self.schemas:
                self.schemas[change.table] = self.schemas[change.previous]
            self._forget(change.previous)
        elif change.kind in (DdlKind.TRUNCATE_TABLE, DdlKind.CREATE_TABLE):
            self.rows[change.table] = {}
        self._convert(change.schema, change.query)
        return touched

    def _forget(self, table: TableId) -> None:
        self.rows.pop(table, None)
        self.schemas.pop(table, None)

    def _convert(self, new: TableSchema, query: str) -> None:
        old = self.schemas.get(new.id)
        self.schemas[new.id] = new
        rows = self.rows.setdefault(new.id, {})
        if old is None or not rows or old.columns == new.columns and old.indexes == new.indexes:
            return
        origins = [o for o in column_origins(old, new, query) if o[0].generated != "virtual"]
        moved: dict[Key, Row] = {}
        for key, row in rows.items():
            fresh: Row = {
                column.name: convert_value(row[origin.name], origin.type, column.type)
                if origin is not None and origin.name in row
                else default_value(column)
                for column, origin in origins
            }
            moved[key_of(new, fresh) if new.handle_key else key] = fresh
        self.rows[new.id] = moved


class Commit(NamedTuple):
    """One transaction."""

    commit_ts: int
    changes: tuple[RowChange, ...]


Entry: TypeAlias = TableSchema | SchemaChange | Commit


class History:
    """What the source committed, in commit order whatever the order of the notes; thread-safe.

    With a path every note is appended to that file as one JSON line and handed to the operating
    system before the call returns, so a writer killed at any moment leaves what `load` can read.
    A file that exists is continued; what it holds is not read back here.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._entries: list[tuple[int, int, int, Entry]] = []  # commit-ts, rank, order of notes
        self._order = count()
        self._in_order = True
        self._file: TextIO | None = _open_at_line(path) if path else None

    def note_table(self, table: TableSchema) -> None:
        """Note a table that exists before the first noted change, as of its version."""
        self._note(table.version, 0, table)

    def note_schema_change(self, change: SchemaChange) -> None:
        """Note a DDL that the source acknowledged.

        Raises:
            BadInput: the DDL moves rows in a way that the model cannot follow.
        """
        refuse_unmodelled(change.kind, change.query)
        self._note(change.commit_ts, 1, change)

    def note_commit(self, commit_ts: int, changes: Iterable[RowChange]) -> None:
        """Note a transaction that the source acknowledged, with its changes in statement order."""
        self._note(commit_ts, 2, Commit(commit_ts, tuple(changes)))

    def close(self) -> None:
        """Close the file, if any."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def entries(self) -> list[Entry]:
        """Return everything noted so far, in commit order; at one commit-ts a DDL stands first."""
        with self._lock:
            if not self._in_order:
                self._entries.sort(key=lambda e: e[:3])
                self._in_order = True
            return [e[3] for e in self._entries]

    def replay(self) -> HistoryReplay:
        """Return a replay of what is noted now, standing before the first entry."""
        return HistoryReplay(self.entries())

    def rows_at(self, table: TableId, commit_ts: int) -> dict[Key, Row]:
        """Return the table's rows as of that commit-ts (inclusive)."""
        replay = self.replay()
        replay.advance(commit_ts)
        return dict(replay.states.rows.get(table, {}))

    def version_at(self, table: TableId, commit_ts: int) -> TableSchema | None:
        """Return the version in force at that commit-ts; None: there was no such table."""
        return self.versions().at(table, commit_ts)

    def versions(self) -> Versions:
        """Return which table version was in force when, for many questions."""
        return Versions(self.entries())

    def changes(
        self, table: TableId, after_ts: int = 0, until_ts: int | None = None
    ) -> list[tuple[int, RowChange]]:
        """Return the table's changes with after_ts < commit-ts ≤ until_ts, in commit order."""
        return [
            (entry.commit_ts, change)
            for entry in self.entries()
            if isinstance(entry, Commit)
            and after_ts < entry.commit_ts
            and (until_ts is None or entry.commit_ts <= until_ts)
            for change in entry.changes
            if change.table == table
        ]

    def schema_changes(self) -> list[SchemaChange]:
        """Return every DDL, in commit order."""
        return [e for e in self.entries() if isinstance(e, SchemaChange)]

    def last_commit_ts(self) -> int:
        """Return the highest commit-ts noted; 0 without any."""
        with self._lock:
            return max((e[0] for e in self._entries), default=0)

    def save(self, path: Path) -> None:
        """Write everything noted to a new file, in commit order."""
        with open(path, "w", encoding="utf-8") as file:
            for entry in self.entries():
                file.write(_line(entry))

    @classmethod
    def load(cls, *paths: Path) -> History:
        """Read histories that `save` or appending wrote, as one.

        A last line without its end is left out: the writer died inside it.

        Raises:
            BadInput: a whole line that is not a history entry.
        """
        history = cls()
        for path in paths:
            for number, line in enumerate(path.read_text("utf-8").split("\n")[:-1], 1):
                try:
                    entry = _entry(json.loads(line, object_hook=_unhide))
                except (ValueError, KeyError, TypeError) as err:
                    raise BadInput(f"{path} line {number} is not a history entry: {err}") from err
                match entry:
                    case TableSchema():
                        history.note_table(entry)
                    case SchemaChange():
                        history.note_schema_change(entry)
                    case Commit():
                        history.note_commit(*entry)
        return history

    def _note(self, commit_ts: int, rank: int, entry: Entry) -> None:
        line = _line(entry) if self._file is not None else ""
        with self._lock:
            if self._file is not None:
                self._file.write(line)
                self._file.flush()
            place = (commit_ts, rank, next(self._order), entry)
            self._in_order &= not self._entries or self._entries[-1][:3] <= place[:3]
            self._entries.append(place)


class HistoryReplay:
    """A history played forward: `states` holds every table's rows at the moment reached."""

    def __init__(self, entries: list[Entry]) -> None:
        self.states = TableStates()
        self._rest = iter(entries)
        self._next: Entry | None = next(self._rest, None)

    def advance(self, until_ts: int) -> dict[TableId, set[Key] | None]:
        """Apply everything at or below `until_ts`; return the touched keys (None: all) by table."""
        touched: dict[TableId, set[Key] | None] = {}
        for entry in self._until(until_ts):
            self.play(entry, touched)
        return touched

    def play(self, entry: Entry, touched: dict[TableId, set[Key] | None]) -> None:
        """Apply one entry; add what it touches."""
        match entry:
            case TableSchema():
                self.states.schemas[entry.id] = entry
                self.states.rows.setdefault(entry.id, {})
            case SchemaChange():
                touched.update(dict.fromkeys(self.states.apply_schema_change(entry)))
            case Commit():
                for change in entry.changes:
                    left = self.left_key(change)
                    self.states.apply(change, left)
                    add_touched(touched, change, left)

    def left_key(self, change: RowChange) -> Key | None:
        """Return the key that an update moved the row away from; None: it stayed."""
        schema = self.states.schemas.get(change.table)
        if change.op is not Op.UPDATE or change.before is None or schema is None:
            return None
        if not schema.handle_key:
            return None
        old = key_of(schema, change.before)
        return old if old != change.key else None

    def _until(self, until_ts: int) -> Iterator[Entry]:
        while self._next is not None and _ts(self._next) <= until_ts:
            yield self._next
            self._next = next(self._rest, None)


def add_touched(
    touched: dict[TableId, set[Key] | None], change: RowChange, left: Key | None
) -> None:
    """Add the keys that a change touched; a table whose keys are None is touched as a whole."""
    keys = touched.setdefault(change.table, set())
    if keys is not None:
        keys.update((change.key,) if left is None else (change.key, left))


class Versions:
    """Which version of each table was in force when."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._ends: dict[TableId, tuple[list[int], list[TableSchema | None]]] = {}
        for entry in entries:
            match entry:
                case TableSchema():
                    self._add(entry.id, entry.version, entry)
                case SchemaChange():
                    self._follow(entry)

    def at(self, table: TableId, commit_ts: int) -> TableSchema | None:
        """Return the version in force at that commit-ts; None: there was no such table."""
        starts, versions = self._ends.get(table, ([], []))
        place = bisect_right(starts, commit_ts)
        return versions[place - 1] if place else None

    def _follow(self, change: SchemaChange) -> None:
        if change.kind is DdlKind.DROP_DATABASE:
            for table in [t for t in self._ends if t.database == change.table.database]:
                self._add(table, change.commit_ts, None)
        if change.previous is not None and change.previous != change.table:
            self._add(change.previous, change.commit_ts, None)
        if change.schema is not None or change.kind is DdlKind.DROP_TABLE:
            gone = change.kind is DdlKind.DROP_TABLE
            self._add(change.table, change.commit_ts, None if gone else change.schema)

    def _add(self, table: TableId, since: int, version: TableSchema | None) -> None:
        starts, versions = self._ends.setdefault(table, ([], []))
        starts.append(since)
        versions.append(version)


# --- JSON lines ----------------------------------------------------------------------------------


def _open_at_line(path: Path) -> TextIO:
    """Open for appending, without the unfinished line that a killed writer may have left."""
    with open(path, "ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    return open(path, "a", encoding="utf-8")


def _ts(entry: Entry) -> int:
    return entry.version if isinstance(entry, TableSchema) else entry.commit_ts


def _line(entry: Entry) -> str:
    match entry:
        case TableSchema():
            form: dict[str, Any] = {"table": entry.to_json()}
        case SchemaChange():
            form = {"ddl": entry.to_json()}
        case Commit():
            form = {
                "commit": entry.commit_ts,
                "changes": [
                    [*c.table, int(c.op), list(c.key), c.before, c.after] for c in entry.changes
                ],
            }
    return json.dumps(form, default=_hide, separators=(",", ":")) + "\n"


def _entry(form: dict[str, Any]) -> Entry:
    if "table" in form:
        return TableSchema.from_json(form["table"])
    if "ddl" in form:
        return SchemaChange.from_json(form["ddl"])
    return Commit(
        form["commit"],
        tuple(
            RowChange(TableId(database, table), Op(op), tuple(key), before, after)
            for database, table, op, key, before, after in form["changes"]
        ),
    )


def _hide(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is not a canonical value")


def _unhide(form: dict[str, Any]) -> Any:
    return base64.b64decode(form["$bytes"]) if form.keys() == {"$bytes"} else form
