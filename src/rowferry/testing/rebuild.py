"""Tables rebuilt from what a feed delivered, and compared with what they should be.

Data files apply by table version, then date, then number: a version's directory is complete before
the next version's begins, a date's files before the next date's. Partitions of one table may apply
in any order between these, because a key never leaves its partition. A version without data still
counts: its schema file may carry the DDL that clears, moves or reshapes the table.

All is columnar: the last change of each key is found by one Arrow group-by per table version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Change, DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput
from rowferry.flow.encode.contract import Format
from rowferry.testing.evolve import (
    column_origins,
    convert_array,
    default_value,
    refuse_unmodelled,
)
from rowferry.testing.model import Key, Row
from rowferry.testing.storage import storage_changes

_PLACE, _WEIGHT = "\0place", "\0weight"  # no column of a table can have such a name


@dataclass(frozen=True)
class RebuiltTable:
    """One table's rows; `key` is empty for a table without a key (then rows may be equal)."""

    schema: TableSchema
    key: tuple[str, ...]
    rows: pa.Table

    def by_key(self) -> dict[Key, Row]:
        """Return the rows by key; for tables that fit into Python objects."""
        names = self.rows.column_names
        columns = [c.to_pylist() for c in self.rows.columns]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return {tuple(r[c] for c in self.key or names): r for r in rows}


def rebuild(
    root: Path,
    codec: Format,
    keys: Mapping[TableId, Sequence[str]] | None = None,
    until_ts: int | None = None,
) -> dict[TableId, RebuiltTable]:
    """Rebuild all tables of a storage directory from its visible files.

    `until_ts` leaves out what was committed later, e.g. to compare at the checkpoint while the feed
    runs; it needs a format that carries the commit-ts of rows.

    Raises:
        BadInput, SinkDamaged, DecodeError: something there cannot be followed or read.
    """
    changes: Iterable[Change] = storage_changes(root, codec)
    if until_ts is not None:
        changes = _until(changes, until_ts)
    return rebuild_changes(changes, keys)


def _until(changes: Iterable[Change], until_ts: int) -> Iterator[Change]:
    for change in changes:
        if isinstance(change, Rows):
            early = np.flatnonzero(change.commit_ts <= until_ts)
            if len(early):
                yield change if len(early) == len(change) else change.take(early)
        elif change.commit_ts <= until_ts:
            yield change


def rebuild_changes(
    changes: Iterable[Change], keys: Mapping[TableId, Sequence[str]] | None = None
) -> dict[TableId, RebuiltTable]:
    """Apply changes in order; return the tables that exist at the end.

    Inserts and updates are upserts by handle key, so repeats do no harm; `keys` names the columns
    of tables whose versions do not (schema files tell primary keys only). Tables without a
    key are kept as bags of rows: repeats show there, and updates must carry before-images.

    Raises:
        BadInput: a DDL that cannot be followed, or row images that lack columns.
    """
    tables: dict[TableId, _Growing] = {}
    for change in changes:
        match change:
            case Rows():
                _table(tables, change.table, keys).take(change)
            case SchemaChange():
                _follow(tables, change, keys)
            case Watermark():
                pass
    return {name: t.finish() for name, t in tables.items()}


