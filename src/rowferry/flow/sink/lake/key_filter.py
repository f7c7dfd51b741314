"""A filter in front of a key run: nearly all keys that are not in the run are told by it.

A blocked Bloom filter with words of 64 bits as its blocks. The upper half of a code chooses the
word, so that codes that ascend, as those of hashed keys do, meet the words in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from rowferry.columnar.packed import frozen
from rowferry.flow.sink.lake.keys import Codes, Keys, Places

_KEYS_IN_WORD: Final = 5  # 64 bits for five keys: about 1% of other keys pass
_ONE, _TWO = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S6, _S12, _S18 = np.uint64(6), np.uint64(12), np.uint64(18)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_BIT, _SIX, _LOW = np.uint64(1), np.uint64(63), np.uint64(0xFFFFFFFF)


@njit(inline="always")
def _spread(code: Any) -> Any:
    """Make a whole number, whose upper half says little, as even as a hash."""
    code = (code ^ (code >> _S30)) * _ONE
    code = (code ^ (code >> _S27)) * _TWO
    return code ^ (code >> _S31)


@njit(inline="always")
def _bits(code: Any) -> Any:
    return (
        (_BIT << (code & _SIX))
        | (_BIT << ((code >> _S6) & _SIX))
        | (_BIT << ((code >> _S12) & _SIX))
        | (_BIT << ((code >> _S18) & _SIX))
    )


@njit(cache=True, nogil=True)
def _note(codes: Any, spreads: Any, words: Any) -> None:
    count = np.uint64(len(words))
    for code in codes:
        if spreads:
            code = _spread(code)
        words[((code >> _S32) * count) >> _S32] |= _bits(code & _LOW)


@njit(cache=True, nogil=True)
def _pass(
    codes: Any, among: Any, least: Any, most: Any, spreads: Any, words: Any, passed: Any
) -> Any:
    count = np.uint64(len(words))
    count_passed = 0
    for place in among:
        if place < 0 or place >= len(codes):
            continue
        code = codes[place]
        if code < least or code > most:
            continue
        if spreads:
            code = _spread(code)
        bits = _bits(code & _LOW)
        passed[count_passed] = place
        count_passed += (words[((code >> _S32) * count) >> _S32] & bits) == bits
    return count_passed


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The filter of one run.

    Attributes:
        names: of the key's columns.
        whole: a code of the run is the whole key, and no hash.
        least: the first code of the run.
        most: its last code.
    """

    names: tuple[str, ...]
    whole: bool
    least: np.uint64
    most: np.uint64
    words: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, names: tuple[str, ...], keys: Keys) -> KeyFilter:
        """Return the filter of a run with these keys, which ascend by code."""
        words = np.zeros(len(keys) // _KEYS_IN_WORD + 1, np.uint64)
        whole, codes = keys.texts is None, frozen(keys.codes)
        _note(codes, whole, words)
        least, most = (codes[0], codes[-1]) if len(codes) else (_LOW, np.uint64(0))
        return cls(names, whole, least, most, words)

    def knows(self, names: tuple[str, ...], keys: Keys) -> bool:
        """Return whether it can tell of such keys: they have the form of those in the run."""
        return self.names == names and self.whole == (keys.texts is None)

    def passed(self, codes: Codes, among: Places) -> Places:
        """Return those of the places whose codes may be in the run, in the same order."""
        places = np.empty(len(among) + 1, np.int64)  # what does not pass is written over
        count_passed = _pass(
            frozen(codes), frozen(among), self.least, self.most, self.whole, self.words, places
        )
        return places[:count_passed]


def warm() -> None:
    """Compile the kernels."""
    codes = np.zeros(1, np.uint64)
    KeyFilter.of((), Keys(codes)).passed(codes, np.zeros(1, np.int64))
