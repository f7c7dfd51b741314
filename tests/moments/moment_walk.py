"""The walk over gaps and events: record the gaps of a scene, run a case, judge its end."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from moment_events import EVENTS, Event
from moment_kit import Broken, Gap, Hook, Hung, Pair, Stopped, World, small_snapshots
from moment_scenes import LAST, SCENES, Scene
from moment_targets import Downstream, Files, LakeTables, PostgresqlCopy, Topic
from refusing_target import Refusing
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError
from rowferry.moment import watched
from rowferry.testing.servers import Kafka, MariaDb, MySql, Postgres, Server

SERVERS: dict[str, type[Server]] = {"mysql": MySql, "mariadb": MariaDb}
_CURES = 3
# Inside transactions of the sink that hold its fence: whoever claims it waits for their end.
_FENCED = frozenset(
    {
        "connect to downstream",
        "read note of ddl",
        "note ddl",
        "look at definition downstream",
        "list parts of table downstream",
        "look at digits of seconds downstream",
        "list tables of database downstream",
        "run ddl downstream",
        "ddl done downstream",
        "write held rows",
        "commit held rows",
        "try refused statement",
        "commit delta version",
        "delta version committed",
        "put iceberg metadata",
        "look for iceberg metadata to write",
        "commit iceberg snapshot",
        "iceberg snapshot committed",
        "delete iceberg metadata",
        "drop iceberg table",
        "rename iceberg table",
        "delete files of iceberg table",
        "carry out rows (PostgreSQL)",
        "look for made ddl (PostgreSQL)",
        "read noted definition (PostgreSQL)",
        "list noted definitions (PostgreSQL)",
        "list downstream tables (PostgreSQL)",
        "list downstream names (PostgreSQL)",
        "list downstream indexes (PostgreSQL)",
        "list downstream schemas (PostgreSQL)",
        "look for delivered tables (PostgreSQL)",
        "run ddl downstream (PostgreSQL)",
    }
)
LAKES = ("delta", "iceberg")
REFUSING = "refusing"
POSTGRESQL = "postgresql"
# What a lake table cannot follow: the feed stops and names the choices, which has tests of its own.
_LAKE_REFUSES = frozenset(
    {"modify column", "swap columns", "drop key", "drop and create without key"}
)
# What cannot be translated for PostgreSQL: the feed stops, which has tests of its own, too.
_POSTGRESQL_REFUSES = frozenset({"modify column", "swap columns"})
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Case:
    """An event (or several) in a gap (each in its own) of a scene on a server."""

    server: str
    scene: str
    acts: tuple[tuple[Gap, str], ...]

    def __str__(self) -> str:
        return ":".join([self.server, self.scene, *(f"{gap}:{event}" for gap, event in self.acts)])

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read what `str` wrote."""
        server, scene, *rest = text.split(":")
        pairs = zip(rest[::2], rest[1::2], strict=True)
        return cls(server, scene, tuple((Gap.parse(gap), event) for gap, event in pairs))

    @property
    def repeat(self) -> str:
        """The command that repeats it."""
        return f"pytest tests/moments --moment '{self}'"


@dataclass(frozen=True)
class Outcome:
    """How a case ended; `failure` is empty where that is good."""

    failure: str = ""
    reached: bool = True
    stopped: str = ""


