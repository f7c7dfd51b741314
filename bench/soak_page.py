"""The figures and images of docs/soak.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import put_into_page
from soak_plot import Line, Mark, chart
from soak_watch import Sample

DOCS = Path(__file__).parents[1] / "docs"
PAGE, IMAGES = DOCS / "soak.md", DOCS / "images"
NAMES = {
    "files": "files (csv, canal-json)",
    "kafka": "Kafka (canal-json)",
    "mysql": "MariaDB",
    "http": "HTTP",
    "slow": "HTTP, slow",
    "failing": "HTTP, failing",
}
CHARTS = {
    "soak-lag": "Lag of all but the failing one, and the load of the machine",
    "soak-memory": "Memory (RSS) of the servers",
    "soak-descriptors": "Descriptors and threads of the servers with Java",
    "soak-meta": "The meta database",
    "soak-files-rows": "Files: throughput",
    "soak-files-lag": "Files: lag",
}


def put_soak_into_page(result: dict[str, Any]) -> None:
    """Write the figures between the page's marks."""
    images = "\n".join(f"![{title}](images/{name}.svg)\n" for name, title in CHARTS.items())
    put_into_page("soak", f"{table(result)}\n{images}", PAGE)


def table(result: dict[str, Any]) -> str:
    """Return all figures as Markdown."""
    parts = [_about(result), _verdicts(result), _drift(result), _events(result)]
    return "\n".join([*parts, _sinks(result), _storage(result), _meta(result)])


def _about(r: dict[str, Any]) -> str:
    written, count = r["written"], sum(r["feeds"].values())
    steps = ", ".join(
        f"{s['wrote']:.0f}/s → {s['lag p99']:.1f} s{'' if s['bounded'] else ' (not bounded)'}"
        for s in r["ceiling_steps"]
    )
    ceiling = (
        f"The ceiling was {r['ceiling']:.0f} transactions/s (lag p99 by rate: {steps}); "
        if r["ceiling"]
        else "The rate was given: "
    )
    low, mid, high = r["load"]
    return (
        f"{r['minutes']:g} minutes, {r['at']}, {r['cpu']}, {r['cores']} cores, "
        f"{r['memory_gb']} GB; "
        f"load average {mid:g} (5 % of the looks below {low:g}, 5 % above {high:g}). "
        f"{count} changefeeds over {r['tables']:,} tables on {r['servers']} servers. {ceiling}"
        f"the run wrote {r['rate']:.0f} transactions/s, in all {written['transactions']:,} "
        f"transactions, {written['rows']:,} row changes and {written['schema_changes']:,} schema "
        f"changes. {r['samples']:,} samples, {r['every_s']:g} s apart.\n"
    )


def _verdicts(r: dict[str, Any]) -> str:
    lines = ["| verdict | |", "|---|---|"]
    words = {True: "yes", False: "**no**", None: "too short to say"}
    lines += [f"| {name} | {words[good]} |" for name, good in r["verdicts"].items()]
    return "\n".join(lines) + "\n"


def _drift(r: dict[str, Any]) -> str:
    lines = [
        "| quantity, in steady time | level | an hour adds | allowed | drifts |",
        "|---|---:|---:|---:|---|",
    ]
    for name, d in r["drift"].items():
        if not d["samples"]:
            lines.append(f"| {name} | | | | too short to say |")
            continue
        drifts = "**yes**" if d["drifts"] else "no"
        lines.append(
            f"| {name} | {d['level']:,g} | {d['slope_h']:+,g} | {d['allowed_h']:,g} | {drifts} |"
        )
    return "\n".join(lines) + "\n"


def _events(r: dict[str, Any]) -> str:
    base = r["baseline"]
    lines = [
        f"Before anything was done lag was {base['p50']:g} s (p50), {base['p99']:g} s (p99) and "
        f"{base['worst']:g} s (the worst); back means that the worst is ≤ {base['limit']:g} s.\n",
        "| # | minute | what | took, s | worst lag, s | back after, s |",
        "|---:|---:|---|---:|---:|---:|",
    ]
    for number, e in enumerate(r["events"], 1):
        back = "**never**" if e["recovered_s"] is None else f"{e['recovered_s']:g}"
        took = f"{e['ended'] - e['began']:.0f}" if e["ended"] else "?"
        minute = f"{e['began'] / 60:.1f}"
        lines.append(f"| {number} | {minute} | {e['name']} | {took} | {e['worst']:g} | {back} |")
    return "\n".join(lines) + "\n"


