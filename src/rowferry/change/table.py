"""Tables as they were at one moment: names, columns, keys, partitions.

A `TableSchema` is one version of one table and never changes; a DDL makes the next version.
`version` is the commit-ts of the DDL that made it (or of the moment when the feed first met the
table).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rowferry.change.json_form import FormRules, JsonForm, ListForm
from rowferry.change.sqltype import SqlType
from rowferry.errors import BadInput

# The dialect of MySQL, MariaDB and TiDB (see `rowferry.change.dialect`). Forms that were stored
# before there were others name none.
MYSQL: Final = "mysql"


class TableId(NamedTuple):
    """A table's name: the database that it is in, and its own, as created.

    Where names have three parts, catalog, schema and table, the first two are one text together:
    `TableId.in_schema`. Whatever keeps databases apart (a filter, a path, a topic, a hash) keeps
    the schemas of two catalogs apart, too, and cannot forget a part.
    """

    database: str
    table: str

    @classmethod
    def in_schema(cls, catalog: str, schema: str, table: str) -> TableId:
        """Return a name of three parts; the database is `catalog.schema`."""
        return cls(f"{_name_part(catalog)}.{_name_part(schema)}", table)

    @property
    def schema_parts(self) -> tuple[str, str]:
        """Catalog and schema, of a name that `in_schema` has made.

        Raises:
            BadInput: its database is not made of two parts.
        """
        parts = [m[0] for m in _NAME_PARTS.finditer(self.database)]
        if len(parts) != 2 or ".".join(parts) != self.database:
            raise BadInput(f"{self.database!r} is not a catalog and a schema, joined by a point")
        catalog, schema = (p[1:-1].replace('""', '"') if p[:1] == '"' else p for p in parts)
        return catalog, schema

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def folded(self) -> TableId:
        """What names that differ in case only have in common."""
        return TableId(self.database.lower(), self.table.lower())


_NAME_PARTS: Final = re.compile(r'"(?:[^"]|"")*"|[^".]+')


def _name_part(name: str) -> str:
    """Return a part of a name; in quotes where a point in it, or nothing, would mislead."""
    plain = name and not {".", '"'} & set(name)
    return name if plain else '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Column(JsonForm):
    """One column of one table version.

    Attributes:
        id: stable number of the column inside its table (never reused after DROP COLUMN).
        default: the default's value (int, float or text; `CURRENT_TIMESTAMP` of a time); None: no
            default, NULL, or an expression.
        generated: "virtual", "stored", or "" for an ordinary column.
        expression: how a generated column, or a default that is computed, gets its value.
        filled: what rows from before the column was added have in it: its default of that time,
            whatever became of the default since; None: NULL.
        untold: no statement that could be read has made the column: it may be an earlier one by
            another name, or have been filled with a default that is not known.
    """

    FORM = FormRules(("id", "name", "type", "nullable", "default", "filled"), brief=True)

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
    untold: bool = False


@dataclass(frozen=True, slots=True)
class Index(JsonForm):
    """A key of a table: its columns by name, in index order."""

    FORM = FormRules(brief=True)

    id: int
    name: str
    columns: tuple[str, ...]
    unique: bool = False
    primary: bool = False


@dataclass(frozen=True, slots=True)
class TablePartition(ListForm):
    """One partition of a partitioned table; `physical_id` is its own table id in the source.

    Attributes:
        less_than: upper bound (exclusive) of a RANGE partition; None: MAXVALUE or HASH.
    """

    physical_id: int
    name: str
    less_than: int | None = None


@dataclass(frozen=True, slots=True)
class Partitioning(JsonForm):
    """How a table is cut into partitions: by HASH or RANGE of one integer column."""

    method: str  # "hash" or "range"
    column: str
    partitions: tuple[TablePartition, ...]


@dataclass(frozen=True)
class TableSchema(JsonForm):
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
        dialect: of the source that it comes from: whose words its types and expressions are.
    """

    FORM = FormRules(
        ("id", "table_id", "version", "columns", "indexes", "charset", "partitioning", "collation"),
        brief=True,
        kept=("indexes", "charset"),
        spread=("id",),
    )

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
    dialect: str = MYSQL

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

        Best means no virtual columns, which codecs do not write; then the fewest columns, then the
        smallest index id.
        """
        for index in self.indexes:
            if index.primary:
                return index
        fit = [
            i
            for i in self.indexes
            if i.unique and all(not self.column(c).nullable for c in i.columns)
        ]
        return min(fit, key=lambda i: (not self._is_written(i), len(i.columns), i.id), default=None)

    @cached_property
    def handle_key(self) -> tuple[str, ...]:
        """Column names of the handle key, in table order; empty for a keyless table."""
        index = self.handle_index
        if index is None:
            return ()
        wanted = {c.lower() for c in index.columns}
        return tuple(c.name for c in self.columns if c.name.lower() in wanted)

    @cached_property
    def written_key(self) -> tuple[str, ...]:
        """The handle key where codecs write all of it; else empty: a part names several rows."""
        index = self.handle_index
        return self.handle_key if index is not None and self._is_written(index) else ()

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

    def _is_written(self, index: Index) -> bool:
        written = {c.name.lower() for c in self.visible}
        return all(name.lower() in written for name in index.columns)

    def at(self, version: int) -> TableSchema:
        """Return the same definition as another version."""
        return replace(self, version=version)
