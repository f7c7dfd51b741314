"""Asking for a table again: what is refused before anything is stored, and in which words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from operations_kit import ListedSource, listed_source, table

from rowferry.change.plan import Plan, Stretch
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.control.feed.lease import Holder
from rowferry.control.lifecycle import Verb
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.operator.resnapshots import forms
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadResnapshot, IllegalMove, NoSuchChangefeed, NoSuchTable
from rowferry.flow.capture.contract import SourceTraits
from rowferry.flow.decide.decisions import Decisions
from rowferry.mysql.key_values import key_bound

FEED = "shop"
TABLES = (
    table("shop.orders"),
    table("shop.bare", keyed=False),
    TableSchema(
        TableId("shop", "pairs"),
        0,
        0,
        (
            Column(1, "a", SqlType("int"), nullable=False),
            Column(2, "b", SqlType("varchar", length=9), nullable=False),
        ),
        (Index(1, "PRIMARY", ("a", "b"), unique=True, primary=True),),
    ),
)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operations]:
    """A changefeed that has met its tables, and that nobody runs at the moment."""
    can = SourceTraits(True, True, movable=True, rereads=True)
    monkeypatch.setattr(ListedSource, "traits", lambda self: can)
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    found = Operations(store)
    config = {"force-replicate": True, "filter": {"rules": ["shop.*"]}}
    with listed_source(*TABLES):
        found.create(Wanted("listed://shop", f"file://{tmp_path}/out?protocol=csv", FEED, config))
        claim = store.claim(FEED, Holder.here(), time.time(), 60)
        met = [replace(t, table_id=n + 1, version=5) for n, t in enumerate(TABLES)]
        ranges = tuple(
            RangeProgress(*t.id, t.table_id, t.table_id, t.table_id, "", "", Stage.LOG) for t in met
        )
        position = {"rereads": [{"id": "begun", "table_id": 1, "done": 30, "total": 90}]}
        plan = Plan(1, 1, 0, Stretch((), (), position, ranges, watermark=7))
        store.record(claim, plan, met)
        store.publish(claim, plan)
        store.release(claim)
        yield found
    store.close()


def test_what_is_asked_for_is_stored(desk: Operations) -> None:
    whole = desk.resnapshot(FEED, "shop.orders")
    part = desk.resnapshot(FEED, "`shop`.`orders`", "-3..8", "note = 'it''s'")
    lists = desk.resnapshot(FEED, "shop.pairs", '[1, "x,y"]..[2, "a..b"]')
    plain = desk.resnapshot(FEED, "shop.pairs", "..7, z")
    assert (part.first, part.last, part.where) == (("-3",), ("8",), "note = 'it''s'")
    assert (lists.first, lists.last) == (("1", "x,y"), ("2", "a..b"))
    assert (plain.first, plain.last) == ((), ("7", "z"))
    shown = forms(desk.resnapshots(FEED))
    assert [one["id"] for one in shown] == [whole.id, part.id, lists.id, plain.id]
    assert {one["state"] for one in shown} == {"waiting"}
    desk.cancel_resnapshot(FEED, part.id)
    assert [one.state for one in desk.resnapshots(FEED)][:2] == ["waiting", "cancelled"]


def test_how_far_one_is(desk: Operations) -> None:
    desk.store.ask_resnapshot(FEED, Resnapshot("begun", TABLES[0].id))
    (one,) = desk.resnapshots(FEED)
    assert (one.state, one.rows, one.total) == ("running", 30, 90)
    claim = desk.store.claim(FEED, Holder.here(), time.time(), 60)
    desk.store.end_resnapshot(
        claim,
        Resnapshot("begun", TABLES[0].id, outcome=ResnapshotOutcome.FAILED, rows=31, words="why"),
    )
    (one,) = desk.resnapshots(FEED)
    assert (one.state, one.rows, one.asked.words) == ("failed", 31, "why")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("shop.bare",), "shop.bare has no primary or NOT NULL unique key"),
        (("shop.orders", "5"), "--keys 5: write FIRST..LAST"),
        (("shop.orders", ".."), "give at least one end"),
        (("shop.orders", "a..b"), "'a' is no value of shop.orders, column id (bigint)"),
        (("shop.orders", "1 OR 1=1..2"), "'1 OR 1=1' is no value"),
        (("shop.pairs", "1..2"), "the key of shop.pairs is (a, b); a bound needs 2 values"),
        (("shop.pairs", "[1, null]..[2, 3]"), "null is neither a text nor a number"),
        (("shop.pairs", "[1, 2..3]"), "is not a list of values"),
        (("shop.orders", "", "nothing = 1"), "--where"),
        (("shop.orders", "", "1); DROP TABLE orders; --"), "--where"),
        (("shop.orders", "", "id = (SELECT 1)"), "--where"),
        (("shop.orders", "", "x" * 5000), "more than 4096 characters"),
    ],
)
def test_bad_input_is_one_line(desk: Operations, asked: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadResnapshot) as refused:
        desk.resnapshot(FEED, *asked)
    assert words in refused.value.words
    assert "\n" not in refused.value.words
    assert desk.resnapshots(FEED) == ()


def test_unknown_names(desk: Operations) -> None:
    with pytest.raises(NoSuchTable, match=r"did you mean shop\.orders "):
        desk.resnapshot(FEED, "shop.ordres")
    with pytest.raises(NoSuchChangefeed):
        desk.resnapshot("nobody", "shop.orders")
    with pytest.raises(BadResnapshot, match="has no resnapshot 'x'"):
        desk.cancel_resnapshot(FEED, "x")


def test_what_cannot_be_asked(desk: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = desk.store.claim(FEED, Holder.here(), time.time(), 60)
    with pytest.raises(BadResnapshot, match="which is no server"):
        desk.resnapshot(FEED, "shop.orders")
    desk.store.release(claim)
    cannot = SourceTraits(True, True)
    monkeypatch.setattr(ListedSource, "traits", lambda self: cannot)
    with pytest.raises(BadResnapshot, match="reset --snapshot"):
        desk.resnapshot(FEED, "shop.orders")
    desk.store.move(FEED, Verb.REACH_TARGET)
    with pytest.raises(IllegalMove, match="finished"):
        desk.resnapshot(FEED, "shop.orders")


@pytest.mark.parametrize(
    ("kind", "text", "literal"),
    [
        (SqlType("bigint", unsigned=True), "007", "7"),
        (SqlType("varchar", length=9), "a'b\\", "_utf8mb4 x'6127625c'"),
        (SqlType("varbinary", length=9), "0xFF00", "x'FF00'"),
        (SqlType("varbinary", length=9), "0xF", "x'307846'"),
        (SqlType("datetime"), "2024-01-02 03:04:05", "'2024-01-02 03:04:05'"),
        (SqlType("enum", elements=("b", "a")), "a", "2"),
    ],
)
def test_keys_as_literals(kind: SqlType, text: str, literal: str) -> None:
    columns = (Column(1, "k", kind, nullable=False),)
    index = Index(1, "PRIMARY", ("k",), unique=True, primary=True)
    schema = TableSchema(TableId("d", "t"), 0, 0, columns, (index,))
    assert key_bound(schema, (text,)) == (literal,)


def test_a_changefeed_that_masks_columns_reads_nothing_again(
    desk: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clear keys would be compared with masked ones: all rows of the target would seem too many."""
    monkeypatch.setattr(Decisions, "hides_rows", property(lambda self: True))
    with pytest.raises(BadResnapshot, match="masks columns.*reset --snapshot"):
        desk.resnapshot(FEED, "shop.orders")
