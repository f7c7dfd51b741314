"""What every meta store promises, also one that is locked or loses its answers now and then."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Output, Plan, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.control.lease import Claim, Holder
from rowferry.control.lifecycle import State, Verb
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.fence import HISTORY_LINES
from rowferry.control.store.sql_store import SqlStore, open_store
from rowferry.errors import (
    BadInput,
    ChangefeedExists,
    Fenced,
    IllegalMove,
    LeaseHeld,
    MetaDamaged,
    MetaUnavailable,
    NoSuchChangefeed,
    PlanRefused,
    RowRejected,
)
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

NOW = 1_800_000_000.0
TTL_S = 15.0
ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "items")
SOURCE = Uri.parse("range://reader:source-pw@master:7000", "source")
SINK = Uri.parse("file:///data/out?protocol=csv&session-token=sink-pw", "sink")


# --- the stores under test -----------------------------------------------------------------------


def _locked() -> sqlite3.OperationalError:
    found = sqlite3.OperationalError("database is locked")
    found.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return found


class Locked:
    """A store of which every call is cut short once, each time at another statement.

    The caller does what the supervisor does about MetaUnavailable: it calls again.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._calls = 0
        self._countdown: int | None = None
        self.cuts = 0
        engine = store.database.engine
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            event.listen(engine, name, self._statement)
        event.listen(engine, "commit", self._commit)

    def _statement(self, *_: Any) -> None:
        if self._countdown is None:
            return
        self._countdown -= 1
        if self._countdown < 0:
            self._countdown = None
            self.cuts += 1
            raise _locked()

    def _commit(self, _connection: Any) -> None:
        if self._countdown is not None:
            self._countdown = None
            self.cuts += 1
            raise OperationalError("COMMIT", None, _locked())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            self._countdown = self._calls % 9
            try:
                return found(*args, **kwargs)
            except MetaUnavailable:
                assert self._countdown is None
                return found(*args, **kwargs)
            finally:
                self._countdown = None

        return call


