"""A feed in this process to which anything may happen between two of its calls to the outside.

A `World` is a database of a case's own with a feed of it. The feed is driven as a supervisor would
drive it, and a process that is killed, or whose place another one takes, is followed by the next.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from moment_targets import Files, PostgresqlCopy, Target

from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.operator.operations import Operations
from rowferry.control.operator.resnapshots import captured_schema
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import Fenced, NoSuchTable, RowferryError, Verdict
from rowferry.flow.assemble import Flow
from rowferry.flow.capture.binlog.snapshot import rereads
from rowferry.flow.capture.binlog.snapshot import snapshots as snapshot
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import Server, promote, replicate, wait_for

NAME = "feed"
PATIENCE_S = 120.0  # for a machine under load; a working feed needs less than one
_CHUNK_ROWS = 2  # so that a table of ten rows is read in several stretches
_SEGMENTS = 2
_ZOMBIE_STEPS = 4
_LOCK_WAIT_S = 2.0
_LONGEST_WAIT_S = 60.0
# What a statement may meet because something else happened to its table just before.
_IN_VAIN = frozenset({1007, 1008, 1049, 1050, 1051, 1054, 1060, 1061, 1062, 1091, 1136, 1146, 1364})


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, and nothing was said to anybody."""


class Hung(Exception):
    """The feed does not come to its end."""


class Broken(Exception):
    """A promise does not hold."""


class Stopped(Exception):
    """The feed stopped by name, as an operator would see it."""

    def __init__(self, error: RowferryError) -> None:
        super().__init__(str(error))
        self.error = error


