"""Throws damaged inputs at readers: each may answer, or raise an error of ours, and nothing else.

A target has a corpus of valid inputs. The driver damages one of them in a few places (bits, bytes,
numbers that could be lengths, pieces cut, doubled or taken from another input, words of the format)
and hands it over. What a target answers must not depend on the bytes that happen to lie behind its
buffer: `twice` gives it the same input with others behind it, and compares.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rowferry.errors import RowferryError

HANGS_S: Final = 60.0  # no input needs as long
_MEMORY: Final = 6 << 30  # bytes of address space beyond what is used at the start
_BEHIND: Final = 256
_NUMBERS: Final = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF, 0x7FFF, 0x8000)
_LARGE: Final = (0xFFFF, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 63) - 1)
_LARGEST: Final = (1 << 63, (1 << 64) - 1)
_LENGTHS: Final = (*_NUMBERS, *_LARGE, *_LARGEST)
_WIDTHS: Final = (2, 3, 4, 8)
_ZEROS, _OTHERS = bytes(_BEHIND), b"\xff\x01" * (_BEHIND // 2)
_LOOK: Final = 32  # inputs between two looks at the clock

_behind = _ZEROS


@dataclass(frozen=True)
class Target:
    """One reader of what others sent.

    Attributes:
        corpus: valid inputs; read without an error.
        run: reads one input and returns what two runs of it must agree in.
        share: how many inputs it gets, in proportion to others: more where they are quick.
        words: pieces that mean something in the format.
        also: errors that are not ours and are meant, such as those of a library's own refusal.
        kernel: compiled code reads it, in which coverage sees nothing that could guide inputs.
    """

    name: str
    corpus: tuple[bytes, ...]
    run: Callable[[bytes], Any]
    share: int = 1
    words: tuple[bytes, ...] = ()
    also: tuple[type[Exception], ...] = ()
    kernel: bool = False


@dataclass
class Tally:
    """What came of a target's inputs."""

    name: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0  # of a core
    memory_mb: int = 0  # the most that the process had meanwhile
    errors: Counter[str] = field(default_factory=Counter)  # by code

    def add(self, other: Tally) -> None:
        """Take in what came of others' inputs."""
        self.inputs += other.inputs
        self.read += other.read
        self.refused += other.refused
        self.seconds += other.seconds
        self.memory_mb = max(self.memory_mb, other.memory_mb)
        self.errors += other.errors


class Found(Exception):
    """An input that a target must not answer as it does; the text has it, as hex."""


def buffer(data: bytes) -> npt.NDArray[np.uint8]:
    """Return an input as an array in front of bytes that are nobody's."""
    return np.frombuffer(bytearray(data + _behind), np.uint8)[: len(data)]


def damaged(dice: random.Random, target: Target) -> bytes:
    """Return one of the corpus's inputs with one to four damages."""
    data = bytearray(dice.choice(target.corpus))
    for _ in range(1 + (dice.getrandbits(2) & dice.getrandbits(2))):
        _damage(dice, data, target)
    return bytes(data)


def _damage(dice: random.Random, data: bytearray, target: Target) -> None:
    size = len(data)
    if not size:
        data += dice.randbytes(1 + dice.getrandbits(3))
        return
    bits = dice.getrandbits(4 + 3 + 8)  # few calls for the dice: they are most of the driver's time
    place, kind, bit, byte = int(dice.random() * size), bits & 15, bits >> 4 & 7, bits >> 7
    if kind < 3:
        data[place] ^= 1 << bit
    elif kind < 5:
        data[place] = byte
    elif kind < 7:
        data[place] = _NUMBERS[byte & 15] & 255
    elif kind < 10:
        width, order = _WIDTHS[bit & 3], "little" if bit & 4 else "big"
        which = byte % (len(_LENGTHS) + 3)
        own = (size, size - place, size + 1)
        number = _LENGTHS[which] if which < len(_LENGTHS) else own[which - len(_LENGTHS)]
        piece = (number & ((1 << 8 * width) - 1)).to_bytes(width, order)  # type: ignore[arg-type]
        data[place : place + width] = piece
    elif kind == 10:
        del data[place:]
    elif kind == 11:
        del data[place : place + 1 + (byte & 15)]
    elif kind == 12:
        end = place + 1 + (byte & 31)
        data[place:place] = data[place:end] * (1 + (bit & 3))
    elif kind == 13:
        other = dice.choice(target.corpus)
        start = int(dice.random() * (len(other) + 1))
        data[place : place + (byte & 31)] = other[start : start + dice.getrandbits(6)]
    elif kind == 14 and target.words:
        data[place : place + (bit & 3)] = dice.choice(target.words)
    else:
        data[place:place] = dice.randbytes(1 + (bit & 3))