@dataclass
class _Growing:
    """A table while changes are applied; `waiting` holds chunks not yet merged into `rows`."""

    schema: TableSchema
    key: tuple[str, ...]
    rows: pa.Table
    waiting: list[tuple[pa.Table, pa.Array]] = field(default_factory=list)

    def take(self, rows: Rows) -> None:
        """Keep a chunk for the next merge, as row images with a weight: 1 stays, -1 goes."""
        names = self.rows.schema
        op = rows.batch.column("op")
        updates = pc.equal(op, int(Op.UPDATE))
        gone = pc.equal(op, int(Op.DELETE))
        leaves = gone
        if self.key:
            moved = self._moved(rows, updates)
            leaves = pc.or_(gone, moved) if moved is not None else gone
        else:
            if pc.any(pc.and_(updates, rows.before.is_null())).as_py():
                raise BadInput(f"table {self.schema.id} has no key and updates carry no old row")
            leaves = pc.or_(gone, updates)
        # Each row gives up to two images, the old one first: 2n and 2n + 1 keep the order.
        old = np.flatnonzero(leaves.to_numpy(zero_copy_only=False))
        new = np.flatnonzero(~gone.to_numpy(zero_copy_only=False))
        order = np.argsort(np.concatenate([old * 2, new * 2 + 1]), kind="stable")
        weight = np.concatenate([np.full(len(old), -1, np.int8), np.ones(len(new), np.int8)])
        parts = [
            _images(rows.before.take(pa.array(old)), names, self.key),
            _images(rows.after.take(pa.array(new)), names, tuple(names.names)),
        ]
        both = pa.concat_tables(parts) if len(old) else parts[1]
        if len(old):
            both = both.take(pa.array(order))
        self.waiting.append((both, pa.array(weight[order])))

    def merge(self) -> None:
        """Apply what waits."""
        if not self.waiting:
            return
        images = pa.concat_tables([self.rows, *(t for t, _ in self.waiting)])
        ones = pa.array(np.ones(self.rows.num_rows, np.int8))
        weight = pa.chunked_array([ones, *(w for _, w in self.waiting)], pa.int8())
        self.waiting.clear()
        self.rows = _last(images, weight, self.key) if self.key else _remaining(images, weight)

    def reshape(self, new: TableSchema, query: str, key: tuple[str, ...]) -> None:
        """Move on to another version of the table, with its rows."""
        self.merge()
        columns = []
        for column, origin in column_origins(self.schema, new, query):
            if column.generated == "virtual":
                continue
            if origin is None or origin.name not in self.rows.column_names:
                value = pa.scalar(default_value(column), column.type.arrow)
                columns.append(pa.repeat(value, self.rows.num_rows))
            else:
                old = self.rows.column(origin.name).combine_chunks()
                columns.append(convert_array(old, origin.type, column.type))
        self.rows = pa.Table.from_arrays(columns, schema=_row_schema(new))
        self.schema, self.key = new, key

    def finish(self) -> RebuiltTable:
        """Return the table as it is now."""
        self.merge()
        return RebuiltTable(self.schema, self.key, self.rows)

    def _moved(self, rows: Rows, updates: pa.Array) -> pa.Array | None:
        """Return which updates left their old key; None: no update can have."""
        had = [rows.before.type.get_field_index(c) for c in self.key]
        if not rows.before.null_count < len(rows) or not pc.any(updates).as_py():
            return None
        moved = pa.array(np.zeros(len(rows), bool))
        for name, place in zip(self.key, had, strict=True):
            if place >= 0:  # an old image without the column: it did not change
                differs = pc.not_equal(
                    pc.struct_field(rows.before, name), pc.struct_field(rows.after, name)
                )
                moved = pc.or_(moved, pc.fill_null(differs, False))
        return pc.and_(moved, pc.and_(updates, rows.before.is_valid()))


def _table(
    tables: dict[TableId, _Growing],
    schema: TableSchema,
    keys: Mapping[TableId, Sequence[str]] | None,
    query: str = "",
) -> _Growing:
    """Return the table, made or brought to this version where it is not there yet."""
    key = schema.handle_key or tuple((keys or {}).get(schema.id, ()))
    growing = tables.get(schema.id)
    if growing is None:
        empty = _row_schema(schema).empty_table()
        growing = tables[schema.id] = _Growing(schema, key, empty)
    elif growing.schema is not schema and growing.schema != schema:
        if growing.schema.version > schema.version:
            raise BadInput(
                f"table {schema.id}: rows of version {schema.version} come after "
                f"version {growing.schema.version}"
            )
        growing.reshape(schema, query, key)
    return growing


def _follow(
    tables: dict[TableId, _Growing],
    change: SchemaChange,
    keys: Mapping[TableId, Sequence[str]] | None,
) -> None:
    refuse_unmodelled(change.kind, change.query)
    if change.kind is DdlKind.DROP_DATABASE:
        for table in [t for t in tables if t.database == change.table.database]:
            del tables[table]
    elif change.kind in (DdlKind.DROP_TABLE, DdlKind.TRUNCATE_TABLE):
        tables.pop(change.table, None)
    elif change.kind is DdlKind.RENAME_TABLE:
        if change.previous is None:
            raise BadInput(f"the rename to {change.table} does not say from where: {change.query}")
        if change.previous in tables:
            tables[change.table] = tables.pop(change.previous)
    if change.schema is not None and change.kind is not DdlKind.DROP_TABLE:
        _table(tables, change.schema, keys, change.query)


def _row_schema(table: TableSchema) -> pa.Schema:
    return pa.schema([pa.field(c.name, c.type.arrow) for c in table.visible])