class Runner(InProcessRunner):
    """Runs plans here; a fault that is set is raised once, when a job is done."""

    def __init__(self) -> None:
        self.fault: RowferryError | None = None

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run a plan."""
        receipts = super().run(spec, plan, tables)
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        return receipts


class Ferry:
    """One changefeed and the processes that run it, one after the other."""

    def __init__(self, world: World, rules: Sequence[str], source: str = "") -> None:
        self._world = world
        self.rules = list(rules)
        self.source = source
        self.store: MetaStore = open_store(f"sqlite:///{world.meta}")
        self._loop: Loop | None = None
        self._claim: Claim | None = None
        self._flow: Flow | None = None
        self._left: list[Loop] = []  # of processes that were killed or replaced
        self.runner = Runner()
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self._clock_s = 0.0  # how far leases are aged
        self._at_border: list[Callable[[], None]] = []
        self._reads_again = False

    @property
    def flow(self) -> Flow:
        assert self._flow is not None
        return self._flow

    # --- processes --------------------------------------------------------------------------------

    def board(self) -> None:
        """Begin as a new process does; whatever held the feed before is dead or will be fenced."""
        before = self._loop
        for _ in range(20):
            try:
                self._board()
                return
            except Killed:
                self.faults.append("killed")
            except RowferryError as err:
                self.faults.append(str(err))
                if err.verdict is Verdict.STOP:
                    if self._loop is not before:  # refused: another process was faster
                        return
                    raise Stopped(err) from err
        raise Hung(f"no process can begin: {self.faults[-1:]}")

    def _board(self) -> None:
        world = self._world
        feed = self.store.feed(NAME)
        prepared = service.prepare(
            world.source_uri(self.source),
            world.target.uri,
            world.config(self.rules),
            NAME,
            stored=lambda name: feed.spec if feed else None,
        )
        if feed is None:
            self.store.create_changefeed(prepared.spec, 0)
        else:
            self.store.update_spec(NAME, prepared.spec)
        self._clock_s += 7200  # the lease of whoever was there has ended
        now = time.time() + self._clock_s
        holder = Holder("elsewhere", 1, "", 0, f"{now}")
        claim = self.store.claim(NAME, holder, now, 3600)
        if self._loop is not None:
            self._left.append(self._loop)
        self._flow, self._claim = prepared.flow, claim
        self._loop = Loop(
            *(NAME, prepared.flow, self.store, claim, self.runner, _now_ms),
            resnapshots=self._rereads,
        )

    def leave(self) -> None:
        """End the process in good order."""
        if self._loop is not None and self._claim is not None:
            loop, self._loop = self._loop, None
            try:
                loop.close()
                self.store.release(self._claim)
            except (Killed, RowferryError) as err:  # it ends all the same
                self.faults.append(str(err) or "killed")

    def close(self) -> None:
        """Let all connections go."""
        for loop in [*self._left, *filter(None, [self._loop])]:
            with suppress(Exception):
                loop.close()
        self.store.close()

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> StepResult | None:
        """Do one step as a supervisor would; None: it came to nothing.

        Raises:
            Stopped: the feed stops by name.
            Broken: a process that was replaced did what only the owner may do.
        """
        if self._at_border:
            try:
                self._obey()
            except Killed:
                self.faults.append("killed")
        if self._loop is None:
            self.board()
        loop = self._loop
        assert loop is not None
        try:
            step = loop.step()
        except Killed:
            self.faults.append("killed")
            self._world.target.look()  # a reader sees what lies there
            self.board()
            return None
        except RowferryError as err:
            self.faults.append(str(err))
            if self._loop is not loop:
                if not isinstance(err, Fenced):
                    self._shut_out(loop)
                return None
            if err.verdict is Verdict.STOP:
                raise Stopped(err) from err
            if err.verdict is Verdict.REPLAN:
                self._replan(loop, str(err))
            return None
        self._world.target.look()
        if self._loop is not loop:
            self._shut_out(loop)
            return None
        self.warnings += step.warnings
        return step

    def _replan(self, loop: Loop, why: str) -> None:
        try:
            loop.replan(why)
        except Killed:
            self.faults.append("killed")
            self.board()
        except RowferryError as err:
            self.faults.append(str(err))
            if self._loop is loop and err.verdict is Verdict.STOP:
                raise Stopped(err) from err

    def _shut_out(self, zombie: Loop) -> None:
        """Make sure that a process that was replaced hears of it before it publishes anything."""
        for _ in range(_ZOMBIE_STEPS):
            try:
                step = zombie.step()
            except Fenced:
                return
            except RowferryError as err:
                self.faults.append(str(err))
                if err.verdict is Verdict.REPLAN:
                    with suppress(Fenced):
                        zombie.replan(str(err))
            else:
                if step.published:
                    raise Broken("a process that was replaced has published")

    def at_border(self, do: Callable[[], None]) -> None:
        """Pause the feed now, as an operator does; at its next border do this and let it go on."""
        if self.store.feed(NAME) is not None:  # else there is nothing to pause yet
            Operations(self.store).pause(NAME)
            self._at_border.append(do)

    def _obey(self) -> None:
        """Come to a border: the process ends, something is changed, another process goes on."""
        todo, self._at_border = self._at_border, []
        self.leave()
        for do in todo:
            do()
        Operations(self.store).resume(NAME)
        self.board()

    def asks(self, do: Callable[[Operations], object]) -> None:
        """Do what an operator asks for; whoever dies or gets no answer meanwhile asks once more."""
        for _ in range(3):
            try:
                do(Operations(self.store))
                return
            except Killed:
                self.faults.append("killed")
            except RowferryError as err:
                self.faults.append(str(err))
                if err.verdict is Verdict.STOP:  # there is nothing to do it with
                    return

    def read_again(self, table: str) -> None:
        """Have a table's rows read once more, beside the stream; one that is gone is not."""
        self._reads_again = True
        feed = self.store.feed(NAME)
        assert feed is not None
        with suppress(NoSuchTable):
            name = captured_schema(self.store, feed, table).id
            self.store.ask_resnapshot(NAME, Resnapshot(uuid.uuid4().hex[:12], name))

    def _rereads(self) -> tuple[Resnapshot, ...]:
        """What is to be read again; a feed of which nobody wanted that does not ask."""
        feed = self.store.feed(NAME) if self._reads_again else None
        return feed.resnapshots if feed is not None else ()

    def reset(self) -> None:
        """Begin with a new snapshot, at a border."""
        operations = Operations(self.store, lambda: time.time() + self._clock_s + 7200)
        operations.reset(NAME, snapshot=True)

    def begin_anew(self) -> None:
        """Remove the changefeed and make it again, to an empty target."""
        self.leave()
        self.store.remove(NAME)
        self._world.target.clear()
        self.board()

    def steps(self, count: int) -> None:
        """Do some steps."""
        for _ in range(count):
            self.step()

    def catch_up(self) -> None:
        """Step until everything that is in the source now is delivered."""
        clock = self._world.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT
        end = time.monotonic() + PATIENCE_S
        while True:
            step = self.step()
            if step is not None and step.caught_up and step.watermark >= wanted:
                if not any(one.is_open for one in self._rereads()):
                    return
            if step is None:
                time.sleep(0.01)
            if time.monotonic() > end:
                raise Hung(f"it never caught up: {self.faults[-3:]}")


