"""What a task is given and gives back, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rowferry.change.plan import (
    Output,
    Plan,
    Receipt,
    Segment,
    Stretch,
    TableSlice,
    Topic,
    Volume,
)
from rowferry.change.quarantine import RefusedKey
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.flow.capture.binlog.frame.kept_log import KeptBytes
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Packet, SinkTraits
from rowferry.spark import job
from rowferry.spark.job import InProcessRunner, SegmentTask
from rowferry.spark.lanes import DeliverTask, PackTask
from rowferry.spark.packet_spool import clear, fetch, spooling
from rowferry.spark.receipts import read_receipts, receipt_batch
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.secrets import NOTHING_HIDDEN
from rowferry.spec.uri import Uri

SPEC = ChangefeedSpec(
    "feed",
    Uri.parse("range://127.0.0.1:1", "source"),
    Uri.parse("blackhole://?protocol=csv", "sink"),
    {"sink": {"csv": {"null": "∅"}}},
)
TABLE = TableSchema(
    TableId("shop", "naïve"), 7, 100, (Column(1, "id", SqlType("enum", elements=("é",))),)
)
SLICES = (TableSlice(TABLE.id, 7, 100, 8), TableSlice(TABLE.id, 7, 100, 9))
SEGMENTS = tuple(
    Segment(i, {"from": i}, SLICES[: 1 + i % 2], 5, 6, 100, bool(i), b"\x00\xff") for i in range(3)
)
OUTPUTS = (
    Output(0, 0, {"number": 1}),
    Output(1, 0, {"number": 2}),
    Output(1, 1, {"number": 3}),
    Output(2, 0, {"number": 4}),
)
PLAN = Plan(4, 2, 12345, Stretch(SEGMENTS, (), {}), OUTPUTS, {"x": 1})
TABLES = dict.fromkeys(SLICES, TABLE)
TOPIC = Topic("shop.naïve", 2, 1000)


class Recorder:
    """Stands for a flow and its sink: notes what it is given, gives a receipt for each output."""

    TRAITS = SinkTraits(takes_files=True, needs_shuffle=False)
    hiding = NOTHING_HIDDEN

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.delivered: list[Packet] = []
        self.sink = self

    def take_counts(self) -> dict[str, int]:
        return {}

    def run_segment(
        self, segment: Segment, outputs: Any, tables: Any, planned_at_ms: int
    ) -> Iterator[Receipt]:
        self.given.append((segment, outputs, tables, planned_at_ms))
        for output in outputs:
            yield Receipt(segment.ordinal, output.slice, 10, 20, 30, output.target)

    def take_refused(self) -> tuple[RefusedKey, ...]:
        return ()

    def pack_segment(
        self,
        segment: Segment,
        outputs: Any,
        tables: Any,
        planned_at_ms: int,
        quarantine: Any,
        redo: Any,
    ) -> Iterator[Packet | Receipt]:
        assert redo is None
        for partition in (1, 0):
            values = pa.array([b"%d-%d" % (segment.ordinal, partition)], pa.large_binary())
            yield Packet(segment.ordinal, 1 - partition, TOPIC, partition, Encoded(values))
        yield from self.run_segment(segment, outputs, tables, planned_at_ms)

    def deliver(self, packets: Iterator[Packet], quarantine: Any) -> None:
        self.delivered += packets


class Laned(Recorder):
    """The same with a sink that keeps the order of lanes."""

    TRAITS = SinkTraits(takes_files=False, needs_shuffle=True)


@pytest.fixture(params=[Recorder])
def flow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found: Recorder = request.param()
    specs: list[str] = []

    def flow_of(spec: str) -> Recorder:
        assert ChangefeedSpec.from_json(json.loads(spec)) == SPEC
        specs.append(spec)
        return found

    monkeypatch.setattr(job, "_flow_of", flow_of)
    return found


def test_a_task_gets_its_segment_as_it_was_planned(flow: Recorder) -> None:
    task: SegmentTask = pickle.loads(pickle.dumps(SegmentTask(SPEC, PLAN, TABLES)))
    receipts = list(task.run(1))
    assert flow.given == [(SEGMENTS[1], OUTPUTS[1:3], TABLES, 12345)]
    assert receipts == [
        Receipt(1, 0, 10, 20, 30, {"number": 2}),
        Receipt(1, 1, 10, 20, 30, {"number": 3}),
    ]


def test_receipts_come_back_as_columns(flow: Recorder) -> None:
    batches = [pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())}) for ids in ([2], [1])]
    found = list(SegmentTask(SPEC, PLAN, TABLES)(iter(batches)))
    assert [b.num_rows for b in found] == [1, 2]
    assert found[1].to_pylist()[1] == {
        "segment": 1,
        "slice": 1,
        "rows": 10,
        "bytes": 20,
        "last_ts": 0,
        "counts": "null",
        "sample": "null",
        "quarantine": "null",
        "source_bytes": 30,
        "note": '{"number": 3}',
        "source_facts": "null",
        "captured_rows": 0,
        "captured_bytes": 0,
        "decided_rows": 0,
        "decided_bytes": 0,
    }


def test_nothing_of_a_receipt_gets_lost_on_its_way() -> None:
    told = [
        Receipt(1, 0, 10, 20, 30, {"number": 2}, {"at": 3}, Volume(9, 90), Volume(8, 80)),
        Receipt(1, 1, 10, 20),
    ]
    assert list(read_receipts(receipt_batch(told).to_pylist())) == told


def test_a_receipt_may_come_without_a_note(flow: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = [Receipt(0, 0, 1, 2)]
    monkeypatch.setattr(flow, "run_segment", lambda *given: iter(bare))
    batch = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
    (found,) = SegmentTask(SPEC, PLAN, TABLES)(iter([batch]))
    assert found.to_pylist()[0]["note"] == "null"


def test_running_in_process_runs_all_segments_in_order(flow: Recorder) -> None:
    receipts = InProcessRunner().run(SPEC, PLAN, TABLES)
    assert [given[0].ordinal for given in flow.given] == [0, 1, 2]
    assert [(r.segment, r.slice) for r in receipts] == [(o.segment, o.slice) for o in OUTPUTS]


# --- sinks with lanes -----------------------------------------------------------------------------

laned = pytest.mark.parametrize("flow", [Laned], indirect=True)


@laned
def test_packets_of_a_single_segment_go_straight_to_the_sink(flow: Recorder) -> None:
    receipts = list(SegmentTask(SPEC, PLAN.with_(epoch=9), TABLES).run(1))
    assert [p.messages.values.to_pylist() for p in flow.delivered] == [[b"1-1"], [b"1-0"]]
    assert {(p.micro_batch, p.epoch) for p in flow.delivered} == {(4, 9)}
    assert [(r.segment, r.slice) for r in receipts] == [(1, 0), (1, 1)]


@laned
def test_packets_cross_a_shuffle(flow: Recorder) -> None:
    task = SegmentTask(SPEC, PLAN.with_(epoch=9), TABLES)
    ordinals = pa.RecordBatch.from_pydict({"id": pa.array([0, 1], pa.int64())})
    rows = list(pickle.loads(pickle.dumps(PackTask(task, 5)))(iter([ordinals])))
    assert {r.num_rows for r in rows} == {1}
    lanes = {(r["topic"], r["partition"]): r["lane"] for b in rows for r in b.to_pylist()}
    assert len({lane for (topic, _), lane in lanes.items() if topic}) == 2
    (receipts,) = pickle.loads(pickle.dumps(DeliverTask(task)))(iter(rows))
    found = [(p.segment, p.number, p.topic, p.partition) for p in flow.delivered]
    assert found == [(0, 0, TOPIC, 1), (0, 1, TOPIC, 0), (1, 0, TOPIC, 1), (1, 1, TOPIC, 0)]
    assert [p.messages.values.to_pylist() for p in flow.delivered][0] == [b"0-1"]
    assert {(p.micro_batch, p.epoch) for p in flow.delivered} == {(4, 9)}
    assert receipts.column("segment").to_pylist() == [0, 1, 1]


def test_a_worker_builds_its_stages_once_for_a_spec() -> None:
    text = json.dumps(SPEC.to_json())
    assert job._flow_of(text) is job._flow_of(text)
    other = json.dumps({**SPEC.to_json(), "changefeed_id": "other"})
    assert job._flow_of(other) is not job._flow_of(text)


def test_packets_end_with_their_job_also_where_somebody_else_took_the_folder_away(
    tmp_path: Path,
) -> None:
    """As whoever finds Java dead does: the job's own error must be told, and not that."""
    folder = tmp_path / "packets"
    folder.mkdir()
    with spooling(str(folder)) as spool:
        payload = spool.put(pa.py_buffer(b"\xff\xff\xff\xffpacket"))
    assert fetch(payload).to_pybytes() == b"\xff\xff\xff\xffpacket"
    clear(str(folder))
    assert list(folder.iterdir()) == []
    folder.rmdir()
    clear(str(folder))


def test_a_task_on_another_machine_gets_bytes_and_no_paths() -> None:
    """Few bytes go along; what only this machine can open, others ask the source for."""
    carried, kept = KeptBytes(0, 9, data=b"rows"), KeptBytes(9, 12, path="/proc/1/fd/9", size=3)
    near = ((carried,), (kept,), (carried, kept))
    segments = tuple(replace(s, near=n) for s, n in zip(SEGMENTS, near, strict=True))
    plan = PLAN.with_(stretch=replace(PLAN.stretch, segments=segments))
    for is_near, expected in ((True, list(near)), (False, [(carried,), (), ()])):
        task = pickle.loads(pickle.dumps(SegmentTask(SPEC, plan, TABLES, is_near=is_near)))
        assert [task._work(s.ordinal)[0].near for s in segments] == expected
