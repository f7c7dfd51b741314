"""Deletion vectors: which rows of a data file count no more, as roaring bitmaps.

The bytes are those of Delta's protocol: a magic number, then bitmaps of 32 bits in the portable
form of the roaring format, each with the high half of its rows' numbers in front.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from rowferry.errors import SinkDamaged

RowNumbers = npt.NDArray[np.int64]

_MAGIC: Final = 1681511377
_NO_RUNS, _RUNS = 12346, 12347
_ARRAY_MOST: Final = 4096
_NO_OFFSETS_BELOW: Final = 4  # containers, in the form with runs
_MOST: Final = 1 << 16  # containers of a bitmap, and values of a container
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)


def encode_rows(rows: RowNumbers) -> bytes:
    """Return ascending row numbers as a deletion vector."""
    parts = [struct.pack("<i", _MAGIC)]
    high = rows >> 32
    keys, starts = np.unique(high, return_index=True)
    parts.append(struct.pack("<q", len(keys)))
    for key, part in zip(keys, np.split(rows, starts[1:]), strict=True):
        parts += [struct.pack("<i", int(key)), _bitmap((part & 0xFFFFFFFF).astype(np.uint32))]
    return b"".join(parts)


def _bitmap(rows: npt.NDArray[np.uint32]) -> bytes:
    keys, starts = np.unique(rows >> 16, return_index=True)
    pieces = np.split((rows & 0xFFFF).astype("<u2"), starts[1:])
    bodies = [_container(piece) for piece in pieces]
    head = struct.pack("<II", _NO_RUNS, len(keys))
    about = np.empty((len(keys), 2), "<u2")
    about[:, 0], about[:, 1] = keys, [len(p) - 1 for p in pieces]
    first = len(head) + 8 * len(keys)
    sizes = np.array([len(b) for b in bodies], np.int64)
    offsets = (first + np.cumsum(sizes) - sizes).astype("<u4")
    return b"".join([head, about.tobytes(), offsets.tobytes(), *bodies])


def _container(values: npt.NDArray[Any]) -> bytes:
    if len(values) <= _ARRAY_MOST:
        return values.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def decode_rows(data: bytes, shown: str) -> RowNumbers:
    """Return the row numbers of a deletion vector, ascending; `shown` names the table.

    Raises:
        SinkDamaged: it is none.
    """
    try:
        magic, count = struct.unpack_from("<iq", data)
        if magic != _MAGIC:
            raise ValueError("another magic number")
        at, parts = 12, []
        for _ in range(count):
            (key,) = struct.unpack_from("<i", data, at)
            rows, at = _read_bitmap(data, at + 4)
            parts.append(rows.astype(np.int64) + (key << 32))
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if len(rows) and (rows[0] < 0 or np.any(rows[1:] <= rows[:-1])):
            raise ValueError("rows that do not ascend")
        return rows
    except (struct.error, ValueError, IndexError) as err:
        raise SinkDamaged(f"{shown}: a deletion vector cannot be read ({err})") from None


def _read_bitmap(data: bytes, at: int) -> tuple[npt.NDArray[np.int64], int]:
    begin = at
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = np.zeros(0, np.uint8)
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        runs = np.unpackbits(
            np.frombuffer(data, np.uint8, (count + 7) // 8, at), bitorder="little"
        )[:count]
        at += (count + 7) // 8
    elif cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", data, at)
        if count > _MOST:  # before as much memory is taken
            raise ValueError(f"bitmap with {count} containers")
        at += 4
        runs = np.zeros(count, np.uint8)
    else:
        raise ValueError(f"bitmap with cookie {cookie}")
    about = np.frombuffer(data, "<u2", 2 * count, at).reshape(-1, 2)
    at += 4 * count
    if cookie == _NO_RUNS or count >= _NO_OFFSETS_BELOW:
        at += 4 * count
    parts = []
    for (key, least), is_run in zip(about.tolist(), runs.tolist(), strict=True):
        values, at = _read_container(data, at, least + 1, bool(is_run))
        parts.append(values + (key << 16))
    if at < begin:
        raise ValueError("bitmap without an end")
    return (np.concatenate(parts) if parts else np.zeros(0, np.int64)), at


def _read_container(
    data: bytes, at: int, count: int, is_run: bool
) -> tuple[npt.NDArray[np.int64], int]:
    if is_run:
        (runs,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", 2 * runs, at + 2).reshape(-1, 2).astype(np.int64)
        lengths = pairs[:, 1] + 1
        if lengths.sum() > _MOST:
            raise ValueError(f"container with {lengths.sum()} values")
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(pairs[:, 0], lengths) + within, at + 2 + 4 * runs
    if count <= _ARRAY_MOST:
        return np.frombuffer(data, "<u2", count, at).astype(np.int64), at + 2 * count
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + 8192


# --- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VectorFile:
    """Deletion vectors of several data files in one file of their own."""

    name: str
    content: bytes
    descriptors: tuple[dict[str, Any], ...]


def vector_file(number: UUID, vectors: list[RowNumbers]) -> VectorFile:
    """Return a file with these vectors, and what a commit says about each."""
    content = bytearray(b"\x01")
    descriptors = []
    for rows in vectors:
        data = encode_rows(rows)
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": z85(number.bytes),
                "offset": len(content),
                "sizeInBytes": len(data),
                "cardinality": len(rows),
            }
        )
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return VectorFile(f"deletion_vector_{number}.bin", bytes(content), tuple(descriptors))


def vector_path(descriptor: dict[str, Any]) -> str | None:
    """Return the path of a vector's file below its table; None: it stands in the commit itself.

    Raises:
        SinkDamaged: its name is none.
    """
    if descriptor.get("storageType") != "u":
        return None
    text = descriptor.get("pathOrInlineDv")
    try:
        if not isinstance(text, str):
            raise ValueError("no text")
        prefix, number = text[:-20], UUID(bytes=un_z85(text[-20:]))
    except (struct.error, ValueError) as err:
        raise SinkDamaged(f"the name of a deletion vector cannot be read ({err})") from None
    name = f"deletion_vector_{number}.bin"
    return f"{prefix}/{name}" if prefix else name


def vector_in(content: bytes, descriptor: dict[str, Any], shown: str) -> RowNumbers:
    """Return the rows of a vector in its file."""
    offset, size = descriptor.get("offset") or 0, descriptor.get("sizeInBytes")
    if not (isinstance(offset, int) and isinstance(size, int) and min(offset, size) >= 0):
        raise SinkDamaged(f"{shown}: where a deletion vector begins and ends is not told")
    return decode_rows(content[offset + 4 : offset + 4 + size], shown)


def z85(data: bytes) -> str:
    """Return bytes as text of 85 characters, five for each four."""
    letters = []
    for (value,) in struct.iter_unpack(">I", data):
        digits = []
        for _ in range(5):
            value, digit = divmod(value, 85)
            digits.append(_Z85[digit])
        letters += digits[::-1]
    return "".join(letters)


def un_z85(text: str) -> bytes:
    """Return what `z85` was given."""
    data = b""
    for at in range(0, len(text), 5):
        value = 0
        for char in text[at : at + 5]:
            value = value * 85 + _Z85.index(char)
        data += struct.pack(">I", value)
    return data
