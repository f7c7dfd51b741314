"""Statements become calls of operations, and answers are tables without secrets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operations import ChangedSettings, Created, Operations, Seen, Wanted
from rowferry.control.operator.statements.execute import execute
from rowferry.control.store.contract import (
    FeedRecord,
    Lease,
    LogLine,
    PastSchemaChange,
    Sample,
    TableCount,
)
from rowferry.errors import BadStatement, NoSuchChangefeed
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

SOURCE = "mysql://me:" + "hush@h:3306"
SINK = "kafka://k:9092/t?protocol=canal-json"
CONFIG = {"filter": {"rules": ["a.*"]}, "sink": {"kafka-config": {"sasl-password": "hush"}}}
WATERMARK = (1_700_000_000_000 << 18) + 7
TABLE = TableId("a", "t")


def feed(**changes: Any) -> FeedRecord:
    spec = ChangefeedSpec("x", Uri.parse(SOURCE, "source"), Uri.parse(SINK, "sink"), CONFIG)
    made = FeedRecord(
        id="x",
        state=FeedState.NORMAL,
        spec=spec,
        spec_version=1,
        created_at=1_700_000_000.0,
        epoch=1,
        micro_batch=3,
        watermark=WATERMARK,
        error="",
        error_code="",
        cancel=False,
        lease=Lease(Holder("host", 77, "", 0, "i"), 0.0, time.time() + 60, "host:77"),
    )
    return replace(made, **changes)


class Recorder(Operations):
    """Notes every call; answers with the feed above."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.feed = feed()
        self.samples: tuple[Sample, ...] = ()
        self.there = True

    def create(self, wanted: Wanted, dry_run: bool = False) -> Created:
        self.calls.append(("create", wanted, dry_run))
        return Created(
            self.feed,
            (TABLE,),
            (TableId("a", "nokey"),),
            {TABLE: "topic t"},
            ("r",),
            ("n",),
            dry_run,
        )

    def see(self, changefeed: str, samples_s: float = 900.0) -> Seen:
        ranges = (
            RangeProgress("a", "t", 1, 1, 5, "", "", Stage.LOG, last_log_index=42),
            RangeProgress("a", "t", 1, 1, 6, "", "", Stage.SNAPSHOT, last_snapshot_key="ff"),
            RangeProgress("a", "t", 1, 1, 7, "", "", Stage.REGISTERED),
            RangeProgress("a", "t", 1, 1, 8, "", "", Stage.LOG),
        )
        cure = "do so" if self.feed.error else ""
        tables = (TABLE, TableId("a", "u"))
        return Seen(
            *(self.feed, ranges, tables, self.samples, (), None, cure),
            log_place={"file": "binlog.000012", "offset": 400},
            kept_ms=90_000,
            counts=(TableCount(TABLE, 3, 40, 1_700_000_000_000 << 18),),
            schema_changes=(
                PastSchemaChange(1.0, 1_700_000_000_000 << 18, TABLE, "add column", "ALTER …"),
            ),
        )

    def log(self, changefeed: str, limit: int = 200) -> tuple[LogLine, ...]:
        return (LogLine(1_700_000_000.0, "warning", "a:8300", "it is slow"),)

    def feeds(self, states: Any = ()) -> tuple[FeedRecord, ...]:
        self.calls.append(("feeds", tuple(states)))
        return (self.feed,)

    def remove(self, changefeed: str) -> FeedRecord | None:
        self.calls.append(("remove", changefeed))
        return self.feed if self.there else None

    def pause(self, changefeed: str) -> FeedRecord:
        return self._note("pause", changefeed)

    def resume(self, changefeed: str, overwrite_checkpoint_ts: int | None = None) -> FeedRecord:
        return self._note("resume", changefeed, overwrite_checkpoint_ts)

    def update(self, changefeed: str, changed: ChangedSettings) -> FeedRecord:
        return self._note("update", changefeed, changed)

    def add_tables(self, changefeed: str, patterns: Any) -> FeedRecord:
        return self._note("add_tables", changefeed, patterns)

    def drop_tables(self, changefeed: str, patterns: Any) -> FeedRecord:
        return self._note("drop_tables", changefeed, patterns)

    def reset(
        self,
        changefeed: str,
        commit_ts: int | None = None,
        position: str | None = None,
        snapshot: bool = False,
    ) -> FeedRecord:
        return self._note("reset", changefeed, commit_ts, position, snapshot)

    def _note(self, *call: Any) -> FeedRecord:
        self.calls.append(call)
        return self.feed


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


