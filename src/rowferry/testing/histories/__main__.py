"""`make chaos`: random histories for some minutes, and what came of them."""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from rowferry.testing.histories.facts import full_name
from rowferry.testing.histories.feeds import NARROW, PROCESSES, SERVERS, SINKS, Services
from rowferry.testing.histories.history import HistoryOutcome, run_history


def main(arguments: Sequence[str] | None = None) -> int:
    """Run histories; the exit code is 1 where one of them failed."""
    asked = _parser().parse_args(arguments)
    servers = asked.server.split(",") if asked.server else list(SERVERS)
    sinks = _chosen(asked.sink)
    dice = random.Random(asked.seed)
    outcomes: list[HistoryOutcome] = []
    folder = Path(mkdtemp(prefix="rowferry-histories-"))
    end = time.monotonic() + 60 * asked.minutes
    try:
        with Services(folder / "servers") as services:
            while True:
                number = dice.randrange(1 << 32)
                server = servers[len(outcomes) % len(servers)]
                some = _some(dice, sinks)
                if asked.history is not None:
                    number, server, some = asked.history, servers[0], tuple(sinks)
                at = folder / f"history{len(outcomes)}"
                failover = asked.failover
                if asked.history is None and not asked.sink and not asked.quiet:
                    failover = dice.random() < 0.06
                    if not failover and asked.minutes >= 10 and dice.random() < 0.04:
                        some = (dice.choice(PROCESSES),)
                outcome = run_history(
                    services, at, number, server, some, asked.acts, not asked.quiet, failover
                )
                outcomes.append(outcome)
                _tell(outcome, len(outcomes))
                if asked.history is not None or time.monotonic() > end:
                    break
                if not outcome.failures:
                    shutil.rmtree(at, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _report(outcomes, asked.seed, Path(asked.result))
    return 1 if any(o.failures for o in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--dice", "--seed", dest="seed", type=int, default=1, help="decides everything"
    )
    parser.add_argument("--server", default="", help=f"of {', '.join(SERVERS)}; default: in turn")
    parser.add_argument("--sink", default="", help=f"of {', '.join(SINKS)}, or their beginnings")
    parser.add_argument("--history", type=int, help="only this one, with all sinks that are named")
    parser.add_argument("--acts", type=int, default=40, help="how much each history writes")
    parser.add_argument("--quiet", action="store_true", help="without faults")
    parser.add_argument("--failover", action="store_true", help="to a replica, in the middle")
    parser.add_argument("--result", default="bench/results/chaos.json")
    return parser


def _chosen(text: str) -> list[str]:
    wanted = text.split(",") if text else [""]
    known = SINKS + PROCESSES if text else SINKS
    chosen = [s for w in wanted for s in known if s.startswith(w)]
    if not chosen:
        raise SystemExit(f"no sink begins with {text!r}: known are {', '.join(SINKS)}")
    return chosen


def _some(dice: random.Random, sinks: Sequence[str]) -> tuple[str, ...]:
    """Return the sinks of one history: those that take every name, or one that does not."""
    one = dice.choice(sinks)
    if one in NARROW:
        return (one,)
    others = [s for s in sinks if s not in NARROW and s != one]
    return (one, *dice.sample(others, min(len(others), dice.choice((0, 1, 1, 2)))))


def _tell(outcome: HistoryOutcome, number: int) -> None:
    result = "failed" if outcome.failures else "ok"
    changes = sum(outcome.compared.values())
    print(
        f"{number}: {outcome.server} → {', '.join(outcome.feeds)}: {outcome.steps} steps, "
        f"{changes} changes, {sum(outcome.faults.values())} faults, "
        f"{outcome.seconds:.0f} s: {result}",
        flush=True,
    )
    if outcome.failures:
        for words in outcome.failures[:5]:
            print(f"   {words[:1500]}")
        print(f"   repeat: {outcome.repeat}")
        kept = Path(mkdtemp(prefix="rowferry-history-"))
        (kept / "statements.sql").write_text(";\n".join(outcome.script) + ";\n")
        (kept / "short.sql").write_text(";\n".join(_about(outcome)) + ";\n")
        print(f"   statements: {kept} (short.sql: those about the first table)", flush=True)


def _about(outcome: HistoryOutcome) -> list[str]:
    """Return the statements about the table of the first failure, and what frames them."""
    match = re.search(r"\('([^']*)', ([\"'])(.*?)\2\)", outcome.failures[0])
    if match is None:
        return outcome.script
    frames = ("BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "SET ", "XA ", "FLUSH", "-- ")
    names = {full_name((match[1], match[3]))}
    kept: list[str] = []
    for sql in reversed(outcome.script):  # a table that was renamed is looked for by its older name
        bare = sql.removeprefix("/* second session */ ")
        if any(n in sql for n in names):
            if "RENAME" in sql:
                names |= set(re.findall(r"`(?:[^`]|``)*`\.`(?:[^`]|``)*`", sql))
            kept.append(sql)
        elif bare.startswith(frames):
            kept.append(sql)
    return kept[::-1]


def _report(outcomes: Sequence[HistoryOutcome], seed: int, result: Path) -> None:
    statements: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    cells: dict[str, Counter[str]] = {}
    for o in outcomes:
        statements += o.statements
        faults += o.faults
        for feed in o.feeds:
            cell = cells.setdefault(f"{o.server} → {feed}", Counter())
            cell["feeds"] += 1
            cell["failed"] += any(w.startswith(f"{feed}: ") for w in o.failures)
        for feed, count in o.compared.items():
            cells[f"{o.server} → {feed}"]["changes"] += count
    failed = [o for o in outcomes if o.failures]
    done = {k: v for k, v in statements.items() if not k.startswith("refused")}
    print(f"\n{len(outcomes)} histories, {len(failed)} failed")
    print(f"statements: {', '.join(f'{k} {v}' for k, v in sorted(done.items()))}")
    print(f"faults: {', '.join(f'{k} {v}' for k, v in sorted(faults.items())) or 'none'}")
    print(f"\n{'server → sink':36}{'feeds':>8}{'failed':>8}{'changes':>10}")
    for name, cell in sorted(cells.items()):
        print(f"{name:36}{cell['feeds']:>8}{cell['failed']:>8}{cell['changes']:>10}")
    for o in failed:
        print(f"repeat: {o.repeat}")
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(
        json.dumps(
            {
                "seed": seed,
                "histories": len(outcomes),
                "failed": [o.repeat for o in failed],
                "steps": sum(o.steps for o in outcomes),
                "changes": sum(sum(o.compared.values()) for o in outcomes),
                "snapshot rows": sum(o.snapshot_rows for o in outcomes),
                "schema changes": sum(o.ddls for o in outcomes),
                "schemas that were inferred": sum(len(o.inferred) for o in outcomes),
                "statements": dict(sorted(done.items())),
                "refused by the server": sum(statements.values()) - sum(done.values()),
                "faults": dict(sorted(faults.items())),
                "feeds": {k: dict(v) for k, v in sorted(cells.items())},
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
