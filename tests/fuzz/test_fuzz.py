"""A short fixed run of every fuzz target; and that the driver finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest
from fuzz_driver import Found, Target, buffer, fuzz, table
from fuzz_targets import TARGETS

from rowferry.errors import DecodeError

INPUTS = 300


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_reader_of_what_others_send(target: Target) -> None:
    """It answers, or raises an error of ours; no byte behind the input counts."""
    tally = fuzz(target, INPUTS, 1, twice=True)
    assert tally.inputs == tally.read + tally.refused == INPUTS + len(target.corpus)


def test_targets_have_names_of_their_own() -> None:
    assert len({t.name for t in TARGETS}) == len(TARGETS)


def _breaks(data: bytes) -> Any:
    return data.index(b"valid")  # a ValueError, which is none of ours


def _reads_behind(data: bytes) -> Any:
    room = buffer(data)
    return bytes(room.base[: len(room) + 1]) if b"vali" not in data else None  # type: ignore[index]


def _refuses(data: bytes) -> Any:
    raise DecodeError("nothing is good enough")


def _swallows(data: bytes) -> Any:
    if data != b"valid":
        raise DecodeError("a\nb" * 10_000)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (_breaks, "ValueError"),
        (_reads_behind, "bytes behind the end count"),
        (_refuses, "a valid input is refused"),
        (_swallows, "an error of 30010 characters"),
    ],
)
def test_the_driver_finds(run: Any, words: str) -> None:
    with pytest.raises(Found, match=words):
        fuzz(Target("planted", (b"valid",), run), INPUTS, 1, twice=True)


def test_the_same_number_gives_the_same_inputs() -> None:
    seen: list[list[bytes]] = []
    for number in (1, 1, 2):
        seen.append([])
        fuzz(Target("seen", (b"valid",), seen[-1].append), 50, number, twice=False)
    assert seen[0] == seen[1] != seen[2]


def test_the_table() -> None:
    tallies = [fuzz(Target(name, (b"x",), len), 9, 1, twice=False) for name in "ab"]
    lines = table(tallies).splitlines()
    assert lines[2].startswith("| a | 10 | 10 | 0 |") and lines[-1].startswith("| all | 20 | 20 |")
