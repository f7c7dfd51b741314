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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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

_behind = bytes(_BEHIND)


@dataclass(frozen=True)
class Target:
    """One reader of what others sent.

    Attributes:
        corpus: valid inputs; read without an error.
        run: reads one input and returns what two runs of it must agree in.
        share: how many inputs it gets, in proportion to others: more where they are quick.
        words: pieces that mean something in the format.
        also: errors that are not ours and are meant, such as those of a library's own refusal.
    """

    name: str
    corpus: tuple[bytes, ...]
    run: Callable[[bytes], Any]
    share: int = 1
    words: tuple[bytes, ...] = ()
    also: tuple[type[Exception], ...] = ()


@dataclass
class Tally:
    """What came of a target's inputs."""

    name: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    errors: set[str] = field(default_factory=set)


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
    place, kind = int(dice.random() * size), dice.getrandbits(4)
    if kind < 3:
        data[place] ^= 1 << dice.getrandbits(3)
    elif kind < 5:
        data[place] = dice.getrandbits(8)
    elif kind < 7:
        data[place] = dice.choice(_NUMBERS) & 255
    elif kind < 10:
        width = (2, 3, 4, 8)[dice.getrandbits(2)]
        number = dice.choice((*_NUMBERS, *_LARGE, *_LARGEST, size, size - place, size + 1))
        order = "little" if dice.getrandbits(1) else "big"
        piece = (number & ((1 << 8 * width) - 1)).to_bytes(width, order)  # type: ignore[arg-type]
        data[place : place + width] = piece
    elif kind == 10:
        del data[place:]
    elif kind == 11:
        del data[place : place + 1 + dice.getrandbits(4)]
    elif kind == 12:
        end = place + 1 + dice.getrandbits(5)
        data[place:place] = data[place:end] * (1 + dice.getrandbits(2))
    elif kind == 13:
        other = dice.choice(target.corpus)
        start = int(dice.random() * (len(other) + 1))
        data[place : place + dice.getrandbits(5)] = other[start : start + dice.getrandbits(6)]
    elif kind == 14 and target.words:
        data[place : place + dice.getrandbits(2)] = dice.choice(target.words)
    else:
        data[place:place] = dice.randbytes(1 + dice.getrandbits(2))


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
        tally.errors.add(type(err).__name__)
        return text
    except target.also as err:
        tally.refused += 1
        tally.errors.add(type(err).__name__)
        return type(err)
    except (Exception, RecursionError) as err:
        raise Found(f"{target.name}: {type(err).__name__} ({err}) for {data.hex()}") from err
    tally.read += 1
    return found


def fuzz(target: Target, inputs: int, number: int, twice: bool) -> Tally:
    """Give a target its corpus and so many damaged inputs; `number` decides which.

    Raises:
        Found: an input that it ends on otherwise than it may, or that it reads past the end of.
    """
    global _behind
    dice, tally = random.Random(f"{target.name} {number}"), Tally(target.name)
    begun = time.perf_counter()
    for data in target.corpus:
        _behind = bytes(_BEHIND)
        if isinstance(answer(target, data, tally), str) and tally.refused:
            raise Found(f"{target.name}: a valid input is refused: {data.hex()}")
    for done in range(inputs):
        if done % 1000 == 0:
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
        data = damaged(dice, target)
        _behind = bytes(_BEHIND)
        first = answer(target, data, tally)
        if twice:
            _behind = b"\xff\x01" * (_BEHIND // 2)
            if answer(target, data, Tally("")) != first:
                raise Found(f"{target.name}: bytes behind the end count for {data.hex()}")
    faulthandler.cancel_dump_traceback_later()
    tally.inputs = inputs + len(target.corpus)
    tally.seconds = time.perf_counter() - begun
    return tally


def limit_memory() -> None:
    """Let an input that asks for too much memory end in an error."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (used + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def table(tallies: Iterable[Tally]) -> str:
    """Return what came of all targets as a table in Markdown."""
    lines = ["| reader | inputs | read | refused | inputs/s |", "|---|---:|---:|---:|---:|"]
    total = Tally("all")
    for one in tallies:
        total.inputs += one.inputs
        total.read += one.read
        total.refused += one.refused
        total.seconds += one.seconds
        lines.append(_line(one))
    return "\n".join([*lines, _line(total)])


def _line(one: Tally) -> str:
    rate = one.inputs / max(one.seconds, 1e-9)
    return f"| {one.name} | {one.inputs:,} | {one.read:,} | {one.refused:,} | {rate:,.0f} |"
