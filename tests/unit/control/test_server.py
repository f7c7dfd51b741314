"""Members of a fleet: they claim, follow the operator, hand over, drain, and survive the rest."""

from __future__ import annotations

import logging
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loop_kit import SCRIPTS, START, forget_scripted_source, register_scripted_source
from prometheus_client import generate_latest
from server_kit import QUICK, WITHIN_S, Fleet, FragileStore

from rowferry.change.table import TableId
from rowferry.control.feed.feed_news import FeedReporter
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.running import Conditions, Running
from rowferry.control.feed.supervise import Patience
from rowferry.control.feed.table_volumes import TableVolume
from rowferry.control.fleet import measures
from rowferry.control.fleet import server as fleet_server
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.operations import Operations
from rowferry.control.store.contract import FeedNews, MetaStore, TableCount
from rowferry.control.store.sql_store import open_store
from rowferry.errors import MetaUnavailable, RowRejected, SinkUnavailable
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spark import cores
from rowferry.spark.shared import DriverRunner
from rowferry.testing.receiver import HttpReceiver


@pytest.fixture(scope="module")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meta") / "meta.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def fleet(tmp_path: Path, new_database: Path) -> Iterator[Fleet]:
    shutil.copy(new_database, tmp_path / "meta.db")
    register_scripted_source()
    store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    yield Fleet(tmp_path, store)
    measures.look(())  # counts are this process's: those of the next test begin at none
    store.close()
    forget_scripted_source()


def shown() -> str:
    return generate_latest(measures.REGISTRY).decode()


def test_a_look_stores_what_all_changefeeds_tell_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction for each of many changefeeds would take most of a server's time."""
    count = TableCount(TableId("db", "t"), 1, 2, 3)
    writes: list[int] = []
    write = type(fleet.store).write_news

    def write_news(store: MetaStore, news: Mapping[Claim, FeedNews]) -> None:
        writes.append(len(news))
        write(store, news)

    monkeypatch.setattr(type(fleet.store), "write_news", write_news)
    with fleet.member() as member:
        fleet.create("quiet")
        fleet.until(lambda: member.changefeeds == ("quiet",), "the changefeed")
    for name in ("one", "two"):
        fleet.create(name)
        claim = fleet.store.claim(name, member.holder, time.time(), 30.0)
        reporter = FeedReporter(fleet.store, claim)
        reporter.add(StepResult(published=True, tables={count.table: TableVolume(1, 2, 3)}), 0.0)
        one: Any = SimpleNamespace(claim=claim, news=reporter.news, stored=reporter.stored)
        member._running[name] = one
    writes.clear()
    for _ in range(2):
        member._store_news()
    assert writes == [2, 0]
    assert all(fleet.store.table_counts(name) == (count,) for name in ("one", "two"))


def test_the_operators_verbs_are_followed(fleet: Fleet) -> None:
    """Its name is its own: figures of a process outlive the tests that made them."""
    script = fleet.create("followed", 1, 2, 3)
    with fleet.member() as member:
        fleet.until_delivered("followed")
        assert [s.address for s in fleet.store.servers()] == ["here:0"]
        fleet.until(lambda: bool(fleet.store.samples("followed")), "a sample")
        rows = 'rowferry_rows_total{changefeed="followed",stage="sent"} 3.0'
        fleet.until(lambda: rows in shown(), "its figures")
        fleet.store.move("followed", Verb.PAUSE)
        fleet.until_state("followed", FeedState.STOPPED)
        fleet.until(lambda: not member.changefeeds, "an idle member")
        stopped = 'rowferry_changefeed_state{changefeed="followed",state="stopped"} 1.0'
        fleet.until(lambda: stopped in shown(), "its state")
        lag = 'rowferry_checkpoint_lag_seconds{changefeed="followed"}'
        assert lag in shown() and rows in shown()  # nobody runs it, and nothing vanishes
        assert 'rowferry_resolved_ts{changefeed="followed"}' not in shown()
        script.commit(4)
        fleet.store.move("followed", Verb.RESUME)
        fleet.until_delivered("followed")
        fleet.store.request_cancel("followed")
        fleet.until(lambda: fleet.store.feed("followed") is None, "its removal")
        fleet.until(lambda: 'changefeed="followed"' not in shown(), "an end of its figures")
    assert fleet.store.servers() == ()