def _images(images: pa.StructArray, wanted: pa.Schema, needed: tuple[str, ...]) -> pa.Table:
    """Return row images with all wanted columns; only those in `needed` may not be missing."""
    there = dict(zip((f.name for f in images.type), images.flatten(), strict=True))
    missing = [n for n in needed if n not in there]
    if missing and len(images):
        raise BadInput(f"row images lack the columns {', '.join(missing)}")
    columns = [
        there[f.name].cast(f.type) if f.name in there else pa.nulls(len(images), f.type)
        for f in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def _last(images: pa.Table, weight: pa.ChunkedArray, key: tuple[str, ...]) -> pa.Table:
    """Return the last image of each key, unless it is one that goes."""
    place = pa.array(np.arange(images.num_rows))
    groups = (images.select(list(key)).append_column(_PLACE, place).group_by(list(key))).aggregate(
        [(_PLACE, "max")]
    )
    last = groups.column(f"{_PLACE}_max").combine_chunks()
    stays = pc.equal(weight.take(last), 1)
    return images.take(last.filter(stays.combine_chunks()).sort())


def _remaining(images: pa.Table, weight: pa.ChunkedArray) -> pa.Table:
    """Return each image as many times as it came more often than it went."""
    names = images.column_names
    summed = _weighed(images, weight)
    times = np.maximum(summed.column(f"{_WEIGHT}_sum").to_numpy(), 0)
    place = np.repeat(np.arange(summed.num_rows), times)
    return summed.select(names).take(pa.array(place))


def _weighed(images: pa.Table, weight: pa.ChunkedArray) -> pa.Table:
    whole = images.append_column(_WEIGHT, pc.cast(weight, pa.int64()))
    grouped = whole.group_by(images.column_names)
    return grouped.aggregate([(_WEIGHT, "sum"), (_WEIGHT, "count")])


# --- comparing -----------------------------------------------------------------------------------


@dataclass
class TableDifferences:
    """How rebuilt tables differ from expected ones; `samples` shows some differences in words."""

    equal: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    samples: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.extra or self.different)

    def __str__(self) -> str:
        counts = f"{self.equal} rows equal, {self.missing} missing, {self.extra} extra, "
        return "\n".join([f"{counts}{self.different} different", *self.samples])


def compare(
    rebuilt: Mapping[TableId, RebuiltTable],
    expected: Mapping[TableId, RebuiltTable | Mapping[Key, Row]],
    most_samples: int = 10,
) -> TableDifferences:
    """Compare tables row by row, column by name; a table that is not there counts as empty."""
    differences = TableDifferences()
    for name in sorted(rebuilt.keys() | expected.keys()):
        have = rebuilt.get(name)
        want = expected.get(name, {})
        if have is None and not isinstance(want, RebuiltTable):
            differences.missing += len(want)
            _sample(differences, most_samples, (f"missing: {name} {key}" for key in want))
            continue
        shape = have if have is not None else want
        assert isinstance(shape, RebuiltTable)
        schema = shape.rows.schema
        sides = [
            (1, _arrow(name, want, schema)),
            (-1, have.rows if have is not None else schema.empty_table()),
        ]
        _compare_table(differences, name, shape.key, sides, most_samples)
    return differences


def _compare_table(
    differences: TableDifferences,
    name: TableId,
    key: tuple[str, ...],
    sides: list[tuple[int, pa.Table]],
    most_samples: int,
) -> None:
    weight = pa.chunked_array(
        [pa.array(np.full(t.num_rows, side, np.int8)) for side, t in sides], pa.int8()
    )
    summed = _weighed(pa.concat_tables([t for _, t in sides]), weight)
    balance = summed.column(f"{_WEIGHT}_sum").to_numpy()
    times = summed.column(f"{_WEIGHT}_count").to_numpy()
    differences.equal += int((times - np.abs(balance)).sum()) // 2
    odd = summed.filter(pa.array(balance != 0)).to_pylist()
    wanted: dict[Key, Row] = {}
    got: dict[Key, Row] = {}
    for row in odd:
        balance_here = row.pop(f"{_WEIGHT}_sum")
        row.pop(f"{_WEIGHT}_count")
        side = wanted if balance_here > 0 else got
        side[tuple(row[c] for c in key or row)] = row
        if not key:
            differences.missing += max(balance_here - 1, 0)
            differences.extra += max(-balance_here - 1, 0)
    both = wanted.keys() & got.keys()
    differences.different += len(both)
    differences.missing += len(wanted) - len(both)
    differences.extra += len(got) - len(both)
    lines = [f"different: {name} {k}: expected {wanted[k]}, got {got[k]}" for k in both]
    lines += [f"missing: {name} {k}: {wanted[k]}" for k in wanted.keys() - both]
    lines += [f"extra: {name} {k}: {got[k]}" for k in got.keys() - both]
    _sample(differences, most_samples, lines)


def _arrow(name: TableId, rows: RebuiltTable | Mapping[Key, Row], schema: pa.Schema) -> pa.Table:
    if not isinstance(rows, RebuiltTable):
        listed = list(rows.values())
        if any(r.keys() != set(schema.names) for r in listed):
            raise BadInput(f"{name}: expected rows must have the columns {', '.join(schema.names)}")
        columns = [pa.array([r[f.name] for r in listed], f.type) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)
    if set(rows.rows.column_names) != set(schema.names):
        raise BadInput(f"{name}: the tables compared have other columns")
    return rows.rows.select(schema.names).cast(schema)


def _sample(differences: TableDifferences, most: int, lines: Iterable[str]) -> None:
    for line in lines:
        if len(differences.samples) >= most:
            return
        differences.samples.append(line)
