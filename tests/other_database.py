"""A source of another database, as PostgreSQL is one: all of it is here and in a registry line.

Its log is a file of JSON lines, each with its own kind of place ("lsn"): a statement with the table
that it made, or a change of a row. Names have three parts, types and statements are the database's
own, and rows that it cannot say in neutral types it refuses itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, make_rows
from rowferry.change.dialect import SourceDialect
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadStatement, CorruptLog, SourceUnsupported
from rowferry.flow.capture.contract import Appetite, SnapshotShare, SourceTraits
from rowferry.flow.decide.contract import Decision
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable

DIALECT_NAME = "postgres-like"


class ElephantDialect:
    """Its words: a schema of the system, and statements in which names can be replaced."""

    name = DIALECT_NAME

    def is_system_database(self, name: str) -> bool:
        """Return whether a schema, of whatever catalog, is one of the server's own."""
        return TableId(name, "").schema_parts[1] in ("pg_catalog", "information_schema")

    def rename_tables(
        self, query: str, database: str, new_name: Callable[[TableId], TableId]
    ) -> str:
        """Refuse: nothing here reads statements."""
        raise BadStatement(f"{DIALECT_NAME}: names in statements cannot be replaced: {query}")


# Its types, as neutral ones: the values are the same, and its own text stands beside them.
_TYPES = {
    "smallint": SqlType("smallint"),
    "integer": SqlType("int"),
    "bigint": SqlType("bigint"),
    "boolean": SqlType("tinyint", length=1),
    "text": SqlType("longtext", collation="en_US.utf8"),
    "bytea": SqlType("longblob"),
    "timestamp with time zone": SqlType("timestamp", scale=6),
    "timestamp without time zone": SqlType("datetime", scale=6),
    "date": SqlType("date"),
    "double precision": SqlType("double"),
    "jsonb": SqlType("json"),
    "uuid": SqlType("uuid"),
    "numeric": SqlType("numeric"),
    "interval": SqlType("longtext"),
    "int4range": SqlType("longtext"),
}
_SIZED = re.compile(r"(numeric|character varying)\((\d+)(?:,(\d+))?\)")


def neutral(text: str) -> SqlType:
    """Return a type of this database in the neutral vocabulary."""
    if text.endswith("[]"):  # its elements in a JSON array
        kind = SqlType("json")
    elif sized := _SIZED.fullmatch(text):
        if sized[1] == "numeric":
            kind = SqlType("decimal", length=int(sized[2]), scale=int(sized[3] or 0))
        else:
            kind = SqlType("varchar", length=int(sized[2]), collation="en_US.utf8")
    elif text in _TYPES:
        kind = _TYPES[text]
    else:
        raise SourceUnsupported(f"the type {text} has no neutral form; leave the table out")
    return SqlType(
        kind.name, length=kind.length, scale=kind.scale, collation=kind.collation, source=text
    )


def value_of(column: Column, value: Any) -> Any:
    """Return a value of the log in the form that chunks have."""
    own = column.type.source
    if value is None:
        return None
    if own == "boolean":
        return int(value)
    if own == "bytea":
        return bytes.fromhex(value.removeprefix("\\x"))
    if own.startswith("timestamp"):
        if not re.match(r"\d{4}-", value):
            raise SourceUnsupported(f"column {column.name!r}: {value} has no neutral form")
        return value.removesuffix("+00")
    if own.endswith("[]") or own == "jsonb":
        return json.dumps(value)
    return value


