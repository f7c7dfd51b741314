"""Messages of others that no reader can take for what they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import DecodeError
from rowferry.flow.encode.avro.messages import read_note as read_avro_note
from rowferry.flow.encode.avro.reader import BinaryCursor
from rowferry.flow.encode.canal_json.reader import read_note as read_canal_note
from rowferry.flow.encode.plain_json.reader import read_message, read_messages

NO_TABLE = TableSchema(TableId("d", "t"), 1, 1, ())

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


def test_deep_json_that_is_no_row() -> None:
    """Readers of single messages look into what is no row."""
    deep = b"[" * 100_000
    for read in (
        lambda: list(read_avro_note(b"\1" + deep)),
        lambda: [read_canal_note(deep, 1)],
        lambda: list(read_messages(b'{"x":' + deep, NO_TABLE, b"", embeds=True)),
    ):
        with pytest.raises(DecodeError):
            read()


@pytest.mark.parametrize(
    ("last", "words"), [(b"\x7f", "more than 64 bits"), (b"\x80\x01", "more than ten bytes")]
)
def test_an_avro_integer_that_is_too_long(last: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        BinaryCursor(b"\xff" * 9 + last).long()
    assert BinaryCursor(b"\xff" * 9 + b"\x01").long() == -(1 << 63)
