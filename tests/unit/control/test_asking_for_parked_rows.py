"""Parked rows as operators meet them: chosen, shown, refused in words; encrypted where stored."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from operations_kit import listed_source, table

from rowferry.change.chunk import make_rows
from rowferry.change.plan import Plan, Stretch
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.quarantine import ParkedKey, PlanQuarantine, RefusedKey, by_table
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.actor import Actor, Role, current_actor
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.operator.quarantine import Choice, forms, values_form
from rowferry.control.operator.statements.execute import execute
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.rekeying import rekey
from rowferry.control.store.sql_store import open_store
from rowferry.errors import (
    BadQuarantine,
    NoSuchChangefeed,
    OptionsConflict,
    RoleTooLow,
    SecretsLocked,
)
from rowferry.flow.assemble import decisions_of
from rowferry.flow.parking import Parking, diverted
from rowferry.spec.sealing import SecretKeys

FEED = "shop"
OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 32
ORDERS = replace(table("shop.orders"), table_id=1, version=5)
KEY = ORDERS.handle_key[0]


def park(store: MetaStore, claim: Claim, operations: Operations) -> None:
    feed = store.feed(FEED)
    assert feed is not None
    seen = decisions_of(feed.spec).seen_as(ORDERS)
    keys = [7, 8, 7]
    images = [{c.name: key if c.name == KEY else None for c in seen.columns} for key in keys]
    rows = make_rows(
        seen,
        pa.array([0, 0, 1], pa.int8()),
        pa.array([10, 11, 12], pa.uint64()),
        pa.array([0, 1, 2]),
        pa.array([None, None, images[2]], seen.image),
        pa.array(images, seen.image),
    )
    asked = PlanQuarantine(
        parked=by_table([ParkedKey(1, "7"), ParkedKey(1, "8")]),
        refused=(RefusedKey(1, "7", "too long"), RefusedKey(1, "8", "too long")),
    )
    parking = Parking(asked, 10)
    assert len(parking.passed(rows)) == 0
    progress = RangeProgress(*ORDERS.id, 1, 1, 1, "", "", Stage.LOG)
    plan = Plan(1, 1, 0, Stretch((), (), {}, (progress,), watermark=7), quarantine=asked)
    store.record(claim, plan, [ORDERS])
    store.park(claim, plan, diverted(parking.receipts(0)))
    store.publish(claim, plan)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Operations]:
    """A changefeed with three parked rows, that nobody runs at the moment."""
    store = open_store(f"sqlite:///{tmp_path}/meta.db", keys=SecretKeys.of(OLD_KEY))
    operations = Operations(store)
    with listed_source(ORDERS):
        uri = f"file://{tmp_path}/out?protocol=csv"
        operations.create(Wanted("listed://shop", uri, FEED, {"filter": {"rules": ["shop.*"]}}))
        claim = store.claim(FEED, Holder.here(), time.time(), 60)
        park(store, claim, operations)
        store.release(claim)
        yield operations
    store.close()


def states(desk: Operations) -> list[tuple[str, str, str]]:
    return [(r["row"], r["key"], r["state"]) for r in forms(desk.quarantined(FEED))]


def test_rows_are_listed_and_shown(desk: Operations) -> None:
    assert states(desk) == [
        ("1-0", "7", "parked"),
        ("1-1", "8", "parked"),
        ("1-2", "7", "parked"),
    ]
    first = forms(desk.quarantined(FEED))[0]
    assert (first["cause"], first["table"], first["op"]) == ("too long", "shop.orders", "insert")
    values = values_form(desk.quarantined_row(FEED, "1-2"))
    assert values["before"][KEY] == values["after"][KEY] == 7
    assert values_form(desk.quarantined_row(FEED, "1-0"))["before"] is None
    feed = desk.store.feed(FEED)
    assert feed is not None and feed.parked == 3
    answer = execute(desk, "SHOW CHANGEFEED shop QUARANTINE")
    assert [row[0] for row in answer.rows] == ["1-0", "1-1", "1-2"]
    assert answer.message == "3 parked rows"


def test_a_retry_takes_all_of_a_key_and_a_drop_what_was_named(desk: Operations) -> None:
    assert desk.retry_quarantined(FEED, Choice(row="1-2")) == 2
    assert states(desk) == [
        ("1-0", "7", "sending"),
        ("1-1", "8", "parked"),
        ("1-2", "7", "sending"),
    ]
    statement = "ALTER CHANGEFEED shop DROP QUARANTINE TABLE shop.orders KEY '8'"
    assert execute(desk, statement).message == "1 rows were dropped"
    assert desk.drop_quarantined(FEED, Choice(row="1-0")) == 1
    assert states(desk) == [("1-2", "7", "sending")]
    assert execute(desk, "ALTER CHANGEFEED shop RETRY QUARANTINE").message.startswith("1 rows")
    whats = [n.what for n in desk.store.history(FEED)]
    assert whats.count("quarantine dropped") == 2 and "quarantine retry asked" in whats


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice(), "say which rows"),
        (Choice(row="1-0", every=True), "say which rows"),
        (Choice(key="7", every=True), "a key needs its table"),
        (Choice(row="1-9"), "no parked row 1-9; they are listed by"),
        (Choice(row="x"), "no parked row x"),
        (Choice(table="shop.items"), "no parked row of table shop.items"),
        (Choice(table="shop.orders", key="9"), "with the key 9"),
    ],
)
def test_what_is_not_there_is_said(desk: Operations, choice: Choice, words: str) -> None:
    for verb in (desk.retry_quarantined, desk.drop_quarantined):
        with pytest.raises(BadQuarantine, match=words):
            verb(FEED, choice)
    assert len(states(desk)) == 3
    with pytest.raises(NoSuchChangefeed):
        desk.quarantined("nobody")


def test_rows_of_another_shape_are_refused_at_once(desk: Operations) -> None:
    claim = desk.store.claim(FEED, Holder.here(), time.time(), 60)
    wider = replace(
        ORDERS, version=6, columns=(*ORDERS.columns, replace(ORDERS.columns[-1], name="n"))
    )
    plan = Plan(2, 1, 0, Stretch((), (), {}, watermark=9))
    desk.store.record(claim, plan, [wider])
    desk.store.publish(claim, plan)
    with pytest.raises(BadQuarantine, match=r"row 1-0: .*was altered since.*resnapshot"):
        desk.retry_quarantined(FEED, Choice(every=True))


def test_rows_of_a_finished_changefeed_can_be_sent(desk: Operations) -> None:
    """By its next run, which ends at the same place."""
    desk.store.move(FEED, Verb.REACH_TARGET)
    assert desk.retry_quarantined(FEED, Choice(every=True)) == 3
    assert {state for _, _, state in states(desk)} == {"sending"}
    assert desk.resume(FEED).state is FeedState.NORMAL


def test_values_are_for_operators(desk: Operations) -> None:
    kept = current_actor.set(Actor("x", Role.VIEWER, "", "rest"))
    try:
        assert len(desk.quarantined(FEED)) == 3
        with pytest.raises(RoleTooLow):
            desk.quarantined_row(FEED, "1-0")
        with pytest.raises(RoleTooLow):
            desk.drop_quarantined(FEED, Choice(every=True))
    finally:
        current_actor.reset(kept)


def test_values_are_encrypted_where_they_are_stored(desk: Operations, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    place = [row.place for row in desk.quarantined(FEED)][:1]

    def stored() -> list[str]:
        with sqlite3.connect(tmp_path / "meta.db") as database:
            return [row[0] for row in database.execute("SELECT image FROM parked_rows")]

    before = stored()
    assert all(text.startswith("sealed:") for text in before)
    plain = open_store(url)
    with pytest.raises(SecretsLocked, match="parked row 1-0"):
        plain.parked(FEED, place)
    assert len(plain.parked(FEED)) == 3  # who has no key may still list them
    plain.close()
    both = SecretKeys(lambda: [NEW_KEY, OLD_KEY], lambda: None)
    assert rekey(url, both).written >= 3
    assert all(old != new for old, new in zip(before, stored(), strict=True))
    new = open_store(url, keys=SecretKeys.of(NEW_KEY))
    assert new.parked(FEED, place)[0].image
    new.close()


@pytest.mark.parametrize(
    ("sink", "config", "words"),
    [
        ("file:///x?protocol=csv", {}, "refuses no single row"),
        ("http://127.0.0.1:1/x", {}, "answered for a whole batch"),
        ("blackhole://", {}, "takes every row"),
        ("delta+file:///x", {}, "refuses no single row"),
        (
            "mysql://root@127.0.0.1:1/",
            {"sink": {"transaction-atomicity": "table"}},
            "atomicity = table",
        ),
        ("mysql://root@127.0.0.1:1/?exactly-once=true", {}, "exactly-once"),
        ("mysql://root@127.0.0.1:1/?batch-dml-enable=false", {}, "batch-dml-enable"),
    ],
)
def test_where_rows_cannot_be_parked_it_is_refused(
    desk: Operations, sink: str, config: dict[str, object], words: str
) -> None:
    wanted = Wanted("listed://shop", sink, "other", {"on-bad-row": "quarantine", **config})
    with pytest.raises(OptionsConflict, match=words):
        desk.create(wanted)
    assert desk.store.feed("other") is None
