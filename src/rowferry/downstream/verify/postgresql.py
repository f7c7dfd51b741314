"""Tables of a PostgreSQL database as a side of a comparison, as they are now.

The server gives each value as the text that the source's type has for it: times with all digits of
their column, times of day as hours, BIT as a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import SourceUnavailable
from rowferry.flow.encode.kernels.spans import read_packed
from rowferry.flow.sink.postgresql.names import quoted, quoted_table
from rowferry.flow.sink.postgresql.options import PostgresqlLogin, PostgresqlOptions, login_of
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal
from rowferry.flow.sink.postgresql.session import connect
from rowferry.flow.sink.postgresql.target_tables import (
    DownstreamColumn,
    DownstreamTable,
    read_tables,
)
from rowferry.moment import moment
from rowferry.registry import SINKS
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.uri import Uri

_BLOCK_BYTES: Final = 8 << 20
_SYSTEM: Final = ("pg_catalog", "information_schema", "pg_toast")
_MOMENT: Final = "YYYY-MM-DD HH24:MI:SS.US"
_WHOLE: Final = frozenset({"int2", "int4", "int8", "bool"})


@dataclass(frozen=True)
class PostgresqlTable:
    """A table of a PostgreSQL database; small enough to be sent to tasks."""

    login: PostgresqlLogin
    schema: TableSchema
    types: tuple[tuple[str, DownstreamColumn], ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return self.schema.handle_key

    @property
    def pieces(self) -> int:
        """How many parts it is read in."""
        return 1

    def read(self, numbers: Sequence[int], wanted: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows, these columns of them, in blocks of some MB.

        Raises:
            SourceUnavailable: the server does not answer, or refuses.
        """
        columns = [c for c in self.schema.columns if c.name in wanted]
        types = dict(self.types)
        listed = ", ".join(_expression(c.name, types[c.name]) for c in columns) or "1"
        sql = f"COPY (SELECT {listed} FROM {quoted_table(self.schema.id)}) TO STDOUT (FORMAT csv)"
        moment("read PostgreSQL table to compare it")
        session = connect(self.login)
        try:
            # On disk, so that a large table is not held in memory.
            with NamedTemporaryFile(prefix="rowferry-verify-") as lines:
                session.copy_out(sql, lines)
                lines.flush()
                for batch in _parsed(lines.name, [c.name for c in columns]):
                    arrays = [_canonical(batch.column(c.name), c) for c in columns]
                    yield pa.Table.from_arrays(arrays, [c.name for c in columns])
        except PostgresqlRefusal as err:
            raise SourceUnavailable(f"{err.place}: {err.server_text}") from err
        finally:
            session.close()


class PostgresqlSide:
    """A PostgreSQL database: schemas stand for the source's databases."""

    is_database = False

    def __init__(self, text: str, secrets: SecretSources = NO_STORE) -> None:
        """Read where it is.

        Raises:
            BadInput: the URI or a parameter cannot be used.
        """
        place = Uri.parse(text, "compared side's")
        loaded: Any = SINKS.load(place.scheme)
        place = secrets.resolved_uri(place, "the sink URI", loaded.TABLES)
        spec = ChangefeedSpec("", Uri.parse(NO_PLACE, "source"), place)
        self._login = login_of(place, spec.options(PostgresqlOptions))
        self._meta = spec.options(PostgresqlOptions).meta_schema

    def schemas(self, keeps: Callable[[TableId], bool]) -> dict[TableId, TableSchema]:
        """Return the tables that are kept, by name; the server's and the sink's own never."""
        return {name: _schema(name, table) for name, table in self._tables(keeps).items()}

    def table(self, schema: TableSchema) -> PostgresqlTable:
        """Return a table as it is now."""
        there = self._tables(lambda name: name == schema.id)
        target = there.get(schema.id, DownstreamTable())
        columns = tuple(target.columns.items())
        return PostgresqlTable(self._login, _schema(schema.id, target), columns)

    def cut(self, table: Any) -> Any:
        """Return the table as it is: it is read in one piece."""
        return table

    def _tables(self, keeps: Callable[[TableId], bool]) -> dict[TableId, DownstreamTable]:
        moment("list PostgreSQL tables to compare them")
        session = connect(self._login)
        try:
            rows = session.ask(
                "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = "
                "c.relnamespace WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND "
                "n.nspname <> ALL(%s) AND n.nspname NOT LIKE 'pg_temp%%'",
                ([*_SYSTEM, self._meta],),
            )
            names = [TableId(str(schema), str(name)) for schema, name in rows]
            return read_tables(session, [name for name in names if keeps(name)])
        except PostgresqlRefusal as err:
            raise SourceUnavailable(f"{err.place}: {err.server_text}") from err
        finally:
            session.close()

    def __str__(self) -> str:
        return str(self._login)