class Walk:
    """Runs scenes on servers, each in a database of its own."""

    def __init__(
        self, servers: dict[str, Server], folder: Path, broker: Kafka, postgres: Postgres
    ) -> None:
        self._servers = servers
        self._broker, self._postgres = broker, postgres
        self._folder = folder
        self._meta = folder / "empty.db"
        self._gaps: dict[tuple[str, str], list[Gap]] = {}
        self._pairs: dict[str, Pair] = {}
        open_store(f"sqlite:///{self._meta}").close()

    def gaps(self, server: str, scene: str) -> list[Gap]:
        """Return the gaps of a scene in the order in which a run comes by them."""
        if (server, scene) not in self._gaps:
            self._gaps[server, scene] = self._record(server, scene)
        return self._gaps[server, scene]

    def _record(self, server: str, scene: str) -> list[Gap]:
        with self._world(server, SCENES[scene], own=False) as world:
            hook = Hook()
            failure = self._run(world, SCENES[scene], hook, [])
            assert not failure, f"{server}:{scene} without any event: {failure}"
            return hook.seen

    def run(self, case: Case) -> Outcome:
        """Run a case and judge its end."""
        events = [EVENTS[name] for _, name in case.acts]
        own = any(event.own for event in events)
        with self._world(case.server, SCENES[case.scene], own) as world:
            acts = [
                (gap, partial(event.act, world, gap))
                for (gap, _), event in zip(case.acts, events, strict=True)
            ]
            hook = Hook(acts)
            failure = self._run(world, SCENES[case.scene], hook, events)
            return Outcome(failure, all(gap in hook.reached for gap, _ in case.acts))

    @contextmanager
    def _world(self, server: str, scene: Scene, own: bool) -> Iterator[World]:
        folder = Path(mkdtemp(prefix="case", dir=self._folder))
        pair = self._pair(server) if own else None
        source = pair.source if pair else self._servers[server]
        world = World(source, folder, next(_numbers), self._meta)
        world.pair = pair
        if scene.sink in ("mysql", REFUSING):
            (other,) = (s for name, s in self._servers.items() if name != server)
            kind = Downstream if scene.sink == "mysql" else Refusing
            world.target = kind(other, world.database)
        elif scene.sink == POSTGRESQL:
            world.target = PostgresqlCopy(self._postgres, world.database)
        elif scene.sink == "kafka":
            world.target = Topic(self._broker, world.database)
        elif scene.sink in LAKES:
            world.target = LakeTables(folder, scene.sink)
        elif scene.sink == "parquet":
            world.target = Files(folder, scene.sink)
        try:
            yield world
        finally:
            world.close()

    def _pair(self, server: str) -> Pair:
        """Return a server that nobody else uses, with its replica."""
        if server not in self._pairs:
            number = 300 + 10 * len(self._pairs)
            self._pairs[server] = Pair(SERVERS[server], self._folder, number)
        self._pairs[server].mend()
        return self._pairs[server]

    def close(self) -> None:
        """Stop the servers that were started here."""
        for pair in self._pairs.values():
            pair.close()

    def _run(self, world: World, scene: Scene, hook: Hook, events: list[Event]) -> str:
        """Return what is wrong with the end; empty: nothing."""
        try:
            with small_snapshots():
                scene.prepare(world)
                with watched(hook):
                    self._until_stopped(world, partial(scene.sail, world), events)
                world.end_scene()
                world.sql(*LAST)
                for _ in range(_CURES):
                    if not self._until_stopped(world, world.ferry.catch_up, events):
                        break
                else:
                    return "it stops again and again after the cure"
            return world.target.judge(world, world.ferry.flow, world.extra)
        except Stopped as err:
            return f"it stopped: {type(err.error).__name__}: {err}"
        except (Hung, Broken) as err:
            return f"{type(err).__name__}: {err}"
        except RowferryError as err:
            return f"{type(err).__name__}: {err}"
        except Exception as err:
            return f"no error of ours: {type(err).__name__}: {err}"

    def _until_stopped(self, world: World, do: Callable[[], None], events: list[Event]) -> bool:
        """Do something; where the feed stops as it may, cure it and let the feed go on.

        Returns whether it stopped.
        """
        try:
            do()
            return False
        except Stopped as err:
            for event in events:
                if isinstance(err.error, event.stops) and world.is_named_in(str(err)):
                    event.cure(world)
                    world.ferry.board()
                    return True
            raise


def fits(scene: Scene, gap: Gap, event: Event) -> bool:
    """Return whether an event makes sense in a gap."""
    lake = "lake" if scene.sink in LAKES else ""
    tables = "mysql" if scene.sink in (REFUSING, POSTGRESQL) else ""
    if event.sink and event.sink not in (scene.sink, lake, tables):
        return False
    if scene.sink == "kafka" and event.shapes:
        return False  # messages are judged by their keys only
    if lake and event.name in _LAKE_REFUSES:
        return False
    if scene.sink == POSTGRESQL and event.name in _POSTGRESQL_REFUSES:
        return False
    # PostgreSQL alters no table that a transaction has touched.
    waits = event.claims or (scene.sink == POSTGRESQL and event.sink)
    if waits and gap.name in _FENCED:
        return False
    return not (event.drives and gap.name == "receive log")


# --- which cases ----------------------------------------------------------------------------------

SNAPSHOTS = ("begin", "restart", "join", "rename")
OCCURRENCES = 3  # of each name in a scene: later ones repeat what the first ones showed


def all_cases(walk: Walk, server: str, scene: str) -> Iterator[Case]:
    """Yield every event in every gap of a scene."""
    for gap in walk.gaps(server, scene):
        if gap.number > OCCURRENCES:
            continue
        for event in EVENTS.values():
            if fits(SCENES[scene], gap, event):
                yield Case(server, scene, ((gap, event.name),))


