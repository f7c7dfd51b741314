"""The redo log in real object stores: complete tries, what is reached, and what is removed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from object_store_kit import sink_uri

from rowferry.change.plan import Plan, Segment, Stretch, Topic
from rowferry.downstream.redo.apply import find_log
from rowferry.errors import BadInput, SinkUnavailable
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.named_storage import files_at
from rowferry.flow.redo.log import RedoLog
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.storage import buckets
from rowferry.spec.uri import Uri
from rowferry.testing.servers import Minio, ObjectServer, Relay

FEED, SEGMENTS = "redo-feed", 3
BIG = b"v" * 3_000_000


def place_of(uri: str) -> Uri:
    return Uri.parse(uri.replace("&protocol=csv", ""), "storage")


def log_at(uri: str) -> RedoLog:
    return RedoLog(files_at(place_of(uri), "a redo log"), FEED, "mysql", compression="lz4")


def plan_of(number: int, watermark: int) -> Plan:
    segments = tuple(Segment(n, {"secret": "of the source"}, (), 1, 2) for n in range(SEGMENTS))
    return Plan(number, 1, 0, Stretch(segments, (), {}, watermark=watermark))


def packets(segment: int) -> Iterator[Packet]:
    topic = Topic("db.t", 16, 1 << 30)
    for number in range(2):
        values = pa.array([b"%d-%d" % (segment, number), BIG], pa.large_binary())
        yield Packet(segment, number, topic, number, Encoded(values))


def test_a_try_is_complete_with_its_last_segment(server: ObjectServer, prefix: str) -> None:
    uri = sink_uri(server, prefix)
    with pytest.raises(BadInput, match="holds no redo log"):
        find_log(place_of(uri), "")
    owner, driver, task = Owner(FEED, 4, delivered=70, micro_batch=9), log_at(uri), log_at(uri)
    driver.open(owner)
    driver.reached(9, 70)
    _, state = find_log(place_of(uri), "")
    assert (state.changefeed, state.checkpoint_ts, state.resolved_ts) == (FEED, 70, 70)
    directory = driver.begin(plan_of(10, 80), {}, 70)
    for segment in range(SEGMENTS):
        assert find_log(place_of(uri), "")[1].kept is None
        task.keep(directory, segment, packets(segment))
    log, state = find_log(place_of(uri), FEED)
    assert (state.checkpoint_ts, state.resolved_ts) == (70, 80)
    assert state.kept is not None and state.kept.kind == "mysql"
    assert [s.read for s in state.kept.plan.stretch.segments] == [{}] * SEGMENTS
    for segment in range(SEGMENTS):
        kept = list(log.packets(state.kept.name.directory, segment))
        assert [(p.segment, p.number, p.topic.name, p.partition) for p in kept] == [
            (segment, number, "db.t", number) for number in range(2)
        ]
        assert kept[1].messages.values.to_pylist() == [b"%d-1" % segment, BIG]
    # A second try that is not complete changes nothing; one that is and reaches farther, does.
    again = driver.begin(plan_of(10, 90), {}, 70)
    assert find_log(place_of(uri), "")[1].resolved_ts == 80
    for segment in range(SEGMENTS):
        task.keep(again, segment, packets(segment))
    assert find_log(place_of(uri), "")[1].resolved_ts == 90
    driver.reached(10, 90)
    log, state = find_log(place_of(uri), "")
    assert (state.checkpoint_ts, state.kept, log.tries()) == (90, None, [])


def test_the_next_owner_finds_the_order(server: ObjectServer, prefix: str) -> None:
    """A note that was lost, an owner that comes late, a reset: the newest owner's word counts."""
    uri = sink_uri(server, prefix)
    old, new = log_at(uri), log_at(uri)
    old.open(Owner(FEED, 1, delivered=40, micro_batch=4, continues=True))
    old.reached(5, 50)
    directory = old.begin(plan_of(6, 60), {}, 50)
    for segment in range(SEGMENTS):
        old.keep(directory, segment, packets(segment))
    new.open(Owner(FEED, 2, delivered=50, micro_batch=5, continues=True))  # still to be written
    assert find_log(place_of(uri), "")[1].resolved_ts == 60
    new.begin(plan_of(7, 80), {}, 60)  # the note of micro-batch 6 never came
    _, state = find_log(place_of(uri), "")
    assert (state.checkpoint_ts, state.resolved_ts) == (60, 60)
    new.reached(7, 70)
    old.reached(6, 60)  # late
    assert find_log(place_of(uri), "")[1].checkpoint_ts == 70
    reset = log_at(uri)
    reset.open(Owner(FEED, 3))
    log, state = find_log(place_of(uri), "")
    assert (state.checkpoint_ts, state.kept, log.tries()) == (0, None, [])


def test_a_store_that_is_away(
    s3_server: Minio, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(buckets.RETRIES, "max_retries", 0)
    with Relay(s3_server.client_port) as relay:
        uri = sink_uri(s3_server, prefix, relay)
        log = log_at(uri)
        log.open(Owner(FEED, 1))
        relay.cut()
        with pytest.raises(SinkUnavailable) as raised:
            log.begin(plan_of(1, 5), {}, 0)
        assert s3_server.password not in str(raised.value)
