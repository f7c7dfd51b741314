"""Many changefeeds for an hour, with everything restarted once: does anything grow or stay behind?

    .venv/bin/python bench/soak.py [--minutes 60] [--feeds 100] [--tables 20] [--docs]

MySQL and MariaDB as sources, two `rowferry server` on one PostgreSQL, changefeeds to files, Kafka,
MariaDB and HTTP, one of them slow and one failing. First the ceiling is looked for: the rate at
which lag is no longer bounded. Then rows are written at half of it, and tables are altered, made,
dropped, truncated and swapped all along, while servers, sources, broker, sink and meta database are
restarted at planned times. At the end everything must have arrived, and nothing may have grown.

`--again FOLDER` judges a run once more, whose samples and findings were kept by `--folder`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import RESULTS, load_average, machine
from soak_check import check
from soak_events import Event, Events
from soak_judge import judge_run
from soak_page import draw, put_soak_into_page, table
from soak_watch import Sample, Watch
from soak_world import World, plan_feeds

# Lag of 99 of 100 looks, while the ceiling is looked for. With more, a machine that has nothing to
# spare still counts as keeping up: half of that leaves no room for what restarts cost.
BOUND_S = 5.0
FIRST_RATE, FACTOR, STEPS = 20.0, 1.6, 8
READY_S, CAUGHT_UP_S = 600.0, 900.0


def main() -> None:
    """Run what was asked for; exit code 1 if something drifts, lags or is missing."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--minutes", type=float, default=60.0)
    ask.add_argument("--feeds", type=int, default=100)
    ask.add_argument("--tables", type=int, default=20, help="of each changefeed")
    ask.add_argument("--servers", type=int, default=2)
    ask.add_argument("--rate", type=float, default=0.0, help="transactions/s; 0: half the ceiling")
    ask.add_argument("--step-seconds", type=float, default=30.0, help="of the search for it")
    ask.add_argument("--ddl-every", type=float, default=4.0, help="seconds, for each source")
    ask.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    ask.add_argument("--folder", type=Path, help="keep samples, findings and messages here")
    ask.add_argument("--results", type=Path, default=RESULTS)
    ask.add_argument("--docs", action="store_true", help="write the page's figures and images")
    ask.add_argument("--again", type=Path, metavar="FOLDER")
    asked = ask.parse_args()
    if asked.again:
        run = json.loads((asked.again / "run.json").read_text())
        lines = (asked.again / "samples.jsonl").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
    else:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, _interrupted)
        run, samples = _kept(asked)
    result = judge_run(run, samples)
    asked.results.mkdir(parents=True, exist_ok=True)
    (asked.results / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    if asked.docs:
        draw(run, samples)
        put_soak_into_page(result)
    sys.exit(0 if result["passed"] else 1)


def _interrupted(*_: object) -> None:
    """End the run, once: a second signal must not leave half of the processes and files behind."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _kept(asked: argparse.Namespace) -> tuple[dict[str, Any], list[Sample]]:
    """Run in a folder that goes away at the end, except for what was asked for."""
    folder = Path(tempfile.mkdtemp(prefix="rowferry-soak-"))
    folder.chmod(0o755)
    try:
        run, samples = _run(asked, folder)
        (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")
        return run, samples
    finally:
        if asked.folder:
            asked.folder.mkdir(parents=True, exist_ok=True)
            for path in (folder / "samples.jsonl", folder / "run.json", *folder.glob("*/*.out")):
                if path.exists():
                    inside = "-".join(path.relative_to(folder).parts)
                    shutil.copy(path, asked.folder / inside)
        shutil.rmtree(folder, ignore_errors=True)


def _run(asked: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[Sample]]:
    about = machine()
    feeds = plan_feeds(asked.feeds)
    _say("starting the servers")
    with World(folder, feeds, asked.tables, asked.servers) as world:
        world.make_tables()
        for member in world.members:
            member.start()
        _say(f"creating {len(feeds)} changefeeds over {len(feeds) * asked.tables} tables")
        world.create_feeds()
        watch = Watch(world, folder / "samples.jsonl")
        wait_ready(watch, len(feeds))
        for source in world.sources.values():
            source.ddl_every_s = asked.ddl_every
            source.start()
        ceiling, steps = (
            (0.0, []) if asked.rate else _ceiling(world, watch, asked.step_seconds, asked.every)
        )
        rate = asked.rate or ceiling / 2
        if not asked.rate:
            _set_rate(world, rate)
            _settle(watch, asked.every)
        watch.restart()
        events = Events(world)
        _soak(asked, world, watch, events, rate)
        orphans = sorted(pid for pid in events.orphans if Path(f"/proc/{pid}").exists())
        caught_up_s = _catch_up(world, watch, len(feeds))
        _say("comparing what arrived")
        written = watch.samples[-1]["written"]
        states = world.meta.execute("SELECT id, state, error FROM changefeeds", "rowferry")
        arrived = check(world, lambda feed: _say(f"compared {feed}"))
        for member in world.members:
            member.drain()
    run = {
        **about,
        "load_average_after": load_average(),
        "minutes": asked.minutes,
        "feeds": {kind: sum(f.kind == kind for f in feeds) for kind in {f.kind for f in feeds}},
        "tables": len(feeds) * asked.tables,
        "servers": asked.servers,
        "ceiling": ceiling,
        "ceiling_steps": steps,
        "rate": rate,
        "ddl_every_s": asked.ddl_every,
        "every_s": asked.every,
        "written": written,
        "events": [_told(event) for event in events.planned],
        "caught_up_s": caught_up_s,
        "arrived": arrived,
        "errors": watch.errors,
        "refused": world.receiver.refused,
        "orphans": len(orphans),
        "not_normal": [[name, state, error] for name, state, error in states if state != "normal"],
    }
    return run, watch.samples


def _told(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "began": event.began,
        "ended": event.ended,
        "restarts": event.restarts,
        "error": event.error,
    }


# --- the parts of a run --------------------------------------------------------------------------


def wait_ready(watch: Watch, count: int) -> None:
    """Wait until all changefeeds run and keep up.

    Raises:
        TimeoutError: they do not.
    """
    deadline = time.monotonic() + READY_S
    while True:
        sample = watch.look()
        owned = sum(one.get("owned", 0) for one in sample["servers"])
        _progress(f"ready: {owned} of {count}", sample)
        if owned >= count and sample["lag"]["healthy"] and sample["lag"]["healthy"][1] < BOUND_S:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {owned} of {count} changefeeds run after {READY_S:.0f} s")
        time.sleep(2)


def _set_rate(world: World, rate: float) -> None:
    for source in world.sources.values():
        source.rate = rate / len(world.sources)


def _ceiling(
    world: World, watch: Watch, step_s: float, every_s: float
) -> tuple[float, list[dict[str, Any]]]:
    """Return the highest rate whose lag is bounded, and what was seen at each.

    What every changefeed does once, at its first rows (kernels, connections, producers), is over
    when the search begins. A first rate that is too high is halved until one is bounded.

    Raises:
        TimeoutError: no rate was bounded.
    """
    _set_rate(world, FIRST_RATE)
    time.sleep(step_s)
    _settle(watch, every_s)
    rate, best, steps = FIRST_RATE, 0.0, []
    while len(steps) < STEPS:
        step = _step(world, watch, rate, step_s)
        steps.append(step)
        _say(f"{step}")
        if step["bounded"]:
            best = step["wrote"]
        rising = best > 0
        if rising and (not step["bounded"] or step["wrote"] < 0.8 * rate):
            return best, steps
        if rising and rate < FIRST_RATE:  # the rate above it was too high
            return best, steps
        rate = rate * FACTOR if rising else rate / 2
        if not rising:
            _set_rate(world, rate)
            _settle(watch, every_s)
    if not best:
        raise TimeoutError(f"lag grows even at {rate * 2:.1f} transactions/s")
    return best, steps


def _step(world: World, watch: Watch, rate: float, step_s: float) -> dict[str, Any]:
    """Write at a rate for a while and return what was seen.

    Bounded: in the second half of the step the median of the looks at lag p99 is below BOUND_S, and
    the median lag grows by less than a fifth of the time that passes.
    """
    _set_rate(world, rate)
    began, before = time.monotonic(), watch.look()
    looks = []
    while time.monotonic() - began < step_s:
        time.sleep(1.5)
        looks.append(watch.look())
        _progress(f"ceiling: {rate:.0f} transactions/s", looks[-1])
    late = looks[len(looks) // 2 :]
    p99 = float(np.median([s["lag"]["healthy"][1] for s in late]))
    medians = [s["lag"]["healthy"][0] for s in late]
    growth = (medians[-1] - medians[0]) / max(late[-1]["t"] - late[0]["t"], 1.0)
    after = looks[-1]
    done = after["written"]["transactions"] - before["written"]["transactions"]
    seen = {
        "asked": rate,
        "wrote": done / (after["t"] - before["t"]),
        "lag p99": p99,
        "growth": growth,
    }
    return {
        **{k: round(v, 2) for k, v in seen.items()},
        "bounded": p99 < BOUND_S and growth < 0.2,
    }


def _settle(watch: Watch, every_s: float) -> None:
    """Let the lag of the search go away."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        sample = watch.look()
        _progress("settling", sample)
        if sample["lag"]["healthy"][1] < BOUND_S:
            return
        time.sleep(every_s)


def _soak(
    asked: argparse.Namespace, world: World, watch: Watch, events: Events, rate: float
) -> None:
    _set_rate(world, rate)
    length = asked.minutes * 60
    while True:
        began = time.monotonic()
        sample = watch.look()
        now = sample["t"]
        if now >= length:
            break
        if event := events.due(now, length):
            _say(f"{event.name}")
            event.start(lambda: round(time.time() - watch.began, 1))
        following = events.next()
        ahead = f"then: {following.name}" if following else ""
        _progress(f"{now / 60:.1f} of {asked.minutes:g} min", sample, ahead)
        time.sleep(max(0.1, asked.every - (time.monotonic() - began)))
    for event in events.planned:
        event.join()


def _catch_up(world: World, watch: Watch, count: int) -> float | None:
    """Stop writing and wait until every changefeed has delivered all; None: not in time."""
    for source in world.sources.values():
        source.stop()
    stopped, began = time.time() + 1.0, time.monotonic()  # MariaDB's clock has whole seconds
    while time.monotonic() - began < CAUGHT_UP_S:
        time.sleep(2)
        sample = watch.look()
        oldest = max(lag[2] for lag in sample["lag"].values() if lag)
        behind = oldest > watch.began + sample["t"] - stopped
        _progress("catching up", sample)
        if not behind and sum(one.get("owned", 0) for one in sample["servers"]) >= count:
            return round(time.monotonic() - began, 1)
    return None


# --- what people see -----------------------------------------------------------------------------


def _say(words: str) -> None:
    end = "\033[K\n" if sys.stderr.isatty() else "\n"
    print(time.strftime("%H:%M:%S"), words, file=sys.stderr, end=end, flush=True)


def _progress(what: str, sample: Sample, ahead: str = "") -> None:
    lag = sample["lag"].get("healthy") or [0.0, 0.0, 0.0]
    servers = sample["servers"]
    memory = " + ".join(f"{s['python'] + s['java'] + s['workers']:.0f}" for s in servers)
    words = (
        f"{what}: lag p50 {lag[0]:.1f} s, p99 {lag[1]:.1f} s, {sum(sample['rows_s'].values()):.0f} "
        f"rows/s, memory {memory} MB, {sum(s['fds'] for s in servers)} descriptors, "
        f"load {sample['load']:.1f} {ahead}"
    )
    if sys.stderr.isatty():
        print("\r" + words + "\033[K", end="", file=sys.stderr, flush=True)
    else:
        print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