def pairs(walk: Walk, dice: random.Random, count: int) -> Iterator[Case]:
    """Yield cases of two events, each in a gap of its own, in the scenes with a snapshot."""
    events = [e for e in EVENTS.values() if not e.own and not e.sink]
    for _ in range(count):
        server, scene = dice.choice(list(SERVERS)), dice.choice(SNAPSHOTS)
        gaps = walk.gaps(server, scene)
        first = dice.randrange(len(gaps) // 2)
        places = (gaps[first], gaps[min(first + dice.randint(1, 60), len(gaps) - 1)])
        chosen = [dice.choice([e for e in events if fits(SCENES[scene], g, e)]) for g in places]
        yield Case(server, scene, tuple((g, e.name) for g, e in zip(places, chosen, strict=True)))


# Where a feed learns what there is, and where it says so: in the ordinary suite, events that change
# what there is are tried in each of these.
CRITICAL = (
    Gap("list tables", 2),  # the first one is the check before the feed begins
    Gap("take low position", 1),
    Gap("look at table", 1),
    Gap("cut chunks", 1),
    Gap("read chunk", 2),
    Gap("plan recorded", 1),
    Gap("job done", 2),
    Gap("progress published", 1),
    Gap("take high position", 1),
)
# Where rows become files and files become visible: a feed of parquet is killed in each of these.
STORED = (
    "run job",
    "put data files",
    "name data files",
    "data files put",
    "job done",
    "put schema files",
    "publish index",
    "publish metadata",
)
# What happens to lakes in the ordinary suite, besides kills.
IN_LAKES = ("files merged by others", "second owner", "orphans removed", "lose connection")
# What happens to copies in PostgreSQL in the ordinary suite, besides kills.
IN_COPIES = ("second owner", "table lost downstream", "lose connection", "ledger lost downstream")
# What happens to refused rows in the ordinary suite, besides kills.
TO_REFUSED = ("drop parked", "second owner", "mended downstream", "retry", "lose connection")
# Where what an operator says meets a plan that knows nothing of it.
MEANWHILE = (
    ((Gap("look for refused rows", 1), "mended downstream"),),
    ((Gap("run job", 3), "drop parked"),),
    ((Gap("job done", 3), "retry"),),
    ((Gap("run job", 5), "drop parked"),),
    ((Gap("rows parked", 1), "drop parked"), (Gap("publish progress downstream", 1), "kill")),
    ((Gap("rows parked", 2), "drop parked"), (Gap("publish progress", 3), "kill")),
    ((Gap("plan recorded again", 1), "stop parking"),),
    ((Gap("plan recorded again", 2), "other key"),),
    ((Gap("read parked rows", 3), "reset"),),
)
PAIRS = 24
DANGEROUS = (
    "create",
    "rename into",
    "rename within",
    "ghost swap",
    "drop and create other",
    "drop column",
    "truncate",
    "kill",
)


def chosen_cases(walk: Walk) -> list[Case]:
    """Return the part of the walk that the ordinary suite runs, over both servers together.

    Every name is come by at least once, every event happens at least once, and those that change
    what there is happen in each critical gap of the scenes with a snapshot.
    """
    homes_of: dict[Gap, list[tuple[str, str]]] = defaultdict(list)
    lakes_of: dict[Gap, list[tuple[str, str]]] = defaultdict(list)
    copies_of: dict[Gap, list[tuple[str, str]]] = defaultdict(list)
    refused_of: dict[Gap, list[tuple[str, str]]] = defaultdict(list)
    kinds = dict.fromkeys(LAKES, lakes_of) | {REFUSING: refused_of, POSTGRESQL: copies_of}
    for scene in SCENES:
        found = kinds.get(SCENES[scene].sink, homes_of)
        for server in SERVERS:
            for gap in walk.gaps(server, scene):
                found[gap].append((server, scene))
    events = itertools.cycle(e for e in EVENTS.values() if e.sink != "lake")
    turn = itertools.cycle(SERVERS)
    cases: list[Case] = []
    for gap, places in homes_of.items():
        if gap.number == 1:
            scene = SCENES[places[0][1]]
            event = next(e for e in events if fits(scene, gap, e))
            cases.append(_case(places, next(turn), gap, event.name))
        if gap in CRITICAL:
            for scene in SNAPSHOTS[:3]:
                here = [place for place in places if place[1] == scene]
                cases += [_case(here, next(turn), gap, event) for event in DANGEROUS if here]
    for name in STORED:
        gap, scene = Gap(name, 1), "parquet log"
        places = [(server, scene) for server in SERVERS if gap in walk.gaps(server, scene)]
        cases.append(_case(places, next(turn), gap, "kill"))
    cases += _alone_cases({g: p for g, p in lakes_of.items() if g not in homes_of}, IN_LAKES)
    cases += _alone_cases({g: p for g, p in copies_of.items() if g not in homes_of}, IN_COPIES)
    cases += _refused_cases({g: p for g, p in refused_of.items() if g not in homes_of})
    return [*cases, *pairs(walk, random.Random(1), PAIRS)]


def _alone_cases(
    homes_of: dict[Gap, list[tuple[str, str]]], others: Sequence[str]
) -> Iterator[Case]:
    """Yield a kill in each gap that only these sinks have, and another event in every second."""
    turn, events = itertools.cycle(SERVERS), itertools.cycle(others)
    alone = [(gap, places) for gap, places in homes_of.items() if gap.number == 1]
    for number, (gap, places) in enumerate(alone):
        scene = SCENES[places[0][1]]
        for event in ("kill", *([next(events)] if number % 2 else [])):
            if fits(scene, gap, EVENTS[event]):
                yield _case(places, next(turn), gap, event)


def _refused_cases(homes_of: dict[Gap, list[tuple[str, str]]]) -> Iterator[Case]:
    """Yield a kill and another event in each gap that only refused rows have."""
    turn, events = itertools.cycle(SERVERS), itertools.cycle(TO_REFUSED)
    for gap, places in homes_of.items():
        if gap.number == 1:
            scene = SCENES[places[0][1]]
            other = next(e for e in events if fits(scene, gap, EVENTS[e]))
            for event in ("kill", other):
                yield _case(places, next(turn), gap, event)
    (name,) = (s.name for s in SCENES.values() if s.sink == REFUSING)
    for acts in MEANWHILE:
        yield Case(next(turn), name, acts)


def _case(places: Sequence[tuple[str, str]], server: str, gap: Gap, event: str) -> Case:
    """Return a case at one of these places, on this server if it is among them."""
    at = next((place for place in places if place[0] == server), places[0])
    return Case(*at, ((gap, event),))


def main() -> None:
    """Walk over a part or all of it, with a bar and a table at the end."""
    parser = argparse.ArgumentParser(prog="make moments")
    parser.add_argument("--server", action="append", choices=sorted(SERVERS))
    parser.add_argument("--scene", action="append", choices=sorted(SCENES))
    parser.add_argument("--gap", action="append", help="names of calls")
    parser.add_argument("--event", action="append", choices=sorted(EVENTS))
    parser.add_argument("--dangerous", action="store_true", help="only the events that are so")
    parser.add_argument("--every", type=int, default=1, help="only each n-th case")
    parser.add_argument("--first", type=int, default=OCCURRENCES, help="occurrences of a name")
    parser.add_argument("--pairs", type=int, default=0, help="so many pairs of events instead")
    parser.add_argument("--dice", type=int, default=1, help="which pairs")
    parser.add_argument("--case", action="append", help="only this one, as a failure names it")
    wanted = parser.parse_args()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="moments")))
        names = wanted.server or list(SERVERS)
        servers = {
            name: opened.enter_context(kind.start(folder / name, server_id=40 + number))
            for number, (name, kind) in enumerate(SERVERS.items())
        }
        broker = opened.enter_context(Kafka.start(folder / "kafka"))
        postgres = Postgres.start(folder / "postgres")
        opened.callback(postgres.kill)
        walk = opened.enter_context(closing(Walk(servers, folder, broker, postgres)))
        cases = [Case.parse(text) for text in wanted.case or ()]
        if wanted.pairs:
            cases += pairs(walk, random.Random(wanted.dice), wanted.pairs)
        for name in names if not cases else ():
            for scene in wanted.scene or SCENES:
                cases += all_cases(walk, name, scene)
        if not wanted.case and not wanted.pairs:
            cases = [c for c in cases if _is_wanted(c, wanted)][:: wanted.every]
        failures = _walk(walk, cases)
    sys.exit(1 if failures else 0)


