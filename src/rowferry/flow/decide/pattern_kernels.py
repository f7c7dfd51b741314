"""Texts with every match of a pattern replaced, compiled; as RE2 replaces them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from rowferry.columnar.memory import Bytes, compiled, copy_bytes, frozen, load_byte
from rowferry.columnar.render import text_buffers
from rowferry.flow.decide.pattern_automaton import Automaton, automaton_of
from rowferry.flow.decide.star_kernels import has_wide

_ONE: Final = np.uint64(1)
_NONE: Final = np.uint64(0)
# Bytes that may be read in vain for each byte of the rows so far. Searches that come far and fail,
# from each place anew, are for RE2, whose time does not grow with the square of a text's length.
_MOST_IN_VAIN: Final = 2
_FREE: Final = 4096


@compiled
def _end_of_match(begin: int, end: int, state: Any, classes: Any, table: Any) -> Any:
    """Return where the match ends that begins at an address, -1: there is none; and what was read.

    Args:
        begin: the address.
        end: that behind the text.
        state: in which the search begins.
        classes: see `Automaton`.
        table: see `Automaton`.
    """
    match, at = -1, begin
    while state != _NONE:
        if at == end:
            if table[state + np.uint64(classes[255]) + _ONE] & _ONE:
                match = end
            break
        step = table[state + np.uint64(classes[load_byte(at)])]
        if step >> _ONE == state:  # as long as it stays, no step has to wait for the one before
            at += 1
            while at < end and table[state + np.uint64(classes[load_byte(at)])] == step:
                at += 1
            if step & _ONE:
                match = at - 1
            continue
        if step & _ONE:
            match = at
        state = step >> _ONE
        at += 1
    return match, at


@compiled
def _replace(
    row: int,
    places: Any,
    data: Any,
    nulls: Any,
    classes: Any,
    kinds: Any,
    table: Any,
    starts: Any,
    begins: Any,
    new: Any,
    ends: Any,
    out: Any,
) -> int:
    """Write texts from a row on; returns the first one that found no room, -1: too much in vain.

    What is done with empty matches is what `RE2::GlobalReplace` does: where one begins at the end
    of the match before, it does not count, and the search goes on behind the next character.

    Args:
        row: the first to be written.
        places: where each text begins in `data`, and the last one ends; checked.
        data: the texts.
        nulls: of each row, whether it is NULL; empty: none is.
        classes: see `Automaton`, as of what follows.
        kinds: see there.
        table: see there.
        starts: see there.
        begins: see there.
        new: what comes in the place of a match.
        ends: where each text ends in `out`, behind a zero; written.
        out: the texts; written.
    """
    anchored = starts[1] == _NONE and starts[2] == _NONE
    source, target = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    at, room = target + ends[row], target + len(out)
    left = _FREE
    while row < len(places) - 1:
        if len(nulls) > 0 and nulls[row]:  # what may lie below a NULL is nobody's
            row += 1
            ends[row] = at - target
            continue
        begin, end = source + places[row], source + places[row + 1]
        if at + end - begin > room:
            return row
        left += _MOST_IN_VAIN * (end - begin)
        written, here, before = begin, begin, np.int64(-1)
        while here <= end:
            if here > begin:
                if anchored:
                    break
                while here < end and not begins[load_byte(here)]:
                    here += 1
                state = starts[kinds[load_byte(here - 1)]]
            else:
                state = starts[0]
            match, reached = _end_of_match(here, end, state, classes, table)
            left -= reached - match if match >= 0 else reached - here + 1
            if left < 0:
                return -1
            if match < 0:
                here += 1
            elif match == here and here == before:
                here += 1
                while here < end and (load_byte(here) & 0xC0) == 0x80:
                    here += 1
            elif at + here - written + len(new) + end - match > room:
                return row
            else:
                copy_bytes(at, written, here - written)
                at += here - written
                copy_bytes(at, np.int64(new.ctypes.data), len(new))
                at += len(new)
                written = here = before = match
        copy_bytes(at, written, end - written)
        at += end - written
        row += 1
        ends[row] = at - target
    return row


class CompiledReplacement:
    """Replaces what a pattern matches, where that is known to be done as RE2 does it."""

    def __init__(self, automaton: Automaton, new: bytes) -> None:
        """Remember what is looked for and what comes in its place."""
        self._steps = automaton
        self._new: Bytes = frozen(np.frombuffer(new, np.uint8))

    def of(self, texts: pa.Array) -> pa.LargeStringArray | None:
        """Return the texts with their matches replaced; None: these are for RE2."""
        if not isinstance(texts, pa.LargeStringArray):
            return None
        places, data = text_buffers(texts)
        if has_wide(data, places[0], places[-1]):
            try:
                texts.validate(full=True)
            except pa.ArrowInvalid:
                return None
        nulls, valid = np.zeros(0, np.bool_), None
        if texts.null_count:
            nulls = texts.is_null().to_numpy(zero_copy_only=False)
            valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        steps, row = self._steps, 0
        rules = (steps.classes, steps.kinds, steps.table, steps.starts, steps.begins, self._new)
        ends = np.zeros(len(texts) + 1, np.int64)
        out = np.empty(places[-1] - places[0] + len(texts) * len(self._new), np.uint8)
        while (row := _replace(row, places, data, frozen(nulls), *rules, ends, out)) < len(texts):
            if row < 0:
                return None
            more = np.empty(2 * len(out) + 64, np.uint8)
            more[: ends[row]] = out[: ends[row]]
            out = more
        return pa.LargeStringArray.from_buffers(
            len(texts), pa.py_buffer(ends), pa.py_buffer(out[: ends[-1]]), valid, texts.null_count
        )


def compiled_replacement(pattern: str, replacement: str) -> CompiledReplacement | None:
    """Return what replaces matches of a pattern that RE2 takes; None: only RE2 can."""
    automaton = automaton_of(pattern) if "\\" not in replacement else None
    return None if automaton is None else CompiledReplacement(automaton, replacement.encode())


def warm() -> None:
    """Compile the kernels."""
    replacement = compiled_replacement("a+", "x")
    assert replacement is not None
    replacement.of(pa.array(["baa", None, "é"], pa.large_utf8()))
