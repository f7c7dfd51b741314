"""The nemesis: runs a whole changefeed, disturbs it in every way, then checks all promises.

All that is chosen comes from one random source, so a run can be repeated with the number that its
report names; what the machine does meanwhile cannot, so a repeat is close, not equal.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rowferry.change.position import Stage
from rowferry.change.table import TableId
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadInput, RowferryError, StoreError, StoreUnavailable
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.refstore.workload import START_BALANCE, Bank, Mixed
from rowferry.spec.build import build_spec
from rowferry.testing.harness import RunProcess
from rowferry.testing.model import History
from rowferry.testing.nemesis_events import (
    EVENTS,
    SCHEMA,
    WRITES,
    Report,
    check_weights,
    draw,
)
from rowferry.testing.nemesis_judge import FACTS, lost_a_snapshot, total_stays, windows_of
from rowferry.testing.nemesis_lake import LakeOutput
from rowferry.testing.nemesis_notes import Notebook, settle
from rowferry.testing.nemesis_output import FileOutput, NemesisOutput, Written
from rowferry.testing.nemesis_source import MADE, MadeTables, SchemaEvents, StoreWriters
from rowferry.testing.nemesis_watch import OutputWatch
from rowferry.testing.validators import SnapshotWindow

CHANGEFEED: Final = "nemesis"
_ACCOUNTS: Final = 4000
_MOST_RANGES: Final = 24
# What may happen, once each, while snapshots are under way: a leader that goes when a part was
# published takes its snapshot with it.
_IN_SNAPSHOT: Final = {
    "none": (),
    "first": ("abandon", "split", "kill-server"),
    "some": ("move-leader", "kill-driver"),
}
_FIRST_S: Final = 400.0
_STOP_S: Final = 90.0
_FINISH_S: Final = 240.0
_OUTPUTS: Final[Mapping[str, Callable[[Path, str], NemesisOutput]]] = {
    **dict.fromkeys(FACTS, FileOutput),
    **dict.fromkeys(("delta", "iceberg"), LakeOutput),
}
_WRITERS_PATIENCE_S: Final = 1.5  # short, so that killed servers leave outcomes in doubt


class Nemesis:
    """One disturbed run of one changefeed from a reference store to any output.

    The number `seed` decides every choice.

    Args:
        cluster: a running store without tables; it stays the caller's to stop.
        folder: an empty folder for everything that the run leaves.
        protocol: "canal-json" or "csv"; "delta" or "iceberg" for tables of a lake.
        events: the weight of each kind of event; kinds without one do not happen.
        seconds: how long the disturbance lasts; up to three times as long where a kind of event
            has not happened by then.
        feed_level: the source's `feed-level`.
        output: makes another output, which `protocol` names then, of the meta database's URL.
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
        output: Callable[[str], NemesisOutput] | None = None,
    ) -> None:
        check_weights(events)
        if output is None and protocol not in _OUTPUTS:
            raise BadInput(f"protocol {protocol!r}: known are {', '.join(_OUTPUTS)}")
        self._cluster, self._folder = cluster, folder
        self._weights = {k: w for k, w in events.items() if k not in WRITES}
        self._write_weights = {k: events.get(k, 0) for k in WRITES}
        self._seconds = seconds
        self._dice = random.Random(seed)
        self._report = Report(seed, protocol)
        self._meta_url = f"sqlite:///{folder / 'meta.db'}"
        self._output = (
            output(self._meta_url) if output else _OUTPUTS[protocol](folder / "out", protocol)
        )
        self._source = f"range://{cluster.master_address}?feed-level={feed_level}"
        self._config = folder / "feed.toml"
        self._bank, self._mixed, self._made = Bank("bank", _ACCOUNTS), Mixed("mixed"), MadeTables()
        self._notes = Notebook()
        self._process: RunProcess | None = None
        self._starts = 0
        self._started_at_ts = 0
        self._windows: list[SnapshotWindow] = []

    def run(self) -> Report:
        """Disturb, finish, check. Returns in bounded time, with every process of ours ended.

        What goes wrong is in the report's failures; nothing of it is raised.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(self._output.config)
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
        watch = self._output.watch()
        stack.callback(watch.stop)
        self._start()
        works: dict[str, Bank | Mixed | MadeTables] = {
            "transfer": self._bank,
            "mixed": self._mixed,
            "made": self._made,
        }
        writers = StoreWriters(hasty, works, self._write_weights, self._notes, self._dice)
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
        self._report.watermarks = watch.watermarks
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
        arguments = ["--source", self._source, "--sink-uri", self._output.sink]
        arguments += ["--config", str(self._config), "--changefeed-id", CHANGEFEED]
        arguments += ["--meta", self._meta_url, "--spark-master", "local[2]", *more]
        self._starts += 1
        if self._starts % 2:  # every other time Spark's tasks do what this process could
            arguments.append("--spark-only")
        self._process = RunProcess(arguments, self._folder / "work")
        return self._process

    def _start_again(self) -> None:
        """Start after the last run ended; its last checkpoint may not have been watched yet."""
        self._started_at_ts = self._output.checkpoint()
        self._start()

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
        self, store: Store, hasty: Store, schema: SchemaEvents, meta: MetaStore, watch: OutputWatch
    ) -> None:
        acts: dict[str, Callable[[], bool]] = {
            **{name: getattr(schema, name.replace("-", "_")) for name in SCHEMA},
            "abandon": lambda: self._abandon(hasty),
            "split": lambda: self._split(store),
            "move-leader": lambda: self._move_leader(store),
            "compact": lambda: self._compact(store, meta),
            "kill-server": self._kill_server,
            "kill-master": self._kill_master,
            "kill-driver": self._kill_driver,
            "pause": self._pause,
        }
        counts, deadline = self._report.counts, time.monotonic() + _FIRST_S
        while self._goes_on(deadline):
            if not self._windows and watch.checkpoint_ts:
                self._learn_windows(meta)
                deadline = time.monotonic() + self._seconds
            kind = draw(self._weights, lambda k: self._is_ready(k, meta, watch), counts, self._dice)
            if kind is not None and acts[kind]():
                counts[kind] += 1
            if self._process is None or not self._process.alive:
                last_words = _last_words(self._process) if self._process else ""
                self._fail(f"the run ended by itself after {kind}: {last_words}")
                return
            time.sleep(self._dice.uniform(0.05, 0.7 if self._windows else 0.1))
        if not self._windows:
            self._fail(f"the snapshots did not end within {_FIRST_S:.0f} s")

    def _goes_on(self, deadline: float) -> bool:
        late = time.monotonic() - deadline
        if late < 0:
            return True
        # A kind that has not happened yet gets more time, once the feed has begun.
        return bool(self._windows and self._report.missing(self._weights)) and (
            late < 2 * self._seconds
        )

    def _is_ready(self, kind: str, meta: MetaStore, watch: OutputWatch) -> bool:
        if not self._windows:  # some trouble for the snapshots, not so much that none ends
            kinds = _IN_SNAPSHOT[_parts_done(meta)]
            return kind in kinds and not self._report.counts[kind]
        if kind in ("kill-driver", "pause", "kill-master"):
            # A run that has not worked yet has nothing to lose, and without a master it rightly
            # refuses to start.
            return watch.checkpoint_ts > self._started_at_ts
        return True

    def _learn_windows(self, meta: MetaStore) -> None:
        state = meta.state(CHANGEFEED)
        if not state.position:
            return  # it never got that far, which is a failure of its own
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
        if not self._windows:
            return store.ranges(self._bank.table)[-1].range_id  # the one whose snapshot ends last
        tables = [self._bank.table, self._mixed.table, *self._made.names()]
        ranges = store.ranges(self._dice.choice(tables))
        return self._dice.choice(ranges).range_id if ranges else None

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

    def _kill_driver(self) -> bool:
        assert self._process is not None
        self._process.kill()
        self._start_again()
        return True

    def _pause(self) -> bool:
        self._stop_gently()
        time.sleep(self._dice.uniform(0, 1))
        self._start_again()
        return True

    # --- after -----------------------------------------------------------------------------------

    def _finish(self, store: Store, watch: OutputWatch) -> None:
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

    def _judge(self, store: Store, watch: OutputWatch) -> None:
        spec, _ = build_spec(
            self._source,
            self._output.sink,
            self._config,
            CHANGEFEED,
            tables=option_tables,
            sinks=sink_traits,
        )
        history = self._history()
        for words in watch.failures:
            self._fail(words)
        if history is not None:
            repeats = self._report.repeats_allowed
            written = Written(history, self._windows, total_stays(self._bank), repeats)
            self._report.failures += self._output.judge(spec, written)
        tables: list[TableId] = [self._bank.table, self._mixed.table, *self._made.names()]
        self._report.failures += self._output.compare(spec, store, tables)
        if self._bank.total(store) != _ACCOUNTS * START_BALANCE:
            self._fail("the store itself lost or made money")

    def _history(self) -> History | None:
        try:
            history = self._notes.history()
        except BadInput as err:
            self._fail(f"the notes do not fit together: {err}")
            return None
        history.save(self._folder / "history.jsonl")
        return history


def _parts_done(meta: MetaStore) -> str:
    """Return how far the snapshots are, in one word."""
    feed = meta.feed(CHANGEFEED)
    if feed is not None and feed.micro_batch:
        return "some"
    return "first" if feed is not None and meta.pending(CHANGEFEED) is not None else "none"


def _tried(act: Callable[[], object]) -> bool:
    """Return whether an administrator's request was carried out; it may be refused at times."""
    try:
        act()
    except (StoreError, StoreUnavailable):
        return False
    return True


def _last_words(process: RunProcess) -> str:
    lines = [line for line in process.printed().splitlines() if line.strip()]
    return " | ".join(lines[-4:])