CREATE = f"CREATE CHANGEFEED x FOR TABLE a.b, !a.c FROM '{SOURCE}' INTO '{SINK}'"


def test_create_stores_and_explain_does_not(recorder: Recorder) -> None:
    settings = "WITH (start-ts = 5, target_ts = '9', sink.protocol = csv, case-sensitive = TRUE)"
    made = execute(recorder, f"{CREATE} {settings}")
    told = execute(recorder, f"EXPLAIN {CREATE} {settings}")
    wanted = Wanted(
        SOURCE,
        SINK,
        "x",
        {"sink": {"protocol": "csv"}, "case-sensitive": True, "filter": {"rules": ["a.b", "!a.c"]}},
        start_ts=5,
        target_ts=9,
    )
    assert recorder.calls == [("create", wanted, False), ("create", wanted, True)]
    assert made.columns == told.columns == ("what", "name", "details")
    assert made.rows == told.rows
    assert made.rows == (
        ("captured", "a.t", "topic t"),
        ("left out", "a.nokey", "it has no usable key"),
        ("rule", "", "r"),
        ("note", "", "n"),
    )
    assert made.message == "changefeed x created: 1 table captured"
    assert told.message.endswith("nothing was stored")


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("PAUSE CHANGEFEED x", ("pause", "x")),
        ("RESUME CHANGEFEED x", ("resume", "x", None)),
        ("RESUME CHANGEFEED x FROM TS 8", ("resume", "x", 8)),
        ("ALTER CHANGEFEED x ADD TABLE b.c", ("add_tables", "x", ("b.c",))),
        ("ALTER CHANGEFEED x DROP TABLE b.c", ("drop_tables", "x", ("b.c",))),
        ("ALTER CHANGEFEED x RESET TO SNAPSHOT", ("reset", "x", None, None, True)),
        ("ALTER CHANGEFEED x RESET TO TS 8", ("reset", "x", 8, None, False)),
        ("ALTER CHANGEFEED x RESET TO POSITION 'f:4'", ("reset", "x", None, "f:4", False)),
        ("DROP CHANGEFEED x", ("remove", "x")),
        ("SHOW CHANGEFEEDS", ("feeds", ())),
        ("SHOW ALL CHANGEFEEDS", ("feeds", tuple(FeedState))),
    ],
)
def test_one_statement_is_one_call(recorder: Recorder, text: str, call: tuple[Any, ...]) -> None:
    answer = execute(recorder, text)
    assert recorder.calls == [call]
    assert answer.message


