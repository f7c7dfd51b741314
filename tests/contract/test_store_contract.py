"""What every meta store promises, also one that is locked or loses its answers now and then."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from store_harness import (
    PATIENCE_S,
    VARIANTS,
    Place,
    Variant,
    behaving,
    new_database,
    opened,
)
from store_material import (
    ITEMS,
    NOW,
    ORDERS,
    SINK,
    TTL_S,
    make_plan,
    make_range,
    make_spec,
    make_table,
    run_plan,
    someone_else,
    sqlite_url,
)

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.plan import Output, Plan, Segment
from rowferry.change.quarantine import (
    WAITS,
    DivertedRow,
    ParkedKey,
    PlanQuarantine,
    RefusedKey,
    RowPlace,
    by_table,
)
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.store import fence, published, watching
from rowferry.control.store.connection import Database
from rowferry.control.store.contract import (
    FeedNews,
    Hold,
    LogLine,
    MetaStore,
    Sample,
    Subscribed,
    Subscribing,
    TableCount,
)
from rowferry.control.store.kind import SEATS
from rowferry.control.store.sql_store import SqlStore, open_store
from rowferry.errors import (
    BadInput,
    ChangefeedExists,
    Fenced,
    IllegalMove,
    LeaseHeld,
    MetaDamaged,
    NoSuchChangefeed,
    PlanRefused,
    RowRejected,
    SpecChanged,
)
from rowferry.spec.uri import Uri

# --- the stores under test -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def server_databases(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Databases on servers: each is made once, and cleared for each test."""
    with ExitStack() as stack:

        @cache
        def database(kind: str) -> tuple[Database, Place]:
            server = request.getfixturevalue(f"{kind}_server")
            return stack.enter_context(
                opened(stack.enter_context(new_database(server, "meta_contract")))
            )

        yield database


@pytest.fixture(scope="module")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables, to be copied: making them takes longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "meta.db"
    open_store(sqlite_url(path)).close()
    return path


