"""A target with a defect that random damage does not find: one letter after the other."""

from __future__ import annotations

from typing import Any

from fuzz_driver import Target

from rowferry.errors import DecodeError


def run(data: bytes) -> Any:
    if data[:2] != b"RF":
        raise DecodeError("it begins otherwise")
    if data[2:3] != b"!":
        return 1
    if data[3:4] != b"?":
        return 2
    return {}[data[4:]]


TARGETS = (Target("planted", (b"RF0000",), run), Target("kernel", (b"",), len, kernel=True))