class AnswersLost:
    """A store of which every call is carried out, but the first answer is lost: it is made again.

    Left out are those where the second call must see that the first one happened.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("create_changefeed", "remove", "move", "note", "close"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            found(*args, **kwargs)
            return found(*args, **kwargs)

        return call


STORES: dict[str, Callable[[SqlStore], Any]] = {
    "sqlite": lambda store: store,
    "sqlite-locked": Locked,
    "sqlite-answers-lost": AnswersLost,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[MetaStore]:
    real = open_store(_url(path), clock=lambda: NOW)
    assert isinstance(real, SqlStore)
    found = STORES[request.param](real)
    yield found
    real.close()
    if isinstance(found, Locked):
        assert found.cuts > 0  # it was as bad as it should be


@pytest.fixture
def feed(store: MetaStore) -> str:
    return store.create_changefeed(_spec()).id


@pytest.fixture
def claim(store: MetaStore, feed: str) -> Claim:
    return store.claim(feed, Holder.here(), NOW, TTL_S)


# --- material ------------------------------------------------------------------------------------


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


def _spec(changefeed: str = "feed-1", **config: Any) -> ChangefeedSpec:
    return ChangefeedSpec(changefeed, SOURCE, SINK, config)


def _table(name: TableId = ORDERS, table_id: int = 7, version: int = 10) -> TableSchema:
    columns = (Column(1, "id", SqlType("bigint"), nullable=False),)
    return TableSchema(name, table_id, version, columns)


def _range(
    range_id: int, name: TableId = ORDERS, table_id: int = 7, index: int = 1
) -> RangeProgress:
    return RangeProgress(
        database=name.database,
        table=name.table,
        table_id=table_id,
        physical_id=table_id,
        range_id=range_id,
        start_key=f"{range_id:04x}",
        end_key=f"{range_id + 1:04x}",
        stage=Stage.LOG,
        init_snapshot_version=3,
        init_snapshot_ts=2**62,
        current_snapshot_version=4,
        current_snapshot_ts=2**63 - 1,
        last_snapshot_key="ff00",
        last_log_index=index,
    )


def _plan(
    number: int = 1,
    *,
    table: TableSchema | None = None,
    changes: tuple[SchemaChange, ...] = (),
    ranges: tuple[RangeProgress, ...] = (),
    gone: tuple[int, ...] = (),
    watermark: int | None = None,
    sink_state: dict[str, Any] | None = None,
    spec_version: int = 1,
) -> Plan:
    slices = (TableSlice(table.id, table.table_id, table.version),) if table else ()
    segment = Segment(
        0, {"from": number, "text": "naïve \x00 ∞"}, slices, 10, 20, payload=b"\xff\x00"
    )
    return Plan(
        micro_batch=number,
        spec_version=spec_version,
        planned_at_ms=1_800_000_000_000 + number,
        stretch=Stretch((segment,), changes, {"after": number}, ranges, gone, watermark),
        outputs=(Output(0, 0, {"file": number}),),
        sink_state=sink_state,
    )


def _run(store: MetaStore, claim: Claim, plan: Plan, *versions: TableSchema) -> None:
    store.record(claim, plan, versions)
    store.publish(claim, plan)


def _sql(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as raw, raw:
        return raw.execute(statement).fetchall()


def _everything(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as raw:
        return list(raw.iterdump())


def _subscribed(path: Path) -> list[Any]:
    return _sql(path, "SELECT db_name, table_name, table_id FROM subscribe ORDER BY 1, 2")


# --- changefeeds ---------------------------------------------------------------------------------


def test_a_changefeed_comes_back_as_it_was_stored(store: MetaStore) -> None:
    spec = _spec(sink={"protocol": "csv"}, filter={"rules": ["*.*"]})
    made = store.create_changefeed(spec, cluster_id=5)
    assert made == store.feed("feed-1")
    assert made.spec == spec
    assert made.spec.sink.reveal() == SINK.reveal()
    assert (made.state, made.spec_version, made.created_at) == (State.NORMAL, 1, NOW)
    assert (made.epoch, made.micro_batch, made.watermark) == (0, 0, 0)
    assert (made.error, made.error_code, made.cancel, made.lease) == ("", "", False, None)


def test_an_id_is_taken_once(store: MetaStore, feed: str) -> None:
    with pytest.raises(ChangefeedExists, match=feed):
        store.create_changefeed(_spec(feed))


def test_lists_are_by_id(store: MetaStore) -> None:
    for name in ("b", "a", "c"):
        store.create_changefeed(_spec(name))
    assert [f.id for f in store.feeds()] == ["a", "b", "c"]


def test_what_is_not_stored_is_said_by_name(store: MetaStore) -> None:
    assert store.feed("nobody") is None
    assert store.pending("nobody") is None
    assert store.cancel_requested("nobody") is False
    calls: list[Callable[[], Any]] = [
        lambda: store.state("nobody"),
        lambda: store.spec("nobody", 1),
        lambda: store.update_spec("nobody", _spec("nobody")),
        lambda: store.remove("nobody"),
        lambda: store.move("nobody", Verb.PAUSE),
        lambda: store.set_state("nobody", State.FAILED),
        lambda: store.request_cancel("nobody"),
        lambda: store.claim("nobody", Holder.here(), NOW, TTL_S),
    ]
    for call in calls:
        with pytest.raises(NoSuchChangefeed, match="nobody"):
            call()


def test_settings_are_kept_by_version(store: MetaStore, feed: str) -> None:
    first, second = store.spec(feed, 1), _spec(feed, **{"case-sensitive": True})
    assert store.update_spec(feed, second).spec_version == 2
    assert store.update_spec(feed, second).spec_version == 2
    assert store.spec(feed, 1) == first
    assert store.spec(feed, 2) == second
    assert store.state(feed).spec == second
    with pytest.raises(BadInput, match="id"):
        store.update_spec(feed, _spec("another"))


def test_a_pending_plan_keeps_its_spec_version(store: MetaStore, claim: Claim, feed: str) -> None:
    store.record(claim, _plan(), ())
    store.update_spec(feed, _spec(feed, **{"case-sensitive": True}))
    pending = store.pending(feed)
    assert pending is not None and store.spec(feed, pending.spec_version).config == {}
    store.publish(claim, pending)
    assert store.state(feed).spec_version == 2


def test_states_follow_the_lifecycle(store: MetaStore, claim: Claim, feed: str) -> None:
    assert store.move(claim, Verb.FAULT, RowRejected("too long")) is State.WARNING
    found = store.feed(feed)
    assert found is not None
    assert (found.state, found.error_code, found.error) == (State.WARNING, "RF-4002", "too long")
    assert store.move(feed, Verb.PAUSE) is State.STOPPED
    with pytest.raises(IllegalMove, match="possible: resume"):
        store.move(claim, Verb.FAULT)  # the owner does not undo what the operator said
    assert store.move(feed, Verb.RESUME) is State.NORMAL
    found = store.feed(feed)
    assert found is not None and (found.error_code, found.error) == ("", "")
    store.set_state(claim, State.FAILED, ValueError("of unknown\nkind"))
    found = store.feed(feed)
    assert found is not None and found.state is State.FAILED
    assert (found.error_code, found.error) == ("RF-0000", "ValueError: of unknown kind")


def test_removal_leaves_nothing_but_the_epoch(
    store: MetaStore, claim: Claim, feed: str, path: Path
) -> None:
    _run(store, claim, _plan(table=_table(), ranges=(_range(1),)), _table())
    store.record(claim, _plan(2), ())
    store.create_changefeed(_spec("bystander"))
    store.remove(feed)
    assert [f.id for f in store.feeds()] == ["bystander"]
    for table in ("subscribe", "progress", "pending_plans", "table_versions"):
        assert _sql(path, f"SELECT * FROM {table}") == []
    assert _sql(path, "SELECT changefeed FROM spec_versions") == [("bystander",)]
    assert [n.what for n in store.history(feed)] == ["removed"]
    with pytest.raises(Fenced, match="removed"):
        store.record(claim, _plan(2), ())

    again = store.create_changefeed(_spec(feed))
    assert again.epoch > claim.epoch
    with pytest.raises(Fenced):
        store.record(claim, _plan(1), ())
    assert store.state(feed).versions == ()
    assert store.claim(feed, Holder.here(), NOW, TTL_S).epoch > again.epoch


def test_removal_is_asked_for_by_the_service_or_by_hand(
    store: MetaStore, claim: Claim, feed: str, path: Path
) -> None:
    assert store.cancel_requested(feed) is False
    _run(store, claim, _plan(table=_table(), ranges=(_range(1, ITEMS, 8),)), _table())
    assert store.cancel_requested(feed) is False
    _sql(path, "UPDATE subscribe SET cancel = 1 WHERE table_name = 'items'")
    assert store.cancel_requested(feed) is True
    found = store.feed(feed)
    assert found is not None and found.cancel
    # The row that asked ends with a DROP TABLE; what it asked for stays.
    drop = SchemaChange(30, DdlKind.DROP_TABLE, "DROP TABLE items", ITEMS, dropped_table_id=8)
    _run(store, claim, _plan(2, changes=(drop,), gone=(1,)))
    assert _subscribed(path) == [("shop", "orders", 7)]
    assert store.cancel_requested(feed) is True


def test_removal_can_be_asked_for_before_any_table_is_known(store: MetaStore, feed: str) -> None:
    store.request_cancel(feed)
    assert store.cancel_requested(feed) is True


# --- leases --------------------------------------------------------------------------------------


def _elsewhere(instance: str = "there") -> Holder:
    return Holder("other-host", 4711, "another realm", 1, instance)


def test_a_live_lease_keeps_others_out(store: MetaStore, feed: str) -> None:
    first = store.claim(feed, _elsewhere(), NOW, TTL_S)
    with pytest.raises(LeaseHeld) as raised:
        store.claim(feed, Holder.here(), NOW + TTL_S - 0.001, TTL_S)
    for word in (feed, "other-host", "4711", "2027-01-15 08:00:00 UTC"):
        assert word in str(raised.value)
    second = store.claim(feed, Holder.here(), NOW + TTL_S, TTL_S)
    assert second.epoch > first.epoch


def test_epochs_go_up_by_one(path: Path) -> None:
    with closing(open_store(_url(path))) as store:
        store.create_changefeed(_spec())
        epochs = [store.claim("feed-1", _elsewhere(), NOW, TTL_S).epoch for _ in range(3)]
        assert epochs == [1, 2, 3]


def test_a_renewed_lease_lives_on(store: MetaStore, feed: str) -> None:
    first = store.claim(feed, _elsewhere(), NOW, TTL_S)
    store.renew(first, NOW + 10)
    with pytest.raises(LeaseHeld):
        store.claim(feed, Holder.here(), NOW + TTL_S + 1, TTL_S)
    lease = store.feed(feed).lease  # type: ignore[union-attr]
    assert lease is not None
    assert (lease.holder, lease.claimed_at, lease.expires_at) == (first.holder, NOW, NOW + 25)


def test_a_released_lease_is_free_at_once(store: MetaStore, feed: str) -> None:
    first = store.claim(feed, _elsewhere(), NOW, TTL_S)
    store.release(first)
    with pytest.raises(Fenced, match="released"):
        store.renew(first, NOW)  # a renewal that comes late does not bring it back
    assert store.feed(feed).lease is None  # type: ignore[union-attr]
    second = store.claim(feed, Holder.here(), NOW, TTL_S)
    store.release(first)  # not ours any more: nothing happens
    with pytest.raises(LeaseHeld):
        store.claim(feed, _elsewhere("third"), NOW, TTL_S)
    store.renew(second, NOW)


def test_a_lease_that_ran_out_but_was_not_taken_still_works(store: MetaStore, claim: Claim) -> None:
    store.renew(claim, NOW + 1000)
    _run(store, claim, _plan())


def test_the_lease_of_a_reused_pid_is_taken_at_once(store: MetaStore, feed: str) -> None:
    here = Holder.here()
    store.claim(feed, replace(here, started=here.started - 1, instance="before"), NOW, TTL_S)
    store.claim(feed, here, NOW, TTL_S)


def test_a_living_process_on_this_host_keeps_its_lease(store: MetaStore, feed: str) -> None:
    store.claim(feed, Holder.here(), NOW, TTL_S)
    with pytest.raises(LeaseHeld, match=f"pid {os.getpid()}"):
        store.claim(feed, Holder.here(), NOW, TTL_S)


def test_owner_is_shown_with_the_tables(store: MetaStore, claim: Claim, path: Path) -> None:
    _run(store, claim, _plan(table=_table()), _table())
    assert _sql(path, "SELECT owner FROM subscribe") == [(str(claim.holder),)]
    store.release(claim)
    assert _sql(path, "SELECT owner FROM subscribe") == [("",)]
    store.claim(claim.changefeed, _elsewhere(), NOW, TTL_S)
    assert _sql(path, "SELECT owner FROM subscribe") == [("other-host:4711",)]


# --- record and publish --------------------------------------------------------------------------


def test_a_recorded_plan_is_pending_and_changes_nothing_else(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    before = store.state(feed)
    plan = _plan(table=_table(), ranges=(_range(1),), watermark=20, sink_state={"n": 1})
    store.record(claim, plan, (_table(),))
    assert store.pending(feed) == plan
    assert store.state(feed) == replace(before, versions=(_table(),))


def test_publishing_moves_everything_together(
    store: MetaStore, claim: Claim, feed: str, path: Path
) -> None:
    ranges = (_range(1), _range(2))
    plan = _plan(table=_table(), ranges=ranges, watermark=20, sink_state={"next": {"f": 3}})
    _run(store, claim, plan, _table())
    found = store.state(feed)
    assert found.position == {"after": 1}
    assert found.ranges == ranges
    assert found.versions == (_table(),)
    assert (found.watermark, found.micro_batch) == (20, 1)
    assert found.sink_state == {"next": {"f": 3}}
    assert found.epoch == claim.epoch
    assert store.pending(feed) is None
    shown = _sql(path, "SELECT subscribe_name, master_addrs, sink, cancel FROM subscribe")
    assert shown == [(feed, "master:7000", str(SINK), 0)]
    assert "sink-pw" not in str(shown)


def test_the_next_plan_must_be_the_next_number_and_alone(store: MetaStore, claim: Claim) -> None:
    with pytest.raises(PlanRefused, match="2 cannot follow 0"):
        store.record(claim, _plan(2), ())
    with pytest.raises(PlanRefused, match="no spec version 9"):
        store.record(claim, _plan(1, spec_version=9), ())
    store.record(claim, _plan(1), ())
    store.record(claim, _plan(1), ())  # the same plan again
    for other in (_plan(1, watermark=99), _plan(2)):
        with pytest.raises(PlanRefused, match="micro-batch 1 is pending"):
            store.record(claim, other, ())
    assert store.pending(claim.changefeed) == _plan(1)


def test_only_the_recorded_plan_can_be_published(
    store: MetaStore, claim: Claim, path: Path
) -> None:
    with pytest.raises(PlanRefused, match="nothing is pending"):
        store.publish(claim, _plan(1))
    store.record(claim, _plan(1), ())
    before = _everything(path)
    with pytest.raises(PlanRefused, match="other content"):
        store.publish(claim, _plan(1, watermark=99))
    assert _everything(path) == before


def test_publishing_again_changes_nothing(store: MetaStore, claim: Claim, path: Path) -> None:
    plan = _plan(table=_table(), ranges=(_range(1),), watermark=20)
    _run(store, claim, plan, _table())
    before = _everything(path)
    store.publish(claim, plan)
    assert _everything(path) == before
    with pytest.raises(PlanRefused, match="nothing is pending, 1 was published last"):
        store.publish(claim, plan.with_(planned_at_ms=1))
    _run(store, claim, _plan(2))
    with pytest.raises(PlanRefused):
        store.publish(claim, plan)


def test_the_watermark_never_goes_back(store: MetaStore, claim: Claim, feed: str) -> None:
    for number, given, expected in ((1, 50, 50), (2, 40, 50), (3, None, 50), (4, 60, 60)):
        _run(store, claim, _plan(number, watermark=given))
        assert store.state(feed).watermark == expected


def test_a_plan_without_sink_state_keeps_the_earlier_one(store: MetaStore, claim: Claim) -> None:
    _run(store, claim, _plan(1, sink_state={"n": 1}))
    _run(store, claim, _plan(2))
    assert store.state(claim.changefeed).sink_state == {"n": 1}


def test_only_changed_ranges_are_written_and_gone_ones_go(
    store: MetaStore, claim: Claim, feed: str, path: Path
) -> None:
    _run(store, claim, _plan(1, ranges=tuple(_range(i) for i in (1, 2, 3, 4, 5))))
    where = "SELECT range_id, rowid FROM progress"
    before = dict(_sql(path, where))
    moved = _range(3, TableId("shop", "renamed"))
    _run(store, claim, _plan(2, ranges=(_range(1), _range(2, index=9), moved), gone=(4, 77)))
    after = dict(_sql(path, where))
    assert set(after) == {1, 2, 3, 5}
    # A row that is written gets a new number, above that of range 5, which no plan touches.
    assert {i for i in after if after[i] == before[i]} == {1, 5}
    assert set(store.state(feed).ranges) == {_range(1), _range(2, index=9), moved, _range(5)}


def test_many_ranges_and_tables_fit(store: MetaStore, claim: Claim, feed: str) -> None:
    tables = [_table(TableId("shop", f"t{i:04}"), 1000 + i) for i in range(700)]
    ranges = tuple(_range(i, t.id, t.table_id) for i, t in enumerate(tables))
    _run(store, claim, _plan(1, ranges=ranges), *tables)
    assert store.state(feed).ranges == ranges
    assert store.state(feed).versions == tuple(tables)
    _run(store, claim, _plan(2, gone=tuple(range(700))))
    assert store.state(feed).ranges == ()


def test_two_changefeeds_do_not_see_each_other(store: MetaStore, claim: Claim, feed: str) -> None:
    _run(store, claim, _plan(table=_table(), ranges=(_range(1),), watermark=20), _table())
    other = store.create_changefeed(_spec("feed-2"))
    second = store.claim(other.id, Holder.here(), NOW, TTL_S)
    assert store.state(other.id).ranges == () and store.state(other.id).versions == ()
    _run(store, second, _plan(table=_table(), ranges=(_range(1, index=5),)), _table())
    _run(store, second, _plan(2, gone=(1,)))
    assert store.state(feed).ranges == (_range(1),)


def test_discarding_forgets_the_plan_and_says_why(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    store.record(claim, _plan(1), ())
    with pytest.raises(PlanRefused, match="1 is pending, not 2"):
        store.discard(claim, 2, "")
    store.discard(claim, 1, "the snapshot is gone")
    assert store.pending(feed) is None
    noted = [n for n in store.history(feed) if n.what == "discarded"]
    assert [n.details for n in noted] == [{"micro_batch": 1, "why": "the snapshot is gone"}]
    store.discard(claim, 1, "again")
    _run(store, claim, _plan(1, watermark=5))
    assert store.state(feed).micro_batch == 1


# --- table versions and subscribe ----------------------------------------------------------------


def test_a_stored_version_never_changes(store: MetaStore, claim: Claim, feed: str) -> None:
    _run(store, claim, _plan(1, table=_table()), _table())
    store.record(claim, _plan(2), (_table(), _table(ITEMS, 8)))
    store.discard(claim, 2, "")
    with pytest.raises(PlanRefused, match="version 10 of table shop.orders"):
        store.record(claim, _plan(2), (replace(_table(), comment="other"),))
    assert store.pending(feed) is None


def test_a_restart_gets_the_version_at_the_watermark_and_later_ones(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    tables = [_table(version=v) for v in (10, 20, 30, 40)]
    _run(store, claim, _plan(1, watermark=9), *tables, _table(ITEMS, 8, 10))
    assert [v.version for v in store.state(feed).versions] == [10, 10, 20, 30, 40]
    _run(store, claim, _plan(2, watermark=30))
    found = [(v.id, v.version) for v in store.state(feed).versions]
    assert found == [(ITEMS, 10), (ORDERS, 30), (ORDERS, 40)]


def test_versions_of_ended_tables_are_left_out(
    store: MetaStore, claim: Claim, feed: str, path: Path
) -> None:
    _run(store, claim, _plan(1, watermark=15), _table(), _table(ITEMS, 8))
    drop = SchemaChange(20, DdlKind.DROP_TABLE, "DROP TABLE items", ITEMS, dropped_table_id=8)
    again = _table(table_id=9, version=21)
    truncate = SchemaChange(
        21, DdlKind.TRUNCATE_TABLE, "TRUNCATE orders", ORDERS, again, dropped_table_id=7
    )
    plan = _plan(2, changes=(drop, truncate), watermark=21)
    store.record(claim, plan, (again,))
    assert len(store.state(feed).versions) == 3  # the plan may still need all of them
    store.publish(claim, plan)
    assert store.state(feed).versions == (again,)
    assert _subscribed(path) == [("shop", "orders", 9)]


def test_a_rename_moves_the_subscription(
    store: MetaStore, claim: Claim, feed: str, path: Path
) -> None:
    _run(store, claim, _plan(1, watermark=15), _table())
    renamed = _table(ITEMS, 7, 20)
    change = SchemaChange(20, DdlKind.RENAME_TABLE, "RENAME …", ITEMS, renamed, previous=ORDERS)
    _run(store, claim, _plan(2, changes=(change,), watermark=20), renamed)
    assert _subscribed(path) == [("shop", "items", 7)]
    assert store.state(feed).versions == (renamed,)


def test_tables_without_an_id_are_told_apart_by_name(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    tables = (_table(ITEMS, 0, 10), _table(ORDERS, 0, 10), _table(ORDERS, 0, 20))
    _run(store, claim, _plan(1, watermark=30), *tables)
    assert store.state(feed).versions == (tables[0], tables[2])


def test_a_dropped_database_ends_its_tables(
    store: MetaStore, claim: Claim, feed: str, path: Path
) -> None:
    elsewhere = _table(TableId("keep", "t"), 9)
    _run(store, claim, _plan(1), _table(), _table(ITEMS, 8), elsewhere)
    drop = SchemaChange(20, DdlKind.DROP_DATABASE, "DROP DATABASE shop", TableId("shop", ""))
    _run(store, claim, _plan(2, changes=(drop,)))
    assert _subscribed(path) == [("keep", "t", 9)]
    assert store.state(feed).versions == (elsewhere,)


# --- the fence -----------------------------------------------------------------------------------


FENCED: dict[str, Callable[[MetaStore, Claim], Any]] = {
    "record": lambda store, claim: store.record(claim, _plan(3), ()),
    "publish": lambda store, claim: store.publish(claim, _plan(2)),
    "publish-again": lambda store, claim: store.publish(claim, _plan(1)),
    "discard": lambda store, claim: store.discard(claim, 2, "why"),
    "renew": lambda store, claim: store.renew(claim, NOW),
    "set-state": lambda store, claim: store.set_state(claim, State.FAILED),
    "move": lambda store, claim: store.move(claim, Verb.FAULT),
    "remove": lambda store, claim: store.remove(claim),
}


@pytest.mark.parametrize("what", sorted(FENCED))
def test_a_zombie_changes_nothing(
    store: MetaStore, claim: Claim, feed: str, path: Path, what: str
) -> None:
    _run(store, claim, _plan(1))
    store.record(claim, _plan(2), ())
    store.claim(feed, _elsewhere(), NOW + TTL_S, TTL_S)
    before = _everything(path)
    with pytest.raises(Fenced, match=f"{feed} was taken over"):
        FENCED[what](store, claim)
    store.release(claim)
    assert _everything(path) == before


def test_the_new_owner_goes_on_with_the_recorded_plan(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    plan = _plan(table=_table(), ranges=(_range(1),), watermark=20)
    store.record(claim, plan, (_table(),))
    second = store.claim(feed, _elsewhere(), NOW + TTL_S, TTL_S)
    found = store.pending(feed)
    assert found == plan
    store.publish(second, found)
    assert store.state(feed).ranges == (_range(1),)
    with pytest.raises(Fenced):
        store.publish(claim, plan)


# --- history, servers, damage --------------------------------------------------------------------


def test_history_is_newest_first_and_bounded(path: Path) -> None:
    with closing(open_store(_url(path), clock=lambda: NOW)) as store:
        store.note("other", "kept")
        for i in range(HISTORY_LINES + 20):
            store.note("feed", f"line {i}", {"i": i})
        lines = store.history("feed", limit=10**6)
        assert len(lines) == HISTORY_LINES
        assert lines[0].what == f"line {HISTORY_LINES + 19}" and lines[0].at == NOW
        assert lines[-1].details == {"i": 20}
        assert [n.what for n in store.history("other")] == ["kept"]


def test_servers_announce_themselves(store: MetaStore) -> None:
    here, there = Holder.here(), _elsewhere()
    store.announce(here, "h:1", NOW)
    store.announce(there, "o:1", NOW)
    store.announce(there, "o:2", NOW + 5)
    assert {(s.holder, s.address, s.seen_at) for s in store.servers()} == {
        (here, "h:1", NOW),
        (there, "o:2", NOW + 5),
    }
    assert [s.holder for s in store.servers(since=NOW + 1)] == [there]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE changefeeds SET spec = '{'", "settings of changefeed feed-1"),
        ("UPDATE changefeeds SET position = '[]'", "position of changefeed feed-1"),
        ("UPDATE changefeeds SET sink_state = '7'", "sink state of changefeed feed-1"),
        ("UPDATE progress SET progress_stage = 9", "range 1 of changefeed feed-1.*stage 9"),
        ("UPDATE table_versions SET definition = '{}'", "table versions of changefeed feed-1"),
        ("UPDATE pending_plans SET plan = '{}'", "pending plan of changefeed feed-1"),
        ("UPDATE changefeeds SET state = 'happy'", "unknown state 'happy'"),
    ],
)
def test_damaged_content_is_named(
    store: MetaStore, claim: Claim, feed: str, path: Path, change: str, named: str
) -> None:
    _run(store, claim, _plan(table=_table(), ranges=(_range(1),)), _table())
    store.record(claim, _plan(2), ())
    _sql(path, change)
    with pytest.raises(MetaDamaged, match=named):
        store.state(feed)
        store.pending(feed)
        store.feed(feed)


# --- real processes ------------------------------------------------------------------------------

PROCESSES = multiprocessing.get_context("spawn")
PATIENCE_S = 120.0  # an upper bound for a machine under load, never reached by working code


def _open_and_claim(url: str, together: Any, answers: Any) -> None:
    """Run in a child: open a file that does not exist yet, and claim, while others do too."""
    together.wait(PATIENCE_S)
    store = open_store(url, busy_timeout_s=PATIENCE_S)
    try:
        store.create_changefeed(_spec())
    except ChangefeedExists:
        pass
    together.wait(PATIENCE_S)
    try:
        answers.put(("claimed", store.claim("feed-1", Holder.here(), NOW, TTL_S).epoch))
    except LeaseHeld as err:
        answers.put(("held", str(err)))
    together.wait(PATIENCE_S)  # nobody ends, and so gives way, before all have tried
    store.close()


def test_processes_that_open_and_claim_at_the_same_time_get_one_owner(path: Path) -> None:
    together, answers = PROCESSES.Barrier(3), PROCESSES.Queue()
    children = [
        PROCESSES.Process(target=_open_and_claim, args=(_url(path), together, answers))
        for _ in range(3)
    ]
    for child in children:
        child.start()
    try:
        found = sorted(answers.get(timeout=PATIENCE_S) for _ in children)
    finally:
        for child in children:
            child.join(PATIENCE_S)
            child.kill()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert [kind for kind, _ in found] == ["claimed", "held", "held"]
    assert found[0][1] == 1


def _record_and_die(url: str, at_statement: str) -> None:
    """Run in a child: die after recording, or inside publishing when a statement is reached."""
    store = open_store(url)
    assert isinstance(store, SqlStore)
    claim = store.claim("feed-1", Holder.here(), NOW, ttl_s=3600)
    plan = _plan(table=_table(), ranges=(_range(1),), watermark=20)
    store.record(claim, plan, (_table(),))

    def die(_cursor: Any, statement: str, *_: Any) -> None:
        if at_statement in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    if at_statement:
        event.listen(store.database.engine, "do_execute", die)
        event.listen(store.database.engine, "do_executemany", die)
        store.publish(claim, plan)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at_statement", ["", "UPDATE changefeeds", "DELETE FROM pending_plans"])
def test_a_crash_before_publishing_leaves_the_plan_to_the_next_owner(
    path: Path, at_statement: str
) -> None:
    store = open_store(_url(path))
    store.create_changefeed(_spec())
    child = PROCESSES.Process(target=_record_and_die, args=(_url(path), at_statement))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    found = store.state("feed-1")
    assert (found.micro_batch, found.watermark, found.ranges, found.position) == (0, 0, (), {})
    # Its lease has an hour to go, but the process is gone: no need to wait.
    claim = store.claim("feed-1", Holder.here(), NOW, TTL_S)
    plan = store.pending("feed-1")
    assert plan == _plan(table=_table(), ranges=(_range(1),), watermark=20)
    store.publish(claim, plan)
    found = store.state("feed-1")
    assert (found.micro_batch, found.watermark, found.ranges) == (1, 20, (_range(1),))
    store.close()
