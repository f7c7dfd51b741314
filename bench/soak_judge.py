"""The verdict on a soak run: drift, recovery, disturbance, arrival. Every rule stands here.

Steady is the time outside of disturbances: a disturbance lasts from an event until lag is back, and
SETTLE_S longer. Lag is back when LOOKS looks in a row find the worst of all changefeeds, but the
slow and the failing one, at or below the limit: twice the baseline, or the baseline and LIMIT_S,
whichever is more. The baseline is the median of the looks before the failing sink begins to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
from soak_drift import Drift, Rule, judge
from soak_watch import Sample

from rowferry.control.store import published, watching
from rowferry.control.store.fence import HISTORY_LINES
from rowferry.flow.capture.binlog.frame.shared_log import KEPT_BYTES

SETTLE_S = 30.0
LOOKS = 3
LIMIT_S = 5.0
SAMPLE_S = 5.0  # how far apart a server stores its samples of a changefeed
SAMPLES_KEPT_S = 3600.0
BOUNDED = {  # tables that grow up to a bound, and the rows that each changefeed may have there
    "samples": SAMPLES_KEPT_S / SAMPLE_S,
    "history": HISTORY_LINES,
    "log_lines": watching.LOG_LINES,
    "published_batches": published.SINGLE + published.FOLD + published.FOLDED,
    "schema_changes": watching.SCHEMA_CHANGES,
}
SOURCES = 2
INDEXED = 1.25  # what is kept, with the places at which events begin
THINNED = 150  # samples that the kept result has
WORK = ("pending_plans", "servers", "leases")  # tables whose few rows come and go with the work
Point = tuple[Hashable, float, float]


def judge_run(run: dict[str, Any], samples: list[Sample]) -> dict[str, Any]:
    """Return the whole result of a run, with its verdicts."""
    length = run["minutes"] * 60
    within = [s for s in samples if s["t"] <= length]
    first = run["events"][0]["began"]
    baseline = [_medians(within, lambda s: s["t"] < first, i) for i in (0, 1, 2)]
    limit = max(2 * baseline[2], baseline[2] + LIMIT_S)
    events = [_recovery(event, run["events"], within, limit) for event in run["events"]]
    steady = _steady(events, within)
    drifts = {name: _told(found) for name, found in _drifts(steady, run).items()}
    lag = {kind: _lag(steady, kind) for kind in within[-1]["lag"]}
    disturbed = _disturbed(events, within)
    failing = _around_failing(within, events)
    kept = _kept_log(within)
    bounded = _bounded(within, sum(run["feeds"].values()))
    verdicts = {
        "nothing drifts": _no_drift(drifts),
        "lag returned after every event": all(e["recovered_s"] is not None for e in events),
        "everything arrived": run["caught_up_s"] is not None
        and not any(kind["wrong"] for kind in run["arrived"].values()),
        "no changefeed failed": not any(state == "failed" for _, state, _ in run["not_normal"]),
        "the failing sink disturbed nobody": failing["after"] <= limit and not disturbed,
        "tables of the meta database keep their bounds": all(
            one["last"] <= one["allowed"] for one in bounded.values()
        ),
        "the log that servers keep has its bound": 0 < kept["most"] <= kept["allowed"],
        "no process outlived its server": run["orphans"] == 0,
        "every event went as planned": not any(event["error"] for event in events),
    }
    return {
        **run,
        "events": events,
        "passed": all(verdicts.values()),  # what could not be judged has not passed
        "verdicts": verdicts,
        "baseline": {
            **dict(zip(("p50", "p99", "worst"), baseline, strict=True)),
            "limit": round(limit, 2),
        },
        "lag": lag,
        "rows_s": {kind: _rate(steady, kind) for kind in lag if kind != "healthy"},
        "load": _spread([s["load"] for s in within]),
        "drift": drifts,
        "disturbed": disturbed,
        "failing": failing,
        "bounded_rows": bounded,
        "kept_log_mb": kept,
        "meta": _last(within, lambda m: m["tables"]),
        "files": next((s["files"] for s in reversed(within) if s.get("files")), {}),
        "log_mb_h": round((within[-1]["logs"] - within[0]["logs"]) / length * 3600 / 1e6, 2),
        "memory_mb": _spread([_memory(s) for s in within if len(s["servers"]) == run["servers"]]),
        "samples": len(within),
        "series": _thinned(within),
    }


# --- what happened when --------------------------------------------------------------------------


def _recovery(
    event: dict[str, Any], events: list[dict[str, Any]], samples: list[Sample], limit: float
) -> dict[str, Any]:
    """Add when lag was back, and how far it had gone."""
    began = event["began"]
    later = [e["began"] for e in events if e["began"] > began]
    until = min(later, default=samples[-1]["t"] + 1)
    looks = [s for s in samples if began <= s["t"] < until]
    worst = max((_worst(s) for s in looks), default=0.0)
    back = _back(looks, limit, event["ended"] or began)
    recovered = None
    if back is not None:
        # What was ended is missed only after a while, so "back" before it is up means nothing.
        recovered = 0.0 if worst <= limit else round(back - began, 1)
    return {**event, "worst": round(worst, 1), "recovered_s": recovered}


def _back(looks: list[Sample], limit: float, after: float) -> float | None:
    """Return when lag is back for good: LOOKS looks in a row behind the highest one are low."""
    later = [s for s in looks if s["t"] >= after]
    if not later:
        return None
    highest = max(range(len(later)), key=lambda n: _worst(later[n]))
    begin = highest if _worst(later[highest]) > limit else 0
    for n in range(begin, len(later) - LOOKS + 1):
        if all(_worst(s) <= limit for s in later[n : n + LOOKS]):
            return float(later[n]["t"])
    return None


def _steady(events: list[dict[str, Any]], samples: list[Sample]) -> list[Sample]:
    spans = [_span(event) for event in events if event["restarts"]]
    return [s for s in samples if not any(begin <= s["t"] <= end for begin, end in spans)]


def _span(event: dict[str, Any]) -> tuple[float, float]:
    back = event["recovered_s"]
    if back is None:
        return event["began"], float("inf")
    return event["began"], max(event["began"] + back, event["ended"]) + SETTLE_S


def _disturbed(events: list[dict[str, Any]], samples: list[Sample]) -> list[str]:
    """Return changefeeds with an error in steady time; the failing one is to have it."""
    found = set()
    for sample in _steady(events, samples):
        for names in ((sample.get("meta") or {}).get("states") or {}).values():
            found |= {name for name in names if not name.startswith("failing")}
    return sorted(found)


def _around_failing(samples: list[Sample], events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the worst lag of the others before the failing sink began to fail, and after that."""
    fails, following = events[0]["began"], events[1]["began"]
    return {
        "before": _medians(samples, lambda s: s["t"] < fails, 2),
        "after": _medians(samples, lambda s: fails <= s["t"] < following, 2),
    }


