"""What all decoding kernels share: reading numbers and copying bytes at checked places.

Reads go by address, so that the compiler makes one machine instruction of each; callers compare
every place with the length of the bytes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from rowferry.columnar.packed import compiled, frozen, i64, u64

__all__ = ["compiled", "frozen", "i64", "u64"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]

# Why bytes cannot be read; 0 means that they can.
CUT_SHORT: Final = 1
BAD_COLUMN_COUNT: Final = 2
PARTIAL_IMAGE: Final = 3
EMPTY_IMAGE: Final = 4
BAD_OPTIONS: Final = 5
BAD_DECIMAL: Final = 6
BAD_TIME: Final = 7
BAD_JSON: Final = 8
JSON_TOO_DEEP: Final = 9
BAD_VECTOR: Final = 10
BAD_LENGTH: Final = 11
NO_DOCUMENT: Final = 12
BAD_DIFF: Final = 13
BAD_COMPRESSED: Final = 14
BAD_PARTITION: Final = 15


def _load(bits: int, signed: bool) -> Callable[[int], int]:
    def load(_typing: Any, address: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            if bits == 64:
                return value
            extend = builder.sext if signed else builder.zext
            return extend(value, ir.IntType(64))

        return types.int64(types.int64), code

    return cast(Callable[[int], int], intrinsic(load))


# Little-endian numbers at an address, as int64.
load_i8 = _load(8, True)
load_u8 = _load(8, False)
load_i16 = _load(16, True)
load_u16 = _load(16, False)
load_i32 = _load(32, True)
load_u32 = _load(32, False)
load_64 = _load(64, True)


def _store(bits: int) -> Callable[[int, int], None]:
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(builder.trunc(args[1], ir.IntType(bits)), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), code

    return cast(Callable[[int, int], None], intrinsic(store))


# Write the low bits of an int64 to an address.
store_8 = _store(8)
store_16 = _store(16)


def _copy_bytes(_typing: Any, to: Any, source: Any, size: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target = builder.inttoptr(args[0], byte)
        origin = builder.inttoptr(args[1], byte)
        cgutils.raw_memcpy(builder, target, origin, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


# Copies `size` bytes between addresses whose stretches do not overlap.
copy_bytes = cast(Callable[[int, int, int], None], intrinsic(_copy_bytes))


@compiled
def address_of(array: npt.NDArray[Any]) -> int:
    """Return where an array's first element lies; the array must be kept alive meanwhile."""
    return i64(array.ctypes.data)


@compiled
def length_at(address: int, size: int) -> int:
    """Read the length in front of a value: a little-endian number of 1 to 4 bytes."""
    if size == 1:
        return load_u8(address)
    if size == 2:
        return load_u16(address)
    if size == 3:
        return load_u16(address) | load_u8(address + 2) << 16
    return load_u32(address)


@compiled
def big_endian(address: int, size: int) -> int:
    """Read an unsigned big-endian number of up to 7 bytes."""
    number = i64(0)
    for i in range(size):
        number = number << 8 | load_u8(address + i)
    return number


@compiled
def packed_length(raw: Bytes, p: int, end: int) -> tuple[int, int]:
    """Read a packed integer; return it and the place after it, or (-1, p) if it is cut short."""
    if p >= end:
        return -1, p
    first = i64(raw[p])
    if first < 251:
        return first, p + 1
    size = i64(2) if first == 252 else i64(3) if first == 253 else i64(8)
    if first == 251 or first == 255 or p + 1 + size > end:
        return -1, p
    number = i64(0)
    for i in range(size):
        number |= i64(raw[p + 1 + i]) << (8 * i)
    return number, p + 1 + size  # a length with its highest bit set is negative: no caller fits it