class World:
    """A database of a case's own, and the feed of it."""

    def __init__(self, server: Server, folder: Path, number: int, meta: Path) -> None:
        self.server = server
        self.folder = folder
        self.database = f"m{number}"
        self.meta = folder / "meta.db"
        shutil.copy(meta, self.meta)
        self.target: Target = Files(folder)
        self.pair: Pair | None = None  # where the servers are the case's own
        self.extra = False  # whether the target may hold rows that the source lacks
        self._open: list[Any] = []
        self._later: list[Callable[[], None]] = []
        server.script(
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}"
        )
        self.ferry = Ferry(self, self.rules())

    def rules(self, *less: str) -> list[str]:
        """Return filter rules: the whole database but what is hidden by its name."""
        return [
            f"{self.database}.*",
            f"!{self.database}.x_*",
            *(f"!{self.database}.{n}" for n in less),
        ]

    def source_uri(self, more: str) -> str:
        """Return the feed's source."""
        return f"{self.server.uri}?{more}" if more else self.server.uri

    def config(self, rules: Sequence[str]) -> Path:
        """Write the feed's settings."""
        found = self.folder / "feed.toml"
        lines = ", ".join(f"'{rule}'" for rule in rules)
        own = self.target.config
        found.write_text(f"force-replicate = true\n{own}[filter]\nrules = [{lines}]\n")
        return found

    # --- others that write ------------------------------------------------------------------------

    def sql(self, *statements: str) -> None:
        """Run statements from another session; those go in vain whose table is not as it was.

        One that waits for a lock of the feed's own, as a DDL does behind a view of its table, is
        left waiting: the feed goes on, and the statement with it.
        """
        failures: list[Exception] = []

        def run() -> None:
            try:
                self._run(statements)
            except Exception as err:
                failures.append(err)

        def ended() -> None:
            thread.join(_LONGEST_WAIT_S)
            assert not thread.is_alive(), f"still waiting: {statements}"
            if failures:
                raise failures[0]

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_LOCK_WAIT_S)
        if thread.is_alive():
            self.later(ended)
        else:
            ended()

    def _run(self, statements: Sequence[str]) -> None:
        with closing(self.server.connect(self.database)) as connection:
            for one in statements:
                with connection.cursor() as cursor:
                    try:
                        cursor.execute(one)
                    except pymysql.err.MySQLError as err:
                        if err.args[0] not in _IN_VAIN:
                            raise

    def session(self) -> Any:
        """Open a session that stays open until the case ends."""
        found = self.server.connect(self.database)
        self._open.append(found)
        return found

    def later(self, do: Callable[[], None]) -> None:
        """Have something done when the scene is over, e.g. the end of a prepared transaction."""
        self._later.append(do)

    def end_scene(self) -> None:
        """Do what waits for the scene's end."""
        todo, self._later = self._later, []
        for do in todo:
            do()

    def is_named_in(self, words: str) -> bool:
        """Return whether an error says where it is: a server, or something in this database."""
        return self.database in words or f":{self.server.port}" in words

    def close(self) -> None:
        """Let everything go; the database too."""
        self.ferry.close()
        for one in self._open:
            with suppress(Exception):
                one.close()
        with suppress(Exception):
            self.server.execute(f"DROP DATABASE IF EXISTS {self.database}")
            if isinstance(self.target, PostgresqlCopy):
                self.target.remove()
            elif not isinstance(self.target, Files):
                self.target.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class Pair:
    """A server and its replica, which take turns; for cases that need servers of their own."""

    def __init__(self, kind: type[Server], folder: Path, first_id: int) -> None:
        self.source = kind.start(folder / f"own{first_id}", server_id=first_id)
        self._replica = kind.start(folder / f"own{first_id + 1}", server_id=first_id + 1)
        replicate(self.source, self._replica)

    def fail_over(self) -> Server:
        """Let the replica take the source's place, which follows it from now on."""
        wait_for(self._replica, self.source)
        promote(self._replica)
        self.source, self._replica = self._replica, self.source
        return self.source

    def mend(self) -> None:
        """Let the other one follow again, if it does not."""
        if not self._replica.execute("SHOW REPLICA STATUS"):
            replicate(self.source, self._replica)

    def close(self) -> None:
        """Stop both."""
        self.source.stop()
        self._replica.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- moments -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """The code before the n-th call of a name."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"

    @classmethod
    def parse(cls, text: str) -> Gap:
        """Read what `str` wrote."""
        name, _, number = text.rpartition("#")
        return cls(name, int(number))


class Hook:
    """Counts the names that a feed comes by, and acts in the gaps that were chosen, once each."""

    def __init__(self, acts: Sequence[tuple[Gap, Callable[[], None]]] = ()) -> None:
        self.seen: list[Gap] = []  # in order
        self.reached: set[Gap] = set()
        self._counts: Counter[str] = Counter()
        self._acts = list(acts)
        self._acting = False
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        """Come by a name."""
        with self._lock:
            if self._acting:
                return  # what an act does is no part of the walk
            self._counts[name] += 1
            gap = Gap(name, self._counts[name])
            self.seen.append(gap)
            todo = [do for at, do in self._acts if at == gap and gap not in self.reached]
            if not todo:
                return
            self.reached.add(gap)
            self._acting = True
        try:
            for do in todo:
                do()
        finally:
            self._acting = False


@contextmanager
def small_snapshots() -> Iterator[None]:
    """Let snapshots of a few rows have several stretches."""
    kept = snapshot._LEAST_ROWS, snapshot._MOST_ROWS, snapshot.MOST_SEGMENTS
    beside = rereads._LEAST_ROWS, rereads._MOST_ROWS
    snapshot._LEAST_ROWS = snapshot._MOST_ROWS = _CHUNK_ROWS  # type: ignore[misc]
    rereads._LEAST_ROWS = rereads._MOST_ROWS = _CHUNK_ROWS  # type: ignore[misc]
    snapshot.MOST_SEGMENTS = _SEGMENTS  # type: ignore[misc]
    try:
        yield
    finally:
        snapshot._LEAST_ROWS, snapshot._MOST_ROWS, snapshot.MOST_SEGMENTS = kept  # type: ignore[misc]
        rereads._LEAST_ROWS, rereads._MOST_ROWS = beside  # type: ignore[misc]
