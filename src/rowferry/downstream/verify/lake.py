"""A lake's tables as a side of a comparison, each as it was at one of its commits.

A lake's type has fewer values than the source's, or others; both sides are compared in this image:

    long, decimal                     the number, without zeros at the end of its fraction
    float, double                     the number; 0 is -0
    date, timestamp, timestamp_ntz    MySQL's text, without zeros at the end of its fraction; a day
                                      that no calendar has is NULL
    string                            the text; of ENUM and SET the names; JSON as JSON
    binary                            the bytes; of GEOMETRY without its reference system
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.change.typed_columns import canonical
from rowferry.errors import BadInput, TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.history import TableVersion, commit_at
from rowferry.flow.sink.lake.layout import table_at
from rowferry.flow.sink.lake.sink import LakeSink
from rowferry.flow.sink.lake.stored_columns import StoredField
from rowferry.moment import moment
from rowferry.registry import SINKS
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.uri import Uri

_TYPES = {
    "long": SqlType("bigint"),
    "float": SqlType("float"),
    "double": SqlType("double"),
    "string": SqlType("longtext", charset="utf8mb4"),
    "binary": SqlType("longblob"),
    "date": SqlType("date"),
    "timestamp": SqlType("timestamp", scale=6),
    "timestamp_ntz": SqlType("datetime", scale=6),
}


def is_lake(scheme: str) -> bool:
    """Return whether a sink of that scheme keeps tables of a lake."""
    return scheme in SINKS.names() and issubclass(SINKS.load(scheme), LakeSink)


@dataclass(frozen=True)
class LakeTable:
    """A table at one of its commits; small enough to be sent to tasks.

    Attributes:
        spec: names the lake, with its login.
    """

    spec: ChangefeedSpec
    schema: TableSchema
    version: TableVersion

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return self.schema.handle_key

    @property
    def pieces(self) -> int:
        """How many parts it is read in: its data files."""
        return len(self.version.parts)

    def read(self, numbers: Sequence[int], wanted: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of some data files, these columns of them.

        Raises:
            TargetLost: one of them is gone.
        """
        loaded: Any = SINKS.load(self.spec.sink.scheme)
        files = loaded.files_of(self.spec, 1, False)
        columns = [c for c in self.schema.columns if c.name in wanted]
        try:
            for number in numbers:
                part = self.version.parts[number]
                moment("read lake file to compare it")
                stored = files.get(part.path)
                if stored is None:
                    shown = files.shown(part.path)
                    raise TargetLost(f"{shown} is gone, a data file; {RESTORE}")
                for rows in self.version.rows(part, stored.data, [c.name for c in columns]):
                    arrays = [canonical(_whole(rows, c), c).cast(c.type.arrow) for c in columns]
                    yield pa.Table.from_arrays(arrays, [c.name for c in columns])
        finally:
            files.close()


class LakeSide:
    """Tables of a lake: as they are now, each as of its last commit; or as of a commit-ts."""

    is_database = False

    def __init__(self, text: str, as_of: int | None, secrets: SecretSources = NO_STORE) -> None:
        """Find out what lake it is.

        Raises:
            BadInput: the URI cannot be understood.
        """
        place = Uri.parse(text, "lake")
        self._shown, self._as_of = str(place), as_of
        loaded: Any = SINKS.load(place.scheme)
        place = place.absolute(os.getcwd(), "lake")
        place = secrets.resolved_uri(place, "the sink URI", loaded.TABLES)
        self._spec = ChangefeedSpec("", Uri.parse(NO_PLACE, "source"), place)
        self._sink: LakeSink = loaded(self._spec, None)
        self._held: dict[str, TableVersion] | None = None

    @property
    def reached(self) -> int:
        """Up to which commit-ts all of its tables are complete."""
        return self._sink.upkeep().progress().checkpoint_ts

    def hold(self) -> None:
        """Keep to the commits that the tables have now, whatever is committed from here on."""
        directories = list(self._sink.tables().directories())
        self._held = {d: self._sink.history(d).version() for d in directories}

    def let_go(self) -> None:
        """Read the tables as they are again."""
        self._held = None

    def _directories(self) -> Iterable[str]:
        return self._sink.tables().directories() if self._held is None else self._held

    def schemas(self, keeps: Callable[[TableId], bool]) -> dict[TableId, TableSchema]:
        """Return the tables that are kept, by name."""
        names = {table_at(d): d for d in self._directories()}
        return {name: self._table(d).schema for name, d in names.items() if keeps(name)}

    def table(self, schema: TableSchema) -> LakeTable:
        """Return a table as of its last commit, also of one that was made meanwhile."""
        for directory in self._directories():
            if table_at(directory) == schema.id:
                return self._table(directory)
        raise TargetLost(f"{self} has no table {schema.id} any more")

    def cut(self, table: Any) -> Any:
        """Return the table as it is: it is read by data files."""
        return table

    def _table(self, directory: str) -> LakeTable:
        history = self._sink.history(directory)
        number = None
        if self._as_of is not None:
            number = commit_at(history, self._as_of, self.reached).version
        version = self._held[directory] if self._held is not None else history.version(number)
        if version.mode == "changelog":
            raise BadInput(
                f"{history.shown} holds changes (sink.lake.mode = 'changelog') and not rows, so "
                "it cannot be compared; leave it out by --tables"
            )
        return LakeTable(self._spec, _schema(table_at(directory), version), version)

    def __str__(self) -> str:
        return self._shown


def _schema(name: TableId, version: TableVersion) -> TableSchema:
    """Return a table's columns, in the types that have all values of the lake's."""
    columns = tuple(
        Column(number, field.name, _type(field), nullable=field.name not in version.key)
        for number, field in enumerate(version.columns.fields, 1)
    )
    has_key = bool(version.key) and set(version.key) <= {c.name for c in columns}
    key = (Index(1, "PRIMARY", version.key, True, True),) if has_key else ()
    return TableSchema(name, 1, 1, columns, key)


def _type(field: StoredField) -> SqlType:
    if field.kind.startswith("decimal("):
        digits, scale = field.kind[len("decimal(") : -1].split(",")
        return SqlType("decimal", length=int(digits), scale=int(scale))
    return _TYPES[field.kind]


def _whole(rows: pa.Table, column: Column) -> pa.Array:
    values = rows.column(column.name).combine_chunks()
    return values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
