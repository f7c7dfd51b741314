"""Sync points: the statements that TiDB would get, and when. There is no TiDB here to run them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rowferry.errors import BadOption, OptionsConflict, SinkUnwritable
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.session import DownstreamFacts
from rowferry.flow.sink.mysql.sync_point import SyncPoints
from rowferry.mysql.flavour import Flavour
from rowferry.spec.build import build_spec
from rowferry.spec.sync_point import SyncPointSettings, read_sync_point

HOUR = 3_600_000 << 18
TEN = timedelta(minutes=10)
INSERT = (
    "INSERT IGNORE INTO tidb_cdc.syncpoint_v1 (ticdc_cluster_id, changefeed, primary_ts, "
    "secondary_ts) VALUES (%s, %s, %s, %s)"
)


class Recording:
    """A session that answers as TiDB does, and keeps what it was sent."""

    def __init__(self, flavour: Flavour = Flavour.TIDB, last: str | None = None) -> None:
        self.facts = DownstreamFacts(flavour, "8", 1 << 20)
        self.sent: list[Any] = []
        self._last, self._clock = last, 1000

    def run(self, *statements: bytes, joined: bool = True) -> None:
        self.sent += [s.decode() for s in statements]

    def begin(self, sql: bytes) -> list[tuple[Any, ...]]:
        self.sent.append("BEGIN")
        return [("7",)]

    def ask(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        self.sent.append((sql, *values) if values else sql)
        if sql.startswith("SELECT MAX"):
            return [(self._last,)]
        self._clock += 1
        return [(str(self._clock),)]


def points(clock: list[float], enabled: bool = True) -> SyncPoints:
    settings = SyncPointSettings.read({"enable-sync-point": enabled, "sync-point-retention": "1h"})
    return SyncPoints("feed", settings, Ledger("tidb_cdc", "feed", False), lambda: clock[-1])


def written(session: Any, found: SyncPoints, watermark: int | None) -> list[Any]:
    session.sent.clear()
    found.publish(session, watermark, 7)
    return list(session.sent)


def test_one_transaction_for_each_interval() -> None:
    session, clock = Recording(), [0.0]
    found = points(clock)
    assert written(session, found, None) == []
    first = written(session, found, HOUR + 5)
    assert [str(s).split(" ")[:2] for s in first[:2]] == [
        ["CREATE", "DATABASE"],
        ["CREATE", "TABLE"],
    ]
    assert "PRIMARY KEY (changefeed, primary_ts)" in first[1]
    assert first[3:] == [
        "BEGIN",
        "SELECT @@tidb_current_ts",
        (INSERT, "default", "default/feed", str(HOUR + 5), "1001"),
        "SET GLOBAL tidb_external_ts = 1001",
        (
            "DELETE FROM tidb_cdc.syncpoint_v1 WHERE ticdc_cluster_id = %s AND changefeed = %s "
            "AND created_at < NOW() - INTERVAL 3600 SECOND",
            "default",
            "default/feed",
        ),
        "COMMIT",
    ]
    assert written(session, found, HOUR + HOUR // 6 - 1) == []
    second = written(session, found, HOUR + HOUR // 6)
    assert second[2][3:] == (str(HOUR + HOUR // 6), str(second[3].split(" ")[-1]))
    assert len(second) == 5  # nothing is purged so soon again
    clock.append(3600.0)
    assert len(written(session, found, 3 * HOUR)) == 6


def test_another_process_goes_on_behind_the_last_one() -> None:
    session = Recording(last=str(HOUR + 5))
    found = points([0.0])
    assert [s for s in written(session, found, HOUR + 6) if "INSERT" in s[0]] == []
    assert INSERT in [s[0] for s in written(session, found, 2 * HOUR)]
    assert written(Recording(), points([0.0], enabled=False), HOUR) == []


def test_only_tidb_tells_timestamps() -> None:
    for flavour in (Flavour.MYSQL, Flavour.MARIADB):
        session: Any = Recording(flavour)
        with pytest.raises(SinkUnwritable, match="not TiDB, which enable-sync-point needs"):
            points([0.0]).check(session)
        points([0.0], enabled=False).check(session)
    tidb: Any = Recording()
    points([0.0]).check(tidb)


def test_settings() -> None:
    def read(sink: str, **config: Any) -> SyncPointSettings:
        spec, notices = build_spec(
            "range://127.0.0.1:1", sink, config, "feed", tables=option_tables, sinks=sink_traits
        )
        assert notices == []
        return read_sync_point(spec)

    sink = "tidb://root@db:4000/"
    assert read(sink) == SyncPointSettings.read({})
    given = {"enable-sync-point": True, "sync-point-interval": "30s", "sync-point-retention": "1h"}
    found = read(sink, **given)
    assert (found.enabled, found.interval) == (True, timedelta(seconds=30))
    assert found.retention == timedelta(hours=1)
    for key, value in (("sync-point-interval", "29s"), ("sync-point-retention", "59m")):
        with pytest.raises(BadOption, match=key):
            read(sink, **{"enable-sync-point": True, key: value})
        assert not read(sink, **{key: value}).enabled  # nobody asks then
    with pytest.raises(OptionsConflict, match="The SyncPoint must be disabled when the downstream"):
        read("blackhole:///?protocol=canal-json", **{"enable-sync-point": True})
