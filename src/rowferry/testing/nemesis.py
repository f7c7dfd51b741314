"""The nemesis: runs a whole changefeed, disturbs it in every way, then checks all promises.

All that is chosen comes from one random source, so a run can be repeated with the number that its
report names; what the machine does meanwhile cannot, so a repeat is close, not equal.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rowferry.change.position import Stage
from rowferry.change.table import TableId
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadInput, RowferryError, StoreError, StoreUnavailable
from rowferry.flow.assemble import assemble, option_tables
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.refstore.workload import START_BALANCE, Bank, Mixed
from rowferry.spec.build import build_spec
from rowferry.testing.harness import RunProcess
from rowferry.testing.model import History
from rowferry.testing.nemesis_judge import (
    FACTS,
    compare_with_store,
    judge,
    lost_a_snapshot,
    total_stays,
    windows_of,
)
from rowferry.testing.nemesis_notes import Notebook, settle
from rowferry.testing.nemesis_source import MADE, MadeTables, SchemaEvents, Writers
from rowferry.testing.nemesis_watch import Watch
from rowferry.testing.validators import SnapshotWindow

CHANGEFEED: Final = "nemesis"
WRITES: Final = ("transfer", "mixed", "made")
SCHEMA: Final = (
    "add-column",
    "drop-column",
    "modify-column",
    "create-table",
    "truncate",
    "rename",
    "drop-table",
)
DISTURBANCES: Final = (
    "abandon",
    "split",
    "move-leader",
    "compact",
    "kill-server",
    "kill-master",
    "kill-driver",
    "pause",
)
# How often each is chosen. The last four take seconds, so a few of them fill a run.
EVENTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "transfer": 4,
        "mixed": 2,
        "made": 3,
        "add-column": 5,
        "drop-column": 4,
        "modify-column": 4,
        "create-table": 4,
        "truncate": 3,
        "rename": 3,
        "drop-table": 2,
        "abandon": 8,
        "split": 5,
        "move-leader": 6,
        "compact": 5,
        "kill-server": 3,
        "kill-master": 1,
        "kill-driver": 2,
        "pause": 1,
    }
)
_ACCOUNTS: Final = 2000
_MOST_RANGES: Final = 24
_IN_SNAPSHOT: Final = ("abandon", "split", "move-leader", "kill-server")
_FIRST_S: Final = 240.0
_STOP_S: Final = 90.0
_FINISH_S: Final = 240.0
_WRITERS_PATIENCE_S: Final = 1.5  # short, so that killed servers leave outcomes in doubt


@dataclass
class Report:
    """What a run did and what was wrong with it.

    Attributes:
        counts: how often each event happened; writes count committed transactions.
        watermarks: the checkpoints that were seen, ascending.
        doubts: outcomes that were unknown at first and asked for.
        repeats_allowed: a snapshot was lost, so rows may have come twice.
        failures: broken promises, and whatever else should not have happened.
    """

    seed: int
    protocol: str
    counts: Counter[str] = field(default_factory=Counter)
    watermarks: list[int] = field(default_factory=list)
    doubts: int = 0
    repeats_allowed: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def hint(self) -> str:
        """How to repeat the run, in one line."""
        return f"repeat with --seed {self.seed} (protocol {self.protocol})"

    def missing(self, kinds: Mapping[str, int]) -> list[str]:
        """Return the kinds with a weight that never happened."""
        return [k for k, weight in kinds.items() if weight and not self.counts[k]]

    def __str__(self) -> str:
        counts = ", ".join(f"{k} {self.counts[k]}" for k in EVENTS if self.counts[k])
        lines = [
            f"events: {counts}",
            f"checkpoints seen: {len(self.watermarks)}; doubts resolved: {self.doubts}; "
            f"snapshot lost: {'yes' if self.repeats_allowed else 'no'}",
            f"failures: {len(self.failures)}",
            *_some(self.failures),
            self.hint,
        ]
        return "\n".join(lines)


def _some(failures: list[str], most: int = 6) -> list[str]:
    """Return the first failures of each promise."""
    shown: Counter[str] = Counter()
    found = []
    for words in failures:
        promise = words.partition(":")[0]
        shown[promise] += 1
        if shown[promise] <= most:
            found.append(words)
    return found


def check_weights(events: Mapping[str, int]) -> None:
    """Refuse weights that cannot be used.

    Raises:
        BadInput: an unknown event, a negative weight, or nothing that writes.
    """
    unknown = sorted(events.keys() - EVENTS.keys())
    if unknown:
        raise BadInput(f"unknown event {unknown[0]!r}; known: {', '.join(EVENTS)}")
    negative = sorted(k for k, w in events.items() if w < 0)
    if negative:
        raise BadInput(f"the weight of {negative[0]!r} is negative")
    if not any(events.get(k) for k in WRITES):
        raise BadInput(f"nothing writes: give one of {', '.join(WRITES)} a weight")


def draw(
    weights: Mapping[str, int],
    ready: Callable[[str], bool],
    done: Counter[str],
    dice: random.Random,
) -> str | None:
    """Return the next event: every second time one that has not happened yet, else by weight.

    None: nothing is ready.
    """
    open_now = [k for k, weight in weights.items() if weight and ready(k)]
    if not open_now:
        return None
    fresh = [k for k in open_now if not done[k]]
    if fresh and dice.random() < 0.5:
        return dice.choice(fresh)
    return dice.choices(open_now, [weights[k] for k in open_now])[0]


class Nemesis:
    """One disturbed run of one changefeed from a reference store to files.

    Args:
        cluster: a running store without tables; it stays the caller's to stop.
        folder: an empty folder for everything that the run leaves.
        seed: decides every choice.
        protocol: "canal-json" or "csv".
        events: the weight of each kind of event; kinds without one do not happen.
        seconds: how long the disturbance lasts; up to three times as long where a kind of event
            has not happened by then.
        feed_level: the source's `feed-level`.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        seed: int,
        protocol: str,
        events: Mapping[str, int] = EVENTS,
        seconds: float = 60.0,
        feed_level: str = "transaction",
    ) -> None:
        check_weights(events)
        if protocol not in FACTS:
            raise BadInput(f"protocol {protocol!r}: known are {', '.join(FACTS)}")
        self._cluster, self._folder = cluster, folder
        self._weights = {k: w for k, w in events.items() if k not in WRITES}
        self._write_weights = {k: events.get(k, 0) for k in WRITES}
        self._seconds = seconds
        self._dice = random.Random(seed)
        self._report = Report(seed, protocol)
        self._out = folder / "out"
        self._meta_url = f"sqlite:///{folder / 'meta.db'}"
        self._source = f"range://{cluster.master_address}?feed-level={feed_level}"
        extension = "&enable-tidb-extension=true" if protocol == "canal-json" else ""
        self._sink = (
            f"file://{self._out}?protocol={protocol}{extension}"
            "&file-size=65536&flush-interval=200ms"
        )
        self._config = folder / "feed.toml"
        self._bank, self._mixed, self._made = Bank("bank", _ACCOUNTS), Mixed("mixed"), MadeTables()
        self._notes = Notebook()
        self._process: RunProcess | None = None
        self._started_at_ts = 0
        self._windows: list[SnapshotWindow] = []

    def run(self) -> Report:
        """Disturb, finish, check. Returns in bounded time, with every process of ours ended.

        What goes wrong is in the report's failures; nothing of it is raised.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        csv = "[sink.csv]\ninclude-commit-ts = true\n"
        self._config.write_text(csv if self._report.protocol == "csv" else "")
        try:
            with ExitStack() as stack:
                self._run(stack)
        except (RowferryError, TimeoutError, subprocess.TimeoutExpired) as err:
            self._fail(f"the nemesis itself could not go on: {type(err).__name__}: {err}")
        finally:
            if self._process is not None:
                self._process.kill()
        return self._report

    def _run(self, stack: ExitStack) -> None:
        store = stack.enter_context(self._cluster.store())
        hasty = stack.enter_context(Store(self._cluster.master_address, _WRITERS_PATIENCE_S))
        reader = RangeClient(self._cluster.master_address, "nemesis-reader")
        stack.callback(reader.close)
        self._create(store)
        meta = open_store(self._meta_url)
        stack.callback(meta.close)
        watch = Watch(self._out)
        stack.callback(watch.stop)
        self._start()
        works: dict[str, Bank | Mixed | MadeTables] = {
            "transfer": self._bank,
            "mixed": self._mixed,
            "made": self._made,
        }
        writers = Writers(hasty, works, self._write_weights, self._notes, self._dice)
        stack.callback(writers.stop)
        fixed = [self._bank.table, self._mixed.table]
        schema = SchemaEvents(store, reader, fixed, self._made, self._notes, self._dice)
        try:
            self._disturb(store, hasty, schema, meta, watch)
        finally:
            writers.stop()
            self._report.counts += writers.counts
            self._report.doubts = self._notes.resolved_doubts
            for words in (*writers.failures, *schema.failures):
                self._fail(words)
        self._finish(store, watch)
        watch.stop()
        if not self._windows:
            self._learn_windows(meta)
        self._report.watermarks = [s.checkpoint_ts for s in watch.sights]
        self._judge(store, watch)

    def _fail(self, words: str) -> None:
        self._report.failures.append(words)

    # --- before ----------------------------------------------------------------------------------

    def _create(self, store: Store) -> None:
        self._bank.create(store, ranges=2)
        self._mixed.create(store, ranges=2)
        store.ddl(f"CREATE DATABASE `{MADE}`")
        for table in (self._bank.table, self._mixed.table):
            self._notes.note_table(store.table(table))
        # The accounts were loaded in several transactions; all of them before the feed begins.
        rows = store.scan(self._bank.table).to_pylist()
        if sum(r["balance"] for r in rows) != _ACCOUNTS * START_BALANCE:
            raise StoreError("the store does not hold the accounts that were loaded")
        self._notes.note_commit(store.timestamp(), [(self._bank.table, 1, r) for r in rows])

    # --- the changefeed --------------------------------------------------------------------------

    def _start(self, *more: str) -> RunProcess:
        arguments = ["--source", self._source, "--sink-uri", self._sink]
        arguments += ["--config", str(self._config), "--changefeed-id", CHANGEFEED]
        arguments += ["--meta", self._meta_url, "--spark-master", "local[2]", *more]
        self._process = RunProcess(arguments, self._folder / "work")
        return self._process

    def _stop_gently(self) -> None:
        """End the run as Ctrl-C does; it must end well."""
        process = self._process
        if process is None:
            return
        if process.alive:
            process.interrupt()
        code = process.wait(_STOP_S)
        if code:
            self._fail(f"the run ended with {code}: {_last_words(process)}")

    # --- meanwhile -------------------------------------------------------------------------------

    def _disturb(
        self, store: Store, hasty: Store, schema: SchemaEvents, meta: MetaStore, watch: Watch
    ) -> None:
        acts: dict[str, Callable[[], bool]] = {
            **{name: getattr(schema, name.replace("-", "_")) for name in SCHEMA},
            "abandon": lambda: self._abandon(hasty),
            "split": lambda: self._split(store),
            "move-leader": lambda: self._move_leader(store),
            "compact": lambda: self._compact(store, meta),
            "kill-server": self._kill_server,
            "kill-master": self._kill_master,
            "kill-driver": lambda: self._kill_driver(watch),
            "pause": lambda: self._pause(watch),
        }
        counts, deadline = self._report.counts, time.monotonic() + _FIRST_S
        while self._goes_on(deadline):
            if not self._windows and watch.checkpoint_ts:
                self._learn_windows(meta)
                deadline = time.monotonic() + self._seconds
            kind = draw(self._weights, lambda k: self._is_ready(k, watch), counts, self._dice)
            if kind is not None and acts[kind]():
                counts[kind] += 1
            if self._process is None or not self._process.alive:
                said = _last_words(self._process) if self._process else ""
                self._fail(f"the run ended by itself after {kind}: {said}")
                return
            time.sleep(self._dice.uniform(0.05, 0.7))

    def _goes_on(self, deadline: float) -> bool:
        late = time.monotonic() - deadline
        if late < 0:
            return True
        # A kind that has not happened yet gets more time, once the feed has begun.
        return bool(self._windows and self._report.missing(self._weights)) and (
            late < 2 * self._seconds
        )

    def _is_ready(self, kind: str, watch: Watch) -> bool:
        if not self._windows:  # snapshots are under way: some trouble, not so much that none ends
            return kind in _IN_SNAPSHOT and not self._report.counts[kind]
        if kind in ("kill-driver", "pause"):  # a run that has not worked yet has nothing to lose
            return watch.checkpoint_ts > self._started_at_ts
        return True

    def _learn_windows(self, meta: MetaStore) -> None:
        state = meta.state(CHANGEFEED)
        self._windows = windows_of(state)
        self._report.repeats_allowed = lost_a_snapshot(state)

    def _abandon(self, store: Store) -> bool:
        """Leave a prepared transfer behind, decided or not."""
        hand = self._bank.hand(store, 0, 1, self._dice)
        decided = self._dice.random() < 0.5
        try:
            work = store.begin()
            hand.step(work)
        except RowferryError:
            return False
        commit_ts = settle(work, self._notes, lambda work: work.abandon(after_primary=decided))
        return bool(commit_ts) or not decided

    def _any_range(self, store: Store) -> int | None:
        tables = [self._bank.table, self._mixed.table, *self._made.names()]
        found = store.ranges(self._dice.choice(tables))
        return self._dice.choice(found).range_id if found else None

    def _split(self, store: Store) -> bool:
        range_id = self._any_range(store)
        if range_id is None or len(store.ranges()) >= _MOST_RANGES:
            return False
        return _tried(lambda: store.split(range_id))

    def _move_leader(self, store: Store) -> bool:
        range_id = self._any_range(store)
        return range_id is not None and _tried(lambda: store.move_leader(range_id))

    def _compact(self, store: Store, meta: MetaStore) -> bool:
        """Drop a log up to what was delivered, never more: that would rightly stop the feed."""
        if not self._windows:
            return False
        delivered = [
            r
            for r in meta.state(CHANGEFEED).ranges
            if r.stage is Stage.LOG and r.last_log_index > r.init_snapshot_version
        ]
        if not delivered:
            return False
        one = self._dice.choice(delivered)
        return _tried(lambda: store.compact(one.range_id, one.last_log_index))

    def _kill_server(self) -> bool:
        number = self._dice.randrange(len(self._cluster.addresses))
        self._cluster.kill(number)
        time.sleep(self._dice.uniform(0, 3.5))  # long enough, at times, for others to take over
        self._cluster.restart(number)
        return True

    def _kill_master(self) -> bool:
        self._cluster.kill_master()
        time.sleep(self._dice.uniform(0, 1))
        self._cluster.restart_master()
        return True

    def _kill_driver(self, watch: Watch) -> bool:
        assert self._process is not None
        self._process.kill()
        self._started_at_ts = watch.checkpoint_ts
        self._start()
        return True

    def _pause(self, watch: Watch) -> bool:
        self._stop_gently()
        time.sleep(self._dice.uniform(0, 1))
        self._started_at_ts = watch.checkpoint_ts
        self._start()
        return True

    # --- after -----------------------------------------------------------------------------------

    def _finish(self, store: Store, watch: Watch) -> None:
        """Let the feed deliver everything that was written."""
        self._cluster.wait_ready()
        if self._process is not None and watch.checkpoint_ts > self._started_at_ts:
            self._stop_gently()
        elif self._process is not None:  # it is still starting and does not know Ctrl-C yet
            self._process.kill()
        process = self._start("--until-ts", str(store.timestamp()))
        code = process.wait(_FINISH_S)
        if code:
            self._fail(f"the last run ended with {code}: {_last_words(process)}")

    def _judge(self, store: Store, watch: Watch) -> None:
        spec, _ = build_spec(
            self._source, self._sink, self._config, CHANGEFEED, tables=option_tables
        )
        codec = assemble(spec).encode
        history = self._history()
        for words in (*watch.failures, *watch.layout.failures):
            self._fail(words)
        if history is not None:
            self._report.failures += judge(
                self._out,
                codec,
                FACTS[self._report.protocol],
                history,
                self._windows,
                watch.sights,
                total_stays(self._bank),
                self._report.repeats_allowed,
            )
        tables: list[TableId] = [self._bank.table, self._mixed.table, *self._made.names()]
        self._report.failures += compare_with_store(self._out, codec, store, tables)
        if self._bank.total(store) != _ACCOUNTS * START_BALANCE:
            self._fail("the store itself lost or made money")

    def _history(self) -> History | None:
        try:
            found = self._notes.history()
        except BadInput as err:
            self._fail(f"the notes do not fit together: {err}")
            return None
        found.save(self._folder / "history.jsonl")
        return found


def _tried(act: Callable[[], object]) -> bool:
    """Return whether an administrator's request was carried out; it may be refused at times."""
    try:
        act()
    except (StoreError, StoreUnavailable):
        return False
    return True


def _last_words(process: RunProcess) -> str:
    lines = [line for line in process.said().splitlines() if line.strip()]
    return " | ".join(lines[-4:])