def _is_wanted(case: Case, wanted: argparse.Namespace) -> bool:
    ((gap, event),) = case.acts
    return (
        (not wanted.gap or gap.name in wanted.gap)
        and (not wanted.event or event in wanted.event)
        and (not wanted.dangerous or EVENTS[event].dangerous)
        and gap.number <= wanted.first
    )


def _walk(walk: Walk, cases: Sequence[Case]) -> int:
    """Run cases; returns how many failed."""
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    began = time.monotonic()
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    ) as bar:
        task = bar.add_task("walking", total=len(cases))
        failed = 0
        for case in cases:
            found = walk.run(case)
            end = "failed" if found.failure else "good" if found.reached else "not reached"
            for key in (f"{case.server} {case.scene}", *(event for _, event in case.acts)):
                ends[key][end] += 1
            if found.failure:
                failed += 1
                bar.console.print(
                    f"{case.repeat}\n    {found.failure}",
                    soft_wrap=True,
                    markup=False,
                    highlight=False,
                )
            bar.update(task, advance=1, description=f"{failed} failed")
        table = Table("", "good", "not reached", "failed")
        for key, counts in ends.items():
            table.add_row(key, *(str(counts[end]) for end in ("good", "not reached", "failed")))
        bar.console.print(table)
        each = (time.monotonic() - began) / max(1, len(cases))
        bar.console.print(f"{len(cases)} cases, {failed} failed, {each:.2f} s each")
    return failed


if __name__ == "__main__":
    main()
