"""Packets against a real receiver: batches, order, repetitions, refusals."""

from __future__ import annotations

import gzip
import json
import random
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from http_kit import FAST, packet, sink_of

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan, Stretch
from rowferry.change.table import TableId
from rowferry.errors import RowRejected, SinkUnavailable, SinkUnwritable, Verdict
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.web_calls import retry_after_s
from rowferry.testing.receiver import KEY, HttpReceiver, ReceiverFault, Refusal

LONG_S = 3600


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as started:
        yield started


def bodies(receiver: HttpReceiver) -> list[bytes]:
    return [r.body for r in receiver.taken]


# --- batches --------------------------------------------------------------------------------------


def test_json_is_sent_as_arrays(receiver: HttpReceiver) -> None:
    sink_of(f"{receiver.uri}?max-batch-rows=2&tenant=7").deliver(
        iter([packet([b"1", b"2", b"3"], micro_batch=5, epoch=9)])
    )
    assert bodies(receiver) == [b"[1,2]", b"[3]"]
    (first, _) = receiver.taken
    assert first.path == "/changes?tenant=7"
    assert first.headers["Content-Type"] == "application/json"
    assert first.headers["Rowferry-Changefeed"] == "feed"
    assert first.headers["Rowferry-Micro-Batch"] == "5"
    assert first.headers["Rowferry-Epoch"] == "9"


def test_canal_json_is_sent_as_lines(receiver: HttpReceiver) -> None:
    sink_of(f"{receiver.uri}?protocol=canal-json").deliver(iter([packet([b"{}", b"{}"])]))
    assert bodies(receiver) == [b"{}\n{}\n"]
    assert receiver.taken[0].headers["Content-Type"] == "application/x-ndjson"


def test_batches_keep_to_their_bytes(receiver: HttpReceiver) -> None:
    values = [b"%d" % (10**k) for k in (300, 300, 300, 1, 1022, 1023, 5, 1200)]
    sink_of(f"{receiver.uri}?max-batch-bytes=1024").deliver(iter([packet(values)]))
    found = bodies(receiver)
    assert [v for b in found for v in b[1:-1].split(b",")] == values
    assert [b.count(b",") + 1 for b in found] == [4, 1, 1, 1, 1]
    assert all(len(b) - 2 <= 1024 for b in found[:-1])


@pytest.mark.parametrize(("second", "count"), [(512, 1), (513, 2)])
def test_the_last_byte_that_fits(receiver: HttpReceiver, second: int, count: int) -> None:
    values = [b"1" * 511, b"2" * second]
    sink_of(f"{receiver.uri}?max-batch-bytes=1024").deliver(iter([packet(values)]))
    assert len(bodies(receiver)) == count


def test_a_sliced_packet(receiver: HttpReceiver) -> None:
    whole = packet([b"1", b"22", b"333", b"4"])
    values = whole.messages.values.slice(1, 2)
    object.__setattr__(whole.messages, "values", values)
    sink_of(receiver.uri).deliver(iter([whole]))
    assert bodies(receiver) == [b"[22,333]"]


def test_gzip_is_the_same_on_every_try(receiver: HttpReceiver) -> None:
    receiver.faults.append(Refusal(503))
    sink_of(f"{receiver.uri}?compression=gzip&{FAST}").deliver(iter([packet([b"1" * 5000])]))
    first, again = receiver.seen
    assert first.body == again.body == b"[" + b"1" * 5000 + b"]"
    assert first.headers["Content-Encoding"] == "gzip"
    size = len(gzip.compress(first.body, 1, mtime=0))
    assert first.headers["Content-Length"] == again.headers["Content-Length"] == str(size)


# --- order ----------------------------------------------------------------------------------------


