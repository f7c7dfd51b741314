"""SHA-256's inner step for sixteen messages at once, in vectors of the machine.

A loop over lanes keeps its variables in memory, and loading and storing them takes most of the
time. Here the eight variables and the sixteen words of the schedule are vectors, which stay in
registers where the machine has enough of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

LANES: Final = 16
_ROUNDS: Final = 64
_ROW: Final = 4 * LANES  # bytes of one variable of all lanes
_WORD: Final = ir.IntType(32)
_VECTOR: Final = ir.VectorType(_WORD, LANES)


def _primes(count: int) -> list[int]:
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % p for p in primes):
            primes.append(number)
        number += 1
    return primes


def _fraction(prime: int, root: int) -> int:
    """Return the first 32 bits of the fraction of a prime's square or cube root."""
    wanted = prime << 32 * root
    rooted = int(wanted ** (1 / root))
    while rooted**root > wanted:
        rooted -= 1
    while (rooted + 1) ** root <= wanted:
        rooted += 1
    return rooted & 0xFFFFFFFF


_K: Final = tuple(_fraction(p, 3) for p in _primes(_ROUNDS))
START: Final = np.array([_fraction(p, 2) for p in _primes(8)], np.uint32)


class _Emit:
    """Writes the function's steps over vectors."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def all(self, number: int) -> Any:
        return ir.Constant(_VECTOR, [number] * LANES)

    def row(self, address: Any, place: int) -> Any:
        at = self.b.add(address, ir.Constant(ir.IntType(64), place * _ROW))
        return self.b.inttoptr(at, _VECTOR.as_pointer())

    def load(self, address: Any, place: int) -> Any:
        return self.b.load(self.row(address, place), align=4)

    def store(self, value: Any, address: Any, place: int) -> None:
        self.b.store(value, self.row(address, place), align=4)

    def sum(self, *values: Any) -> Any:
        total = values[0]
        for value in values[1:]:
            total = self.b.add(total, value)
        return total

    def turned(self, x: Any, *bits: int, shifted: int = 0) -> Any:
        """Return the turns of a value by these bits to the right, joined by exclusive or."""
        b = self.b
        turns = [b.or_(b.lshr(x, self.all(n)), b.shl(x, self.all(32 - n))) for n in bits]
        if shifted:
            turns.append(b.lshr(x, self.all(shifted)))
        joined = turns[0]
        for turn in turns[1:]:
            joined = b.xor(joined, turn)
        return joined

    def round(self, v: Sequence[Any], word: Any, k: int) -> list[Any]:
        """Return the eight variables behind one round."""
        b = self.b
        a, b1, c, d, e, f, g, h = v
        chosen = b.xor(g, b.and_(e, b.xor(f, g)))
        one = self.sum(h, self.turned(e, 6, 11, 25), chosen, b.add(word, self.all(k)))
        most = b.or_(b.and_(a, b1), b.and_(c, b.or_(a, b1)))
        two = b.add(self.turned(a, 2, 13, 22), most)
        return [b.add(one, two), a, b1, c, b.add(d, one), e, f, g]


@intrinsic
def compress(_typing: Any, state: Any, words: Any, active: Any) -> Any:
    """Add a block to the states of sixteen lanes.

    All three are addresses: of 8 and of 16 rows of 16 numbers, changed and read, and of one row
    that is all ones in lanes that take part, and 0 in the others.
    """

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit = _Emit(builder)
        before = [emit.load(args[0], place) for place in range(8)]
        words = [emit.load(args[1], place) for place in range(16)]
        v = list(before)
        for t in range(_ROUNDS):
            if t >= 16:
                low = emit.turned(words[(t - 15) % 16], 7, 18, shifted=3)
                high = emit.turned(words[(t - 2) % 16], 17, 19, shifted=10)
                words[t % 16] = emit.sum(words[t % 16], low, words[(t - 7) % 16], high)
            v = emit.round(v, words[t % 16], _K[t])
        mask = emit.load(args[2], 0)
        for place in range(8):
            new = builder.add(before[place], builder.and_(v[place], mask))
            emit.store(new, args[0], place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code
