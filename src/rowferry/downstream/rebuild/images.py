"""Row changes of any version as rows of the last version, each with its place in the order.

A change gives up to two images: the old row goes (weight -1), the new one stays (+1). What is left
of a key is its last image; of a table without a key, each row as often as it came more than it
went.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import DdlKind, Op, Rows, make_rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.downstream.rebuild.convert import convert_array
from rowferry.downstream.rebuild.evolve import column_origins, default_value, refuse_unmodelled
from rowferry.downstream.rebuild.lineage import VersionStep
from rowferry.errors import BadInput
from rowferry.flow.dispatch.row_hash import row_hashes
from rowferry.flow.sink.storage.schema_file import LOST_BYTE

# No column of a table can have such a name.
TS, PLACE, WEIGHT = "\0ts", "\0place", "\0weight"
_PLACE_BITS = 40  # rows of one file
_MEANING = [pa.field(TS, pa.uint64()), pa.field(PLACE, pa.int64()), pa.field(WEIGHT, pa.int64())]
_TIMES = (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
_SWAP = re.compile(r"\s*RENAME\b", re.IGNORECASE)  # by a tool, with a copy that it has altered
# A column added so has values that no file tells for the rows that were there.
_COMPUTED = re.compile(r"\bAS\s*\(|\bDEFAULT\s*\(|\bAUTO_INCREMENT\b", re.IGNORECASE)


def image_schema(table: TableSchema) -> pa.Schema:
    """Return the Arrow schema of images: the table's columns, then ts, place and weight."""
    return pa.schema([pa.field(c.name, c.type.arrow) for c in table.visible] + _MEANING)


