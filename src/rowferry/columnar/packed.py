"""How kernels are compiled, and how they read numbers that are packed into bytes.

A kernel never trusts a length that it has not compared with the bytes at hand: callers check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

P = ParamSpec("P")
R = TypeVar("R")
Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

# Numbers inside kernels are 64 bits wide; for the type checker they are plain integers. Signed and
# unsigned ones must not meet in one expression: Numba would make floats of them.
i64 = cast(Callable[[Any], int], np.int64)
u64 = cast(Callable[[Any], int], np.uint64)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with Numba, without the GIL, and keep the machine code on disk."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(function))


def frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous read-only view, so that a kernel is compiled for one array type only."""
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


@compiled
def le16(raw: Bytes, p: int) -> int:
    """Read a little-endian 16-bit number; the caller checked the bounds (so below)."""
    return i64(raw[p]) | i64(raw[p + 1]) << 8


@compiled
def le32(raw: Bytes, p: int) -> int:
    """Read a little-endian 32-bit unsigned number."""
    return i64(raw[p]) | i64(raw[p + 1]) << 8 | i64(raw[p + 2]) << 16 | i64(raw[p + 3]) << 24


@compiled
def le64(raw: Bytes, p: int) -> int:
    """Read a little-endian 64-bit number."""
    return u64(le32(raw, p)) | u64(le32(raw, p + 4)) << u64(32)


@compiled
def be64(raw: Bytes, p: int) -> int:
    """Read a big-endian 64-bit number."""
    number = u64(0)
    for i in range(8):
        number = number << u64(8) | u64(raw[p + i])
    return number


@compiled
def decimal_bytes(digits: int) -> int:
    """Return how many bytes MySQL's binary decimal needs for this many digits of one side."""
    rest = digits % 9
    return digits // 9 * 4 + (rest + 1) // 2