def _schema(name: TableId, table: DownstreamTable) -> TableSchema:
    """Return a table's columns, in types that have all values of PostgreSQL's."""
    by_name = sorted(table.keys.items(), key=lambda k: ("_pkey" not in k[0], len(k[1]), k[0]))
    named = tuple(n for n in table.columns if by_name and n in by_name[0][1])
    columns = tuple(
        Column(number, column, _neutral(there), nullable=column not in named)
        for number, (column, there) in enumerate(table.columns.items(), 1)
    )
    index = (Index(1, "PRIMARY", named, True, True),) if named else ()
    return TableSchema(name, 0, 0, columns, index)


def _neutral(there: DownstreamColumn) -> SqlType:
    digits = there.scale if there.scale >= 0 else 6
    match there.type_name:
        case name if name in _WHOLE:
            return SqlType("bigint")
        case "numeric":
            if there.size < 0:
                return SqlType("numeric")
            return SqlType("decimal", length=there.size, scale=there.scale)
        case "float4":
            return SqlType("float")
        case "float8":
            return SqlType("double")
        case "bit" | "varbit":
            return SqlType("bit", length=64)
        case "bytea":
            return SqlType("longblob")
        case "date":
            return SqlType("date")
        case "timestamp":
            return SqlType("datetime", scale=digits)
        case "timestamptz":
            return SqlType("timestamp", scale=digits)
        case "interval" | "time":
            return SqlType("time", scale=digits)
    return SqlType("longtext")


def _expression(name: str, there: DownstreamColumn) -> str:
    """Return what asks for a column's values as texts."""
    column, digits = quoted(name), there.scale if there.scale >= 0 else 6
    width = 20 + digits if digits else 19
    match there.type_name:
        case "bool":
            return f"{column}::int"
        case "bit" | "varbit":
            return f"lpad({column}::text, 64, '0')::bit(64)::bigint"
        case "bytea":
            return f"encode({column}, 'hex')"
        case "timestamp":
            return f"left(to_char({column}, '{_MOMENT}'), {width})"
        case "timestamptz":
            return f"left(to_char({column} AT TIME ZONE 'UTC', '{_MOMENT}'), {width})"
        case "interval" | "time":
            span = f"{column}::interval"
            cut = 7 if not digits else 6 - digits
            form = "'HH24:MI:SS.US'"
            text = (
                f"CASE WHEN {span} < interval '0' THEN '-' || to_char(-({span}), {form}) "
                f"ELSE to_char({span}, {form}) END"
            )
            return f"left({text}, -{cut})" if cut else text
    return f"{column}::text"


def _parsed(lines: str, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows of texts; an empty field without quotes is NULL."""
    try:
        yield from pcsv.open_csv(
            lines,
            read_options=pcsv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES),
            # Of a table with one column, a row that is NULL is an empty line.
            parse_options=pcsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pcsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.large_utf8()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as err:
        if "Empty CSV file" not in str(err):
            raise SourceUnavailable(f"what PostgreSQL sent cannot be read: {err}") from err


def _canonical(values: pa.Array, column: Column) -> pa.Array:
    match column.type.kind:
        case Kind.BIT:
            whole = values.cast(pa.int64())
            plain = pc.fill_null(whole, 0).to_numpy().view(np.uint64)
            return pa.array(plain, mask=whole.is_null().to_numpy(zero_copy_only=False))
        case Kind.BINARY:
            filled = pc.fill_null(values, "")
            offsets = np.frombuffer(filled.buffers()[1], np.int64)
            offsets = offsets[filled.offset : filled.offset + len(filled) + 1]
            data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
            places, out, _ = read_packed(offsets, data, False)
            buffers = [None, pa.py_buffer(places), pa.py_buffer(out)]
            whole = pa.Array.from_buffers(pa.large_binary(), len(filled), buffers)
            return pc.if_else(values.is_valid(), whole, None)
    return values.cast(column.type.arrow)
