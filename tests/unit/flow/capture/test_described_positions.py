"""Stored positions in the words of their sources, without any connection."""

from __future__ import annotations

from rowferry.control.fleet.position_gauges import PositionGauges
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.contract import ShowsPosition
from rowferry.flow.capture.range_log.state import RangeState
from rowferry.mysql.session import Flavour
from rowferry.registry import SOURCES


def described(scheme: str, position: dict[str, object]) -> object:
    source = SOURCES.load(scheme)
    assert isinstance(source, ShowsPosition)
    return source.shown_position(position)


def test_every_source_says_where_it_is() -> None:
    for scheme in SOURCES.names():
        assert described(scheme, {}) == {}


def test_a_place_in_a_binary_log() -> None:
    place = LogPosition(Flavour.MYSQL, "uuid-1", "binlog.000012", 2**40, "uuid-1:1-77")
    assert described("mysql", {"log": place.to_json()}) == {
        "file": "binlog.000012",
        "offset": str(2**40),
        "gtids": "uuid-1:1-77",
        "server": "uuid-1",
    }
    bare = LogPosition(Flavour.MARIADB, "1", gtids="0-1-5")  # after a failover
    assert described("mysql", {"log": bare.to_json()}) == {"gtids": "0-1-5", "server": "1"}


def test_a_place_in_the_logs_of_ranges() -> None:
    position = RangeState(cluster_id=9, resolved_ts=2**60, catalog_index=4).to_position()
    shown = {"resolved_ts": str(2**60), "catalog_index": "4", "cluster": "9"}
    assert described("range", position) == shown


def test_numbers_of_a_position_are_shown_to_prometheus() -> None:
    gauges = PositionGauges()
    place = LogPosition(Flavour.MYSQL, "uuid-1", "binlog.000012", 400, "uuid-1:1-77")
    gauges.note("one", SOURCES.load("mysql"), {"log": place.to_json()})
    gauges.note("two", object(), {})
    (family,) = gauges.collect()
    found = {(s.labels["changefeed"], s.labels["of"]): s.value for s in family.samples}
    assert found == {("one", "file"): 12.0, ("one", "offset"): 400.0}
    gauges.forget("one")
    assert not next(iter(gauges.collect())).samples
