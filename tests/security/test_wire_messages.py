"""Messages of others that no reader can take for what they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rowferry.change.chunk import Rows
from rowferry.errors import DecodeError
from rowferry.flow.encode.plain_json.reader import read_message

HALF = "\ud800"  # of a character: JSON can name it, UTF-8 cannot


def message(**other: Any) -> dict[str, Any]:
    return {
        "op": "insert",
        "database": "d",
        "table": "t",
        "commitTs": 1,
        "after": {"a": 1},
        **other,
    }


@pytest.mark.parametrize("as_array", [False, True])
def test_half_a_character_in_a_value(as_array: bool) -> None:
    """It is read alike wherever the message stands."""
    one = message(after={"a": f"x{HALF}y"})
    (found,) = read_message(json.dumps([one] if as_array else one).encode())
    assert isinstance(found, Rows)
    (row,) = found.after.to_pylist()
    assert row["a"].startswith("x") and row["a"].endswith("y")


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(
    "other", [{"after": {HALF: 1}}, {"table": HALF}, {"database": HALF}], ids=["column", "t", "d"]
)
def test_half_a_character_in_a_name(other: dict[str, Any], as_array: bool) -> None:
    one = message(**other)
    with pytest.raises(DecodeError, match="row 1: a name holds half a character"):
        list(read_message(json.dumps([one] if as_array else one).encode()))


def test_json_that_is_too_deep() -> None:
    with pytest.raises(DecodeError, match="row 1: it is not JSON"):
        list(read_message(b"[" * 100_000))