# --- drift ---------------------------------------------------------------------------------------


def _drifts(steady: list[Sample], run: dict[str, Any]) -> dict[str, Drift | None]:
    share = sum(run["feeds"].values()) / run["servers"]
    rules: dict[str, tuple[Iterator[Point], Rule]] = {
        "memory of a server but for kept log, MB": (_without_kept_log(steady, share), Rule(32)),
        "memory of its Java process, MB": (_of_servers(steady, share, "java"), Rule(64)),
        "memory of its Python workers, MB": (_of_servers(steady, share, "workers"), Rule(64)),
        "descriptors of a server and its Java": (_of_feeds(steady, share, "fds"), Rule(20)),
        "threads of a server and its Java": (_of_feeds(steady, share, "threads"), Rule(16)),
        "rows in the meta database for each table": (_of_tables(steady), Rule(0.2)),
        "meta database, unbounded tables, MB": (_of_meta(steady), Rule(16)),
        # Each by itself: how many files sinks are writing at a moment goes up and down by dozens,
        # and a sum would drift by that. Together no more is allowed than of a sum: 40.
        "files in work folders": (_of_files(steady, "work"), Rule(13)),
        "files in temporary folders of servers": (_of_files(steady, "temporary"), Rule(13)),
        "files that sinks are writing": (_of_files(steady, "sink_temporary"), Rule(13)),
        "lag p99 of files, s": (_of_lag(steady, "files"), Rule(2.0)),
        "lag p99 of all but slow and failing, s": (_of_lag(steady, "healthy"), Rule(2.0)),
    }
    return {name: judge(points, rule) for name, (points, rule) in rules.items()}


def _of_servers(steady: list[Sample], share: float, what: str) -> Iterator[Point]:
    """Yield a server's values while it has its share of the changefeeds; a life is a process."""
    for sample in steady:
        for one in sample["servers"]:
            if abs(one.get("owned", 0) - share) <= max(2.0, share / 10):
                yield one["pid"], sample["t"], one[what]


def _of_feeds(steady: list[Sample], share: float, what: str) -> Iterator[Point]:
    """Yield what each changefeed has some of: a life is a process with as many changefeeds."""
    owned = {(one["pid"], s["t"]): one.get("owned") for s in steady for one in s["servers"]}
    for pid, t, value in _of_servers(steady, share, what):
        yield (pid, owned[pid, t]), t, value


def _without_kept_log(steady: list[Sample], share: float) -> Iterator[Point]:
    """Yield a server's memory without the newest log, which fills up to a bound of its own."""
    kept = {(one["pid"], s["t"]): one.get("kept_log") for s in steady for one in s["servers"]}
    for pid, t, memory in _of_servers(steady, share, "python"):
        if (log := kept[pid, t]) is not None:
            yield pid, t, memory - log


def _kept_log(samples: list[Sample]) -> dict[str, float]:
    """Return the most that a server kept of its sources' logs, and how much it may."""
    most = max((one.get("kept_log", 0.0) for s in samples for one in s["servers"]), default=0.0)
    return {"most": most, "allowed": round(SOURCES * KEPT_BYTES * INDEXED / 1e6, 1)}