@dataclass(frozen=True)
class VersionFollower:
    """Brings changes of one version to the last one.

    Attributes:
        steps: the version of the changes, and all that followed.
        key: the last version's key; empty for a table without one.
        given: the user says that it names rows in every version; else the versions must say so.
    """

    steps: tuple[VersionStep, ...]
    key: tuple[str, ...]
    given: bool = False

    def images(self, rows: Rows, ordinal: int, first: int) -> pa.Table:
        """Return a chunk's images, in order.

        Args:
            rows: of one file.
            ordinal: the file's; files apply in this order.
            first: how many rows of the file came before. What rows tell as `seq` may be their place
                in a micro-batch, which says nothing of the next one.

        Raises:
            BadInput: an image lacks what is needed, or a schema change cannot be followed.
        """
        op = rows.op
        updates, gone = op == Op.UPDATE, op == Op.DELETE
        leaves = gone | self._left(rows, updates)
        old, new = np.flatnonzero(leaves), np.flatnonzero(~gone)
        # Each row gives up to two images, the old one first: 2n and 2n + 1 keep the order.
        order = np.argsort(np.concatenate([old * 2, new * 2 + 1]), kind="stable")
        kind = pa.schema([pa.field(c.name, c.type.arrow) for c in rows.table.visible])
        needed = self._own_key() if self.key else tuple(kind.names)
        parts = [
            _columns(rows.before.take(pa.array(old)), kind, needed, rows.table),
            _columns(rows.after.take(pa.array(new)), kind, tuple(kind.names), rows.table),
        ]
        both = self._reshaped(pa.concat_tables(parts).take(pa.array(order)).combine_chunks())
        places = np.concatenate([old, new])[order]
        weight = np.repeat(np.array([-1, 1]), [len(old), len(new)])[order]
        place = (ordinal << _PLACE_BITS) + (first + places) * 2 + (weight > 0)
        for name, values in (
            (TS, pa.array(rows.commit_ts[places])),
            (PLACE, pa.array(place)),
            (WEIGHT, pa.array(weight)),
        ):
            both = both.append_column(name, values)
        return both

    def _left(self, rows: Rows, updates: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which updates' old rows go by themselves: those whose key may be another."""
        nothing = np.zeros(len(rows), bool)
        if not updates.any():
            return nothing
        has_before: npt.NDArray[np.bool_] = rows.before.is_valid().to_numpy(zero_copy_only=False)
        own = self._own_key()
        of_version = own if self.given else rows.table.handle_key
        if not self.key or {c.lower() for c in own} != {c.lower() for c in of_version}:
            if (updates & ~has_before).any():
                raise BadInput(
                    f"table {rows.table.id}, version {rows.table.version} has not the key "
                    f"({', '.join(self.key) or 'none'}) by which it is rebuilt, and its updates "
                    "carry no old row; write old rows (canal-json, or csv with output-old-value)"
                )
            return updates
        there = {f.name for f in rows.before.type}
        moved = nothing
        for name in own:
            if name in there:  # an old image without the column: it did not change
                one, two = (pc.struct_field(image, name) for image in (rows.before, rows.after))
                differs = pc.fill_null(pc.not_equal(one, two), False)
                moved = moved | differs.to_numpy(zero_copy_only=False)
        return moved & updates & has_before

    def _own_key(self) -> tuple[str, ...]:
        """Return the key's columns by the names that they had in the changes' own version."""
        names = list(self.key)
        for before, step in reversed(list(zip(self.steps, self.steps[1:], strict=False))):
            origins = column_origins(before.schema, step.schema, step.query)
            by_name = {new.name.lower(): old for new, old in origins}
            came = [by_name.get(n.lower()) for n in names]
            names = [c.name for c in came if c is not None]
        return tuple(names)

    def _reshaped(self, rows: pa.Table) -> pa.Table:
        for before, step in zip(self.steps, self.steps[1:], strict=False):
            rows = _next_version(rows, before.schema, step)
        return rows


def _next_version(rows: pa.Table, old: TableSchema, step: VersionStep) -> pa.Table:
    origins = column_origins(old, step.schema, step.query)
    if rows.num_rows:
        refuse_unmodelled(step.kind, step.query)
        _refuse_copied(old, origins, step)
    columns = []
    for column, origin in origins:
        if column.generated == "virtual":
            continue
        if origin is not None and origin.name in rows.column_names:
            values = rows.column(origin.name).combine_chunks()
            columns.append(_converted(values, origin, column, step))
        else:
            value = _filled(column, step) if rows.num_rows else None
            columns.append(pa.repeat(pa.scalar(value, column.type.arrow), rows.num_rows))
    names = [c.name for c in step.schema.visible]
    return pa.Table.from_arrays(columns, names=names)


def _refuse_copied(
    old: TableSchema, origins: Sequence[tuple[Column, Column | None]], step: VersionStep
) -> None:
    """Refuse a copy in the table's place whose new columns may be old ones under other names."""
    came = [c.name for c, origin in origins if origin is None]
    kept = {origin.name for _, origin in origins if origin is not None}
    gone = [c.name for c in old.columns if c.name not in kept]
    if came and gone and step.kind is DdlKind.MULTI_SCHEMA_CHANGE and _SWAP.match(step.query):
        raise BadInput(
            f"{step.schema.id}: a copy took its place, and no file tells whether "
            f"{', '.join(came)} has the values of {', '.join(gone)}: {step.query}"
        )


def _filled(column: Column, step: VersionStep) -> object:
    """Return what rows from before have in an added column."""
    value = column.default
    computed = _COMPUTED.search(step.query) is not None
    if _SWAP.match(step.query):  # which tells nothing of the column: it may be numbered
        computed = computed or (value is None and not column.nullable)
    if isinstance(value, str) and column.type.kind in _TIMES:
        computed = computed or not value[:1].lstrip("-").isdigit()
        # A constant is a time of the session that added the column, in a zone that no file tells.
        is_zoned = column.type.kind is Kind.TIMESTAMP and not value.startswith("0000-00-00")
        computed = computed or is_zoned
    computed = computed or (isinstance(value, str) and LOST_BYTE in value)
    try:
        if not computed:
            return default_value(column)
    except (ValueError, ArithmeticError):
        pass
    raise BadInput(
        f"{step.schema.id}: no file tells what older rows have in the column {column.name!r} "
        f"since {step.query}"
    )


def _converted(values: pa.Array, old: Column, new: Column, step: VersionStep) -> pa.Array:
    try:
        return convert_array(values, old.type, new.type)
    except (ValueError, ArithmeticError, UnicodeDecodeError, pa.ArrowException) as err:
        raise BadInput(
            f"{step.schema.id}, column {new.name!r}: a value of {old.type.sql} cannot be followed "
            f"to {new.type.sql} ({type(err).__name__}): {step.query}"
        ) from None


def _columns(
    images: pa.StructArray, wanted: pa.Schema, needed: Sequence[str], table: TableSchema
) -> pa.Table:
    """Return row images with all wanted columns; only those in `needed` may not be missing."""
    there = dict(zip((f.name for f in images.type), images.flatten(), strict=True))
    missing = [n for n in needed if n not in there]
    if missing and len(images):
        raise BadInput(f"table {table.id}, version {table.version}: rows lack {', '.join(missing)}")
    columns = [
        there[f.name].cast(f.type) if f.name in there else pa.nulls(len(images), f.type)
        for f in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


# --- what is left --------------------------------------------------------------------------------


def newest(images: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last image of each key, also of those that went: later ones may be older."""
    columns = list(key)
    stamps, places = images.column(TS).to_numpy(), images.column(PLACE).to_numpy()
    order = np.lexsort((places, stamps))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranked = images.select(columns).append_column(PLACE, pa.array(rank))
    last = ranked.group_by(columns).aggregate([(PLACE, "max")]).column(f"{PLACE}_max")
    return images.take(pa.array(order[last.to_numpy()]))


def counted(images: pa.Table) -> pa.Table:
    """Return each different row once, its weight being how often it came more than it went."""
    names = [n for n in images.column_names if n not in (TS, PLACE, WEIGHT)]
    summed = images.group_by(names).aggregate([(WEIGHT, "sum")])
    summed = summed.filter(pc.not_equal(summed.column(f"{WEIGHT}_sum"), 0))
    nothing = pa.array(np.zeros(summed.num_rows, np.int64))
    columns = [*summed.select(names).columns, nothing.cast(pa.uint64()), nothing]
    return pa.Table.from_arrays([*columns, summed.column(f"{WEIGHT}_sum")], schema=images.schema)


class Remaining:
    """The images of one share of a table, merged as they come: memory follows what is left."""

    def __init__(self, table: TableSchema, key: Sequence[str], most_bytes: int = 64 << 20) -> None:
        self._schema = image_schema(table)
        self._key = tuple(key)
        self._most_bytes = most_bytes
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._merged: pa.Table | None = None

    def add(self, images: pa.Table) -> None:
        """Take in some images, in any order."""
        self._waiting.append(images)
        self._waiting_bytes += images.nbytes
        kept = self._merged.nbytes if self._merged is not None else 0
        if self._waiting_bytes > max(self._most_bytes, kept):
            self._merge()

    def images(self) -> pa.Table:
        """Return what must be known to go on: the last image of each key, or counted rows."""
        self._merge()
        return self._merged if self._merged is not None else self._schema.empty_table()

    def rows(self) -> pa.Table:
        """Return the rows that are left."""
        images = self.images()
        names = [f.name for f in self._schema][: -len(_MEANING)]
        if self._key:
            return images.filter(pc.equal(images.column(WEIGHT), 1)).select(names)
        times = np.maximum(images.column(WEIGHT).to_numpy(), 0)
        return images.select(names).take(pa.array(np.repeat(np.arange(images.num_rows), times)))

    def _merge(self) -> None:
        if not self._waiting:
            return
        parts = [*([self._merged] if self._merged is not None else []), *self._waiting]
        whole = pa.concat_tables(parts)
        self._merged = newest(whole, self._key) if self._key else counted(whole)
        self._waiting, self._waiting_bytes = [], 0


def shares(
    images: pa.Table, table: TableSchema, key: Sequence[str], count: int
) -> Iterator[tuple[int, pa.Table]]:
    """Yield images by the hash of their key (without one: of the whole row)."""
    if not images.num_rows:
        return
    columns = [table.column(name) for name in key] or list(table.visible)
    hashes = _hashes(images, table, columns) % np.uint32(count)
    order = np.argsort(hashes, kind="stable")
    sorted_images = images.take(pa.array(order))
    bounds = np.searchsorted(hashes[order], np.arange(count + 1))
    for share in range(count):
        start, stop = int(bounds[share]), int(bounds[share + 1])
        if stop > start:
            yield share, sorted_images.slice(start, stop - start)


def _hashes(
    images: pa.Table, table: TableSchema, columns: Iterable[Column]
) -> npt.NDArray[np.uint32]:
    wanted = list(columns)
    fields = [pa.field(c.name, c.type.arrow) for c in wanted]
    arrays = [images.column(c.name).combine_chunks() for c in wanted]
    values = pa.StructArray.from_arrays(arrays, fields=fields)
    count = images.num_rows
    rows = make_rows(
        table,
        pa.array(np.zeros(count, np.int8)),
        pa.array(np.zeros(count, np.uint64)),
        pa.array(np.arange(count)),
        pa.nulls(count, values.type),
        values,
    )
    return row_hashes(rows, wanted)