def test_lanes_keep_their_order_through_faults(receiver: HttpReceiver) -> None:
    dice = random.Random(7)
    odd: list[ReceiverFault | Refusal] = [
        Refusal(500),
        Refusal(429, {"Retry-After": "0"}),
        ReceiverFault.DROP,
    ]
    odd += [ReceiverFault.LOSE_ANSWER, ReceiverFault.HALF_ANSWER]
    receiver.faults.extend(f for _ in range(12) for f in dice.sample(odd, len(odd)))
    packets = [
        packet([b"%d" % (lane * 1000 + 2 * n), b"%d" % (lane * 1000 + 2 * n + 1)], lane, n)
        for n in range(8)
        for lane in range(4)
    ]
    sink_of(f"{receiver.uri}?max-batch-rows=1&max-retry=100&{FAST}").deliver(iter(packets))
    rows = [int(json.loads(r.body)[0]) for r in receiver.once()]
    for lane in range(4):
        assert [r for r in rows if r // 1000 == lane] == [lane * 1000 + n for n in range(16)]
    assert len(receiver.taken) > len(rows) == 64  # answers were lost: there are repeats
    repeats: dict[str, bytes] = {}
    for request in receiver.taken:
        assert repeats.setdefault(request.headers[KEY], request.body) == request.body


def test_keys_are_the_same_on_a_replay_and_differ_between_batches(receiver: HttpReceiver) -> None:
    def keys(*packets: object) -> list[str]:
        receiver.taken.clear()
        sink_of(f"{receiver.uri}?max-batch-rows=1&worker-count=1").deliver(iter(packets))  # type: ignore[arg-type]
        return [r.headers[KEY] for r in receiver.taken]

    first = keys(packet([b"1", b"1"], micro_batch=1), packet([b"1"], 1, 1, micro_batch=1))
    assert len(set(first)) == 3
    again = keys(
        packet([b"1", b"1"], micro_batch=1, epoch=2), packet([b"1"], 1, 1, micro_batch=1, epoch=2)
    )
    assert again == first
    assert set(keys(packet([b"1"], micro_batch=2))).isdisjoint(first)
    assert set(keys(packet([b"2"], micro_batch=1))).isdisjoint(first)  # other rows: not a repeat


def test_lanes_are_sent_side_by_side(receiver: HttpReceiver) -> None:
    """Four requests meet in the receiver, which takes none before it has seen all of them."""
    together = threading.Barrier(4)
    note = receiver.note

    def meet(request):  # type: ignore[no-untyped-def]
        together.wait(120)
        return note(request)

    receiver.note = meet  # type: ignore[method-assign]
    sink_of(receiver.uri).deliver(packet([b"1"], lane, lane) for lane in range(4))
    assert len(receiver.taken) == 4


def test_the_first_error_ends_all_lanes(receiver: HttpReceiver) -> None:
    receiver.faults.append(Refusal(400, words=b"no such column"))
    endless = (packet([b"1"], n % 4, n) for n in range(1_000_000))
    with pytest.raises(RowRejected, match="no such column"):
        sink_of(receiver.uri).deliver(endless)
    assert next(endless).number < 999_999


def test_an_error_of_the_reading_side_is_raised_as_it_is(receiver: HttpReceiver) -> None:
    def broken() -> Iterator[object]:
        yield packet([b"1"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sink_of(receiver.uri).deliver(broken())  # type: ignore[arg-type]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422])
def test_a_refusal_stops_with_the_receivers_words(receiver: HttpReceiver, status: int) -> None:
    receiver.faults.append(Refusal(status, words=b"because\n\x1b[31m  of " + b"x" * 500))
    with pytest.raises(RowRejected) as raised:
        sink_of(f"{receiver.uri}?code=77").deliver(iter([packet([b"1"])]))
    words = str(raised.value)
    assert raised.value.verdict is Verdict.STOP
    assert f"{receiver.uri}: it answers {status}: because [31m of xxx" in words
    assert "\n" not in words
    assert "77" not in words.replace(str(receiver.port), "")
    assert 150 < words.count("x") <= 200
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_refusal_for_now_is_repeated(receiver: HttpReceiver, status: int) -> None:
    receiver.faults.extend([Refusal(status)] * 3)
    sink_of(f"{receiver.uri}?{FAST}").deliver(iter([packet([b"1"])]))
    assert (len(receiver.seen), len(receiver.taken)) == (4, 1)


def test_repetitions_end_and_the_changefeed_goes_on(receiver: HttpReceiver) -> None:
    receiver.faults.extend([Refusal(503, words=b"overloaded")] * 9)
    with pytest.raises(SinkUnavailable, match="it answers 503: overloaded") as raised:
        sink_of(f"{receiver.uri}?max-retry=2&{FAST}").deliver(iter([packet([b"1"])]))
    assert raised.value.verdict is Verdict.RETRY
    assert len(receiver.seen) == 3


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_refused_by_name(receiver: HttpReceiver, status: int) -> None:
    receiver.faults.append(Refusal(status, {"Location": "https://other.example/in?code=77"}))
    with pytest.raises(
        SinkUnwritable, match=rf"redirect \({status}\) to https://other.example/in;"
    ):
        sink_of(receiver.uri).deliver(iter([packet([b"1"])]))
    assert len(receiver.seen) == 1


def test_silence_ends_with_the_timeout(receiver: HttpReceiver) -> None:
    """It is not repeated in the task: the changefeed waits elsewhere, and keeps no core busy."""
    receiver.faults.append(ReceiverFault.SILENCE)
    with pytest.raises(SinkUnavailable, match=r"no answer within 0.05 s"):
        sink_of(f"{receiver.uri}?timeout=50ms").deliver(iter([packet([b"1"])]))
    assert len(receiver.seen) == 1


def test_a_receiver_that_does_not_read_ends_with_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        uri = f"http://127.0.0.1:{deaf.getsockname()[1]}/?timeout=50ms&backoff=1m&max-backoff=10m"
        with pytest.raises(SinkUnavailable, match=r"no answer within 0.05 s"):
            sink_of(uri).deliver(iter([packet([b"1" * (32 << 20)])]))


def test_an_endless_answer_is_cut_off(receiver: HttpReceiver) -> None:
    receiver.faults.append(ReceiverFault.ENDLESS_ANSWER)
    sink_of(receiver.uri).deliver(iter([packet([b"1"]), packet([b"2"], number=1)]))
    assert bodies(receiver) == [b"[1]", b"[2]"]


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sink = sink_of(f"http://127.0.0.1:{port}/x?{FAST}")
    with pytest.raises(SinkUnavailable, match=rf"http://127.0.0.1:{port}/x: .*refused"):
        sink.deliver(iter([packet([b"1"])]))
    with pytest.raises(SinkUnavailable, match=rf"http://127.0.0.1:{port}/x: .*refused"):
        sink.probe(Owner("feed", 1))


def test_a_receiver_that_restarts_is_found_again(receiver: HttpReceiver) -> None:
    """Connections that are kept from earlier may be dead."""
    sink = sink_of(f"{receiver.uri}?{FAST}")
    sink.deliver(iter([packet([b"1"])]))
    receiver._server.cut()
    sink.deliver(iter([packet([b"2"])]))
    sink.close()
    sink.deliver(iter([packet([b"3"])]))
    assert bodies(receiver) == [b"[1]", b"[2]", b"[3]"]


def test_probe_sends_nothing(receiver: HttpReceiver) -> None:
    sink_of(receiver.uri).probe(Owner("feed", 1))
    assert receiver.seen == []


# --- Retry-After ----------------------------------------------------------------------------------


def test_a_long_retry_after_is_left_to_the_changefeed(receiver: HttpReceiver) -> None:
    receiver.faults.append(Refusal(429, {"Retry-After": str(LONG_S)}))
    sink = sink_of(receiver.uri)
    with pytest.raises(SinkUnavailable, match="it asks to be left for 3600 s"):
        sink.deliver(iter([packet([b"1"])]))
    with pytest.raises(SinkUnavailable, match="it asked to be left for another 3[56]"):
        sink.deliver(iter([packet([b"1"])]))
    assert len(receiver.seen) == 1  # it was left alone


def test_a_pause_that_the_last_try_is_asked_for_is_kept(receiver: HttpReceiver) -> None:
    receiver.faults.append(Refusal(503, {"Retry-After": "300"}))
    sink = sink_of(f"{receiver.uri}?max-retry=0&max-backoff=10m")
    for words in ("503: .no words.; it asks to be left for 300 s", r"left for another [23]\d\d s"):
        with pytest.raises(SinkUnavailable, match=words):
            sink.deliver(iter([packet([b"1"])]))
    assert len(receiver.seen) == 1


def test_a_short_retry_after_is_waited_for(receiver: HttpReceiver) -> None:
    receiver.faults.append(Refusal(503, {"Retry-After": "0"}))
    sink_of(f"{receiver.uri}?backoff=1m&max-backoff=10m").deliver(iter([packet([b"1"])]))
    assert len(receiver.taken) == 1  # without the header it would wait for most of a minute


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "Mon, 99 Foo 2020"])
def test_a_retry_after_that_says_nothing(text: str) -> None:
    assert retry_after_s({"Retry-After": text}) is None


def test_a_retry_after_date_counts_from_the_receivers_clock() -> None:
    wrong = datetime(2001, 2, 3, tzinfo=UTC)  # a receiver whose clock is wrong still means 7 s
    later = format_datetime(wrong + timedelta(seconds=7), usegmt=True)
    assert retry_after_s({"Retry-After": later, "Date": format_datetime(wrong, usegmt=True)}) == 7
    assert retry_after_s({"Retry-After": later}) == 0
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=LONG_S), usegmt=True)
    left = retry_after_s({"Retry-After": soon})
    assert left is not None
    assert LONG_S - 600 < left <= LONG_S