def _bounded(samples: list[Sample], changefeeds: int) -> dict[str, dict[str, int]]:
    """Return how many rows the tables in BOUNDED had at last, and how many they may have."""
    last = _last(samples, lambda meta: meta["tables"]) or {}
    return {
        name: {
            "last": last.get(name, [0])[0],
            "allowed": round(changefeeds * each * 1.1),  # rows are counted by estimate
        }
        for name, each in BOUNDED.items()
    }


def _unbounded(sample: Sample, which: int) -> float:
    """Return the rows (0) or bytes (1) of tables that have no bound of their own."""
    tables = sample["meta"]["tables"]
    return float(sum(t[which] for name, t in tables.items() if name not in {*WORK, *BOUNDED}))


def _of_meta(steady: list[Sample]) -> Iterator[Point]:
    for sample in steady:
        if sample.get("meta"):
            yield "meta", sample["t"], _unbounded(sample, 1) / 1e6


def _of_tables(steady: list[Sample]) -> Iterator[Point]:
    """Yield rows by captured tables, of which the schema changes leave more than there were."""
    for sample in steady:
        if sample.get("meta") and (captured := sample["meta"]["tables"]["subscribe"][0]):
            yield "meta", sample["t"], _unbounded(sample, 0) / captured


def _of_files(steady: list[Sample], which: str) -> Iterator[Point]:
    for sample in steady:
        if files := sample.get("files"):
            yield which, sample["t"], files[which]


def _of_lag(steady: list[Sample], kind: str) -> Iterator[Point]:
    for sample in steady:
        if lag := sample["lag"].get(kind):
            yield "lag", sample["t"], lag[1]


def _told(found: Drift | None) -> dict[str, Any]:
    if found is None:
        return {"drifts": False, "samples": 0}
    return {
        "level": round(found.level, 2),
        "slope_h": round(found.slope, 2),
        "allowed_h": round(found.allowed, 2),
        "samples": found.samples,
        "drifts": found.drifts,
    }


def _no_drift(drifts: dict[str, dict[str, Any]]) -> bool | None:
    """Return whether nothing drifts; None: the run was too short to say so of everything."""
    if any(d["drifts"] for d in drifts.values()):
        return False
    return True if all(d["samples"] for d in drifts.values()) else None


# --- numbers -------------------------------------------------------------------------------------


def _worst(sample: Sample) -> float:
    lag = sample["lag"].get("healthy")
    return float(lag[2]) if lag else float("inf")


def _medians(samples: list[Sample], which: Callable[[Sample], bool], index: int) -> float:
    found = [s["lag"]["healthy"][index] for s in samples if which(s) and s["lag"].get("healthy")]
    return round(float(np.median(found)), 2) if found else float("nan")


def _lag(steady: list[Sample], kind: str) -> dict[str, float]:
    """Return the median of the looks at p50 and p99, and the worst look at p99."""
    found = [s["lag"][kind] for s in steady if s["lag"].get(kind)]
    if not found:
        return {}
    p50, p99, _ = np.median(found, axis=0)
    return {"p50": round(p50, 2), "p99": round(p99, 2), "worst": max(one[1] for one in found)}


def _rate(steady: list[Sample], kind: str) -> dict[str, float]:
    """Return how rows/s, as means of minutes, are spread."""
    minutes: dict[int, list[float]] = {}
    for sample in steady:
        minutes.setdefault(int(sample["t"] // 60), []).append(sample["rows_s"].get(kind, 0.0))
    rates = [float(np.mean(some)) for some in minutes.values()]
    spread = _spread(rates)
    return {"low": spread[0], "median": spread[1], "high": spread[2]}


def _spread(values: list[float]) -> list[float]:
    if not values:
        return [0.0, 0.0, 0.0]
    return [round(float(np.percentile(values, q)), 1) for q in (5, 50, 95)]


def _memory(sample: Sample) -> float:
    return float(sum(s["python"] + s["java"] + s["workers"] for s in sample["servers"]))


def _last(samples: list[Sample], what: Callable[[Any], Any]) -> Any:
    return next((what(s["meta"]) for s in reversed(samples) if s.get("meta")), 0)


def _thinned(samples: list[Sample]) -> dict[str, list[Any]]:
    some = samples[:: max(1, len(samples) // THINNED)]
    return {
        "minute": [round(s["t"] / 60, 2) for s in some],
        "lag p50": [(s["lag"].get("healthy") or [None] * 3)[0] for s in some],
        "lag p99": [(s["lag"].get("healthy") or [None] * 3)[1] for s in some],
        "files lag p99": [(s["lag"].get("files") or [None] * 3)[1] for s in some],
        "files rows/s": [s["rows_s"].get("files", 0.0) for s in some],
        "rows/s": [round(sum(s["rows_s"].values()), 1) for s in some],
        "memory MB": [round(_memory(s)) for s in some],
        "descriptors": [sum(one["fds"] for one in s["servers"]) for s in some],
        "load": [s["load"] for s in some],
    }