def _sinks(r: dict[str, Any]) -> str:
    lines = [
        "| sink | changefeeds | rows/s | lag p50, s | lag p99, s | errors | tables compared | rows "
        "| wrong |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for kind, name in NAMES.items():
        if kind not in r["feeds"]:
            continue
        lag, there = r["lag"].get(kind) or {}, r["arrived"][kind]
        errors = ", ".join(f"{c} × {n:,}" for c, n in sorted(r["errors"].get(kind, {}).items()))
        lines.append(
            f"| {name} | {r['feeds'][kind]} | {r['rows_s'][kind]['median']:,g} "
            f"| {lag.get('p50', '')} | {lag.get('p99', '')} | {errors} | {there['tables']:,} "
            f"| {there['rows']:,} | {len(there['wrong'])} |"
        )
    lines.append(
        f"\nAll had caught up {r['caught_up_s']:g} s after the last change."
        if r["caught_up_s"] is not None
        else "\nNot all caught up."
    )
    fail = r["failing"]
    lines.append(
        f"The failing sink refused {r['refused']:,} requests. The worst lag of the others was "
        f"{fail['before']:g} s before it began to fail and {fail['after']:g} s after."
    )
    return "\n".join(lines) + "\n"


def _storage(r: dict[str, Any]) -> str:
    rate, lag, files = r["rows_s"]["files"], r["lag"]["files"], r["files"]
    drift = r["drift"]["lag p99 of files, s"]
    slope = f"{drift['slope_h']:+g} s in an hour" if drift["samples"] else "too short to say"
    return (
        f"Files on their own, in steady time: {rate['median']:,g} rows/s (of the minutes, 5 % "
        f"below {rate['low']:,g} and 5 % above {rate['high']:,g}), lag p50 {lag['p50']:g} s, p99 "
        f"{lag['p99']:g} s, at worst {lag['worst']:g} s, drift of p99 {slope}; "
        f"{files.get('written', 0):,} files written, {files.get('sink_temporary', 0)} left in "
        f"temporary folders of the sink, {files.get('temporary', 0)} in those of the servers and "
        f"{files.get('work', 0)} in their work folders.\n"
    )


def _meta(r: dict[str, Any]) -> str:
    tables = sorted(r["meta"].items(), key=lambda item: -item[1][1])
    told = ", ".join(
        f"`{name}` {rows:,} rows in {size / 1e6:.1f} MB" for name, (rows, size) in tables
    )
    samples, history = (r["bounded_rows"][name]["allowed"] for name in ("samples", "history"))
    low, mid, high = r["memory_mb"]
    kept = r["kept_log_mb"]
    return (
        f"The meta database at the end: {told}. `samples` holds an hour, so that it stays below "
        f"{samples:,} rows, and `history` the newest lines of each changefeed, so that it stays "
        f"below {history:,}. Servers with Java and all workers took {mid:,.0f} MB together "
        f"({low:,.0f} to {high:,.0f}), and wrote {r['log_mb_h']:g} MB of logs in an hour. A "
        f"server kept {kept['most']:g} MB of its sources' logs at most; {kept['allowed']:g} are "
        "allowed.\n"
    )


def draw(run: dict[str, Any], samples: list[Sample]) -> None:
    """Draw the charts of the page."""
    within = [s for s in samples if s["t"] <= run["minutes"] * 60]
    marks = [Mark(e["began"] / 60, e["name"]) for e in run["events"]]

    def line(name: str, value: Any) -> Line:
        return Line(name, [(s["t"] / 60, value(s)) for s in within])

    def lag(kind: str, which: int) -> Any:
        return lambda s: s["lag"][kind][which] if s["lag"].get(kind) else None

    def of(member: str, what: str) -> Any:
        return lambda s: next((o[what] for o in s["servers"] if o["name"] == member), None)

    def now_and_then(name: str, look: Any) -> Line:
        return Line(name, [(s["t"] / 60, look(s)) for s in within if s.get("meta")])

    def smooth(kind: str) -> Line:
        found = []
        for n in range(len(within)):
            some = within[max(0, n - 5) : n + 1]
            found.append(
                (within[n]["t"] / 60, sum(s["rows_s"].get(kind, 0) for s in some) / len(some))
            )
        return Line("rows/s, mean of half a minute", found)

    def plot(name: str, unit: str, lines: list[Line], log: bool = False) -> None:
        chart(IMAGES / f"{name}.svg", CHARTS[name], unit, lines, marks, log)

    def each(*parts: tuple[str, str]) -> list[Line]:
        return [line(f"{m}: {label}", of(m, part)) for m in names for label, part in parts]

    def size(of_samples: bool) -> Any:
        def look(s: Sample) -> float:
            tables = s["meta"]["tables"].items()
            return float(sum(t[1] for n, t in tables if (n == "samples") == of_samples)) / 1e6

        return look

    names = sorted({o["name"] for s in within for o in s["servers"]})
    lags = [line("p50", lag("healthy", 0)), line("p99", lag("healthy", 1))]
    lags += [line("slow", lag("slow", 1)), line("load average", lambda s: s["load"])]
    plot("soak-lag", "s", lags, log=True)
    plot("soak-memory", "MB", each(("server", "python"), ("Java", "java"), ("workers", "workers")))
    plot("soak-descriptors", "", each(("descriptors", "fds"), ("threads", "threads")))
    kept = [now_and_then("samples", size(True)), now_and_then("all others", size(False))]
    plot("soak-meta", "MB", kept)
    plot("soak-files-rows", "", [smooth("files")])
    files = [line("p50", lag("files", 0)), line("p99", lag("files", 1))]
    plot("soak-files-lag", "s", files, log=True)
