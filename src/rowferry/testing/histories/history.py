"""One history: a writer, some feeds that begin at different times, faults, and the comparison."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rowferry.errors import EncodeError, RowferryError, SchemaChangeRefused
from rowferry.testing.histories.facts import Named
from rowferry.testing.histories.feeds import (
    KEYED,
    LAKES,
    NARROW,
    HistoryFeed,
    ProcessFeed,
    Services,
    cut_short,
    start_pair,
)
from rowferry.testing.histories.schemas import Taste
from rowferry.testing.histories.writer import Writer
from rowferry.testing.servers import Server, promote, wait_for

_MOST_REFUSALS = 3  # of the same words: a new snapshot is the cure


@dataclass
class HistoryOutcome:
    """What one history came to."""

    seed: int
    server: str
    asked: tuple[str, ...] = ()
    acts: int = 40
    disturbed: bool = True
    failover: bool = False
    feeds: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    statements: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    snapshot_rows: int = 0
    ddls: int = 0
    steps: int = 0
    seconds: float = 0.0
    script: list[str] = field(default_factory=list)
    inferred: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def repeat(self) -> str:
        """The line that writes this history again."""
        sinks = ",".join(self.asked)
        more = f" --acts {self.acts}" if self.acts != 40 else ""
        more += " --failover" if self.failover else ""
        more += "" if self.disturbed else " --quiet"
        place = f"--server {self.server} --sink {sinks}"
        return f'make chaos ARGS="--history {self.seed} {place}{more}"'


def run_history(
    services: Services,
    folder: Path,
    seed: int,
    server: str,
    sinks: tuple[str, ...],
    acts: int = 40,
    disturbed: bool = True,
    failover: bool = False,
) -> HistoryOutcome:
    """Write a history and let one feed for each sink read it; each begins at a time of its own.

    With `failover` the server is killed in the middle, and its replica takes its place.
    """
    dice = random.Random(seed)
    narrow = any(s in NARROW for s in sinks)
    taste = Taste(
        server,
        odd_names=not narrow and dice.random() < 0.7,
        keyless=not narrow and not any(s in KEYED for s in sinks),
        # what tables that the sink makes do not have
        partitions="mysql/created" not in sinks,
        prefixes="mysql/created" not in sinks,
    )
    with ExitStack() as stack:
        pair: list[Server] = []
        if failover:
            pair = [stack.enter_context(s) for s in start_pair(server, folder / "pair")]
        stack.enter_context(cut_short(random.Random(f"{seed} cuts")))
        outcome = HistoryOutcome(seed, server, sinks, acts, disturbed, failover)
        source = pair[0] if pair else services.source(server)
        return _write(services, source, pair[1:], folder, dice, taste, outcome)


def _write(
    services: Services,
    source: Server,
    replicas: list[Server],
    folder: Path,
    dice: random.Random,
    taste: Taste,
    outcome: HistoryOutcome,
) -> HistoryOutcome:
    began, seed = time.monotonic(), outcome.seed
    acts, disturbed, sinks = outcome.acts, outcome.disturbed, outcome.asked
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    writer = Writer(source, taste, random.Random(f"{seed} writer"), folder)
    feeds: list[HistoryFeed] = []
    waiting = [(dice.choice((0, 0, dice.randrange(acts))), sink) for sink in sinks]
    try:
        writer.begin(dice.randrange(2, 6))
        writer.tick()
        writer.tick()
        for number in range(acts):
            for when, sink in waiting:
                if when == number:
                    at = folder / f"feed{len(outcome.feeds)}"
                    feed_dice = random.Random(f"{seed} {sink}")
                    kind = ProcessFeed if sink.startswith("process/") else HistoryFeed
                    feed = kind(source, sink, services, at, feed_dice)
                    outcome.feeds.append(sink)
                    feeds.append(feed)
                    _begin(feed, writer, dice, outcome, feeds)
            if replicas and number == acts // 2:
                source = _fail_over(source, replicas.pop(), writer, feeds)
                outcome.faults["failover"] += 1
            writer.act(rows_only=any(not f.is_settled for f in feeds))
            if dice.random() < 0.05:
                writer.rotate()
                outcome.faults["log rotated"] += 1
            if disturbed and dice.random() < 0.04:
                writer.cut_others()
                outcome.faults["connections cut"] += 1
            for feed in list(feeds):
                _go_on(feed, writer, dice, disturbed, outcome, feeds)
        writer.tick()
        writer.tick()
        for feed in list(feeds):
            while feed in feeds:
                try:
                    feed.catch_up()
                    _settle(feed, writer)
                    break
                except (RowferryError, TimeoutError) as err:
                    _stopped(feed, err, outcome, feeds, writer)
        for feed in feeds:
            verdict = feed.judge(writer.truth)
            outcome.failures += [f"{feed.sink}: {words}" for words in verdict.failures]
            outcome.compared[feed.sink] += verdict.compared
            outcome.snapshot_rows += verdict.snapshot_rows
            outcome.ddls += verdict.ddls
            outcome.inferred += verdict.inferred
            outcome.faults += feed.doors.happened
    finally:
        for feed in feeds:
            feed.close()
        outcome.script = writer.script
        outcome.statements = writer.counts
        outcome.steps = len(writer.truth.steps)
        writer.close()
    outcome.seconds = time.monotonic() - began
    return outcome


def _fail_over(source: Server, replica: Server, writer: Writer, feeds: list[HistoryFeed]) -> Server:
    """Kill the source when its replica has everything; all go on with the replica."""
    wait_for(replica, source)
    source.kill()
    promote(replica)
    writer.move_to(replica)
    for feed in feeds:
        feed.move_to(replica)
    return replica


def _begin(
    feed: HistoryFeed,
    writer: Writer,
    dice: random.Random,
    outcome: HistoryOutcome,
    feeds: list[HistoryFeed],
) -> None:
    """Begin a feed; its snapshot is complete before anything else is written, or it is not."""
    feed.first = feed.settled = writer.truth.last.number
    try:
        feed.start()
        if dice.random() < 0.5 or isinstance(feed, ProcessFeed):
            feed.catch_up()
            _settle(feed, writer)
    except (RowferryError, TimeoutError) as err:
        _stopped(feed, err, outcome, feeds, writer)


def _settle(feed: HistoryFeed, writer: Writer) -> None:
    """Note that a feed's first watermark was published: its snapshot is complete."""
    if not feed.is_settled:
        feed.settled, feed.is_settled = writer.truth.last.number, True