def test_what_is_told_of_a_changefeed_is_the_same_from_every_server(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script = fleet.create("one", 1, 2, 3)
    with fleet.member():
        fleet.until_delivered("one")
        fleet.until(lambda: bool(fleet.store.table_counts("one")), "counts")
        fleet.until(lambda: bool(fleet.store.log_lines("one")), "log lines")
        lease = fleet.feed("one").lease
        assert lease is not None and lease.owner == "here:0"
    (count,) = fleet.store.table_counts("one")
    assert count.rows == 3 and count.bytes > 0 and count.last_ts == START + 3
    lines = fleet.store.log_lines("one")
    assert {line.server for line in lines} == {"here:0"}
    words = "\n".join(line.words for line in reversed(lines))
    assert "claimed with epoch 1" in words and "was released" in words
    notes = {n.what: n.details for n in fleet.store.history("one")}
    assert notes["claimed"]["by"] == notes["released"]["by"] == "here:0"
    assert notes["released"]["why"] == "the server was told to stop"
    script.commit(4)
    with fleet.member():
        fleet.until_delivered("one")
        fleet.until(lambda: fleet.store.table_counts("one")[0].rows == 4, "a count that goes on")


@pytest.mark.parametrize("laned", [False, True])
def test_what_each_stage_let_through_is_counted(fleet: Fleet, laned: bool) -> None:
    dropped = {"matcher": ["*.*"], "ignore-insert-value-expr": "id = 2 or id = 3"}
    config = {"filter": {"event-filters": [dropped]}}
    with HttpReceiver() as receiver:
        sink = f"{receiver.uri}?protocol=canal-json"
        fleet.create("one", 1, 2, 3, config=config, **({"sink": sink} if laned else {}))

        def counted(what: str, stage: str) -> float:
            labels = {
                "changefeed": "one",
                **({"stage": stage} if stage else {"table": "shop.orders"}),
            }
            return measures.REGISTRY.get_sample_value(f"rowferry_{what}_total", labels) or 0.0

        def done() -> bool:
            rows, size = (
                [counted(what, stage) for stage in ("captured", "decided", "sent")]
                for what in ("rows", "bytes")
            )
            posted = {"changefeed": "one", "call": "post"}
            posts = measures.REGISTRY.get_sample_value("rowferry_sink_calls_total", posted)
            return (
                rows == [3, 1, 1]
                and size[0] > size[1] > 0 < size[2]
                and bool(posts) == laned
                and counted("table_rows", "") == 1
            )

        with fleet.member():
            fleet.until(done, "all counts")


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("answers", [True, False])
def test_a_changefeed_is_removed_and_takes_its_leave_of_the_sink(
    fleet: Fleet, stopped: bool, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[bool] = []

    def leave(sink: StorageSink) -> None:
        left.append(fleet.store.feed("one") is not None)
        if not answers:
            raise SinkUnavailable("nobody is there")

    monkeypatch.setattr(StorageSink, "leave", leave, raising=False)
    fleet.create("one", 1)
    if stopped:
        fleet.store.move("one", Verb.PAUSE)
    with fleet.member():
        if not stopped:
            fleet.until_delivered("one")
        fleet.store.request_cancel("one")
        fleet.until(lambda: fleet.store.feed("one") is None, "its removal")
    assert left == [True]


def test_a_target_ts_finishes(fleet: Fleet) -> None:
    script = fleet.create("one", 1, 2, 3, target_ts=START + 3)
    with fleet.member():
        fleet.until_state("one", FeedState.FINISHED)
        script.commit(4)
        assert fleet.ids("one") == [1, 2, 3]
    assert fleet.feed("one").watermark >= START + 3


def test_changed_settings_take_effect_at_the_next_border(fleet: Fleet) -> None:
    script = fleet.create("one", 1)
    with fleet.member():
        fleet.until_delivered("one")
        feed = fleet.feed("one")
        changed = replace(feed.spec, config={**feed.spec.config, "case-sensitive": True})
        assert fleet.store.update_spec("one", changed).spec_version == 2
        script.commit(2)
        fleet.until_delivered("one")
        script.add_column("more")
        script.commit(3)
        fleet.until_delivered("one")
        assert fleet.feed("one").epoch == feed.epoch  # without a new claim


def test_a_newcomer_gets_its_share_and_a_drain_gives_it_back(fleet: Fleet) -> None:
    names = [f"f{i}" for i in range(4)]
    scripts = [fleet.create(name, 1) for name in names]
    with fleet.member() as first:
        for name in names:
            fleet.until_delivered(name)
        assert first.changefeeds == tuple(names)
        with fleet.member() as second:
            fleet.until(lambda: len(second.changefeeds) == 2 == len(first.changefeeds), "balance")
            for script in scripts:
                script.commit(2)
            for name in names:
                fleet.until_delivered(name)
        assert [s.address for s in fleet.store.servers()] == ["here:0"]
        fleet.until(lambda: first.changefeeds == tuple(names), "all of them again")
        for script in scripts:
            script.commit(3)
        for name in names:
            fleet.until_delivered(name)
    assert all(fleet.feed(name).lease is None for name in names)


def test_a_stolen_lease_ends_the_run_and_the_thief_is_left_alone(fleet: Fleet) -> None:
    script = fleet.create("one", 1)
    thief = Holder("elsewhere", 1, "", 0, "thief")
    with fleet.member() as member:
        fleet.until_delivered("one")
        stolen = fleet.store.claim("one", thief, time.time() + 1e6, 30.0)  # when ours has run out
        fleet.until(lambda: not member.changefeeds, "the end of the run")
        script.commit(2)
        lease = fleet.feed("one").lease
        assert lease is not None
        assert (lease.holder, fleet.feed("one").epoch) == (thief, stolen.epoch)
        assert fleet.feed("one").state is FeedState.NORMAL  # to be taken over is no error
        fleet.store.release(stolen)
        fleet.until_delivered("one")
        assert fleet.feed("one").epoch == stolen.epoch + 1


def test_a_lease_that_nobody_renews_ends_whatever_its_end_is(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose clock was ahead has died; the others need not wait for that long."""
    since = [1000.0]
    clock = SimpleNamespace(time=time.time, monotonic=lambda: since[0])
    monkeypatch.setattr(fleet_server, "time", clock)
    monkeypatch.setattr(Running, "start", lambda running: None)
    ahead = time.time() + 1e6
    dead, alive = (Holder(f"host of {name}", 1, "", 0, name) for name in ("dead", "alive"))
    for name, holder in (("one", dead), ("two", alive)):
        fleet.create(name, 1)
        claim = fleet.store.claim(name, holder, ahead, 6.0)
    member = tick_once(fleet.store)
    for _ in range(2):
        since[0] += fleet_server.STALE_S / 2
        assert member.changefeeds == ()
        fleet.store.renew(claim, ahead + since[0])
        member.tick()
    assert (member.changefeeds, fleet.feed("two").epoch) == (("one",), claim.epoch)
    lease = fleet.feed("one").lease
    assert lease is not None and lease.expires_at < ahead  # by a clock that is right
    why = fleet.store.history("one")[0].details["why"]
    assert why.startswith("host of dead:1 does not renew its lease")


def test_a_lease_that_was_renewed_since_the_look_is_left_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks may have been the one that hung."""
    monkeypatch.setattr(fleet_server, "STALE_S", 0.0)
    ahead = time.time() + 1e6
    fleet.create("one", 1)
    claim = fleet.store.claim("one", Holder("elsewhere", 1, "", 0, "alive"), ahead, 6.0)
    store = LateClaims(fleet.store, lambda: fleet.store.renew(claim, ahead + 1.4))
    assert tick_once(store).changefeeds == ()
    assert fleet.feed("one").epoch == claim.epoch


class SlowClaims:
    """A meta store whose second claim lasts until the first one's lease was renewed."""

    def __init__(self, inner: MetaStore) -> None:
        self._inner = inner
        self._claims = 0
        self._renewed = threading.Event()
        self.announced = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def claim(self, *args: Any) -> Claim:
        self._claims += 1
        if self._claims == 2:
            self.announced = 0
            assert self._renewed.wait(WITHIN_S), "no lease was renewed while another was claimed"
        return self._inner.claim(*args)

    def announce(self, *args: Any) -> None:
        self._inner.announce(*args)
        self.announced += 1

    def renew_all(self, claims: Sequence[Claim], now: float) -> tuple[Claim, ...]:
        lost = self._inner.renew_all(claims, now)
        if claims and self._claims == 2 and self.announced:
            self._renewed.set()
        return lost


def test_leases_are_kept_while_others_are_claimed(fleet: Fleet) -> None:
    """To claim all that a dead server ran may take longer than a lease lasts."""
    names = ["f1", "f2", "f3"]
    for name in names:
        fleet.create(name, 1)
    with fleet.member(store=SlowClaims(fleet.store)):
        for name in names:
            fleet.until_delivered(name)
    assert [fleet.feed(name).epoch for name in names] == [1, 1, 1]
    assert fleet.store.servers() == ()


def test_without_the_meta_database_nothing_is_lost(fleet: Fleet) -> None:
    """Short: the same claim goes on. Long: the lease runs out, and it is claimed again."""
    script = fleet.create("one", 1)
    fragile = FragileStore(fleet.store)
    with fleet.member(replace(QUICK, lease_s=3.0), fragile) as member:
        fleet.until_delivered("one")
        epoch = fleet.feed("one").epoch
        (running,) = member._running.values()
        fragile.down.set()
        script.commit(2)
        fleet.until(lambda: "rowferry_meta_up 0.0" in shown(), "that it is noticed")
        fragile.down.clear()
        fleet.until_delivered("one")
        fragile.down.set()
        script.commit(3)
        fleet.until(lambda: running.lease.is_set() and running.ended, "the end of the lease")
        fragile.down.clear()
        fleet.until_delivered("one")
        assert fleet.feed("one").epoch > epoch
    assert "rowferry_meta_up 1.0" in shown()


def test_an_error_is_shown_until_it_is_over(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.create("one", 1, 2)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise SinkUnavailable("the disk is full")

        patch.setattr(StorageSink, "publish", refuse)
        with fleet.member():
            fleet.until_state("one", FeedState.WARNING)
            counted = 'rowferry_errors_total{changefeed="one",code="RF-4001"}'
            fleet.until(lambda: counted in shown(), "a count")
        assert (fleet.feed("one").state, fleet.feed("one").lease) == (FeedState.WARNING, None)
    with fleet.member():  # another server, which never saw the error
        fleet.until_state("one", FeedState.NORMAL)
        fleet.until_delivered("one")
    assert fleet.feed("one").error == ""


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While set, nothing can be published."""
    full = threading.Event()
    full.set()
    publish = StorageSink.publish

    def refuse(*args: Any) -> Any:
        if full.is_set():
            raise SinkUnavailable("the disk is full")
        return publish(*args)

    monkeypatch.setattr(StorageSink, "publish", refuse)
    return full


SLOW = Patience(WITHIN_S * 10, WITHIN_S * 10, 0.0)  # nobody waits so long


def test_who_pauses_and_resumes_does_not_wait_for_the_next_try(
    fleet: Fleet, full_disk: threading.Event
) -> None:
    """Also where no look of its server falls between the two."""
    fleet.create("one", 1, 2)
    with fleet.member(store=(looked := PausedLooks(fleet.store)), patience=SLOW):
        fleet.until_state("one", FeedState.WARNING)
        with looked.paused():
            full_disk.clear()
            fleet.store.move("one", Verb.PAUSE)
            fleet.store.move("one", Verb.RESUME)
        fleet.until_delivered("one")
        assert fleet.feed("one").epoch == 1


def test_who_resumes_does_not_wait_for_the_next_try(
    fleet: Fleet, full_disk: threading.Event
) -> None:
    """Whoever is asked: only the meta database is between them. An error that lasts shows again."""
    fleet.create("one", 1, 2)
    elsewhere = Operations(fleet.store)
    with fleet.member(patience=SLOW):
        for times in (1, 2):
            fleet.until(lambda n=times: tries(fleet) == n, f"try {times}")  # type: ignore[misc]
            fleet.until_state("one", FeedState.WARNING)
            assert elsewhere.resume("one").state is FeedState.NORMAL
        fleet.until(lambda: tries(fleet) == 3, "the third try")
        fleet.until_state("one", FeedState.WARNING)
        full_disk.clear()
        elsewhere.resume("one")
        fleet.until_delivered("one")
        assert (fleet.feed("one").epoch, fleet.feed("one").error) == (1, "")


def tries(fleet: Fleet) -> int:
    """Return how often a changefeed has come to show an error."""
    notes = [n.details for n in fleet.store.history("one") if n.what == "state"]
    return sum(n["to"] == FeedState.WARNING for n in notes)


def test_a_server_that_found_the_error_does_not_wait_either(
    fleet: Fleet, full_disk: threading.Event
) -> None:
    """An earlier owner had stored it; the answer to the new one, who meets it as well, is lost."""
    fleet.create("one", 1, 2)
    with fleet.member(patience=SLOW):
        fleet.until_state("one", FeedState.WARNING)
    with fleet.member(store=(deaf := LostAnswers(fleet.store)), patience=SLOW):
        fleet.until(deaf.lost.is_set, "the second owner's error")
        fleet.until(lambda: deaf.looks > 2, "a look of the second owner")
        full_disk.clear()
        Operations(fleet.store).resume("one")
        fleet.until_delivered("one")
        assert fleet.feed("one").epoch == 2


class LostAnswers:
    """A meta store that stores faults, and says that it does not answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.lost = threading.Event()
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def feeds(self) -> Any:
        self.looks += self.lost.is_set()
        return self._inner.feeds()

    def move(self, who: Any, verb: Verb, error: Exception | None = None) -> Any:
        moved = self._inner.move(who, verb, error)
        if verb is Verb.FAULT:
            self.lost.set()
            raise MetaUnavailable("the answer was lost")
        return moved


class PausedLooks:
    """A meta store whose list of changefeeds waits while `paused`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def feeds(self) -> Any:
        with self._lock:
            return self._inner.feeds()

    def paused(self) -> threading.Lock:
        return self._lock


def test_a_namesake_of_another_meta_database_does_not_take_a_target_over(
    fleet: Fleet, tmp_path: Path, new_database: Path
) -> None:
    """Both were made before one of them came to the directory: nothing was there to refuse."""
    shutil.copy(new_database, tmp_path / "other.db")
    other = Fleet(tmp_path, open_store(f"sqlite:///{tmp_path / 'other.db'}"))
    fleet.create("one", 1, 2)
    time.sleep(0.01)  # they are told apart by when they were made
    other.create("one")
    with fleet.member():
        fleet.until_delivered("one")
    with other.member():
        other.until_state("one", FeedState.FAILED)
    failed = other.feed("one")
    assert failed.error_code == "RF-4004" and "of another meta database" in failed.error
    with fleet.member():  # what was refused has changed nothing
        SCRIPTS["one"].commit(3)
        fleet.until_delivered("one")
    other.store.close()


def test_an_error_that_cannot_be_repeated_away_fails_it_for_good(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RowRejected("row 7")

    monkeypatch.setattr(StorageSink, "publish", refuse)
    fleet.create("one", 1)
    fleet.create("two")
    with fleet.member() as member:
        fleet.until_state("one", FeedState.FAILED)
        fleet.until(lambda: member.changefeeds == ("two",), "only the other one")
        assert fleet.feed("one").error == "row 7"
        before = fleet.feed("one").epoch
        fleet.store.move("one", Verb.RESUME)
        fleet.until_state("one", FeedState.FAILED)
        assert fleet.feed("one").epoch == before + 1


def test_an_error_that_nobody_foresaw_disturbs_no_one(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.create("one", 1)
    odd = fleet.create("two", 1)
    monkeypatch.setattr(odd, "versions", [])  # its planner will break
    with fleet.member():
        fleet.until_delivered("one")
        fleet.until_state("two", FeedState.WARNING)


class OddStore:
    """A meta store of which the calls named in `breaks` fail once, in a way that nobody foresaw."""

    def __init__(self, inner: MetaStore) -> None:
        self._inner = inner
        self.breaks: set[str] = set()
        self.renewals = 0

    def __getattr__(self, name: str) -> Any:
        if name in self.breaks:
            self.breaks.discard(name)
            raise ZeroDivisionError(name)
        self.renewals += name == "renew_all"
        return getattr(self._inner, name)


def test_an_error_that_nobody_foresaw_ends_no_thread_of_a_server(fleet: Fleet) -> None:
    """Without the one, leases end again and again; without the other, nothing is claimed."""
    fleet.create("one", 1)
    odd = OddStore(fleet.store)
    with fleet.member(store=odd):
        fleet.until_delivered("one")
        odd.breaks |= {"feeds", "renew_all", "announce"}
        fleet.until(lambda: not odd.breaks, "that all of them fail")
        seen = odd.renewals
        fleet.until(lambda: odd.renewals > seen, "a renewal")
        fleet.create("two", 2)
        fleet.until_delivered("two")


def test_a_changefeed_whose_thread_does_not_start_is_claimed_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.create("one", 1)
    start, failed = Running.start, threading.Event()

    def start_later(running: Running) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(running)

    monkeypatch.setattr(Running, "start", start_later)
    with fleet.member():
        fleet.until_delivered("one")
    assert failed.is_set()


def test_what_is_wrong_with_one_changefeed_keeps_nobody_from_the_others(fleet: Fleet) -> None:
    fleet.create("one", 1)
    fleet.create("two", 1)
    with closing(sqlite3.connect(fleet.folder / "meta.db")) as raw, raw:
        raw.execute("DELETE FROM leases WHERE changefeed = 'one'")
    with fleet.member():
        fleet.until_delivered("two")


def test_a_lease_lasts_from_its_claim_on(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many that are claimed after one look, the last would be free again at once."""
    now = [1_700_000_000.0]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr(fleet_server, "time", clock)
    store = fleet.store

    def claim(*args: Any) -> Claim:
        made = store.claim(*args)
        now[0] += 100.0  # the meta database is slow
        return made

    slow: Any = SimpleNamespace(
        feeds=store.feeds,
        feed=store.feed,
        servers=store.servers,
        claim=claim,
        write_samples=store.write_samples,
    )
    fleet.create("one", 1)
    fleet.create("two", 1)
    member = Member(slow, "here:0", Conditions(lambda name: DriverRunner()), FleetPace())
    monkeypatch.setattr(Running, "start", lambda running: None)
    member.tick()
    ends = [fleet.feed(name).lease for name in ("one", "two")]
    assert [end and end.expires_at for end in ends] == [1_700_000_006.0, 1_700_000_106.0]


class LateClaims:
    """A meta store in which something is done between a look at all changefeeds and a claim."""

    def __init__(self, inner: MetaStore, between: Callable[[], object]) -> None:
        self._inner, self._between = inner, between

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def claim(self, *args: Any) -> Claim:
        self._between()
        return self._inner.claim(*args)


def tick_once(store: Any) -> Member:
    """Let a member look, and act on it, once."""
    member = Member(store, "here:0", Conditions(lambda name: DriverRunner()), FleetPace())
    member.tick()
    return member


def test_what_was_paused_since_the_look_is_not_run(fleet: Fleet) -> None:
    """Whoever has paused it may have given it another sink, and these rows would not be there."""
    fleet.create("one", 1)
    member = tick_once(LateClaims(fleet.store, lambda: fleet.store.move("one", Verb.PAUSE)))
    assert member.changefeeds == ()
    assert (fleet.feed("one").state, fleet.feed("one").lease) == (FeedState.STOPPED, None)
    assert fleet.ids("one") == []


def test_what_was_made_since_the_look_is_not_removed_for_one_of_its_name(fleet: Fleet) -> None:
    fleet.create("one", 1)
    fleet.store.request_cancel("one")

    def make_anew() -> None:
        fleet.store.remove("one")
        fleet.create("one")

    member = tick_once(LateClaims(fleet.store, make_anew))
    fleet.until_delivered("one")
    (running,) = member._running.values()
    running.leave()
    fleet.until(lambda: running.ended, "its end")
    assert not fleet.feed("one").cancel


def test_a_sink_that_never_answers_keeps_nobody_waiting(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        sink = f"http://127.0.0.1:{port}/?protocol=canal-json&timeout=200ms&max-retry=0"
        fleet.create("silent", 1, sink=sink)
        others = {name: fleet.create(name, 1) for name in ("a", "b")}
        with fleet.member(patience=Patience(0.2, 1.0, 0.1)) as member:
            fleet.until_state("silent", FeedState.WARNING)
            for turn in range(2, 12):
                for script in others.values():
                    script.commit(turn)
                for name in others:
                    fleet.until_delivered(name)
            assert "silent" in member.changefeeds
    assert fleet.feed("silent").state is FeedState.WARNING
    assert fleet.feed("silent").error_code == "RF-4001"


def test_each_server_of_a_machine_has_a_place_of_its_own(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after one was killed and another one came: no two share a processor while one idles."""
    places: dict[str, int] = {}

    def settled(processors: object, changefeeds: int, place: int) -> None:
        places[threading.current_thread().name] = place

    monkeypatch.setattr(cores, "settle", settled)
    store, now = fleet.store, time.time()
    own = Holder.here("here:first")
    elsewhere = replace(Holder.here("far:1"), host="another machine", instance="0")
    older = replace(own, started=own.started - 1, instance="1")
    for holder in (elsewhere, older):
        store.announce(holder, holder.address, now)
    monkeypatch.setattr(Holder, "is_dead", lambda holder, seen_by: False)
    with fleet.member() as first, fleet.member() as second:
        fleet.until(lambda: sorted(places.values()) == [1, 2], "a place for each")
    assert first.holder.started == second.holder.started  # of one process: their names decide