# --- what follows the rows ------------------------------------------------------------------------


def _plan() -> Plan:
    name = TableId("shop", "orders")
    changes = tuple(
        SchemaChange(10 + i, DdlKind.ADD_COLUMN, f'ALTER "{i}"', name) for i in range(2)
    )
    return Plan(3, 1, 1_000, Stretch((), changes, {}, watermark=20))


def test_schema_changes_then_the_watermark(receiver: HttpReceiver) -> None:
    sink = sink_of(f"{receiver.uri}?{FAST}")
    sink.open(Owner("feed", 4), None)
    receiver.faults.extend([ReceiverFault.LOSE_ANSWER, Refusal(500), ReceiverFault.DROP])
    sink.publish(_plan(), [], {})
    found = [json.loads(r.body) for r in receiver.once()]
    ddl = {"type": "ddl", "database": "shop", "table": "orders", "kind": "add column"}
    assert found == [
        [{**ddl, "commitTs": 10, "query": 'ALTER "0"'}],
        [{**ddl, "commitTs": 11, "query": 'ALTER "1"'}],
        [{"type": "watermark", "commitTs": 20}],
    ]
    assert {r.headers["Rowferry-Epoch"] for r in receiver.taken} == {"4"}
    assert {r.headers["Rowferry-Micro-Batch"] for r in receiver.taken} == {"3"}
    keys = [r.headers[KEY] for r in receiver.once()]
    sink.publish(_plan(), [], {})
    assert [r.headers[KEY] for r in receiver.once()] == keys


def test_canal_json_sends_its_watermark_with_the_extension_only(receiver: HttpReceiver) -> None:
    sink_of(f"{receiver.uri}?protocol=canal-json").publish(_plan(), [], {})
    assert [json.loads(b)["type"] for b in bodies(receiver)] == ["ALTER", "ALTER"]
    receiver.taken.clear()
    uri = f"{receiver.uri}?protocol=canal-json&enable-tidb-extension=true"
    sink_of(uri).publish(_plan(), [], {})
    assert [json.loads(b)["type"] for b in bodies(receiver)][2] == "TIDB_WATERMARK"