class Elephant:
    """The source: `elephant:///path/to/log`."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = ()
    DIALECT: ClassVar[SourceDialect] = ElephantDialect()
    STAMPED_BY_ROWS: ClassVar[bool] = False

    def __init__(self, spec: ChangefeedSpec) -> None:
        self.path = Path(spec.source.path)
        self.notices: tuple[str, ...] = ()
        self.unnumbered: tuple[TableId, ...] = ()
        self.identity = "elephant"

    @classmethod
    def shown_position(cls, position: Mapping[str, Any]) -> dict[str, str]:
        """Return the place in the log as its people write it."""
        return {"lsn": position["lsn"]} if position else {}

    def lines(self) -> list[dict[str, Any]]:
        """Return the log."""
        moment("read log of the elephant")
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def traits(self) -> SourceTraits:
        """Return what it can do."""
        return SourceTraits(carries_before_image=True, has_closed_timestamps=False)

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        """Return the tables that the whole log leaves."""
        tables: dict[int, TableSchema] = {}
        for line in self.lines():
            if "ddl" in line:
                follow(tables, line)
        return tuple(t for t in tables.values() if decision.keeps_table(t.id))

    def cluster_id(self) -> int:
        """It has no number."""
        return 0

    def planner(
        self,
        decision: Decision,
        position: dict[str, Any],
        ranges: tuple[RangeProgress, ...],
        versions: tuple[TableSchema, ...],
    ) -> ElephantPlanner:
        """Go on behind a place."""
        return ElephantPlanner(self, decision, position.get("lsn", ""))

    def read(self, segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
        """Read the lines of one segment."""
        table = tables[segment.slices[0]]
        wanted = set(segment.read["lsns"])
        found = [line for line in self.lines() if line["lsn"] in wanted]
        if len(found) != len(wanted):
            raise CorruptLog(f"{self.path}: lines are gone")

        def images(name: str) -> pa.StructArray:
            rows = [
                line.get(name)
                and {c.name: value_of(c, line[name].get(c.name)) for c in table.columns}
                for line in found
            ]
            return pa.array(rows, table.image)

        seq = segment.ordinal << 40
        yield make_rows(
            table,
            pa.array([Op[line["op"]] for line in found], pa.int8()),
            pa.array([line["ts"] for line in found], pa.uint64()),
            pa.array(range(seq, seq + len(found)), pa.int64()),
            images("before"),
            images("after"),
        )

    def facts_read(self, segment: Segment) -> dict[str, Any] | None:
        """Tell nothing besides the rows."""
        return None

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """The planner knew the position."""
        return stretch.position

    def after_discard(self, position: dict[str, Any], stretch: Stretch) -> dict[str, Any]:
        """Reading again gives the same lines."""
        return position


def follow(tables: dict[int, TableSchema], line: dict[str, Any]) -> SchemaChange:
    """Apply a statement of the log to the tables; returns it with its structure."""
    number, name = line["oid"], TableId.in_schema(*line["table"])
    kind = DdlKind[line["kind"]]
    last = tables.pop(number, None)
    schema = None
    if "columns" in line:
        columns = tuple(
            Column(i, column, neutral(own), nullable=column not in line["key"])
            for i, (column, own) in enumerate(line["columns"].items(), 1)
        )
        index = Index(1, "pkey", tuple(line["key"]), unique=True, primary=True)
        schema = TableSchema(name, number, line["ts"], columns, (index,), dialect=DIALECT_NAME)
        tables[number] = schema
    return SchemaChange(
        line["ts"],
        kind,
        line["ddl"],
        name,
        schema,
        previous=last.id if last and last.id != name else None,
        dropped_table_id=0 if schema else number,
        last_schema=None if schema else last,
        dialect=DIALECT_NAME,
    )


class ElephantPlanner:
    """Cuts the log: a stretch is the rows up to the next statement, or that statement."""

    def __init__(self, source: Elephant, decision: Decision, lsn: str) -> None:
        self._source, self._decision, self._lsn = source, decision, lsn
        self._new: list[TableSchema] = []

    def plan(self, appetite: Appetite) -> Stretch:
        """Take what is behind the last place, up to the next statement."""
        tables: dict[int, TableSchema] = {}
        rows: dict[int, list[dict[str, Any]]] = {}
        changes: list[SchemaChange] = []
        place, stamp, behind = self._lsn, None, not self._lsn
        for line in self._source.lines():
            if behind and rows and "ddl" in line:
                break  # it comes alone, behind these rows
            change = follow(tables, line) if "ddl" in line else None
            if not behind:
                behind = line["lsn"] == self._lsn
                continue
            place, stamp = line["lsn"], line["ts"]
            if change is None:
                rows.setdefault(line["oid"], []).append(line)
            elif self._decision.keeps_schema_change(change):
                changes.append(change)
                self._new += [change.schema] if change.schema else []
                break
        segments: list[Segment] = []
        for number, lines in rows.items():
            table = tables[number]
            if not self._decision.captures(table):
                continue
            where = {"lsns": [line["lsn"] for line in lines]}
            slices = (TableSlice(table.id, table.table_id, table.version),)
            ends = lines[0]["ts"], lines[-1]["ts"]
            segments.append(Segment(len(segments), where, slices, *ends))
        idle, self._lsn = place == self._lsn, place
        return Stretch(tuple(segments), tuple(changes), {"lsn": place}, (), (), stamp, idle)

    def table_versions(self) -> tuple[TableSchema, ...]:
        """Return the new ones, once."""
        new, self._new = tuple(self._new), []
        return new

    def snapshot_shares(self) -> tuple[SnapshotShare, ...]:
        """There are no snapshots."""
        return ()

    def warnings(self) -> tuple[str, ...]:
        """Nothing is odd."""
        return ()

    def lag_ms(self) -> int | None:
        """A file has no clock."""
        return None

    def close(self) -> None:
        """Nothing is held open."""