def answer(target: Target, data: bytes, tally: Tally) -> Any:
    """Return what a target makes of an input: its answer, or the text of its error.

    Raises:
        Found: it ended otherwise.
    """
    try:
        found = target.run(data)
    except RowferryError as err:
        text = str(err)
        if "\n" in text or len(text) > 20_000:
            raise Found(
                f"{target.name}: an error of {len(text)} characters for {data.hex()}"
            ) from err
        tally.refused += 1
        tally.errors[err.code] += 1
        return text
    except target.also as err:
        tally.refused += 1
        tally.errors[type(err).__name__] += 1
        return type(err)
    except (Exception, RecursionError) as err:
        raise Found(f"{target.name}: {type(err).__name__} ({err}) for {data.hex()}") from err
    tally.read += 1
    return found


def fuzz(
    target: Target,
    inputs: int,
    number: int,
    twice: bool,
    part: int = 0,
    note: Callable[[bytes], None] | None = None,
) -> Tally:
    """Give a target its corpus and so many damaged inputs; `number` and `part` decide which.

    `note` is told of every input before the target is: one that ends the process can be found.

    Raises:
        Found: an input that it ends on otherwise than it may, or that it reads past the end of.
    """
    global _behind
    dice = random.Random(f"{target.name} {number}" + (f" {part}" if part else ""))
    tally = Tally(target.name)
    _behind = _ZEROS
    for data in target.corpus:
        if isinstance(answer(target, data, tally), str) and tally.refused:
            raise Found(f"{target.name}: a valid input is refused: {data.hex()}")
    begun, watched = time.process_time(), time.perf_counter()
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    for done in range(inputs):
        if not done % _LOOK and (now := time.perf_counter()) - watched > 1:
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            watched = now
        data = damaged(dice, target)
        if note:
            note(data)
        first = answer(target, data, tally)
        if twice:
            _behind = _OTHERS
            if answer(target, data, Tally("")) != first:
                raise Found(f"{target.name}: bytes behind the end count for {data.hex()}")
            _behind = _ZEROS
    faulthandler.cancel_dump_traceback_later()
    tally.inputs = inputs + len(target.corpus)
    tally.seconds = time.process_time() - begun
    return tally


def limit_memory() -> None:
    """Let an input that asks for too much memory end in an error."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (used + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def most_memory_mb() -> int:
    """Return the most memory that this process had since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return found >> 10


def table(tallies: Sequence[Tally]) -> str:
    """Return what came of all targets as a table in Markdown."""
    lines = [
        "| reader | inputs | read | refused | errors | core s | inputs/s | memory, MB |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    total = Tally("all")
    for one in tallies:
        total.add(one)
    return "\n".join([*lines, *map(_line, (*tallies, total))])


def _line(one: Tally) -> str:
    rate = one.inputs / max(one.seconds, 1e-9)
    errors = ", ".join(f"{code} {count:,}" for code, count in one.errors.most_common())
    return (
        f"| {one.name} | {one.inputs:,} | {one.read:,} | {one.refused:,} | {errors} "
        f"| {one.seconds:,.0f} | {rate:,.0f} | {one.memory_mb:,} |"
    )
