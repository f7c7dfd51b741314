"""Messages of a segment become packets: by topic and partition, in order, whole."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from rowferry.change.plan import Topic
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink import packing
from rowferry.flow.sink.packing import by_partition, from_bytes, pack, to_bytes

Pair = tuple[bytes | None, bytes | None]


def messages(pairs: list[Pair], partitions: list[int], keyless: bool = False) -> Encoded:
    keys = None if keyless else pa.array([k for k, _ in pairs], pa.large_binary())
    values = pa.array([v for _, v in pairs], pa.large_binary())
    return Encoded(values, keys, partitions=np.array(partitions, np.int32))


def pairs_of(found: Encoded) -> list[Pair]:
    values = found.values.to_pylist()
    keys = [None] * len(values) if found.keys is None else found.keys.to_pylist()
    return list(zip(keys, values, strict=True))


def test_partitions_keep_their_order() -> None:
    pairs: list[Pair] = [(b"a", b"1"), (b"b", None), (b"a", b"2"), (b"c", b""), (b"b", b"3")]
    found = dict(by_partition(messages(pairs, [2, 0, 2, 2, 0])))
    assert {n: pairs_of(m) for n, m in found.items()} == {
        2: [(b"a", b"1"), (b"a", b"2"), (b"c", b"")],
        0: [(b"b", None), (b"b", b"3")],
    }
    one_each = dict(by_partition(messages(pairs, [1, 3, 4, 5, 8])))
    assert {n: pairs_of(m) for n, m in one_each.items()} == {
        n: [pair] for n, pair in zip([1, 3, 4, 5, 8], pairs, strict=True)
    }
    assert [m.nbytes for m in one_each.values()] == [1, 0, 1, 0, 1]
    whole = messages(pairs, [1] * 5)
    assert list(by_partition(whole)) == [(1, whole)]
    assert list(by_partition(messages([], []))) == []
    with pytest.raises(ValueError, match="without partitions"):
        list(by_partition(Encoded(whole.values)))


@pytest.mark.parametrize(("packet", "held"), [(1 << 20, 1 << 26), (200, 1 << 26), (1 << 20, 300)])
def test_packets_hold_all_in_order(packet: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACKET_BYTES", packet)
    monkeypatch.setattr(packing, "_HELD_BYTES", held)
    dice = random.Random(packet + held)
    topics = [Topic("a", 3, 100), Topic("b", 2, 100)]
    frames: list[tuple[Topic, Encoded]] = []
    expected: dict[tuple[Topic, int], list[Pair]] = defaultdict(list)
    for frame in range(30):
        topic = dice.choice(topics)
        count = dice.randrange(12)
        partitions = [dice.randrange(topic.partitions) for _ in range(count)]
        pairs: list[Pair] = [
            (b"k%d" % i, dice.choice([None, b"%d-%d" % (frame, i)])) for i in range(count)
        ]
        for partition, pair in zip(partitions, pairs, strict=True):
            expected[topic, partition].append(pair)
        frames.append((topic, messages(pairs, partitions)))
    packets = list(pack(7, iter(frames)))
    found: dict[tuple[Topic, int], list[Pair]] = defaultdict(list)
    for one in packets:
        found[one.topic, one.partition] += pairs_of(one.messages)
    assert found == expected
    assert [p.number for p in packets] == list(range(len(packets)))
    assert {p.segment for p in packets} == {7}
    assert (len(packets) > len(expected)) is (packet == 200 or held == 300)


@pytest.mark.parametrize("keyless", [True, False])
def test_packets_cross_to_another_process(keyless: bool) -> None:
    pairs: list[Pair] = [(b"a", b"1"), (b"b", None), (b"", b"")]
    sent = messages(pairs, [0, 0, 0], keyless)
    found = from_bytes(bytes(to_bytes(sent)))
    assert pairs_of(found) == pairs_of(sent)
    assert (found.keys is None) is keyless
    part = Encoded(sent.values.slice(1), None if sent.keys is None else sent.keys.slice(1))
    assert pairs_of(from_bytes(to_bytes(part))) == pairs_of(sent)[1:]


def test_frames_with_and_without_keys_meet() -> None:
    topic = Topic("a", 1, 100)
    frames = [
        (topic, messages([(b"k", b"1")], [0])),
        (topic, messages([(None, b"2")], [0], keyless=True)),
    ]
    (packet,) = pack(0, iter(frames))
    assert pairs_of(packet.messages) == [(b"k", b"1"), (None, b"2")]
