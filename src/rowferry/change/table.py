"""Tables as they were at one moment: names, columns, keys, partitions.

A `TableSchema` is one version of one table and never changes; a DDL makes the next version.
`version` is the commit-ts of the DDL that made it (or of the moment when the feed first met the
table).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from rowferry.change.sqltype import SqlType
from rowferry.errors import BadInput


class TableId(NamedTuple):
    """A table's name: database and table, as created."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of one table version.

    Attributes:
        id: stable number of the column inside its table (never reused after DROP COLUMN).
        default: the default's value (int, float or text; `CURRENT_TIMESTAMP` of a time); None: no
            default, NULL, or an expression.
        generated: "virtual", "stored", or "" for an ordinary column.
        expression: how a generated column, or a default that is computed, gets its value.
        filled: what rows from before the column was added have in it: its default of that time,
            whatever became of the default since; None: NULL.
    """

    id: int
    name: str
    type: SqlType
    nullable: bool = True
    default: Any = None
    generated: str = ""
    comment: str = ""
    invisible: bool = False
    auto_increment: bool = False
    expression: str = ""
    filled: Any = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        found: dict[str, Any] = {"id": self.id, "name": self.name, "type": self.type.to_json()}
        if not self.nullable:
            found["nullable"] = False
        if self.default is not None:
            found["default"] = self.default
        if self.filled is not None:
            found["filled"] = self.filled
        for key in ("generated", "comment", "invisible", "auto_increment", "expression"):
            if getattr(self, key):
                found[key] = getattr(self, key)
        return found

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Column:
        """Read what `to_json` wrote."""
        return cls(**{**form, "type": SqlType.from_json(form["type"])})


@dataclass(frozen=True, slots=True)
class Index:
    """A key of a table: its columns by name, in index order."""

    id: int
    name: str
    columns: tuple[str, ...]
    unique: bool = False
    primary: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        found: dict[str, Any] = {"id": self.id, "name": self.name, "columns": list(self.columns)}
        if self.unique:
            found["unique"] = True
        if self.primary:
            found["primary"] = True
        return found

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Index:
        """Read what `to_json` wrote."""
        return cls(**{**form, "columns": tuple(form["columns"])})


@dataclass(frozen=True, slots=True)
class TablePartition:
    """One partition of a partitioned table; `physical_id` is its own table id in the source.

    Attributes:
        less_than: upper bound (exclusive) of a RANGE partition; None: MAXVALUE or HASH.
    """

    physical_id: int
    name: str
    less_than: int | None = None


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a table is cut into partitions: by HASH or RANGE of one integer column."""

    method: str  # "hash" or "range"
    column: str
    partitions: tuple[TablePartition, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        parts = [[p.physical_id, p.name, p.less_than] for p in self.partitions]
        return {"method": self.method, "column": self.column, "partitions": parts}

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Partitioning:
        """Read what `to_json` wrote."""
        parts = tuple(TablePartition(*p) for p in form["partitions"])
        return cls(form["method"], form["column"], parts)


@dataclass(frozen=True)
class TableSchema:
    """One version of one table.

    Attributes:
        table_id: the source's number of the table (0 where it has none).
        version: commit-ts of the DDL that made this version.
        inferred: some facts were carried over because a DDL was not fully understood.
        collation: of text columns that name none, where it is known; as in `SqlType`.
        dropped_column_id: the highest column id that DROP COLUMN has freed; it is not used again.
        target: the name under which its rows are written, where table routing gives another one.
        is_active_active_table: several clusters write its rows, and the newest write of a row wins.
        is_soft_delete_table: rows are deleted by setting `_tidb_softdelete_time`.
    """

    id: TableId
    table_id: int
    version: int
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...] = ()
    partitioning: Partitioning | None = None
    charset: str = "utf8mb4"
    comment: str = ""
    inferred: bool = False
    dropped_column_id: int = 0
    target: TableId | None = None
    is_active_active_table: bool = False
    is_soft_delete_table: bool = False
    collation: str = field(default="", compare=False)

    @property
    def written_as(self) -> TableId:
        """The name that codecs and sinks write; dispatch and filters go by `id`."""
        return self.target or self.id

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Columns by lower-case name."""
        return {c.name.lower(): c for c in self.columns}

    def column(self, name: str) -> Column:
        """Return the column of that name, in any case."""
        try:
            return self.by_name[name.lower()]
        except KeyError:
            known = ", ".join(c.name for c in self.columns)
            raise BadInput(f"table {self.id} has no column {name!r}; it has: {known}") from None

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """Column names of the primary key in index order; empty without one."""
        return next((i.columns for i in self.indexes if i.primary), ())

    @cached_property
    def handle_index(self) -> Index | None:
        """The index that names a row: PRIMARY, else the best NOT NULL unique one.

        Best means the fewest columns, then the smallest index id.
        """
        for index in self.indexes:
            if index.primary:
                return index
        fit = [
            i
            for i in self.indexes
            if i.unique and all(not self.column(c).nullable for c in i.columns)
        ]
        return min(fit, key=lambda i: (len(i.columns), i.id), default=None)

    @cached_property
    def handle_key(self) -> tuple[str, ...]:
        """Column names of the handle key, in table order; empty for a keyless table."""
        index = self.handle_index
        if index is None:
            return ()
        wanted = {c.lower() for c in index.columns}
        return tuple(c.name for c in self.columns if c.name.lower() in wanted)

    @cached_property
    def visible(self) -> tuple[Column, ...]:
        """The columns that codecs write: all but virtual generated ones."""
        return tuple(c for c in self.columns if c.generated != "virtual")

    @cached_property
    def image(self) -> pa.StructType:
        """The Arrow type of a full row image (before or after)."""
        return pa.struct([pa.field(c.name, c.type.arrow) for c in self.columns])

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """Ids under which rows are stored: the partitions', else the table's own."""
        if self.partitioning is None:
            return (self.table_id,)
        return tuple(p.physical_id for p in self.partitioning.partitions)

    def at(self, version: int) -> TableSchema:
        """Return the same definition as another version."""
        return replace(self, version=version)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        found: dict[str, Any] = {
            "database": self.id.database,
            "table": self.id.table,
            "table_id": self.table_id,
            "version": self.version,
            "columns": [c.to_json() for c in self.columns],
            "indexes": [i.to_json() for i in self.indexes],
            "charset": self.charset,
        }
        if self.partitioning is not None:
            found["partitioning"] = self.partitioning.to_json()
        if self.collation:
            found["collation"] = self.collation
        if self.comment:
            found["comment"] = self.comment
        if self.inferred:
            found["inferred"] = True
        if self.dropped_column_id:
            found["dropped_column_id"] = self.dropped_column_id
        if self.target:
            found["target"] = list(self.target)
        for flag in ("is_active_active_table", "is_soft_delete_table"):
            if getattr(self, flag):
                found[flag] = True
        return found

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> TableSchema:
        """Read what `to_json` wrote."""
        parts = form.get("partitioning")
        return cls(
            id=TableId(form["database"], form["table"]),
            table_id=form["table_id"],
            version=form["version"],
            columns=tuple(Column.from_json(c) for c in form["columns"]),
            indexes=tuple(Index.from_json(i) for i in form["indexes"]),
            partitioning=Partitioning.from_json(parts) if parts else None,
            charset=form["charset"],
            comment=form.get("comment", ""),
            inferred=form.get("inferred", False),
            dropped_column_id=form.get("dropped_column_id", 0),
            target=TableId(*form["target"]) if form.get("target") else None,
            is_active_active_table=form.get("is_active_active_table", False),
            is_soft_delete_table=form.get("is_soft_delete_table", False),
            collation=form.get("collation", ""),
        )
