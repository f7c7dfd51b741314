"""The operator's verbs: what each stores, refuses, and leaves alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from operations_kit import Clock, ListedSource, listed_source, table

from rowferry.change.plan import Output, Plan, Segment, Stretch, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT, RangeProgress, Stage
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator import observation, owners
from rowferry.control.operator.checks import explain
from rowferry.control.operator.checks.prepare import PreparedFeed
from rowferry.control.operator.operations import ChangedSettings, Operations, Wanted
from rowferry.control.store.contract import MetaStore, Sample
from rowferry.control.store.sql_store import open_store
from rowferry.errors import (
    BadChangefeedId,
    BadFilterRule,
    BadInput,
    BadOption,
    BadUri,
    ChangefeedExists,
    Fenced,
    IllegalMove,
    LeaseHeld,
    LogLost,
    NoSuchChangefeed,
    NoSuchTable,
    OptionsConflict,
    SinkUnavailable,
    SpecChanged,
    TableIneligible,
    TargetTsTooEarly,
)
from rowferry.flow.assemble import assemble, sink_traits
from rowferry.secrets.environment import sources_of_environment
from rowferry.spec.build import build_spec

ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "items")


class Desk:
    """Operations on a meta database of a test's own, with a source of three tables."""

    def __init__(self, folder: Path, tables: list[TableSchema], empty: Path) -> None:
        self.folder, self.tables, self.clock = folder, tables, Clock()
        shutil.copy(empty, folder / "meta.db")  # making one takes longer than most tests here
        self.store: MetaStore = open_store(f"sqlite:///{folder}/meta.db", clock=self.clock)
        self.operations = Operations(self.store, now=self.clock)
        self.sink = f"file://{folder}/out?protocol=csv"

    def wanted(self, **more: Any) -> Wanted:
        given = {"changefeed_id": "feed", "config": {"filter": {"rules": ["shop.*"]}}, **more}
        source, sink = given.pop("source_uri", "listed://shop"), given.pop("sink_uri", self.sink)
        return Wanted(source, sink, **given)

    def create(self, **more: Any) -> None:
        self.operations.create(self.wanted(**more))

    def stop(self) -> None:
        self.operations.pause("feed")

    def claim(self, ttl_s: float = 60.0) -> Claim:
        return self.store.claim("feed", Holder.here(), self.clock(), ttl_s)

    def rules(self) -> list[str]:
        feed = self.store.feed("feed")
        assert feed is not None
        return list(feed.spec.section("filter")["rules"])

    def snapshot(self) -> object:
        """All that can be seen of what is stored."""
        return self.store.feeds(), [self.store.history(f.id) for f in self.store.feeds()]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty meta database."""
    path = tmp_path_factory.mktemp("meta") / "meta.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def desk(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(owners, "PATIENCE_S", 0.0)
    with listed_source(table("shop.orders"), table("shop.items"), table("crm.people")) as tables:
        made = Desk(tmp_path, tables, empty)
        yield made
        made.store.close()


def plan(number: int, desk: Desk, made: bool = True) -> Plan:
    """A plan of one file of `shop.orders`; its task has written it already."""
    one = TableSlice(ORDERS, 1, 5)
    path = "shop/orders/5/CDC00000000000000000001.csv"
    target = {"directory": "shop/orders/5", "number": 1, "path": path, "discards": 0}
    where = desk.folder / "out" / path
    if made:
        where.parent.mkdir(parents=True)
        where.write_text("half a plan")
    progress = RangeProgress("shop", "orders", 1, 1, 1, "", "", Stage.LOG)
    stretch = Stretch(
        (Segment(0, {"kind": "log"}, (one,), 6, 6, 1),),
        (),
        {"log": 6},
        watermark=6 << PHYSICAL_SHIFT,
        ranges=(progress,),
    )
    return Plan(number, 1, 1, stretch, outputs=(Output(0, 0, target),))


# --- create ---------------------------------------------------------------------------------------


def test_create_stores_what_was_asked_for_and_tells_where_rows_go(desk: Desk) -> None:
    made = desk.operations.create(desk.wanted(start_ts=5, target_ts=9 << 40))
    stored = desk.store.feed("feed")
    assert stored == made.feed
    assert stored is not None
    assert (stored.state, stored.spec.start_ts, stored.spec.target_ts) == ("normal", 5, 9 << 40)
    assert made.eligible == (ITEMS, ORDERS)
    assert made.outputs[ORDERS] == f"file://{desk.folder}/out/shop/orders/"
    assert "shop.orders: captured by filter rule 'shop.*'" in made.rules
    assert not made.dry_run


def test_a_dry_run_says_the_same_and_stores_nothing(desk: Desk) -> None:
    before = desk.snapshot()
    foreseen = desk.operations.create(desk.wanted(), dry_run=True)
    assert desk.snapshot() == before
    assert not (desk.folder / "out").exists()
    made = desk.operations.create(desk.wanted())
    assert foreseen.dry_run
    assert foreseen.feed.spec == made.feed.spec
    assert (foreseen.eligible, foreseen.outputs, foreseen.rules) == (
        made.eligible,
        made.outputs,
        made.rules,
    )


def test_tables_without_a_key_are_told(desk: Desk) -> None:
    desk.tables.append(table("shop.log", keyed=False))
    config = {"filter": {"rules": ["shop.*"]}, "ignore-ineligible-table": True}
    made = desk.operations.create(desk.wanted(config=config))
    assert made.ineligible == (TableId("shop", "log"),)
    assert any(r.startswith("shop.log: ") and "no usable key" in r for r in made.rules)
    assert any("shop.log" in notice for notice in made.notices)


def test_rules_of_a_queue_are_told(desk: Desk) -> None:
    dispatch = {"matcher": ["shop.o*"], "topic": "{schema}_{table}", "partition": "ts"}
    config = {"sink": {"dispatchers": [dispatch]}}
    uri = "kafka://localhost:9092/all?protocol=canal-json"
    spec, _ = build_spec("listed://shop", uri, config, "feed", sinks=sink_traits)
    prepared = PreparedFeed(spec, assemble(spec), tuple(desk.tables[:2]), ())
    assert explain.outputs(prepared) == {ORDERS: "shop_orders", ITEMS: "all"}
    assert (
        "shop.orders: dispatched by sink.dispatchers[0] (topic = {schema}_{table}, partition = ts)"
        in explain.rules(prepared)
    )


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({"changefeed_id": "a_b"}, BadChangefeedId, "a_b"),
        ({"sink_uri": "ftp://x/y"}, BadUri, "ftp"),
        ({"start_ts": 9, "target_ts": 9}, TargetTsTooEarly, "target-ts 9"),
        ({"target_ts": -1}, BadOption, "target-ts"),
        ({"source_uri": "listed://shop?start-ts=4", "start_ts": 5}, OptionsConflict, "start-ts"),
        ({"config": {"filter": {"rules": ["shop.none"]}}}, NoSuchTable, "shop.none"),
        ({"config": {"filter": {"rules": ["@/etc/passwd"]}}}, BadFilterRule, "names a file"),
        (
            {"config": {"sink": {"dispatchers": [{"matcher": ["@/etc/passwd"]}]}}},
            BadFilterRule,
            "names a file",
        ),
        ({"config": {"soft-delete-tables": ["@/etc/passwd"]}}, BadFilterRule, "names a file"),
        ({"config": {"active-active-tables": ["a.*", " @x"]}}, BadFilterRule, "names a file"),
    ],
)
def test_what_cannot_be_created_leaves_nothing(
    desk: Desk, wanted: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        desk.operations.create(desk.wanted(**wanted))
    assert desk.store.feeds() == ()


def test_an_id_is_taken_once(desk: Desk) -> None:
    desk.create()
    before = desk.snapshot()
    with pytest.raises(ChangefeedExists, match="feed exists"):
        desk.operations.create(desk.wanted(sink_uri=f"file://{desk.folder}/other?protocol=csv"))
    assert desk.snapshot() == before


# --- pause, resume, remove ------------------------------------------------------------------------


def test_pause_and_resume_can_be_repeated(desk: Desk) -> None:
    desk.create()
    assert desk.operations.pause("feed").state is FeedState.STOPPED
    before = desk.snapshot()
    assert desk.operations.pause("feed").state is FeedState.STOPPED
    assert desk.snapshot() == before
    assert desk.operations.resume("feed").state is FeedState.NORMAL
    before = desk.snapshot()
    assert desk.operations.resume("feed").state is FeedState.NORMAL
    assert desk.snapshot() == before


def test_the_owner_cannot_undo_a_pause(desk: Desk) -> None:
    desk.create()
    claim = desk.claim()
    desk.operations.pause("feed")
    for verb in (Verb.RECOVER, Verb.FAULT, Verb.START, Verb.REACH_TARGET):
        with pytest.raises(IllegalMove):
            desk.store.move(claim, verb)
    feed = desk.store.feed("feed")
    assert feed is not None
    assert feed.state is FeedState.STOPPED


def test_a_failed_one_is_resumed_without_its_error(desk: Desk) -> None:
    desk.create()
    desk.store.move("feed", Verb.GIVE_UP, LogLost("binlog.000001 is gone"))
    seen = desk.operations.see("feed")
    assert seen.cure == LogLost.cure
    with pytest.raises(IllegalMove, match="possible: resume, update, remove"):
        desk.operations.pause("feed")
    found = desk.operations.resume("feed")
    assert (found.state, found.error, found.error_code) == (FeedState.NORMAL, "", "")
    assert desk.operations.see("feed").cure == ""


def test_one_that_waits_after_an_error_is_resumed_without_it(desk: Desk) -> None:
    """Once; who asks again changes nothing, and its owner shows an error that is still there."""
    desk.create()
    claim = desk.claim()
    desk.store.move(claim, Verb.FAULT, SinkUnavailable("nobody listens"))
    with pytest.raises(IllegalMove, match="is warning: pause it before its checkpoint"):
        desk.operations.resume("feed", overwrite_checkpoint_ts=42)
    found = desk.operations.resume("feed")
    assert (found.state, found.error, found.error_code) == (FeedState.NORMAL, "", "")
    assert found.epoch == claim.epoch
    before = desk.snapshot()
    assert desk.operations.resume("feed").state is FeedState.NORMAL
    assert desk.snapshot() == before
    desk.store.move(claim, Verb.FAULT, SinkUnavailable("nobody listens yet"))
    assert desk.operations.see("feed").feed.error == "nobody listens yet"


def test_an_overwrite_needs_a_stopped_one(desk: Desk) -> None:
    desk.create()
    before = desk.snapshot()
    with pytest.raises(IllegalMove, match="pause it"):
        desk.operations.resume("feed", overwrite_checkpoint_ts=77)
    assert desk.snapshot() == before
    desk.stop()
    found = desk.operations.resume("feed", overwrite_checkpoint_ts=77)
    assert (found.state, found.spec.start_ts) == (FeedState.NORMAL, 77)


def test_remove_forgets_at_once_what_nobody_runs(desk: Desk) -> None:
    desk.create()
    removed = desk.operations.remove("feed")
    assert removed is not None
    assert desk.store.feeds() == ()
    assert desk.operations.remove("feed") is None


def test_remove_asks_an_owner_to_come_to_its_end(desk: Desk) -> None:
    desk.create()
    claim = desk.claim()
    assert desk.operations.remove("feed") is not None
    assert desk.store.cancel_requested("feed")
    desk.store.remove(claim)  # what the owner does at its border
    assert desk.operations.remove("feed") is None


def test_remove_does_not_wait_for_an_owner_that_was_told_to_stop(desk: Desk) -> None:
    desk.create()
    desk.claim()
    desk.stop()
    desk.operations.remove("feed")
    assert desk.store.feeds() == ()


@pytest.mark.parametrize("call", ["see", "pause", "resume", "synced"])
def test_an_unknown_id_is_named(desk: Desk, call: str) -> None:
    with pytest.raises(NoSuchChangefeed, match="'nobody'"):
        getattr(desk.operations, call)("nobody")


# --- update ---------------------------------------------------------------------------------------


def test_only_a_stopped_or_failed_one_is_updated(desk: Desk) -> None:
    desk.create()
    before = desk.snapshot()
    with pytest.raises(IllegalMove, match="when it is stopped or failed; feed is normal"):
        desk.operations.update("feed", ChangedSettings(target_ts=5))
    assert desk.snapshot() == before
    desk.stop()
    found = desk.operations.update(
        "feed", ChangedSettings(target_ts=5, config={"case-sensitive": True})
    )
    assert (found.state, found.spec_version) == (FeedState.STOPPED, 2)
    assert (found.spec.target_ts, found.spec.config) == (5, {"case-sensitive": True})
    assert desk.operations.update("feed", ChangedSettings(target_ts=0)).spec.target_ts == 0


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (ChangedSettings(sink_uri="file:///elsewhere?protocol=csv"), SpecChanged),
        (ChangedSettings(source_uri="listed://shop?start-ts=9"), SpecChanged),
        (ChangedSettings(config={"filter": {"rules": ["shop.*", "crm.none"]}}), NoSuchTable),
        (ChangedSettings(config={"filter": {"rulez": []}}), BadInput),
    ],
)
def test_updates_that_cannot_be_are_refused(
    desk: Desk, changed: ChangedSettings, error: type[Exception]
) -> None:
    desk.create()
    desk.stop()
    before = desk.snapshot()
    with pytest.raises(error):
        desk.operations.update("feed", changed)
    assert desk.snapshot() == before


def test_secrets_that_were_hidden_stay_as_they_are(desk: Desk) -> None:
    hidden = "pass" + "word1"
    desk.create(source_uri=f"listed://root:{hidden}@shop?server-id=7&start-ts=5")
    desk.stop()
    shown = "listed://root:***@shop?server-id=8"
    found = desk.operations.update("feed", ChangedSettings(source_uri=shown))
    assert str(found.spec.source) == f"{shown}&start-ts=5"  # where it began stays, too
    assert found.spec.source.password == hidden
    with pytest.raises(BadUri, match="another scheme, address"):
        desk.operations.update("feed", ChangedSettings(source_uri="listed://root:***@elsewhere"))


def test_a_plan_for_another_sink_is_taken_back(desk: Desk) -> None:
    desk.create()
    claim = desk.claim()
    pending = plan(1, desk)
    desk.store.record(claim, pending, [replace(desk.tables[0], table_id=1, version=5)])
    desk.stop()
    written = desk.folder / "out" / pending.outputs[0].target["path"]
    desk.operations.update("feed", ChangedSettings(config={"case-sensitive": True}))
    assert desk.store.pending("feed") is not None  # carried out first, as it was recorded
    with pytest.raises(LeaseHeld):
        desk.operations.update("feed", ChangedSettings(sink_uri=desk.sink + "&flush-interval=9s"))
    desk.store.release(claim)
    desk.operations.update("feed", ChangedSettings(sink_uri=desk.sink + "&flush-interval=9s"))
    assert desk.store.pending("feed") is None
    assert not written.exists()
    assert any("rows may come again" in str(n.details) for n in desk.store.history("feed"))


def test_a_plan_that_has_made_schema_changes_is_left_to_its_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are there, and are not written again; those that it has parked must stay."""
    desk.create()
    claim = desk.claim()
    desk.store.record(claim, plan(1, desk), [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.release(claim)
    desk.stop()
    monkeypatch.setattr(owners, "has_made_changes", lambda *given: True)
    desk.operations.update("feed", ChangedSettings(sink_uri=desk.sink + "&flush-interval=9s"))
    assert desk.store.pending("feed") is not None
    desk.operations.reset("feed", snapshot=True)
    assert desk.store.pending("feed") is None


def test_nobody_goes_on_writing_to_the_sink_of_before(desk: Desk) -> None:
    """An owner that was told to stop, and is between two plans, may still make one."""
    desk.create()
    claim = desk.claim()
    desk.stop()
    with pytest.raises(LeaseHeld):
        desk.operations.update("feed", ChangedSettings(sink_uri=desk.sink + "&flush-interval=9s"))
    desk.store.release(claim)
    desk.operations.update("feed", ChangedSettings(sink_uri=desk.sink + "&flush-interval=9s"))


def test_who_hangs_does_not_go_on_at_the_sink_of_before(desk: Desk) -> None:
    """Its lease has run out, and nobody claims what is stopped: its epoch would stay in force."""
    desk.create()
    claim = desk.claim(ttl_s=6.0)
    desk.stop()
    desk.clock.now += 60.0
    desk.operations.update("feed", ChangedSettings(sink_uri=desk.sink + "&flush-interval=9s"))
    with pytest.raises(Fenced):
        desk.store.record(claim, plan(1, desk, made=False), [])


# --- tables ---------------------------------------------------------------------------------------


def test_tables_come_and_go_while_it_runs(desk: Desk) -> None:
    desk.create()
    found = desk.operations.add_tables("feed", ["crm.people"])
    assert (desk.rules(), found.spec_version) == (["shop.*", "crm.people"], 2)
    assert desk.operations.add_tables("feed", ["crm.people"]).spec_version == 2
    desk.operations.drop_tables("feed", ["shop.items"])
    assert desk.rules() == ["shop.*", "crm.people", "!shop.items"]
    desk.operations.drop_tables("feed", ["crm.people"])
    desk.operations.add_tables("feed", ["shop.items"])
    assert desk.rules() == ["shop.*"]
    notes = [n.what for n in desk.store.history("feed")]
    assert notes.count("tables added") == 2
    assert notes.count("tables dropped") == 2


def test_tables_that_cannot_be_added_change_nothing(desk: Desk) -> None:
    desk.tables.append(table("crm.log", keyed=False))
    desk.create()
    before = desk.snapshot()
    for patterns, error in [
        (["crm.none"], NoSuchTable),
        (["crm.log"], TableIneligible),
        (["!crm.people"], BadFilterRule),
        (["people"], BadFilterRule),
        ([], BadFilterRule),
    ]:
        with pytest.raises(error):
            desk.operations.add_tables("feed", patterns)
    with pytest.raises(OptionsConflict, match="nothing would be captured"):
        desk.operations.drop_tables("feed", ["shop.*"])
    assert desk.snapshot() == before
    desk.store.move("feed", Verb.REACH_TARGET)
    with pytest.raises(IllegalMove):
        desk.operations.add_tables("feed", ["crm.people"])


def test_tables_are_added_beside_masked_ones(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask need not be for what is added, and its salt may be a reference."""
    monkeypatch.setenv("SALT", "sixteen bytes or more")
    mask = {"matcher": ["shop.*"], "columns": ["note"], "action": "hash"}
    transform = {"salt": "env:SALT", "masks": [mask]}
    desk.operations = Operations(desk.store, now=desk.clock, secrets=sources_of_environment())
    desk.create(config={"filter": {"rules": ["shop.*"]}, "transform": transform})
    desk.operations.add_tables("feed", ["crm.people"])
    assert desk.rules() == ["shop.*", "crm.people"]


def test_rules_are_judged_again_where_names_are_compared_in_another_way(desk: Desk) -> None:
    """One that fits no table any more would leave its table out without a word."""
    config: dict[str, Any] = {"filter": {"rules": ["Shop.orders", "shop.items"]}}
    desk.create(config=config)
    desk.stop()
    changed = ChangedSettings(config={**config, "case-sensitive": True})
    with pytest.raises(NoSuchTable, match=r"filter.rules name Shop.orders, which the source"):
        desk.operations.update("feed", changed)
    config["filter"]["rules"][0] = "shop.orders"
    changed = ChangedSettings(config={**config, "case-sensitive": True})
    assert desk.operations.update("feed", changed).spec_version == 2


def test_what_another_server_changed_meanwhile_is_not_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.create()
    first = desk.store.feed("feed")
    assert first is not None
    Operations(desk.store).add_tables("feed", ["crm.people"])
    monkeypatch.setattr(desk.operations, "_feed", lambda changefeed: first)  # as it was before
    with pytest.raises(SpecChanged, match="somebody else"):
        desk.operations.drop_tables("feed", ["shop.items"])
    assert desk.rules() == ["shop.*", "crm.people"]
    desk.stop()
    paused = replace(first, state=FeedState.STOPPED)
    monkeypatch.setattr(desk.operations, "_feed", lambda changefeed: paused)
    with pytest.raises(SpecChanged, match="somebody else"):
        desk.operations.reset("feed", snapshot=True)
    assert desk.rules() == ["shop.*", "crm.people"]


# --- reset ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "parameters"),
    [
        ({"commit_ts": 42}, {"start-ts": "42"}),
        ({"position": "binlog.000007:154"}, {"start-position": "binlog.000007:154"}),
        ({"position": "0-1-100,1-1-7"}, {"start-gtid": "0-1-100,1-1-7"}),
        (
            {"position": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"},
            {"start-gtid": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"},
        ),
        ({"snapshot": True}, {}),
    ],
)
def test_reset_begins_elsewhere(desk: Desk, to: dict[str, Any], parameters: dict[str, str]) -> None:
    config = {"source": {"start-ts": 5, "snapshot": "never", "server-id": 9}}
    desk.create(source_uri="listed://shop", config=config)
    claim = desk.claim()
    first = plan(1, desk)
    desk.store.record(claim, first, [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.publish(claim, first)
    desk.store.release(claim)
    with pytest.raises(IllegalMove, match="pause it first"):
        desk.operations.reset("feed", **to)
    desk.stop()
    found = desk.operations.reset("feed", **to)
    assert (found.state, found.watermark, found.micro_batch) == (FeedState.STOPPED, 0, 1)
    assert dict(found.spec.source.parameters) == parameters
    left = {"server-id": 9} if to.get("snapshot") else {"snapshot": "never", "server-id": 9}
    assert found.spec.section("source") == left
    assert desk.operations.see("feed").ranges == ()
    assert desk.store.state("feed").position == {}


def test_reset_to_the_checkpoint_begins_just_there(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the source says of the stored position; another commit-ts is looked up."""
    begins = {"start-gtid": "0-1-100"}
    monkeypatch.setattr(
        ListedSource,
        "start_at",
        staticmethod(lambda position, commit_ts: begins if commit_ts == 42 else {}),
        raising=False,
    )
    desk.create(source_uri="listed://shop")
    desk.stop()
    for commit_ts, exact in ((42, begins), (41, {})):
        found = desk.operations.reset("feed", commit_ts=commit_ts)
        assert dict(found.spec.source.parameters) == {"start-ts": str(commit_ts), **exact}


def test_a_reset_to_the_checkpoint_that_is_repeated_begins_at_the_same_place(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, or a resume with the same checkpoint follows: no position tells it."""
    begins = {"start-gtid": "0-1-100"}
    monkeypatch.setattr(
        ListedSource,
        "start_at",
        staticmethod(lambda position, commit_ts: begins if position else {}),
        raising=False,
    )
    desk.create(source_uri="listed://shop")
    claim = desk.claim()
    first = plan(1, desk)
    desk.store.record(claim, first, [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.publish(claim, first)
    desk.store.release(claim)
    desk.stop()
    exact = {"start-ts": "42", **begins}
    for _ in range(2):
        found = desk.operations.reset("feed", commit_ts=42)
        assert dict(found.spec.source.parameters) == exact
    found = desk.operations.resume("feed", overwrite_checkpoint_ts=42)
    assert dict(found.spec.source.parameters) == exact
    desk.stop()
    found = desk.operations.reset("feed", commit_ts=41)
    assert dict(found.spec.source.parameters) == {"start-ts": "41"}


def test_reset_takes_an_unfinished_plan_back(desk: Desk) -> None:
    desk.create()
    claim = desk.claim()
    pending = plan(1, desk)
    desk.store.record(claim, pending, [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.release(claim)
    desk.stop()
    desk.operations.reset("feed", snapshot=True)
    assert desk.store.pending("feed") is None
    assert not (desk.folder / "out" / pending.outputs[0].target["path"]).exists()


def test_reset_waits_for_an_owner_that_may_still_make_a_plan(desk: Desk) -> None:
    """It would be carried out at the sink, and the meta database would know nothing of it."""
    desk.create()
    claim = desk.claim()
    desk.stop()
    with pytest.raises(LeaseHeld):
        desk.operations.reset("feed", snapshot=True)
    desk.store.record(claim, plan(1, desk), [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.release(claim)
    desk.operations.reset("feed", snapshot=True)
    assert desk.store.pending("feed") is None


def test_one_place_is_needed_to_begin_anew(desk: Desk) -> None:
    desk.create(target_ts=100)
    desk.stop()
    before = desk.snapshot()
    for to in ({}, {"commit_ts": 1, "snapshot": True}, {"position": " "}, {"commit_ts": 0}):
        with pytest.raises(BadInput):
            desk.operations.reset("feed", **to)
    with pytest.raises(TargetTsTooEarly):
        desk.operations.reset("feed", commit_ts=100)
    assert desk.snapshot() == before


# --- what can be seen -----------------------------------------------------------------------------


def test_finished_ones_are_listed_only_on_request(desk: Desk) -> None:
    for name in ("b", "a", "c"):
        desk.create(changefeed_id=name, sink_uri=f"file://{desk.folder}/{name}?protocol=csv")
    desk.store.move("c", Verb.REACH_TARGET)
    desk.operations.pause("b")
    assert [f.id for f in desk.operations.feeds()] == ["a", "b"]
    assert [f.id for f in desk.operations.feeds([FeedState.FINISHED, FeedState.STOPPED])] == [
        "b",
        "c",
    ]


def test_all_that_is_known_is_seen(desk: Desk) -> None:
    desk.create()
    holder = Holder.here()
    claim = desk.store.claim("feed", holder, desk.clock(), 60)
    first = plan(1, desk)
    desk.store.record(claim, first, [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.publish(claim, first)
    desk.store.announce(holder, "10.0.0.1:8300", desk.clock())
    desk.store.write_samples({"feed": sample(desk, 0)})
    desk.store.move(claim, Verb.FAULT, SinkUnavailable("nobody listens"))
    seen = desk.operations.see("feed")
    assert seen.tables == (ORDERS,)
    assert [r.table for r in seen.ranges] == ["orders"]
    assert seen.server is not None
    assert seen.server.address == "10.0.0.1:8300"
    assert seen.cure == SinkUnavailable.cure
    assert seen.history[0].what == "state"
    desk.clock.now += 60
    assert len(desk.operations.see("feed", samples_s=61).samples) == 1
    assert desk.operations.see("feed", samples_s=59).samples == ()


def sample(desk: Desk, rows: int, ago: float = 0.0) -> Sample:
    at = desk.clock() - ago
    return Sample(at, 5, int(at * 1000) << PHYSICAL_SHIFT, rows, 10 * rows, 1, 0.1)


def test_synced_means_quiet_and_near(desk: Desk) -> None:
    desk.create(config={"synced-status": {"synced-check-interval": 100, "checkpoint-interval": 10}})
    assert not desk.operations.synced("feed").synced
    claim = desk.claim()
    ms = int(desk.clock() * 1000)
    first = plan(1, desk)
    first = first.with_(stretch=replace(first.stretch, watermark=ms << PHYSICAL_SHIFT))
    desk.store.record(claim, first, [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.publish(claim, first)
    desk.store.write_samples({"feed": sample(desk, 7, ago=50)})
    found = desk.operations.synced("feed")
    assert (found.synced, found.words) == (False, observation.NOT_SYNCED)
    assert (found.sink_checkpoint_ts, found.now_ts, found.last_synced_ts) == (ms, ms, ms - 50_000)
    desk.store.write_samples({"feed": sample(desk, 0)})
    desk.clock.now += 51
    assert desk.operations.synced("feed").words == observation.MAYBE_SYNCED  # the checkpoint is old
    desk.store.write_samples({"feed": sample(desk, 0)})
    assert desk.operations.synced("feed").words == observation.NOT_SYNCED  # and more was read
    desk.clock.now -= 45  # the checkpoint is near, the last row long ago
    quiet = {"synced-status": {"synced-check-interval": 50, "checkpoint-interval": 10}}
    desk.stop()
    desk.store.release(claim)
    desk.operations.update("feed", ChangedSettings(config=quiet))
    found = desk.operations.synced("feed")
    assert (found.synced, found.words) == (True, observation.SYNCED)


def test_synced_looks_as_far_back_as_its_interval(desk: Desk) -> None:
    desk.create(config={"synced-status": {"synced-check-interval": 7200}})
    claim, ms = desk.claim(), int(desk.clock() * 1000)
    first = plan(1, desk)
    first = first.with_(stretch=replace(first.stretch, watermark=ms << PHYSICAL_SHIFT))
    desk.store.record(claim, first, [replace(desk.tables[0], table_id=1, version=5)])
    desk.store.publish(claim, first)
    desk.store.write_samples({"feed": sample(desk, 7, ago=5000)})
    found = desk.operations.synced("feed")
    assert (found.synced, found.last_synced_ts) == (False, ms - 5_000_000)


def test_only_live_servers_are_told_by_address(desk: Desk) -> None:
    for address, ago in (("b:8300", 0), ("a:8300", 3), ("c:8300", 3600)):
        desk.store.announce(Holder.here(), address, desk.clock() - ago)
    assert [s.address for s in desk.operations.servers()] == ["a:8300", "b:8300"]