@pytest.fixture(params=sorted(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


@pytest.fixture
def database(
    variant: Variant,
    server_databases: Callable[[str], Any],
    empty_file: Path,
    tmp_path: Path,
) -> Iterator[tuple[Database, Place]]:
    if variant.kind == "sqlite":
        shutil.copy(empty_file, tmp_path / "meta.db")
        with opened(sqlite_url(tmp_path / "meta.db")) as found:
            yield found
    else:
        found = server_databases(variant.kind)
        found[1].clear()
        yield found


@pytest.fixture
def place(database: tuple[Database, Place]) -> Place:
    return database[1]


@pytest.fixture
def store(variant: Variant, database: tuple[Database, Place]) -> Iterator[MetaStore]:
    with behaving(variant, database[0], NOW) as found:
        yield found


@pytest.fixture
def feed(store: MetaStore) -> str:
    return store.create_changefeed(make_spec()).id


@pytest.fixture
def claim(store: MetaStore, feed: str) -> Claim:
    return store.claim(feed, Holder.here(), NOW, TTL_S)


def _subscribed(place: Place) -> list[Any]:
    return place.sql("SELECT db_name, table_name, table_id FROM subscribe ORDER BY 1, 2")


# --- changefeeds ---------------------------------------------------------------------------------


def test_a_changefeed_comes_back_as_it_was_stored(store: MetaStore) -> None:
    spec = make_spec(sink={"protocol": "csv"}, filter={"rules": ["*.*"]})
    made = store.create_changefeed(spec, cluster_id=5)
    assert made == store.feed("feed-1")
    assert made.spec == spec
    assert made.spec.sink.reveal() == SINK.reveal()
    assert (made.state, made.spec_version, made.created_at) == (FeedState.NORMAL, 1, NOW)
    assert (made.epoch, made.micro_batch, made.watermark) == (0, 0, 0)
    assert (made.error, made.error_code, made.cancel, made.lease) == ("", "", False, None)


def test_an_id_is_taken_once(store: MetaStore, feed: str) -> None:
    with pytest.raises(ChangefeedExists, match=feed):
        store.create_changefeed(make_spec(feed))


def test_lists_are_by_id(store: MetaStore) -> None:
    for name in ("b", "a", "c"):
        store.create_changefeed(make_spec(name))
    assert [f.id for f in store.feeds()] == ["a", "b", "c"]


def test_what_is_not_stored_is_said_by_name(store: MetaStore) -> None:
    assert store.feed("nobody") is None
    assert store.pending("nobody") is None
    assert store.cancel_requested("nobody") is False
    calls: list[Callable[[], Any]] = [
        lambda: store.state("nobody"),
        lambda: store.ranges("nobody"),
        lambda: store.spec("nobody", 1),
        lambda: store.update_spec("nobody", make_spec("nobody")),
        lambda: store.remove("nobody"),
        lambda: store.move("nobody", Verb.PAUSE),
        lambda: store.request_cancel("nobody"),
        lambda: store.reset("nobody", make_spec("nobody"), ""),
        lambda: store.claim("nobody", Holder.here(), NOW, TTL_S),
    ]
    for call in calls:
        with pytest.raises(NoSuchChangefeed, match="nobody"):
            call()


def test_settings_are_kept_by_version(store: MetaStore, feed: str) -> None:
    first, second = store.spec(feed, 1), make_spec(feed, **{"case-sensitive": True})
    assert store.update_spec(feed, second).spec_version == 2
    assert store.update_spec(feed, second).spec_version == 2
    assert store.spec(feed, 1) == first
    assert store.spec(feed, 2) == second
    assert store.state(feed).spec == second
    with pytest.raises(BadInput, match="id"):
        store.update_spec(feed, make_spec("another"))


def test_settings_made_from_older_ones_are_refused(store: MetaStore, feed: str) -> None:
    mine, theirs = make_spec(feed, **{"case-sensitive": True}), make_spec(feed, sink={})
    assert store.update_spec(feed, theirs, since=1).spec_version == 2
    with pytest.raises(SpecChanged, match="somebody else"):
        store.update_spec(feed, mine, since=1)
    assert store.state(feed).spec == theirs
    assert store.update_spec(feed, mine, since=2).spec_version == 3
    store.move(feed, Verb.PAUSE)
    with pytest.raises(SpecChanged, match="somebody else"):
        store.reset(feed, theirs, "to a new snapshot", since=2)
    assert store.state(feed).spec == mine
    assert store.reset(feed, theirs, "to a new snapshot", since=3).spec_version == 4


def test_a_pending_plan_keeps_its_spec_version(store: MetaStore, claim: Claim, feed: str) -> None:
    store.record(claim, make_plan(), ())
    store.update_spec(feed, make_spec(feed, **{"case-sensitive": True}))
    pending = store.pending(feed)
    assert pending is not None and store.spec(feed, pending.spec_version).config == {}
    store.publish(claim, pending)
    assert store.state(feed).spec_version == 2


def test_states_follow_the_lifecycle(store: MetaStore, claim: Claim, feed: str) -> None:
    assert store.move(claim, Verb.FAULT, RowRejected("too long")) is FeedState.WARNING
    found = store.feed(feed)
    assert found is not None
    assert (found.state, found.error_code, found.error) == (
        FeedState.WARNING,
        "RF-4002",
        "too long",
    )
    assert store.move(feed, Verb.PAUSE) is FeedState.STOPPED
    with pytest.raises(IllegalMove, match="possible: resume"):
        store.move(claim, Verb.FAULT)  # the owner does not undo what the operator said
    assert store.move(feed, Verb.RESUME) is FeedState.NORMAL
    found = store.feed(feed)
    assert found is not None and (found.error_code, found.error) == ("", "")
    store.move(claim, Verb.GIVE_UP, ValueError("of unknown\nkind"))
    found = store.feed(feed)
    assert found is not None and found.state is FeedState.FAILED
    assert (found.error_code, found.error) == ("RF-0000", "ValueError: of unknown kind")


def test_removal_leaves_nothing_but_the_epoch(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    run_plan(store, claim, make_plan(table=make_table(), ranges=(make_range(1),)), make_table())
    store.record(claim, make_plan(2), ())
    store.create_changefeed(make_spec("bystander"))
    store.remove(feed)
    assert [f.id for f in store.feeds()] == ["bystander"]
    for table in ("subscribe", "progress", "pending_plans", "table_versions"):
        assert place.sql(f"SELECT * FROM {table}") == []
    assert place.sql("SELECT changefeed FROM spec_versions") == [("bystander",)]
    assert [n.what for n in store.history(feed)] == ["removed"]
    with pytest.raises(Fenced, match="removed"):
        store.record(claim, make_plan(2), ())

    again = store.create_changefeed(make_spec(feed))
    assert again.epoch > claim.epoch
    with pytest.raises(Fenced):
        store.record(claim, make_plan(1), ())
    assert store.state(feed).versions == ()
    assert store.claim(feed, Holder.here(), NOW, TTL_S).epoch > again.epoch


def test_removal_is_asked_for_by_the_service_or_by_hand(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    assert store.cancel_requested(feed) is False
    run_plan(
        store, claim, make_plan(table=make_table(), ranges=(make_range(1, ITEMS, 8),)), make_table()
    )
    assert store.cancel_requested(feed) is False
    place.sql("UPDATE subscribe SET cancel = 1 WHERE table_name = 'items'")
    assert store.cancel_requested(feed) is True
    found = store.feed(feed)
    assert found is not None and found.cancel
    # The row that asked ends with a DROP TABLE; what it asked for stays.
    drop = SchemaChange(30, DdlKind.DROP_TABLE, "DROP TABLE items", ITEMS, dropped_table_id=8)
    run_plan(store, claim, make_plan(2, changes=(drop,), gone=(1,)))
    assert _subscribed(place) == [("shop", "orders", 7)]
    assert store.cancel_requested(feed) is True


def test_removal_can_be_asked_for_before_any_table_is_known(store: MetaStore, feed: str) -> None:
    store.request_cancel(feed)
    assert store.cancel_requested(feed) is True


# --- leases --------------------------------------------------------------------------------------


def test_a_live_lease_keeps_others_out(store: MetaStore, feed: str) -> None:
    first = store.claim(feed, someone_else(), NOW, TTL_S)
    with pytest.raises(LeaseHeld) as raised:
        store.claim(feed, Holder.here(), NOW + TTL_S - 0.001, TTL_S)
    for word in (feed, "other-host", "4711", "2027-01-15 08:00:00 UTC"):
        assert word in str(raised.value)
    second = store.claim(feed, Holder.here(), NOW + TTL_S, TTL_S)
    assert second.epoch > first.epoch


def test_epochs_go_up_by_one(tmp_path: Path) -> None:
    with closing(open_store(sqlite_url(tmp_path / "meta.db"))) as store:
        store.create_changefeed(make_spec())
        epochs = [store.claim("feed-1", someone_else(), NOW, TTL_S).epoch for _ in range(3)]
        assert epochs == [1, 2, 3]


def test_a_renewed_lease_lives_on(store: MetaStore, feed: str) -> None:
    first = store.claim(feed, someone_else(), NOW, TTL_S)
    store.renew(first, NOW + 10)
    with pytest.raises(LeaseHeld):
        store.claim(feed, Holder.here(), NOW + TTL_S + 1, TTL_S)
    lease = store.feed(feed).lease  # type: ignore[union-attr]
    assert lease is not None
    assert (lease.holder, lease.claimed_at, lease.expires_at) == (first.holder, NOW, NOW + 25)


def test_many_leases_are_renewed_at_once_and_those_lost_are_named(store: MetaStore) -> None:
    names = ("a", "b", "c", "d", "e")
    for name in names:
        store.create_changefeed(make_spec(name))
    claims = {name: store.claim(name, someone_else(), NOW, TTL_S) for name in names}
    store.release(claims["b"])
    store.claim("c", someone_else("other"), NOW + TTL_S, TTL_S)
    store.remove("d")
    lost = store.renew_all(list(claims.values()), NOW + 10)
    assert {c.changefeed for c in lost} == {"b", "c", "d"}
    leases = {feed.id: feed.lease for feed in store.feeds()}
    assert leases["b"] is None
    expiries = {name: lease.expires_at - NOW for name, lease in leases.items() if lease}
    assert expiries == {"a": 25.0, "c": 30.0, "e": 25.0}
    assert store.renew_all([], NOW) == ()


def test_leases_are_renewed_while_all_connections_are_at_work(
    store: MetaStore, claim: Claim, database: tuple[Database, Place]
) -> None:
    """Else a server that has much to do loses what it does."""
    with ExitStack() as at_work:
        for _ in range(SEATS):
            session = at_work.enter_context(database[0].reading("do something"))
            session.connection()
        assert store.renew_all([claim], NOW + 10) == ()
        store.announce(Holder.here(), "here:1", NOW)
    assert store.feed(claim.changefeed).lease.expires_at == NOW + 10 + TTL_S  # type: ignore[union-attr]


def test_a_released_lease_is_free_at_once(store: MetaStore, feed: str) -> None:
    first = store.claim(feed, someone_else(), NOW, TTL_S)
    store.release(first)
    with pytest.raises(Fenced, match="released"):
        store.renew(first, NOW)  # a renewal that comes late does not bring it back
    assert store.feed(feed).lease is None  # type: ignore[union-attr]
    second = store.claim(feed, Holder.here(), NOW, TTL_S)
    store.release(first)  # not ours any more: nothing happens
    with pytest.raises(LeaseHeld):
        store.claim(feed, someone_else("third"), NOW, TTL_S)
    store.renew(second, NOW)


def test_a_lease_that_ran_out_but_was_not_taken_still_works(store: MetaStore, claim: Claim) -> None:
    store.renew(claim, NOW + 1000)
    run_plan(store, claim, make_plan())


def test_the_lease_of_a_reused_pid_is_taken_at_once(store: MetaStore, feed: str) -> None:
    here = Holder.here()
    store.claim(feed, replace(here, started=here.started - 1, instance="before"), NOW, TTL_S)
    store.claim(feed, here, NOW, TTL_S)


def test_a_living_process_on_this_host_keeps_its_lease(store: MetaStore, feed: str) -> None:
    store.claim(feed, Holder.here(), NOW, TTL_S)
    with pytest.raises(LeaseHeld, match=f"pid {os.getpid()}"):
        store.claim(feed, Holder.here(), NOW, TTL_S)


def test_owner_is_shown_with_the_tables(store: MetaStore, claim: Claim, place: Place) -> None:
    run_plan(store, claim, make_plan(table=make_table()), make_table())
    assert place.sql("SELECT owner FROM subscribe") == [(str(claim.holder),)]
    store.release(claim)
    assert place.sql("SELECT owner FROM subscribe") == [("",)]
    store.claim(claim.changefeed, someone_else(), NOW, TTL_S)
    assert place.sql("SELECT owner FROM subscribe") == [("other-host:4711",)]


# --- record and publish --------------------------------------------------------------------------


def test_a_recorded_plan_is_pending_and_changes_nothing_else(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    before = store.state(feed)
    plan = make_plan(table=make_table(), ranges=(make_range(1),), watermark=20, sink_state={"n": 1})
    store.record(claim, plan, (make_table(),))
    assert store.pending(feed) == plan
    assert store.state(feed) == replace(before, versions=(make_table(),))


# --- subscriptions -------------------------------------------------------------------------------


def test_a_subscription_has_its_row_from_the_beginning(store: MetaStore, place: Place) -> None:
    name = "a_" * 127 + "z"
    assert len(name) == 255 and store.subscribed(name) == ()
    made = store.create_changefeed(make_spec("one"), 5, Subscribing(name, ORDERS, 7))
    assert made.subscriber == name and store.feed("one") == made == store.feeds()[0]
    row = Subscribed(5, *ORDERS, name, None, 7, "master:7000", str(SINK), 0, "", "one")
    assert store.subscribed(name) == (row,) and "sink-pw" not in str(row)
    store.create_changefeed(make_spec("two"), 5, Subscribing(name, ITEMS))
    claim = store.claim("two", Holder.here(), NOW, TTL_S)
    second = replace(row, table_name="items", table_id=0, changefeed="two")
    second = replace(second, owner=str(claim.holder))
    assert store.subscribed(name) == (second, row)
    store.create_changefeed(make_spec("three"), 6, Subscribing(name, ORDERS))  # another cluster
    with pytest.raises(ChangefeedExists, match=r"has table shop\.orders already"):
        store.create_changefeed(make_spec("four"), 5, Subscribing(name, ORDERS, 7))
    assert {f.id for f in store.feeds()} == {"one", "two", "three"}
    assert [r.changefeed for r in store.subscribed(name)] == ["two", "one", "three"]


def test_a_subscriber_and_a_changefeed_never_share_a_name(store: MetaStore, feed: str) -> None:
    assert store.feed(feed).subscriber == ""  # type: ignore[union-attr]
    with pytest.raises(ChangefeedExists, match="the id of a changefeed that is no subscription"):
        store.create_changefeed(make_spec("one"), 0, Subscribing(feed, ORDERS))
    store.create_changefeed(make_spec("two"), 0, Subscribing("copy", ORDERS))
    with pytest.raises(ChangefeedExists, match="the name of a subscriber"):
        store.create_changefeed(make_spec("copy"))
    store.create_changefeed(make_spec("copy"), 0, Subscribing("copy", ITEMS))  # its own
    assert {f.id: f.subscriber for f in store.feeds()} == {feed: "", "two": "copy", "copy": "copy"}


def test_one_table_of_a_subscriber_is_cancelled_by_itself(store: MetaStore, place: Place) -> None:
    """By hand, in SQL. Both have a range of one number: each changefeed counts its own."""
    for changefeed, table, number in (("one", ORDERS, 7), ("two", ITEMS, 8)):
        store.create_changefeed(make_spec(changefeed), 5, Subscribing("my_app", table))
        claim = store.claim(changefeed, Holder.here(), NOW, TTL_S)
        schema = make_table(table, number)
        plan = make_plan(table=schema, ranges=(make_range(1, table, number),))
        run_plan(store, claim, plan, schema)
        assert store.state(changefeed).versions == (schema,)
    assert _subscribed(place) == [("shop", "items", 8), ("shop", "orders", 7)]
    names = place.sql("SELECT subscribe_name, changefeed, range_id FROM progress ORDER BY 2")
    assert names == [("my_app", "one", 1), ("my_app", "two", 1)]
    place.sql(
        "UPDATE subscribe SET cancel = 1 WHERE cluster_id = 5 AND db_name = 'shop' AND "
        "table_name = 'items' AND subscribe_name = 'my_app'"
    )
    assert [(f.id, f.cancel) for f in store.feeds()] == [("one", False), ("two", True)]
    assert (store.cancel_requested("one"), store.cancel_requested("two")) == (False, True)
    store.remove("two")
    assert _subscribed(place) == [("shop", "orders", 7)]
    assert [r.range_id for r in store.ranges("one")] == [1]
    store.request_cancel("one")
    assert store.subscribed("my_app")[0].cancel == 1


def test_a_subscription_stays_whatever_becomes_of_its_table(store: MetaStore, place: Place) -> None:
    store.create_changefeed(make_spec("one"), 5, Subscribing("my_app", ORDERS, 7))
    claim = store.claim("one", Holder.here(), NOW, TTL_S)
    run_plan(store, claim, make_plan(table=make_table(), ranges=(make_range(1),)), make_table())
    drop = SchemaChange(30, DdlKind.DROP_TABLE, "DROP TABLE orders", ORDERS, dropped_table_id=7)
    run_plan(store, claim, make_plan(2, changes=(drop,), gone=(1,)))
    assert _subscribed(place) == [("shop", "orders", 0)]
    assert store.state("one").versions == () and store.ranges("one") == ()
    again = make_table(table_id=9, version=40)
    create = SchemaChange(40, DdlKind.CREATE_TABLE, "CREATE TABLE orders …", ORDERS, again)
    run_plan(store, claim, make_plan(3, changes=(create,)), again)
    assert _subscribed(place) == [("shop", "orders", 9)]
    assert store.state("one").versions == (again,)
    store.move("one", Verb.PAUSE)
    place.sql("UPDATE subscribe SET cancel = 1")
    assert store.reset("one", make_spec("one"), "").cancel is True
    (row,) = store.subscribed("my_app")
    assert (row.table_id, row.cancel, row.owner) == (0, 1, "")


def test_rows_of_a_server_of_an_older_version_are_taken_over(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    ranges = (make_range(1), make_range(2))
    run_plan(store, claim, make_plan(table=make_table(), ranges=ranges), make_table())

    def as_older_ones_write() -> None:
        for table in ("subscribe", "progress"):
            place.sql(f"UPDATE {table} SET changefeed = NULL")

    as_older_ones_write()
    assert [r.changefeed for r in store.subscribed(feed)] == [feed]
    store.release(claim)
    again = store.claim(feed, Holder.here(), NOW, TTL_S)
    assert store.ranges(feed) == ranges and store.state(feed).versions == (make_table(),)
    run_plan(store, again, make_plan(2, table=make_table(), ranges=(make_range(1, index=9),)))
    assert [r.last_log_index for r in store.ranges(feed)] == [9, 1]
    as_older_ones_write()
    store.remove(feed)
    assert place.sql("SELECT * FROM subscribe") == place.sql("SELECT * FROM progress") == []


# --- plans ---------------------------------------------------------------------------------------


def test_publishing_moves_everything_together(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    ranges = (make_range(1), make_range(2))
    plan = make_plan(table=make_table(), ranges=ranges, watermark=20, sink_state={"next": {"f": 3}})
    run_plan(store, claim, plan, make_table())
    found = store.state(feed)
    assert found.position == {"after": 1}
    assert found.ranges == ranges
    assert found.versions == (make_table(),)
    assert (found.watermark, found.micro_batch) == (20, 1)
    assert found.sink_state == {"next": {"f": 3}}
    assert found.epoch == claim.epoch
    assert store.pending(feed) is None
    shown = place.sql("SELECT subscribe_name, master_addrs, sink, cancel FROM subscribe")
    assert shown == [(feed, "master:7000", str(SINK), 0)]
    assert "sink-pw" not in str(shown)


def test_the_next_plan_must_be_the_next_number_and_alone(store: MetaStore, claim: Claim) -> None:
    with pytest.raises(PlanRefused, match="2 cannot follow 0"):
        store.record(claim, make_plan(2), ())
    with pytest.raises(PlanRefused, match="no spec version 9"):
        store.record(claim, make_plan(1, spec_version=9), ())
    store.record(claim, make_plan(1), ())
    store.record(claim, make_plan(1), ())  # the same plan again
    for other in (make_plan(1, watermark=99), make_plan(2)):
        with pytest.raises(PlanRefused, match="micro-batch 1 is pending"):
            store.record(claim, other, ())
    assert store.pending(claim.changefeed) == make_plan(1)


def test_only_the_recorded_plan_can_be_published(
    store: MetaStore, claim: Claim, place: Place
) -> None:
    with pytest.raises(PlanRefused, match="nothing is pending"):
        store.publish(claim, make_plan(1))
    store.record(claim, make_plan(1), ())
    before = place.everything()
    with pytest.raises(PlanRefused, match="other content"):
        store.publish(claim, make_plan(1, watermark=99))
    assert place.everything() == before


def test_publishing_again_changes_nothing(store: MetaStore, claim: Claim, place: Place) -> None:
    plan = make_plan(table=make_table(), ranges=(make_range(1),), watermark=20)
    run_plan(store, claim, plan, make_table())
    before = place.everything()
    store.publish(claim, plan)
    assert place.everything() == before
    with pytest.raises(PlanRefused, match="nothing is pending, 1 was published last"):
        store.publish(claim, plan.with_(planned_at_ms=1))
    run_plan(store, claim, make_plan(2))
    with pytest.raises(PlanRefused):
        store.publish(claim, plan)


def test_the_watermark_never_goes_back(store: MetaStore, claim: Claim, feed: str) -> None:
    for number, given, expected in ((1, 50, 50), (2, 40, 50), (3, None, 50), (4, 60, 60)):
        run_plan(store, claim, make_plan(number, watermark=given))
        assert store.state(feed).watermark == expected


def test_a_plan_without_sink_state_keeps_the_earlier_one(store: MetaStore, claim: Claim) -> None:
    run_plan(store, claim, make_plan(1, sink_state={"n": 1}))
    run_plan(store, claim, make_plan(2))
    assert store.state(claim.changefeed).sink_state == {"n": 1}


def test_only_changed_ranges_are_written_and_gone_ones_go(
    store: MetaStore, claim: Claim, feed: str, database: tuple[Database, Place]
) -> None:
    run_plan(store, claim, make_plan(1, ranges=tuple(make_range(i) for i in (1, 2, 3, 4, 5))))
    written: set[int] = set()

    def note(_c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("INSERT INTO progress"):
            rows = values if isinstance(values, list) else [values]
            numbers = [set(row.values() if isinstance(row, dict) else row) for row in rows]
            written.update(i for i in (1, 2, 3, 4, 5) if any(1000 + i in row for row in numbers))

    changed = (make_range(2, index=1002), make_range(3, TableId("shop", "renamed"), index=1003))
    event.listen(database[0].engine, "before_cursor_execute", note)
    run_plan(store, claim, make_plan(2, ranges=(make_range(1), *changed), gone=(4, 77)))
    event.remove(database[0].engine, "before_cursor_execute", note)
    assert written == {2, 3}
    assert set(store.state(feed).ranges) == {make_range(1), *changed, make_range(5)}


def test_many_ranges_and_tables_fit(store: MetaStore, claim: Claim, feed: str) -> None:
    tables = [make_table(TableId("shop", f"t{i:04}"), 1000 + i) for i in range(700)]
    ranges = tuple(make_range(i, t.id, t.table_id) for i, t in enumerate(tables))
    run_plan(store, claim, make_plan(1, ranges=ranges), *tables)
    assert store.state(feed).ranges == store.ranges(feed) == ranges
    assert store.state(feed).versions == tuple(tables)
    run_plan(store, claim, make_plan(2, gone=tuple(range(700))))
    assert store.state(feed).ranges == ()


def test_two_changefeeds_do_not_see_each_other(store: MetaStore, claim: Claim, feed: str) -> None:
    run_plan(
        store,
        claim,
        make_plan(table=make_table(), ranges=(make_range(1),), watermark=20),
        make_table(),
    )
    other = store.create_changefeed(make_spec("feed-2"))
    second = store.claim(other.id, Holder.here(), NOW, TTL_S)
    assert store.state(other.id).ranges == () and store.state(other.id).versions == ()
    run_plan(
        store, second, make_plan(table=make_table(), ranges=(make_range(1, index=5),)), make_table()
    )
    run_plan(store, second, make_plan(2, gone=(1,)))
    assert store.state(feed).ranges == (make_range(1),)


def test_discarding_forgets_the_plan_and_says_why(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    store.record(claim, make_plan(1), ())
    with pytest.raises(PlanRefused, match="1 is pending, not 2"):
        store.discard(claim, 2, "")
    store.discard(claim, 1, "the snapshot is gone")
    assert store.pending(feed) is None
    noted = [n for n in store.history(feed) if n.what == "discarded"]
    assert [n.details for n in noted] == [{"micro_batch": 1, "why": "the snapshot is gone"}]
    store.discard(claim, 1, "again", {"late": 1})
    assert store.state(feed).position == {}
    run_plan(store, claim, make_plan(1, watermark=5))
    assert store.state(feed).micro_batch == 1


def test_discarding_may_leave_word_in_the_position(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    store.record(claim, make_plan(1, watermark=5), ())
    store.discard(claim, 1, "", {"shown": ["a"]})
    found = store.state(feed)
    assert (found.position, found.micro_batch, found.watermark) == ({"shown": ["a"]}, 0, 0)
    run_plan(store, claim, make_plan(1, watermark=5))
    assert store.state(feed).position == make_plan(1).stretch.position


# --- table versions and subscribe ----------------------------------------------------------------


def test_a_stored_version_never_changes(store: MetaStore, claim: Claim, feed: str) -> None:
    run_plan(store, claim, make_plan(1, table=make_table()), make_table())
    store.record(claim, make_plan(2), (make_table(), make_table(ITEMS, 8)))
    store.discard(claim, 2, "")
    with pytest.raises(PlanRefused, match="version 10 of table shop.orders"):
        store.record(claim, make_plan(2), (replace(make_table(), comment="other"),))
    assert store.pending(feed) is None


def test_a_restart_gets_the_version_at_the_watermark_and_later_ones(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    tables = [make_table(version=v) for v in (10, 20, 30, 40)]
    run_plan(store, claim, make_plan(1, watermark=9), *tables, make_table(ITEMS, 8, 10))
    assert [v.version for v in store.state(feed).versions] == [10, 10, 20, 30, 40]
    run_plan(store, claim, make_plan(2, watermark=30))
    found = [(v.id, v.version) for v in store.state(feed).versions]
    assert found == [(ITEMS, 10), (ORDERS, 30), (ORDERS, 40)]


def test_versions_of_ended_tables_are_left_out(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    run_plan(store, claim, make_plan(1, watermark=15), make_table(), make_table(ITEMS, 8))
    drop = SchemaChange(20, DdlKind.DROP_TABLE, "DROP TABLE items", ITEMS, dropped_table_id=8)
    again = make_table(table_id=9, version=21)
    truncate = SchemaChange(
        21, DdlKind.TRUNCATE_TABLE, "TRUNCATE orders", ORDERS, again, dropped_table_id=7
    )
    plan = make_plan(2, changes=(drop, truncate), watermark=21)
    store.record(claim, plan, (again,))
    assert len(store.state(feed).versions) == 3  # the plan may still need all of them
    store.publish(claim, plan)
    assert store.state(feed).versions == (again,)
    assert _subscribed(place) == [("shop", "orders", 9)]


def test_a_rename_moves_the_subscription(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    run_plan(store, claim, make_plan(1, watermark=15), make_table())
    renamed = make_table(ITEMS, 7, 20)
    change = SchemaChange(20, DdlKind.RENAME_TABLE, "RENAME …", ITEMS, renamed, previous=ORDERS)
    run_plan(store, claim, make_plan(2, changes=(change,), watermark=20), renamed)
    assert _subscribed(place) == [("shop", "items", 7)]
    assert store.state(feed).versions == (renamed,)


def test_a_table_renamed_out_of_the_filter_is_not_captured_by_its_new_name(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    beside = make_table(TableId("shop", "prices"), 8)
    first = make_plan(1, ranges=(make_range(2), make_range(3, beside.id, 8)), watermark=15)
    run_plan(store, claim, first, make_table(), beside)
    renamed = make_table(ITEMS, 7, 20)
    change = SchemaChange(20, DdlKind.RENAME_TABLE, "RENAME …", ITEMS, renamed, previous=ORDERS)
    # Its name goes to another table, as when a copy takes its place.
    taken = make_table(ORDERS, 8, 20)
    other = SchemaChange(20, DdlKind.RENAME_TABLE, "RENAME …", ORDERS, taken, previous=beside.id)
    ranges = (make_range(3, ORDERS, 8),)
    plan = make_plan(2, changes=(change, other), ranges=ranges, gone=(2,), watermark=20)
    run_plan(store, claim, plan, renamed, taken)
    assert _subscribed(place) == [("shop", "orders", 8)]
    assert store.state(feed).versions == (taken,)


def test_tables_without_an_id_are_told_apart_by_name(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    tables = (make_table(ITEMS, 0, 10), make_table(ORDERS, 0, 10), make_table(ORDERS, 0, 20))
    run_plan(store, claim, make_plan(1, watermark=30), *tables)
    assert store.state(feed).versions == (tables[0], tables[2])


def _kept_versions(place: Place) -> list[Any]:
    return place.sql("SELECT table_id, table_name, version FROM table_versions ORDER BY 1, 2, 3")


@pytest.mark.parametrize("table_id", [7, 0])
def test_replaced_versions_do_not_pile_up(
    store: MetaStore, claim: Claim, place: Place, table_id: int
) -> None:
    """Of a table that is altered again and again only what a run can need stays stored."""
    beside = make_table(ITEMS, table_id and 8, 10)
    run_plan(store, claim, make_plan(1, watermark=15), make_table(table_id=table_id), beside)
    for number in range(2, 12):
        new = make_table(table_id=table_id, version=number * 10)
        change = SchemaChange(number * 10, DdlKind.ADD_COLUMN, "ALTER TABLE …", ORDERS, new)
        plan = make_plan(number, changes=(change,), watermark=number * 10)
        store.record(claim, plan, (new,))
        before = [version for _, name, version in _kept_versions(place) if name == "orders"]
        assert before == [number * 10 - 10, number * 10]  # the plan may still need both
        store.publish(claim, plan)
    assert sorted(_kept_versions(place)) == sorted(
        [(table_id and 8, "items", 10), (table_id, "orders", 110)]
    )


def test_versions_stay_while_the_watermark_is_below_them(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    run_plan(store, claim, make_plan(1, watermark=15), make_table())
    new = make_table(version=20)
    change = SchemaChange(20, DdlKind.ADD_COLUMN, "ALTER TABLE …", ORDERS, new)
    run_plan(store, claim, make_plan(2, changes=(change,), watermark=18), new)
    assert store.state(feed).versions == (make_table(), new)


def test_versions_of_ended_tables_do_not_pile_up(
    store: MetaStore, claim: Claim, place: Place
) -> None:
    """A table that is created and dropped, truncated or renamed each day leaves nothing behind."""
    elsewhere = make_table(TableId("keep", "t"), 9)
    tables = (make_table(), make_table(ITEMS, 8), elsewhere)
    run_plan(store, claim, make_plan(1, watermark=15), *tables)
    drop = SchemaChange(20, DdlKind.DROP_TABLE, "DROP TABLE items", ITEMS, dropped_table_id=8)
    again = make_table(table_id=10, version=21)
    truncate = SchemaChange(
        21, DdlKind.TRUNCATE_TABLE, "TRUNCATE orders", ORDERS, again, dropped_table_id=7
    )
    plan = make_plan(2, changes=(drop, truncate), watermark=21)
    run_plan(store, claim, plan, again)
    assert _kept_versions(place) == [(9, "t", 10), (10, "orders", 21)]
    moved = make_table(ITEMS, 10, 30)
    rename = SchemaChange(30, DdlKind.RENAME_TABLE, "RENAME …", ITEMS, moved, previous=ORDERS)
    run_plan(store, claim, make_plan(3, changes=(rename,), watermark=30), moved)
    assert _kept_versions(place) == [(9, "t", 10), (10, "items", 30)]
    end = SchemaChange(40, DdlKind.DROP_DATABASE, "DROP DATABASE shop", TableId("shop", ""))
    run_plan(store, claim, make_plan(4, changes=(end,), watermark=40))
    assert _kept_versions(place) == [(9, "t", 10)]


def test_a_dropped_database_ends_its_tables(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    elsewhere = make_table(TableId("keep", "t"), 9)
    run_plan(store, claim, make_plan(1), make_table(), make_table(ITEMS, 8), elsewhere)
    drop = SchemaChange(20, DdlKind.DROP_DATABASE, "DROP DATABASE shop", TableId("shop", ""))
    run_plan(store, claim, make_plan(2, changes=(drop,)))
    assert _subscribed(place) == [("keep", "t", 9)]
    assert store.state(feed).versions == (elsewhere,)


# --- the fence -----------------------------------------------------------------------------------


FENCED: dict[str, Callable[[MetaStore, Claim], Any]] = {
    "record": lambda store, claim: store.record(claim, make_plan(3), ()),
    "publish": lambda store, claim: store.publish(claim, make_plan(2)),
    "publish-again": lambda store, claim: store.publish(claim, make_plan(1)),
    "discard": lambda store, claim: store.discard(claim, 2, "why"),
    "renew": lambda store, claim: store.renew(claim, NOW),
    "move": lambda store, claim: store.move(claim, Verb.FAULT),
    "remove": lambda store, claim: store.remove(claim),
}


@pytest.mark.parametrize("what", sorted(FENCED))
def test_a_zombie_changes_nothing(
    store: MetaStore, claim: Claim, feed: str, place: Place, what: str
) -> None:
    run_plan(store, claim, make_plan(1))
    store.record(claim, make_plan(2), ())
    store.claim(feed, someone_else(), NOW + TTL_S, TTL_S)
    before = place.everything()
    with pytest.raises(Fenced, match=f"{feed} was taken over"):
        FENCED[what](store, claim)
    store.release(claim)
    assert place.everything() == before


def test_the_new_owner_goes_on_with_the_recorded_plan(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    plan = make_plan(table=make_table(), ranges=(make_range(1),), watermark=20)
    store.record(claim, plan, (make_table(),))
    second = store.claim(feed, someone_else(), NOW + TTL_S, TTL_S)
    found = store.pending(feed)
    assert found == plan
    store.publish(second, found)
    assert store.state(feed).ranges == (make_range(1),)
    with pytest.raises(Fenced):
        store.publish(claim, plan)


# --- history, servers, damage --------------------------------------------------------------------


def test_history_is_newest_first_and_bounded(
    store: MetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "HISTORY_LINES", 10)
    store.note("other", "kept")
    for i in range(15):
        store.note("feed", f"line {i}", {"i": i})
    lines = store.history("feed", limit=10**6)
    assert [n.what for n in lines] == [f"line {i}" for i in range(14, 4, -1)]
    assert lines[0].at == NOW and lines[-1].details == {"i": 5}
    assert [n.what for n in store.history("feed", limit=2)] == ["line 14", "line 13"]
    assert [n.what for n in store.history("other")] == ["kept"]


def test_claims_and_errors_do_not_pile_up_in_history(
    store: MetaStore, place: Place, feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "HISTORY_LINES", 6)
    for _ in range(4):
        claim = store.claim(feed, Holder.here(), NOW, TTL_S)
        store.move(claim, Verb.FAULT, RowRejected("too long"))
        store.move(claim, Verb.RECOVER)
        store.release(claim)
    assert place.sql("SELECT count(*) FROM history") == [(6,)]
    newest = [n.what for n in store.history(feed)]  # an answer that is lost is asked for again
    assert newest[:2] == ["state", "state"] and set(newest) == {"claimed", "state"}


def test_servers_announce_themselves(store: MetaStore) -> None:
    here, there = Holder.here(), someone_else()
    store.announce(here, "h:1", NOW)
    store.announce(there, "o:1", NOW)
    store.announce(there, "o:2", NOW + 5)
    assert {(s.holder, s.address, s.seen_at) for s in store.servers()} == {
        (here, "h:1", NOW),
        (there, "o:2", NOW + 5),
    }
    assert [s.holder for s in store.servers(since=NOW + 1)] == [there]
    store.retire(there)
    store.retire(someone_else("never seen"))
    assert [s.holder for s in store.servers()] == [here]


# --- samples -------------------------------------------------------------------------------------


def _sample(at: float, rows: int = 0, **more: Any) -> Sample:
    return Sample(at, 1500, 2**62, rows, 10**12, 3, 0.25, **more)


def test_samples_come_back_oldest_first_and_old_ones_go(store: MetaStore, feed: str) -> None:
    other = store.create_changefeed(make_spec("feed-2")).id
    rich = _sample(
        *(NOW + 1, 7),
        retention_ms=10**10,
        snapshots=(("shop.orders", 2, 5),),
        totals=(0, 3, 2, 50),
        unit="rows",
    )
    bare = Sample(NOW, None, 0, 0, 0, 0, 0.0)
    store.write_samples({feed: rich, other: _sample(NOW + 1)})
    store.write_samples({feed: bare, "nobody": bare})
    assert store.samples(feed) == (bare, rich)
    assert store.samples(feed, since=NOW + 0.5) == (rich,)
    assert store.samples("nobody") == ()
    store.write_samples({})
    store.write_samples({feed: _sample(NOW + 101)}, keep_s=100.0)
    assert [s.at for s in store.samples(feed)] == [NOW + 1, NOW + 101]
    store.write_samples({feed: _sample(NOW + 102)}, keep_s=100.0)
    assert [s.at for s in store.samples(feed)] == [NOW + 101, NOW + 102]
    assert store.samples(other) == ()  # its own are old, whoever looks
    store.remove(feed)
    assert store.samples(feed) == ()


def test_old_samples_are_folded_and_nothing_of_their_sums_is_lost(
    store: MetaStore, feed: str
) -> None:
    begin = NOW // 300 * 300
    for place in range(12):  # one each minute: 2 stretches of five minutes, and a part
        store.write_samples({feed: replace(_sample(begin + 60 * place, 10), lag_ms=place)})
    for _ in range(2):
        store.fold_samples([feed, "nobody"], begin + 699)
    found = store.samples(feed)
    assert [s.at - begin for s in found] == [240.0, 540.0, 600.0, 660.0]
    assert [s.rows for s in found] == [50, 50, 10, 10]
    assert [s.lag_ms for s in found] == [4, 9, 10, 11]  # the greatest of each stretch
    assert found[0].bytes == 5 * 10**12 and found[0].micro_batches == 15


# --- for those who watch -------------------------------------------------------------------------


def test_counts_of_tables_go_on_from_owner_to_owner(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    run_plan(store, claim, make_plan(1, table=make_table(), watermark=20), make_table())
    captured = ORDERS
    gone = TableId("shop", "gone")
    counts = TableCount(captured, 2**40, 2**41, 2**62), TableCount(gone, 1, 2, 3)
    for _ in range(2):
        store.write_news({claim: FeedNews(counts, kept_until=NOW + 60)})
    assert set(store.table_counts(feed)) == set(counts)
    record = store.feed(feed)
    assert record is not None and record.kept_until == NOW + 60
    later = store.claim(feed, claim.holder, NOW, 60)
    # What is not captured any more is not counted any more.
    assert store.open_table_counts(later) == (counts[0],) == store.table_counts(feed)
    store.write_news({claim: FeedNews((replace(counts[0], rows=5),))})  # it is fenced
    assert store.table_counts(feed) == (counts[0],)
    store.write_news({})
    store.remove(feed)
    store.write_news({later: FeedNews(counts)})
    assert store.table_counts(feed) == ()


def test_many_owners_tell_at_once(store: MetaStore, claim: Claim, feed: str) -> None:
    """What is valid is stored, whatever else comes with it; tables of one name stay apart."""
    others = [store.create_changefeed(make_spec(name)).id for name in ("other", "taken")]
    claims = [store.claim(name, Holder.here(), NOW, TTL_S) for name in others]
    store.claim("taken", claims[1].holder, NOW, TTL_S)
    news = {
        one: FeedNews((TableCount(ORDERS, number, 2, 3),), kept_until=NOW + number)
        for number, one in enumerate((claim, *claims), 60)
    }
    for _ in range(2):
        store.write_news(news)
    assert [store.table_counts(name) for name in (feed, *others)] == [
        (TableCount(ORDERS, 60, 2, 3),),
        (TableCount(ORDERS, 61, 2, 3),),
        (),
    ]
    assert {f.id: f.kept_until for f in store.feeds()} == {
        feed: NOW + 60,
        "other": NOW + 61,
        "taken": None,
    }


def test_schema_changes_are_kept_with_the_plan_that_published_them(
    store: MetaStore, claim: Claim, feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SCHEMA_CHANGES", 3)
    for number in range(1, 6):
        words = f"ALTER {number} \0é"
        change = SchemaChange(100 + number, DdlKind.ADD_COLUMN, words, ORDERS)
        plan = make_plan(number, changes=(change,))
        run_plan(store, claim, plan)
        store.publish(claim, plan)  # a repeat adds nothing
    found = store.schema_changes(feed)
    assert [c.commit_ts for c in found] == [105, 104, 103]
    assert (found[0].table, found[0].kind) == (ORDERS, "add column")
    assert found[0].query.startswith("ALTER 5") and "\0" not in found[0].query
    assert store.schema_changes(feed, 1) == found[:1]
    store.remove(feed)
    assert store.schema_changes(feed) == ()


def _reading(number: int, *segments: Segment) -> Plan:
    """Return a plan that reads these."""
    plan = make_plan(number)
    return replace(plan, stretch=replace(plan.stretch, segments=segments), outputs=())


def test_published_batches_are_kept_with_their_plan_and_folded_when_old(
    store: MetaStore, claim: Claim, feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "FOLD", 3)
    monkeypatch.setattr(published, "LONGEST", 2000)
    wide = {"names": ["x" * 3000]}
    for number in range(1, 16):
        ts = 100 * number
        kept = Segment(0, {"at": number}, (), ts, ts + 9, payload=b"rows")
        there = Segment(1, wide if number == 15 else {}, (), 7, 7, snapshot=True)
        output = Output(0, 0, {"path": f"file {number}"})
        plan = replace(
            _reading(number, *((kept, there) if number != 14 else ())), outputs=(output,)
        )
        run_plan(store, claim, plan)
        store.publish(claim, plan)  # a repeat adds nothing
    batches = store.published_batches(feed)
    assert [b.micro_batch for b in batches] == [*range(1, 14), 15]  # 14 had nothing to read
    first, last = batches[0], batches[-1]
    assert (first.first_ts, first.last_ts, first.snapshots, first.whole) == (100, 109, (7,), True)
    assert (first.segments[0].read, first.segments[0].payload) == ({"at": 1}, b"")
    assert first.outputs[0].target == {"path": "file 1"}
    assert (last.first_ts, last.segments, last.whole) == (1500, (), False)  # it was too long
    assert first.published_at > 0

    monkeypatch.setattr(published, "_OLD_SINGLES", published._OLD_SINGLES.offset(4))
    monkeypatch.setattr(published, "_OLDEST_FOLDED", published._OLDEST_FOLDED.offset(2))
    for number in (16, 17, 18):
        run_plan(store, claim, _reading(number))
    batches = store.published_batches(feed)
    # Ten were older than the last four: nine became three, of which the last two are kept.
    assert [(b.first_batch, b.micro_batch) for b in batches[:2]] == [(4, 6), (7, 9)]
    assert [b.micro_batch for b in batches[2:]] == [10, 11, 12, 13, 15]
    folded = batches[1]
    assert (folded.first_ts, folded.last_ts, folded.whole) == (700, 909, False)
    assert [s.read for s in folded.segments] == [{"at": 7}, {"at": 9}]
    assert (folded.outputs, folded.snapshots) == ((), (7,))
    store.remove(feed)
    assert store.published_batches(feed) == ()


def test_log_lines_are_bounded_and_of_changefeeds_that_there_are(
    store: MetaStore, feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOG_LINES", 4)
    lines = [LogLine(NOW + i, "warning", "a:8300", f"line {i} \0") for i in range(3)]
    store.add_log_lines({})
    for _ in range(2):
        store.add_log_lines({feed: lines, "nobody": lines})
    ages = [line.at - NOW for line in store.log_lines(feed)]  # where answers are lost, some twice
    assert len(ages) == 4 and ages[:3] == [2, 1, 0]
    assert store.log_lines(feed, 1)[0].words.startswith("line 2")
    assert store.log_lines("nobody") == ()
    store.remove(feed)
    assert store.log_lines(feed) == ()


def test_when_the_checkpoint_moved_is_known(store: MetaStore, claim: Claim, feed: str) -> None:
    def moved_at() -> float | None:
        found = store.feed(feed)
        assert found is not None and found in store.feeds()
        return found.moved_at

    assert moved_at() is None
    run_plan(store, claim, make_plan(1, watermark=20))
    first = moved_at()
    assert first is not None
    run_plan(store, claim, make_plan(2))
    assert moved_at() == first  # a plan without a watermark moves nothing


def test_history_says_why_a_claim_was_taken_and_given_back(tmp_path: Path) -> None:
    with closing(open_store(sqlite_url(tmp_path / "meta.db"))) as store:
        _check_reasons(store, store.create_changefeed(make_spec()).id)


def _check_reasons(store: MetaStore, feed: str) -> None:
    def why() -> list[tuple[str, str, str]]:
        lines = [n for n in store.history(feed) if n.what in ("claimed", "released")]
        return [(n.what, n.details["by"], n.details["why"]) for n in reversed(lines)]

    server = replace(Holder.here("a:8300"), host="elsewhere")
    other = replace(Holder.here("b:8300"), host="elsewhere")
    claim = store.claim(feed, server, NOW, 6)
    record = store.feed(feed)
    assert record is not None and record.lease is not None and record.lease.owner == "a:8300"
    with pytest.raises(LeaseHeld, match=r"pid \d+ \(a:8300\), since"):
        store.claim(feed, other, NOW + 5, 6)
    store.release(claim, "another server has fewer changefeeds")
    claim = store.claim(feed, other, NOW + 5, 6)
    store.release(claim)
    store.claim(feed, other, NOW + 5, 6)
    store.claim(feed, other, NOW + 5, 6)
    store.claim(feed, server, NOW + 20, 6)
    ran_out = "the lease of b:8300 ran out 9 s ago: it was killed, hangs, or does not reach the"
    assert why() == [
        ("claimed", "a:8300", "it is new"),
        ("released", "a:8300", "another server has fewer changefeeds"),
        ("claimed", "b:8300", "nobody had it"),
        ("claimed", "b:8300", "nobody had it"),
        ("claimed", "b:8300", "this process had it already"),
        ("claimed", "a:8300", f"{ran_out} meta database"),
    ]


# --- standing still ------------------------------------------------------------------------------


def test_a_hold_is_asked_for_answered_and_ended(store: MetaStore, claim: Claim, feed: str) -> None:
    def held() -> Hold | None:
        found = store.feed(feed)
        assert found is not None
        assert [f.hold for f in store.feeds() if f.id == feed] == [found.hold]
        return found.hold

    late = 2.0**31
    first = Hold("a", late)
    assert held() is None
    for _ in range(2):
        store.hold(feed, first)
    assert held() == first
    run_plan(store, claim, make_plan(1))
    for _ in range(2):
        store.answer_hold(claim, "a", "at")
        store.answer_hold(claim, "unknown", "past")
    assert held() == replace(first, reached="at", micro_batch=1)
    other = Hold("b", late, {"file": "log.1", "offset": 2**40})
    with pytest.raises(IllegalMove, match="held by somebody else"):
        store.hold(feed, other)
    store.hold(feed, other, instead_of="a")
    assert held() == other
    store.end_hold(feed, "a")
    assert held() == other
    for _ in range(2):
        store.end_hold(feed, "b")
    assert held() is None
    store.hold(feed, Hold("c", 1.0))  # is over
    store.hold(feed, other)
    assert held() == other
    fenced = replace(claim, epoch=claim.epoch - 1)
    with pytest.raises(Fenced):
        store.answer_hold(fenced, "b", "at")
    with pytest.raises(NoSuchChangefeed):
        store.hold("nobody", first)


# --- tables that are read again ------------------------------------------------------------------


def test_resnapshots_are_asked_for_cancelled_and_ended(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    def known() -> list[tuple[str, str, int]]:
        found = store.feed(feed)
        assert found is not None
        assert [f.resnapshots for f in store.feeds() if f.id == feed] == [found.resnapshots]
        return [(r.id, r.outcome.value, r.rows) for r in found.resnapshots]

    table = TableId("d", "ü")
    asked = [Resnapshot(str(n), table, ("1",), ("2", "b'"), "n > 1", 5.5) for n in range(3)]
    assert known() == []
    for one in asked * 2:
        store.ask_resnapshot(feed, one)
    stored = store.feed(feed)
    assert stored is not None
    assert stored.resnapshots == tuple(asked)
    store.cancel_resnapshot(feed, "1")
    assert not store.cancel_resnapshot(feed, "unknown")
    done = Resnapshot("0", table, outcome=ResnapshotOutcome.DONE, rows=9, words="w")
    for _ in range(2):
        store.end_resnapshot(claim, done)
    store.end_resnapshot(claim, replace(done, id="1"))  # is over
    assert known() == [("0", "done", 9), ("1", "cancelled", 0), ("2", "", 0)]
    with pytest.raises(Fenced):
        store.end_resnapshot(replace(claim, epoch=claim.epoch - 1), replace(done, id="2"))
    for n in range(30):
        store.ask_resnapshot(feed, replace(asked[0], id=f"more {n}"))
        store.end_resnapshot(claim, replace(done, id=f"more {n}"))
    assert known()[0] == ("2", "", 0)  # what is open is never forgotten
    assert len(known()) == 21
    with pytest.raises(NoSuchChangefeed):
        store.ask_resnapshot("nobody", asked[0])


# --- rows that sinks refuse ----------------------------------------------------------------------


def _diverted(key: str, table_id: int = 7, **more: Any) -> DivertedRow:
    row = DivertedRow(
        *(ORDERS, table_id, 10, None, key, int(Op.INSERT), 1 << 60, "s" * 64, f"{key}\0".encode())
    )
    return replace(row, **more)


def _parking_plan(number: int, *refused: RefusedKey, **more: Any) -> Plan:
    return make_plan(number).with_(quarantine=PlanQuarantine(refused=refused, **more))


def _sending_plan(number: int, again: PlanQuarantine, *sent: RowPlace) -> Plan:
    plan = make_plan(number).with_(quarantine=again)
    read = {"kind": "parked", "rows": [place.to_json() for place in sent]}
    segments = (replace(plan.stretch.segments[0], read=read, parked=True),)
    return plan.with_(stretch=replace(plan.stretch, segments=segments))


def test_parked_rows_stay_with_their_plan_and_come_back_in_order(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    first = make_plan(1)
    store.record(claim, first, ())
    plan = _parking_plan(
        1, RefusedKey(7, "ü", "too 'long'\0"), parked=by_table([ParkedKey(7, "ü")])
    )
    store.record_again(claim, plan)
    assert store.pending(feed) == plan
    store.park(claim, plan, [_diverted("left by a run that was cut off")])
    rows = [_diverted("ü"), _diverted("ü", op=2, physical_id=3), _diverted("b", table_id=8)]
    for _ in range(2):
        store.park(claim, plan, rows)
    with pytest.raises(PlanRefused):
        store.publish(claim, first)  # it was recorded anew
    with pytest.raises(PlanRefused, match="not pending"):
        store.record_again(claim, make_plan(2))
    unpublished = store.feed(feed)
    assert store.parked(feed) == () == store.parked(feed, [RowPlace(1, 2)])
    assert unpublished is not None and unpublished.parked == 0 == store.feeds()[0].parked
    assert store.want_parked(feed, {ParkedKey(7, "ü")}) == 0
    assert store.drop_parked(feed, {RowPlace(1, 0)}) == 0  # the plan may park it once more
    store.publish(claim, plan)
    parked = store.parked(feed)
    assert [(str(r.place), r.key, r.op, r.table_id, r.physical_id) for r in parked] == [
        ("1-0", "ü", Op.INSERT, 7, None),
        ("1-1", "ü", Op.DELETE, 7, 3),
        ("1-2", "b", Op.INSERT, 8, None),
    ]
    assert [r.cause for r in parked] == ["too 'long'\\0", WAITS, WAITS]
    assert {(r.image, r.size, r.parked_at, r.wanted) for r in parked[:1]} == {(b"", 3, NOW, False)}
    assert store.parked(feed, [RowPlace(1, 2), RowPlace(9, 9)])[0].image == b"b\0"
    found = store.feed(feed)
    assert found is not None and found.parked == 3 and store.feeds()[0] == found
    behind = _parking_plan(2)
    store.record(claim, behind, ())
    store.park(claim, behind, [_diverted("ü")])
    store.discard(claim, 2, "it comes again")
    run_plan(store, claim, make_plan(2))
    assert len(store.parked(feed)) == 3
    fenced = replace(claim, epoch=claim.epoch - 1)
    with pytest.raises(Fenced):
        store.park(fenced, plan, ())
    with pytest.raises(Fenced):
        store.record_again(fenced, plan)


def test_parked_rows_are_asked_for_sent_again_and_dropped(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    plan = _parking_plan(1, RefusedKey(7, "a", "no"), RefusedKey(7, "b", "no"))
    store.record(claim, plan, ())
    store.park(claim, plan, [_diverted(key) for key in "abacd"])
    store.publish(claim, plan)
    assert store.want_parked(feed, {ParkedKey(7, "a"), ParkedKey(7, "b"), ParkedKey(8, "c")}) == 3
    assert [r.wanted for r in store.parked(feed)] == [True, True, True, False, False]
    again = PlanQuarantine(
        again=(RowPlace(1, 0), RowPlace(1, 2)), stays=(RefusedKey(7, "b", "still no"),)
    )
    run_plan(store, claim, _sending_plan(2, again, RowPlace(1, 2)))
    assert [(str(r.place), r.cause, r.wanted) for r in store.parked(feed)] == [
        ("1-1", "still no", False),
        ("1-3", WAITS, False),
        ("1-4", WAITS, False),
    ]
    store.drop_parked(feed, {RowPlace(1, 3), RowPlace(5, 5)})
    assert [r.key for r in store.parked(feed)] == ["b", "d"]
    dropped = next(n for n in store.history(feed) if n.what == "quarantine dropped")
    assert [row["key"] for row in dropped.details["rows"]] == ["c"]
    with pytest.raises(NoSuchChangefeed):
        store.drop_parked("nobody", set())


def test_rows_in_whose_place_a_dropped_one_was_to_be_sent_stay_parked(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    plan = _parking_plan(1, RefusedKey(7, "a", "no"), RefusedKey(7, "b", "no"))
    store.record(claim, plan, ())
    store.park(claim, plan, [_diverted(key) for key in "aabb"])
    store.publish(claim, plan)
    store.want_parked(feed, {ParkedKey(7, "a"), ParkedKey(7, "b")})
    again = PlanQuarantine(again=tuple(RowPlace(1, n) for n in range(4)))
    sending = _sending_plan(2, again, RowPlace(1, 1), RowPlace(1, 3))
    store.record(claim, sending, ())
    store.drop_parked(feed, {RowPlace(1, 1)})
    store.publish(claim, sending)
    (left,) = store.parked(feed)
    assert (str(left.place), left.wanted) == ("1-0", False)
    assert "was dropped while it was to be sent" in left.cause
    noted = next(n for n in store.history(feed) if n.what == "quarantine sent again")
    assert noted.details["sent"] == 2


def test_rows_whose_predecessors_were_dropped_meanwhile_are_sent_by_themselves(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    plan = _parking_plan(1, RefusedKey(7, "a", "no"), RefusedKey(8, "*", "no"))
    store.record(claim, plan, ())
    store.park(claim, plan, [_diverted("a"), _diverted("b"), _diverted("*", table_id=8)])
    store.publish(claim, plan)
    keys = [ParkedKey(7, "a"), ParkedKey(7, "b"), ParkedKey(8, "*")]
    later = _parking_plan(2, RefusedKey(7, "c", "no"), parked=by_table(keys))
    store.record(claim, later, ())
    store.drop_parked(feed, {RowPlace(1, 1), RowPlace(1, 2)})
    rows = [*map(_diverted, "abc"), _diverted("*", table_id=8), _diverted("b")]
    store.park(claim, later, rows)
    store.publish(claim, later)
    assert [(str(r.place), r.wanted) for r in store.parked(feed)] == [
        ("1-0", False),
        ("2-0", False),
        ("2-1", True),
        ("2-2", False),
        ("2-3", True),
        ("2-4", True),
    ]


def test_parked_rows_follow_schema_changes_and_go_with_their_changefeed(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    plan = _parking_plan(1)
    store.record(claim, plan, ())
    rows = [_diverted("a"), _diverted("b", table_id=8), _diverted("c", table_id=9)]
    store.park(claim, plan, rows)
    store.publish(claim, plan)
    renamed = make_table(ITEMS, 7, 20)
    changes = (
        SchemaChange(20, DdlKind.RENAME_TABLE, "", ITEMS, renamed, previous=ORDERS),
        SchemaChange(21, DdlKind.TRUNCATE_TABLE, "", ORDERS, dropped_table_id=8),
        SchemaChange(22, DdlKind.TRUNCATE_PARTITION, "", ORDERS, make_table(ORDERS, 9, 22)),
    )
    next_plan = make_plan(2)
    run_plan(
        store,
        claim,
        next_plan.with_(stretch=replace(next_plan.stretch, schema_changes=changes)),
    )
    assert [(r.key, r.table, r.shape) for r in store.parked(feed)] == [
        ("a", ITEMS, "s" * 64),
        ("c", ORDERS, "s" * 16),
    ]
    store.release(claim)
    store.move(feed, Verb.PAUSE)
    store.reset(feed, make_spec(feed), "test")
    assert store.parked(feed) == ()
    assert 2 in [note.details.get("parked rows forgotten") for note in store.history(feed)]
    other = store.claim(feed, Holder.here(), NOW, TTL_S)
    last = _parking_plan(3)
    store.record(other, last, ())
    store.park(other, last, rows)
    store.remove(other)
    assert store.parked(feed) == ()


# --- beginning anew ------------------------------------------------------------------------------


def test_a_reset_forgets_how_far_it_is_and_fences_the_owner(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    plan = make_plan(
        1, table=make_table(), ranges=(make_range(1),), watermark=50, sink_state={"n": 1}
    )
    run_plan(store, claim, plan, make_table())
    store.record(claim, make_plan(2), ())
    with pytest.raises(IllegalMove, match="pause it first"):
        store.reset(feed, make_spec(feed), "not yet")
    assert store.pending(feed) is not None
    store.move(feed, Verb.PAUSE)
    anew = replace(make_spec(feed), source=Uri.parse("range://master:7000?start-ts=9", "source"))
    found = store.reset(feed, anew, "to commit-ts 9")
    assert (found.state, found.spec, found.spec_version) == (FeedState.STOPPED, anew, 2)
    assert (found.micro_batch, found.watermark, found.lease) == (1, 0, None)
    state = store.state(feed)
    assert (state.position, state.ranges, state.versions, state.watermark) == ({}, (), (), 0)
    assert (state.micro_batch, state.sink_state, state.continues) == (1, {"n": 1}, False)
    assert store.pending(feed) is None and _subscribed(place) == []
    newest = store.history(feed)[0]
    assert newest.what == "reset" and newest.details["why"] == "to commit-ts 9"
    for call in (store.renew, lambda c, _now: store.publish(c, make_plan(2))):
        with pytest.raises(Fenced):
            call(claim, NOW)

    store.move(feed, Verb.RESUME)
    second = store.claim(feed, someone_else(), NOW, TTL_S)
    other_table = replace(make_table(), comment="a version with the same number, read again")
    run_plan(
        store, second, make_plan(2, table=other_table, spec_version=2, watermark=20), other_table
    )
    state = store.state(feed)
    assert (state.watermark, state.versions) == (20, (other_table,))
    with pytest.raises(BadInput, match="id"):
        store.reset(feed, make_spec("another"), "") if store.move(feed, Verb.PAUSE) else None


def test_a_reset_to_a_snapshot_forgets_what_the_target_must_have(
    store: MetaStore, claim: Claim, feed: str
) -> None:
    """All will be delivered anew; a reset to a place in the log brings nothing old back."""
    assert not store.state(feed).continues
    told = {"n": 1, "delivered": {"shop": ["t"]}}
    run_plan(store, claim, make_plan(1, sink_state=told))
    assert store.state(feed).continues
    store.move(feed, Verb.PAUSE)
    store.reset(feed, make_spec(feed), "to commit-ts 9")
    assert (store.state(feed).sink_state, store.state(feed).continues) == (told, False)
    store.reset(feed, make_spec(feed), "to a new snapshot", snapshot=True)
    assert store.state(feed).sink_state == {"n": 1, "delivered": {}}


def test_a_reset_does_not_forget_a_removal_asked_for_by_hand(
    store: MetaStore, claim: Claim, feed: str, place: Place
) -> None:
    run_plan(store, claim, make_plan(table=make_table()), make_table())
    store.move(feed, Verb.PAUSE)
    place.sql("UPDATE subscribe SET cancel = 1")
    assert store.reset(feed, make_spec(feed), "").cancel is True
    assert store.cancel_requested(feed) is True


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
    store: MetaStore, claim: Claim, feed: str, place: Place, change: str, named: str
) -> None:
    run_plan(store, claim, make_plan(table=make_table(), ranges=(make_range(1),)), make_table())
    store.record(claim, make_plan(2), ())
    place.sql(change)
    with pytest.raises(MetaDamaged, match=named):
        store.state(feed)
        store.pending(feed)
        store.feed(feed)


# --- real processes ------------------------------------------------------------------------------

PROCESSES = multiprocessing.get_context("spawn")


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of a kind, given as the test's parameter."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "new.db")
        return
    with new_database(request.getfixturevalue(f"{request.param}_server"), "meta_new") as url:
        yield url


def _open_and_claim(url: str, together: Any, answers: Any) -> None:
    """Run in a child: open a database that is still empty, and claim, while others do too."""
    together.wait(PATIENCE_S)
    store = open_store(url, busy_timeout_s=PATIENCE_S)
    try:
        store.create_changefeed(make_spec())
    except ChangefeedExists:
        pass
    together.wait(PATIENCE_S)
    try:
        answers.put(("claimed", store.claim("feed-1", Holder.here(), NOW, TTL_S).epoch))
    except LeaseHeld as err:
        answers.put(("held", str(err)))
    together.wait(PATIENCE_S)  # nobody ends, and so gives way, before all have tried
    store.close()


@pytest.mark.parametrize("new_url", ["sqlite", "mysql", "postgres"], indirect=True)
def test_processes_that_open_and_claim_at_the_same_time_get_one_owner(new_url: str) -> None:
    together, answers = PROCESSES.Barrier(3), PROCESSES.Queue()
    children = [
        PROCESSES.Process(target=_open_and_claim, args=(new_url, together, answers))
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
    plan = make_plan(table=make_table(), ranges=(make_range(1),), watermark=20)
    store.record(claim, plan, (make_table(),))

    def die(_cursor: Any, statement: str, *_: Any) -> None:
        if at_statement in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    if at_statement:
        event.listen(store.database.engine, "do_execute", die)
        event.listen(store.database.engine, "do_executemany", die)
        store.publish(claim, plan)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("new_url", "at_statement"),
    [
        ("sqlite", ""),
        ("sqlite", "UPDATE changefeeds"),
        ("sqlite", "DELETE FROM pending_plans"),
        ("mysql", "UPDATE changefeeds"),
        ("postgres", "DELETE FROM pending_plans"),
    ],
    indirect=["new_url"],
)
def test_a_crash_before_publishing_leaves_the_plan_to_the_next_owner(
    new_url: str, at_statement: str
) -> None:
    store = open_store(new_url)
    store.create_changefeed(make_spec())
    child = PROCESSES.Process(target=_record_and_die, args=(new_url, at_statement))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    found = store.state("feed-1")
    assert (found.micro_batch, found.watermark, found.ranges, found.position) == (0, 0, (), {})
    # Its lease has an hour to go, but the process is gone: no need to wait.
    claim = store.claim("feed-1", Holder.here(), NOW, TTL_S)
    plan = store.pending("feed-1")
    assert plan == make_plan(table=make_table(), ranges=(make_range(1),), watermark=20)
    store.publish(claim, plan)
    found = store.state("feed-1")
    assert (found.micro_batch, found.watermark, found.ranges) == (1, 20, (make_range(1),))
    store.close()
