"""Bulks: each document once, a transaction's last word only, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from rowferry.change.plan import Topic
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.search import bulk as bulk_module
from rowferry.flow.sink.search.bulk import bulks

TABLE = TableSchema(
    TableId("shop", "t"),
    1,
    1,
    (Column(1, "id", SqlType("int"), nullable=False),),
    (Index(1, "PRIMARY", ("id",), unique=True, primary=True),),
)
Change = tuple[str, int, str]  # id, version, content


def packet(
    changes: Sequence[Change], partition: int = 0, index: str = "a", exact: bool = True
) -> Packet:
    ids, versions, items = zip(*changes, strict=True)
    frame = RowFrame(
        TABLE,
        np.zeros(len(ids), np.int8),
        np.array(versions, np.uint64),
        np.arange(len(ids)),
        pa.array([one.encode() for one in ids], pa.large_binary()),
        pa.array([f"{item}\n".encode() for item in items], pa.large_binary()),
    )
    size, body = frame.to_parts()
    value = pa.array([size + body.to_pybytes()], pa.large_binary())
    messages = Encoded(value, pa.array([frame.head], pa.large_binary()))
    return Packet(0, 0, Topic(index, 4, 1 << 20, exact=exact), partition, messages)


def sent(packets: Sequence[Packet], max_bytes: int = 1, seats: int = 1) -> list[list[str]]:
    return [one.body().decode().split() for one in bulks(iter(packets), seats, max_bytes)]


def test_of_a_document_only_the_newest_change_is_sent() -> None:
    changes = [("1", 5, "old"), ("2", 5, "two"), ("1", 6, "new"), ("3", 6, "x"), ("3", 6, "y")]
    assert sent([packet(changes)], 1 << 20) == [["two", "new", "y"]]


def test_a_late_packet_of_an_older_change_does_not_win() -> None:
    changes = [("1", 6, "new"), ("1", 5, "old")]
    assert sent([packet(changes)], 1 << 20) == [["new"]]


def test_equal_ids_of_two_indexes_are_two_documents() -> None:
    two = [packet([("1", 5, "a")]), packet([("1", 5, "b")], index="b")]
    assert sent(two, 1 << 20) == [["a", "b"]]


def test_a_transaction_that_goes_on_in_the_next_packet_is_kept_back() -> None:
    """Else its first change of a row would be sent at the same version as its last."""
    three = [
        packet([("1", 5, "before"), ("1", 6, "first")]),
        packet([("2", 6, "middle")]),
        packet([("1", 6, "last"), ("1", 7, "after")]),
    ]
    assert sent(three) == [["before"], ["middle", "last"], ["after"]]


def test_rows_of_a_snapshot_are_not_kept_back() -> None:
    two = [packet([("1", 5, "a")], exact=False), packet([("2", 5, "b")], exact=False)]
    assert sent(two) == [["a"], ["b"]]


def test_a_transaction_that_is_too_long_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_module, "_HELD_BYTES", 40)
    assert sent([packet([("1", 5, "a" * 30)]), packet([("1", 5, "b")])]) == [["a" * 30], ["b"]]


def test_lanes_have_seats_of_their_own() -> None:
    four = [packet([(f"{n}", 5, f"p{n}")], partition=n) for n in range(4)]
    found = {one.seat: one.body().decode().split() for one in bulks(iter(four), 2, 1 << 20)}
    assert found == {0: ["p0", "p2"], 1: ["p1", "p3"]}


def test_pieces_are_within_the_limits() -> None:
    (whole,) = bulks(iter([packet([(f"{n}", n, "x" * n) for n in range(9)])]), 1, 1 << 20)
    assert [len(part) for part in whole.parts(4, 1 << 20)] == [4, 4, 1]
    pieces = list(whole.parts(100, 12))
    assert b"".join(part.body() for part in pieces) == whole.body()
    assert all(len(part.body()) <= 12 for part in pieces)
    longest = list(whole.parts(100, 3))
    assert [len(part) for part in longest][-5:] == [1, 1, 1, 1, 1]


def test_nothing_is_nothing() -> None:
    def none() -> Iterator[Packet]:
        yield from ()

    assert list(bulks(none(), 3, 10)) == []
