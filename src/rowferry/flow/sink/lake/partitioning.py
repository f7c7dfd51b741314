"""Partitions of a lake's table: what `partition-by` says, and which partition each row is in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.errors import BadLayout
from rowferry.flow.sink.lake.bucket_hash import hash_decimals, hash_values

# One value of a partition: whole numbers, days, hours and microseconds as numbers.
Value: TypeAlias = int | str | None
IDENTITY: Final = "identity"
_TIMES: Final = ("timestamp", "timestamp_ntz")
_ALLOWED: Final = {
    IDENTITY: ("long", "decimal", "string", "date", *_TIMES),
    "year": ("date", *_TIMES),
    "month": ("date", *_TIMES),
    "day": ("date", *_TIMES),
    "hour": _TIMES,
    "bucket": ("long", "decimal", "string", "binary", "date", *_TIMES),
    "truncate": ("long", "string"),
}
_SIZED: Final = frozenset({"bucket", "truncate"})
_CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?(.+?)\s*\)\s*")
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A column, or what a transform makes of it; `size`: buckets, or the width of `truncate`."""

    column: str
    transform: str = IDENTITY
    size: int = 0

    def __str__(self) -> str:
        if self.transform == IDENTITY:
            return self.column
        return f"{self.transform}({f'{self.size}, ' if self.size else ''}{self.column})"

    @classmethod
    def read(cls, text: str, path: str) -> PartitionField:
        """Read it as a user writes it: `region`, `day(created_at)`, `bucket(16, id)`.

        Raises:
            BadLayout: it is none of these.
        """
        call = _CALL.fullmatch(text)
        if call is None:
            if not text.strip() or set(text) & set("(),"):
                raise BadLayout(f"{path}: {text!r} is no column and no transform of one; {_HOW}")
            return cls(text.strip().strip("`"))
        name, number, column = call[1].lower(), call[2], call[3].strip("`")
        if name not in _ALLOWED:
            raise BadLayout(f"{path}: {text!r}: no transform {call[1]!r} is known; {_HOW}")
        if (name in _SIZED) != bool(number) or (number and not 0 < int(number) < 1 << 31):
            raise BadLayout(f"{path}: {text!r}: bucket and truncate need a number; {_HOW}")
        return cls(column, name, int(number or 0))


_HOW: Final = (
    "write a column, or year(c), month(c), day(c), hour(c), bucket(16, c) or truncate(10, c)"
)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How the files of a table are laid out.

    Attributes:
        fields: of its partitions; none: it has no partitions.
        file_size: about how many bytes a data file should have; 0: as the changefeed's others.
    """

    fields: tuple[PartitionField, ...] = ()
    file_size: int = 0

    @property
    def texts(self) -> list[str]:
        """The fields as a user writes them; `read` reads them back."""
        return [str(field) for field in self.fields]

    @classmethod
    def read(
        cls, texts: Sequence[str], path: str = "partition-by", file_size: int = 0
    ) -> FileLayout:
        """Read fields.

        Raises:
            BadLayout: one cannot be understood, or is there twice.
        """
        fields = tuple(PartitionField.read(text, path) for text in texts)
        if len({str(f).lower() for f in fields}) < len(fields):
            raise BadLayout(f"{path} names a column or transform twice; remove one")
        return cls(fields, file_size)

    def check(self, kinds: Mapping[str, str], table: str) -> None:
        """Raise BadLayout unless a lake's table with these columns can have these partitions.

        `kinds` are the names of the columns' types, by column.
        """
        for field in self.fields:
            kind = kinds.get(field.column, "").partition("(")[0]
            if not kind:
                raise BadLayout(
                    f"{table} has no column {field.column!r} to partition by; correct its rule in "
                    "sink.lake.layouts"
                )
            if kind not in _ALLOWED[field.transform]:
                allowed = ", ".join(_ALLOWED[field.transform])
                raise BadLayout(
                    f"{table}: {field} cannot partition by a column of the type {kind}, but by one "
                    f"of {allowed}; correct its rule in sink.lake.layouts"
                )


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of one partition: the values of its fields, and where its rows are."""

    values: tuple[Value, ...]
    places: npt.NDArray[np.int64]


def shares(rows: pa.Table, layout: FileLayout, names: Mapping[str, str]) -> Iterator[Share]:
    """Yield the rows of each partition, in their order; `names` are those in data files."""
    if not layout.fields or not rows.num_rows:
        yield Share((), np.arange(rows.num_rows, dtype=np.int64))
        return
    columns = [_values(_whole(rows.column(names[f.column])), f) for f in layout.fields]
    code: npt.NDArray[np.int64] = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        coded = column.dictionary_encode("encode")
        code = code * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        code = np.unique(code, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(code, kind="stable")
    first = np.flatnonzero(np.diff(code[order], prepend=-1))
    heads = [column.take(pa.array(order[first])).to_pylist() for column in columns]
    ends = [*first[1:], len(order)]
    for number, (begin, end) in enumerate(zip(first, ends, strict=True)):
        yield Share(tuple(_plain(head[number]) for head in heads), order[begin:end])


def _plain(value: Any) -> Value:
    return f"{value:f}" if isinstance(value, Decimal) else value


def _whole(values: pa.ChunkedArray) -> pa.Array:
    joined = values.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def _values(values: pa.Array, field: PartitionField) -> pa.Array:
    """Return the values of a partition field, for each row; NULL stays NULL."""
    kind, size = values.type, field.size
    if field.transform == "truncate" and not pa.types.is_integer(kind):
        return pc.utf8_slice_codeunits(values, 0, size)
    if field.transform == "bucket":
        return _masked((_hashes(values) & np.uint32(0x7FFFFFFF)) % np.uint32(size), values)
    if field.transform in ("year", "month"):
        plain = values.cast(pa.timestamp("us"))
        years = pc.subtract(pc.year(plain), 1970)
        if field.transform == "year":
            return years
        return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(plain), 1))
    if not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return values
    numbers = _numbers(values)
    if field.transform == "truncate":
        return _masked(numbers - np.mod(numbers, size), values)
    if pa.types.is_timestamp(kind) and field.transform != IDENTITY:
        numbers = numbers // (_HOUR_US if field.transform == "hour" else _DAY_US)
    return _masked(numbers, values)


def _numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    width = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    plain = values.view(width).fill_null(0).to_numpy(zero_copy_only=False)
    numbers: npt.NDArray[np.int64] = plain.astype(np.int64)
    return numbers


def _masked(numbers: npt.NDArray[Any], values: pa.Array) -> pa.Array:
    return pa.array(
        numbers.astype(np.int64), mask=~values.is_valid().to_numpy(zero_copy_only=False)
    )


def _hashes(values: pa.Array) -> npt.NDArray[np.uint32]:
    kind, count = values.type, len(values)
    if pa.types.is_decimal(kind):
        raw = np.frombuffer(values.buffers()[1], np.uint8)
        return hash_decimals(raw[16 * values.offset : 16 * (values.offset + count)])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        large = values.cast(pa.large_binary())
        _, ends, data = large.buffers()
        offsets = np.frombuffer(ends, np.int64)[large.offset : large.offset + count + 1]
        return hash_values(
            np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), offsets
        )
    bytes_ = np.ascontiguousarray(_numbers(values), "<i8").view(np.uint8)
    return hash_values(bytes_, np.arange(count + 1, dtype=np.int64) * 8)