def test_set_changes_what_it_names_and_keeps_the_rest(recorder: Recorder) -> None:
    execute(recorder, "ALTER CHANGEFEED x SET (sink.protocol = avro, filter.rules = DEFAULT)")
    execute(recorder, "ALTER CHANGEFEED x SET (sink_uri = 's://', source-uri = 't://')")
    execute(recorder, "ALTER CHANGEFEED x SET (target_ts = 9)")
    execute(recorder, "ALTER CHANGEFEED x SET (target_ts = NULL)")
    stored = {"kafka-config": {"sasl-password": "***"}}  # which an update keeps
    config = {"filter": {}, "sink": {**stored, "protocol": "avro"}}
    assert [call[2] for call in recorder.calls] == [
        ChangedSettings(config=config),
        ChangedSettings("t://", "s://"),
        ChangedSettings(target_ts=9),
        ChangedSettings(target_ts=0),
    ]
    assert recorder.feed.spec.config == CONFIG


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{CREATE} WITH (filter.rules = ['a.*'])", "FOR TABLE and filter.rules both"),
        (f"{CREATE} WITH (filter = 5)", "filter is a section"),
        (f"{CREATE} WITH (sink = {{}}, sink.protocol = csv)", "sink and sink.protocol overlap"),
        (f"{CREATE} WITH (start_ts = -5)", "start_ts = -5: expected a commit-ts"),
        (f"{CREATE} WITH (start_ts = 'hush')", "start_ts: expected a commit-ts"),
        (f"{CREATE} WITH (start_ts = TRUE)", "expected a commit-ts"),
        (f"{CREATE} WITH (start_ts = 5, start-ts = 5)", "start_ts is given twice"),
        ("ALTER CHANGEFEED x SET (filter.rules.a = 5)", "rules is a value, not a section"),
        ("ALTER CHANGEFEED x SET (start_ts = 5)", "start_ts can not be updated.*RESET TO TS"),
        ("ALTER CHANGEFEED x SET (changefeed_id = y)", "changefeed_id can not be updated"),
        ("ALTER CHANGEFEED x SET (sink_uri = 5)", "sink_uri: expected a URI"),
        ("STOP CHANGEFEED x", "expected CREATE"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything(
    recorder: Recorder, text: str, words: str
) -> None:
    with pytest.raises(BadStatement, match=words) as told:
        execute(recorder, text)
    assert recorder.calls == []
    assert "hush" not in str(told.value)


def test_drop_of_nothing(recorder: Recorder) -> None:
    recorder.there = False
    with pytest.raises(NoSuchChangefeed, match="'x'"):
        execute(recorder, "DROP CHANGEFEED x")
    assert execute(recorder, "DROP CHANGEFEED IF EXISTS x").message.endswith("nothing to drop")


BAR = "######.............. 30% (3/10)"


def test_show_hides_secrets_and_tells_where_it_stands(recorder: Recorder) -> None:
    recorder.feed = feed(state=FeedState.WARNING, error="gone", error_code="RF-4001")
    now = time.time()
    recorder.samples = (
        Sample(now - 5, 5, 1, 0, 0, 0, 0.0, totals=(0, 1, 1, 10), unit="rows"),
        Sample(
            *(now, 5, 1, 5000, 0, 0, 0.0),
            snapshots=(("a.t", 3, 10),),
            totals=(0, 1, 3, 10),
            unit="rows",
        ),
    )
    listed = execute(recorder, "SHOW CHANGEFEEDS")
    (row,) = (dict(zip(listed.columns, row, strict=True)) for row in listed.rows)
    assert row | {"lag_ms": 0, "checkpoint_time": ""} == {
        "id": "x",
        "state": "warning",
        "checkpoint_ts": WATERMARK,
        "checkpoint_time": "",
        "lag_ms": 0,
        "owner": "host:77",
        "source": "mysql://me:***@h:3306",
        "sink": SINK,
        "error": "[RF-4001] gone",
    }
    assert row["lag_ms"] > 0
    details = dict(execute(recorder, "SHOW CHANGEFEED x").rows)
    assert details["sink.kafka-config.sasl-password"] == "***"
    assert details["filter.rules"] == "[a.*]"
    assert (details["tables"], details["cure"]) == ("a.t, a.u", "do so")
    progress = execute(recorder, "SHOW CHANGEFEED x PROGRESS")
    assert progress.columns == ("table", "range", "stage", "position", "snapshot")
    assert progress.rows == (
        ("a.t", 5, "log", "log 42", BAR),
        ("a.t", 6, "snapshot", "key ff", BAR),
        ("a.t", 7, "registered", "", BAR),
        ("a.t", 8, "log", "", BAR),
        ("a.u", None, None, None, None),
    )
    assert progress.message.startswith(
        f"changefeed x is warning (snapshot); snapshot {BAR[:24]}, 3 of 10 rows; "
        f"about 18 s left; checkpoint {WATERMARK} ("
    )
    assert progress.message.endswith("; 1,000 rows/s; [RF-4001] gone")


def test_a_new_changefeed_and_an_old_lease_show_nothing_invented(recorder: Recorder) -> None:
    recorder.feed = feed(watermark=0, lease=Lease(Holder("h", 1, "", 0, "i"), 0.0, 1.0))
    listed = execute(recorder, "SHOW CHANGEFEEDS")
    assert listed.rows[0][:6] == ("x", "normal", None, None, None, None)
    assert (
        execute(recorder, "SHOW CHANGEFEED x PROGRESS").message
        == "changefeed x is normal (waiting)"
    )


def test_what_belongs_to_a_changefeed_is_listed() -> None:
    recorder = Recorder()
    details = dict(execute(recorder, "SHOW CHANGEFEED x").rows)
    assert (details["position.file"], details["position.offset"]) == ("binlog.000012", 400)
    assert details["log_kept_ms"] == 90_000
    tables = execute(recorder, "show changefeed x tables")
    assert tables.columns == ("table", "rows", "bytes", "last_change")
    assert [row[:3] for row in tables.rows] == [("a.t", 3, 40), ("a.u", 0, 0)]
    (change,) = execute(recorder, "SHOW CHANGEFEED x SCHEMA CHANGES;").rows
    assert change[2:] == ("a.t", "add column", "ALTER …")
    (line,) = execute(recorder, "SHOW CHANGEFEED x LOG").rows
    assert line[1:] == ("warning", "a:8300", "it is slow")
    with pytest.raises(BadStatement, match="CHANGES"):
        execute(recorder, "SHOW CHANGEFEED x SCHEMA")
