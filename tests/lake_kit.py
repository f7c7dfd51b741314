"""A Delta sink driven as the loop does it, a model of its table, and readers of others."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from lake_readers import assert_same, delta_rows
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, make_rows
from rowferry.change.plan import Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.control.store.publishing import nothing_delivered
from rowferry.flow.sink.contract import Owner
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

FEED = "feed"
NOON = 1_683_633_600_000 << 18
ORDERS = TableId("shop", "orders")
Image = dict[str, Any] | None
Changes = list[tuple[Op, Image, Image]]


def table(
    *columns: tuple[str, SqlType], key: Sequence[str] = ("id",), version: int = 100
) -> TableSchema:
    """A table; columns are numbered as they stand there, those of the key are never NULL."""
    made = tuple(Column(i, n, t, nullable=n not in key) for i, (n, t) in enumerate(columns, 1))
    indexes = (Index(1, "PRIMARY", tuple(key), True, True),) if key else ()
    return TableSchema(ORDERS, 1, version, made, indexes)


PLAIN = table(("id", SqlType("bigint")), ("note", SqlType("varchar", length=60)))
TEXT_KEY = table(("id", SqlType("varchar", length=20)), ("note", SqlType("varchar", length=60)))
TWO_KEYS = table(
    ("id", SqlType("int")),
    ("part", SqlType("varchar", length=9)),
    ("note", SqlType("varchar", length=60)),
    key=("id", "part"),
)


def rows_of(schema: TableSchema, changes: Changes, first: int = 0) -> Rows:
    return make_rows(
        schema,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([NOON] * len(changes), pa.uint64()),
        pa.array(range(first, first + len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], schema.image),
        pa.array([after for _, _, after in changes], schema.image),
    )


def minute(number: int) -> int:
    """A commit-ts so many minutes behind noon."""
    return NOON + (number * 60_000 << 18)


TEXT = SqlType("varchar", length=60)


def texts(version: int, *names: str, table_id: int = 1, **numbers: int) -> TableSchema:
    """A table with a key and columns of text, which are numbered as they stand there."""
    columns = [Column(1, "id", SqlType("bigint"), nullable=False)]
    columns += [Column(numbers.get(n, i), n, TEXT) for i, n in enumerate(names, 2)]
    key = Index(1, "PRIMARY", ("id",), True, True)
    return TableSchema(ORDERS, table_id, version, tuple(columns), (key,))


def ddl(new: TableSchema, kind: DdlKind = DdlKind.MODIFY_COLUMN, **more: Any) -> SchemaChange:
    """A statement that has made this version of a table."""
    return SchemaChange(new.version, kind, kind.name, new.id, new, **more)


class Lake:
    """One changefeed to a directory of Delta tables."""

    scheme = "delta+file"

    def __init__(self, root: Path, parameters: str = "", changefeed: str = FEED) -> None:
        self.root = root
        self.changefeed = changefeed
        self.uri = f"{self.scheme}://{root}?fsync=false&optimize-after=0{parameters}"
        self.sink = self.built()
        self.state: dict[str, Any] | None = None
        self.micro_batch = 0
        self.epoch = 0

    def built(self) -> Any:
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec(self.changefeed, source, Uri.parse(self.uri, "sink"))
        loaded: Any = SINKS.load(self.scheme)
        return loaded(ChangefeedSpec.from_json(spec.to_json()), None)

    def open(self, continues: bool = True) -> None:
        """Begin as a new process with the next epoch."""
        self.epoch += 1
        self.sink = self.built()
        delivered = NOON + self.micro_batch if self.micro_batch else 0
        owner = Owner(
            self.changefeed, self.epoch, delivered, continues=bool(continues and self.state)
        )
        state = self.state
        if state is not None and not continues:  # as after a reset to a new snapshot
            state = nothing_delivered(state)
        self.sink.open(owner, state)

    def reset(self) -> None:
        """Begin as a new process, with a source that knows no position and no table."""
        self.epoch += 1
        self.sink = self.built()
        self.sink.open(Owner(self.changefeed, self.epoch), self.state)

    def put(self, schema: TableSchema, number: int) -> None:
        """Insert a row in which each column says its name."""
        row = {"id": number, **{c.name: f"{c.name}{number}" for c in schema.columns[1:]}}
        self.step(schema, [(Op.INSERT, None, row)])

    def plan(
        self, schema: TableSchema, segments: int = 1, changes: Sequence[SchemaChange] = ()
    ) -> Plan:
        number = self.micro_batch + 1
        one = TableSlice(schema.id, schema.table_id, schema.version)
        parts = tuple(Segment(i, {}, (one,), NOON, NOON, 100) for i in range(segments))
        stretch = Stretch(parts, tuple(changes), {}, watermark=NOON + number)
        outputs, state = self.sink.allocate(stretch, {one: schema})
        return Plan.from_json(
            Plan(number, 1, int(time.time() * 1000), stretch, outputs, state).to_json()
        )

    def write(self, plan: Plan, schema: TableSchema, content: Sequence[Changes]) -> list[Receipt]:
        found: list[Receipt] = []
        for part, changes in zip(plan.stretch.segments, content, strict=True):
            half = len(changes) // 2
            chunks = [
                (0, rows_of(schema, changes[:half])),
                (0, rows_of(schema, changes[half:], half)),
            ]
            outputs = plan.outputs_of(part.ordinal)
            found += self.sink.write_rows(part, outputs, [schema], iter(chunks))
        return found

    def publish(self, plan: Plan, schema: TableSchema, receipts: Sequence[Receipt]) -> None:
        slices = {s for part in plan.stretch.segments for s in part.slices}
        self.sink.publish(plan, receipts, dict.fromkeys(slices, schema))
        self.micro_batch, self.state = plan.micro_batch, plan.sink_state
        self.look_after()

    def look_after(self, most: int = 1000) -> int:
        """Do one round of upkeep, as the loop does after a micro-batch."""
        pieces = self.sink.due_upkeep(most)
        sent = [json.loads(json.dumps(piece.work)) for piece in pieces]
        made = [json.loads(json.dumps(self.built().do_upkeep(work))) for work in sent]
        return int(self.sink.commit_upkeep(list(zip(pieces, made, strict=True))))

    def step(
        self, schema: TableSchema, *content: Changes, changes: Sequence[SchemaChange] = ()
    ) -> Plan:
        """Carry one micro-batch out; each argument is a segment."""
        plan = self.plan(schema, len(content), changes)
        self.publish(plan, schema, self.write(plan, schema, content))
        return plan

    def change(self, kind: DdlKind, schema: TableSchema | None, **more: Any) -> SchemaChange:
        at = NOON + self.micro_batch + 1
        name = schema.id if schema else ORDERS
        return SchemaChange(at, kind, f"{kind.name} {name}", name, schema, **more)

    def delta(self, name: str = "shop/orders") -> DeltaTable:
        return DeltaTable(str(self.root / name))

    def column_names(self) -> list[str]:
        return [f.name for f in self.delta().schema().fields]

    def column_kinds(self) -> dict[str, str]:
        return {f.name: str(f.type.type) for f in self.delta().schema().fields}

    def commits(self) -> int:
        return self.delta().version() + 1

    def has(self, name: str) -> bool:
        return (self.root / name).exists()

    def data_files(self) -> list[str]:
        """The files that readers need."""
        return self.delta().file_uris()

    def rows(self, columns: str = "*", name: str = "shop/orders") -> list[dict[str, Any]]:
        """The table as delta-rs reads it, and all other readers if these are all columns."""
        query = QueryBuilder().register("t", self.delta(name))
        found = pa.table(query.execute(f"SELECT {columns} FROM t").read_all()).to_pylist()
        if columns == "*":
            assert_same(found, delta_rows(self.root / name))
        return found


class Model:
    """What the source's table holds, and random changes of it."""

    def __init__(self, schema: TableSchema, number: int) -> None:
        self.schema = schema
        self.random = Random(number)
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def image(self, key: tuple[Any, ...]) -> dict[str, Any]:
        note = None if self.random.random() < 0.1 else f"n{self.random.random()}"
        return {**dict(zip(self.schema.handle_key, key, strict=True)), "note": note}

    def key(self) -> tuple[Any, ...]:
        number = self.random.randrange(60) - 20
        first = self.schema.columns[0]
        made: Any = number if first.type.name in ("bigint", "int") else f"k{number}"
        return (made,) if len(self.schema.handle_key) == 1 else (made, f"p{number % 3}")

    def changes(self, count: int) -> Changes:
        found: Changes = []
        for _ in range(count):
            key = self.key()
            old = self.rows.get(key)
            if old is not None and self.random.random() < 0.4:
                found.append((Op.DELETE, self.rows.pop(key), None))
                continue
            new = self.rows[key] = self.image(key)
            found.append((Op.INSERT if old is None else Op.UPDATE, old, new))
        return found

    def expected(self) -> list[dict[str, Any]]:
        return [self.rows[key] for key in sorted(self.rows)]


def ordered(rows: list[dict[str, Any]], key: Sequence[str]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: tuple(row[name] for name in key))


def with_columns(schema: TableSchema, *columns: Column) -> TableSchema:
    return replace(schema, columns=columns, version=schema.version + 1)