def _go_on(
    feed: HistoryFeed,
    writer: Writer,
    dice: random.Random,
    disturbed: bool,
    outcome: HistoryOutcome,
    feeds: list[HistoryFeed],
) -> None:
    if disturbed and dice.random() < 0.2 and (what := feed.disturb()):
        outcome.faults[what] += 1
    try:
        for _ in range(dice.choice((0, 0, 1, 1, 3))):
            step = feed.step()
            if step is not None and step.watermark:
                _settle(feed, writer)
    except RowferryError as err:
        _stopped(feed, err, outcome, feeds, writer)


def _stopped(
    feed: HistoryFeed,
    err: Exception,
    outcome: HistoryOutcome,
    feeds: list[HistoryFeed],
    writer: Writer,
) -> None:
    words = f"{feed.sink}: {err}"
    if (
        feed.sink.startswith(LAKES)
        and isinstance(err, SchemaChangeRefused)
        and outcome.refusals.count(words) < _MOST_REFUSALS
    ):
        outcome.faults["begun anew, as a lake's table could not follow"] += 1
        outcome.refusals.append(words)
        feed.begin_anew()
        feed.first = feed.settled = writer.truth.last.number
        return
    if _is_documented(feed, err, writer):
        outcome.faults["stopped by name, as documented"] += 1
    else:
        outcome.failures.append(f"{feed.sink}: it stopped: {err}")
    feeds.remove(feed)
    feed.close()


def _is_documented(feed: HistoryFeed, err: Exception, writer: Writer) -> bool:
    """Return whether a sink refused a value that its documentation says it cannot have.

    A copy refuses the error value of an ENUM, which strict mode does; a lake's table a key with a
    day that no calendar has.
    """
    if feed.sink.startswith(LAKES):
        return isinstance(err, EncodeError) and "in no calendar" in str(err)
    if not feed.sink.startswith("mysql/") or "Data truncated for column" not in str(err):
        return False
    return any(
        isinstance(v, Named) and not v.number
        for step in writer.truth.steps
        for effect in step.effects
        for change in effect.changes
        for v in (change.after or {}).values()
    )
