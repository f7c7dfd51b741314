"""A member with a MySQL source: a quiet changefeed costs little, hears of news, and is measured."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from rowferry.change.chunk import Rows
from rowferry.control.feed.running import Conditions
from rowferry.control.fleet import measures
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.flow.assemble import assemble
from rowferry.flow.capture.binlog.planner import BinlogPlanner
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import MySql
from rowferry.testing.storage import storage_changes

WITHIN_S = 600.0


def test_a_quiet_changefeed(
    mysql_server: MySql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[bool] = []
    real = BinlogPlanner.has_news

    def counted(planner: BinlogPlanner) -> bool:
        plans.append(real(planner))
        return plans[-1]

    monkeypatch.setattr(BinlogPlanner, "has_news", counted)
    mysql_server.script(
        "CREATE DATABASE quiet", "CREATE TABLE quiet.t (id int PRIMARY KEY, note varchar(20))"
    )
    stop, out = threading.Event(), tmp_path / "out"
    with closing(open_store(f"sqlite:///{tmp_path / 'meta.db'}")) as store:
        sink = f"file://{out}?protocol=canal-json&flush-interval=50ms"
        rules = {"filter": {"rules": ["quiet.*"]}}
        made = Operations(store).create(Wanted(mysql_server.uri, sink, "quiet", rules))
        codec = assemble(made.feed.spec).encode
        pace = FleetPace(every_s=0.05, sample_every_s=0.1)
        member = Member(store, "here:1", Conditions(lambda name: DriverRunner()), pace)
        thread = threading.Thread(target=member.run, args=(stop,))
        thread.start()
        try:
            wait_for(lambda: plans.count(False) >= 3, "a changefeed at rest", WITHIN_S)
            mysql_server.execute("INSERT INTO quiet.t VALUES (1, 'one')")

            def ids() -> list[int]:
                if not (out / "metadata").exists():
                    return []
                changes = storage_changes(out, codec)
                found = [c.after.field("id").to_pylist() for c in changes if isinstance(c, Rows)]
                return [i for some in found for i in some]

            wait_for(lambda: ids() == [1], "the row", WITHIN_S)
            assert True in plans  # it was heard of, not stumbled upon

            def measured() -> bool:
                shown = generate_latest(measures.REGISTRY).decode()
                samples = store.samples("quiet")
                return (
                    'rowferry_rows_total{changefeed="quiet",stage="sent"} 1.0' in shown
                    and 'rowferry_retention_left_seconds{changefeed="quiet"} ' in shown
                    and 'rowferry_checkpoint_lag_seconds{changefeed="quiet"} ' in shown
                    and sum(s.rows for s in samples) == 1
                    and bool(samples[-1].retention_ms)
                )

            wait_for(measured, "figures and samples", WITHIN_S)
        finally:
            stop.set()
            thread.join(WITHIN_S)
    measures.look(())
    assert 'changefeed="quiet"' not in generate_latest(measures.REGISTRY).decode()
