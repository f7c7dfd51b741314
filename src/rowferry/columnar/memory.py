"""Bytes at addresses, for kernels over Arrow buffers of any number and type.

A compiled kernel cannot take a list of arrays whose length differs from table to table without
being compiled again; it can take their addresses. Callers check lengths before every read and
write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def compiled(function: F) -> F:
    """Compile with Numba, keep the machine code on disk, run without the interpreter lock."""
    kernel: F = numba.njit(cache=True, nogil=True)(function)
    return kernel


def _load(bits: int, result: Any) -> Any:
    def load(_typing: Any, address: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return result(types.int64), code

    return intrinsic(load)


def _store(bits: int, value_type: Any) -> Any:
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(args[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value_type), code

    return intrinsic(store)


load_byte = _load(8, types.uint8)
load_word = _load(64, types.uint64)
load_int = _load(64, types.int64)
store_byte = _store(8, types.uint8)
store_word = _store(64, types.uint64)


@intrinsic
def copy_bytes(_typing: Any, to: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes between addresses that do not overlap."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target = builder.inttoptr(args[0], byte)
        origin = builder.inttoptr(args[1], byte)
        cgutils.raw_memcpy(builder, target, origin, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@intrinsic
def multiply_high(_typing: Any, a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the 128-bit product of two uint64."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), code


def frozen(array: npt.NDArray[Any]) -> Any:
    """Return a read-only view: kernels are compiled for read-only input only, so once for all."""
    view = array.view()
    view.flags.writeable = False
    return view
