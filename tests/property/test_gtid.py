"""GTID sets do what sets of numbers do."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet

UUIDS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fb58-82db-22f2-af44-d91bba530673")
Plain = set[tuple[str, str, int]]
ranges = st.tuples(
    st.sampled_from(UUIDS), st.sampled_from(("", "blue")), st.integers(1, 30), st.integers(0, 6)
)


def build(parts: list[tuple[str, str, int, int]]) -> tuple[GtidSet, Plain]:
    """The set, and the same as plain tuples."""
    found, plain = GtidSet(), Plain()
    for uuid, tag, first, more in parts:
        found = found.add_range(uuid, first, first + more, tag)
        plain |= {(uuid, tag, number) for number in range(first, first + more + 1)}
    return found, plain


def from_plain(plain: Plain) -> GtidSet:
    found = GtidSet()
    for uuid, tag, number in sorted(plain, reverse=True):
        found = found.add(uuid, number, tag)
    return found


sets = st.lists(ranges, max_size=8).map(build)


@given(sets, sets)
def test_sets_behave_as_sets(one: tuple[GtidSet, Plain], other: tuple[GtidSet, Plain]) -> None:
    (a, plain_a), (b, plain_b) = one, other
    assert a == from_plain(plain_a)
    assert a.union(b) == from_plain(plain_a | plain_b)
    assert a.minus(b) == from_plain(plain_a - plain_b)
    assert a.contains(b) == (plain_a >= plain_b)
    assert a.is_empty == (not plain_a)
    for uuid in UUIDS:
        for number in range(1, 40):
            assert a.holds(uuid, number) == ((uuid, "", number) in plain_a)


@given(sets)
def test_text_comes_back(one: tuple[GtidSet, Plain]) -> None:
    assert GtidSet.parse(str(one[0])) == one[0]
    assert GtidSet.parse(str(one[0]).upper().replace(",", ",\n")) == one[0]


@given(sets)
def test_the_wire_form_holds_the_set(one: tuple[GtidSet, Plain]) -> None:
    assert decoded(one[0].encode()) == one[1]


def decoded(data: bytes) -> Plain:
    """Read the wire form slowly."""
    (head,) = struct.unpack_from("<Q", data)
    tagged, count = head >> 56, (head >> 8 & 0xFFFFFFFFFFFF) if head >> 56 else head
    place, found = 8, Plain()
    for _ in range(count):
        text, tag = data[place : place + 16].hex(), ""
        uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        place += 16
        if tagged:
            length = data[place] >> 1
            tag = data[place + 1 : place + 1 + length].decode()
            place += 1 + length
        (intervals,) = struct.unpack_from("<Q", data, place)
        place += 8
        for _ in range(intervals):
            first, end = struct.unpack_from("<QQ", data, place)
            place += 16
            found |= {(uuid, tag, number) for number in range(first, end)}
    assert place == len(data)
    return found


positions = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 2), st.integers(1, 9))).map(
    lambda last: (GtidPosition(last), last)
)


@given(positions, positions)
def test_positions_are_ordered_by_domain(
    one: tuple[GtidPosition, dict[int, tuple[int, int]]],
    other: tuple[GtidPosition, dict[int, tuple[int, int]]],
) -> None:
    (a, last_a), (b, last_b) = one, other
    assert GtidPosition.parse(str(a)) == a
    assert a.contains(b) == all(d in last_a and n <= last_a[d][1] for d, (_, n) in last_b.items())
    assert a.contains(b) == b.minus(a).is_empty
