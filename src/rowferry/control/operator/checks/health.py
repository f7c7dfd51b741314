"""What a changefeed needs, checked before there is one: this machine, the source, the sink."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rowferry.control.operator.checks.near_misses import nothing_matches
from rowferry.errors import RowferryError, cure_of
from rowferry.flow.assemble import Flow, assemble, option_tables, sink_traits
from rowferry.flow.capture.contract import KnowsHealth
from rowferry.flow.encode.contract import Format
from rowferry.flow.sink.contract import Owner, Sink
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"
_LEAST_JAVA: Final = 17
_LITTLE_MEMORY: Final = 2 << 30
_LITTLE_DISK, _NO_DISK = 5 << 30, 200 << 20
_CLOCK_S: Final = 2.0
_SHORT_LOG_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Health:
    """What one check found; `cure` says what helps, empty where nothing is wrong."""

    check: str
    result: str
    words: str
    cure: str = ""


def examine_all(
    source: str,
    sink: str,
    config: Path | Mapping[str, Any] | None,
    folder: Path,
    secrets: SecretSources = NO_STORE,
) -> Iterator[Health]:
    """Yield what each check finds, as they are made; writes nothing. Nothing is raised.

    `secrets` is where the values of references come from.
    """
    yield _java()
    yield _spark()
    yield _memory()
    yield from _disks(folder)
    flows: list[tuple[ChangefeedSpec, Flow]] = []

    def settings() -> str:
        spec, notices = build_spec(
            source, sink, config, None, tables=option_tables, sinks=sink_traits
        )
        spec = secrets.resolved(spec)
        flows.append((spec, assemble(spec)))
        return "; ".join(notices) or f"from {spec.source} to {spec.sink}"

    yield _judged("settings", settings)
    if flows:
        spec, flow = flows[0]
        with flow.hiding.in_errors():
            yield from source_health(spec, flow)
            yield from sink_health(spec, flow.format, flow.sink)


def _judged(check: str, ask: Callable[[], str]) -> Health:
    try:
        return Health(check, OK, ask())
    except RowferryError as err:
        return Health(check, FAILED, str(err), cure_of(err.code))


# --- this machine --------------------------------------------------------------------------------


def _java() -> Health:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    cure = f"Install Java {_LEAST_JAVA} or newer, or set JAVA_HOME to where it is."
    if not program or not Path(program).exists():
        return Health("java", FAILED, "there is no java", cure)
    try:
        run = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return Health("java", FAILED, f"{program} does not run: {err}", cure)
    text = run.stderr or run.stdout
    version = java_version(text)
    if version < _LEAST_JAVA:
        first = text.strip().splitlines()[:1]
        return Health("java", FAILED, f"{program}: {' '.join(first) or 'unknown version'}", cure)
    return Health("java", OK, f"version {version}, {program}")


def java_version(text: str) -> int:
    """Return the version that `java -version` tells; 0: none can be found in it."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _spark() -> Health:
    def ask() -> str:
        from rowferry.spark.versions import RELEASE, check_release  # takes a second

        check_release()
        return "pyspark " + ".".join(map(str, RELEASE))

    return _judged("spark", ask)


def _memory() -> Health:
    try:
        memory_text = Path("/proc/meminfo").read_text()
    except OSError:
        return Health("memory", OK, "not known on this system")
    match = re.search(r"MemAvailable:\s+(\d+) kB", memory_text)
    free = int(match[1]) << 10 if match else 0
    words = f"{free / 1e9:.1f} GB are free"
    if free >= _LITTLE_MEMORY:
        return Health("memory", OK, words)
    return Health("memory", WARNING, words, "Spark and its workers need about 2 GB: free some.")


def _disks(folder: Path) -> Iterator[Health]:
    spark = os.environ.get("SPARK_LOCAL_DIRS", "/tmp").split(",")[0]
    for what, place in (("disk of the work directory", folder), ("disk of Spark", Path(spark))):
        there = next((p for p in (place, *place.parents) if p.exists()), Path("/"))
        free = shutil.disk_usage(there).free
        words = f"{free / 1e9:.1f} GB are free at {there}"
        if free >= _LITTLE_DISK:
            yield Health(what, OK, words)
        else:
            result = FAILED if free < _NO_DISK else WARNING
            yield Health(
                what, result, words, "Free some space, or use a directory on another disk."
            )


# --- source and sink -----------------------------------------------------------------------------


def source_health(spec: ChangefeedSpec, assembled: Flow | None = None) -> Iterator[Health]:
    """Yield what is found out about a source; nothing is raised that is an error of ours."""
    flow = assembled or assemble(spec)
    name = "source: reach, rights, settings"
    try:
        tables = flow.capture.probe(flow.decide)
        captured = [t for t in tables if flow.decide.captures(t)]
    except RowferryError as err:
        yield Health(name, FAILED, str(err), cure_of(err.code))
        return
    yield Health(name, OK, flow.capture.identity or spec.source.address)
    for notice in flow.capture.notices:
        yield Health("source: settings", WARNING, notice, "See what it says.")
    if captured:
        left_out = len(tables) - len(captured)
        more = f", {left_out} more have no usable key" if left_out else ""
        yield Health("tables", OK, f"{len(captured)} are captured{more}")
    else:
        yield Health("tables", FAILED, nothing_matches(spec), "Correct filter.rules.")
    if isinstance(flow.capture, KnowsHealth):
        yield from _clock_and_log(flow.capture)


def _clock_and_log(source: KnowsHealth) -> Iterator[Health]:
    try:
        asked = time.time()
        clock_ms, kept = source.health()
    except RowferryError as err:
        yield Health("clocks", FAILED, str(err), cure_of(err.code))
        return
    late_s = clock_ms / 1000 - (asked + time.time()) / 2
    words = f"the source's clock is {abs(late_s):.1f} s {'ahead' if late_s > 0 else 'behind'}"
    if abs(late_s) <= _CLOCK_S:
        yield Health("clocks", OK, words)
    else:
        cure = "Let both machines follow a time server; lag and commit times are wrong by that."
        yield Health("clocks", WARNING, words, cure)
    if kept is None:
        yield Health("log retention", OK, "the source removes no log by itself")
        return
    words = f"the source keeps its log for {kept.keep_s / 3600:.1f} h ({kept.setting})"
    if kept.keep_s >= _SHORT_LOG_S:
        yield Health("log retention", OK, words)
    else:
        yield Health("log retention", WARNING, words, f"A pause may not last longer: {kept.cure}")


def sink_health(spec: ChangefeedSpec, codec: Format, sink: Sink) -> Iterator[Health]:
    """Yield what is found out about a sink; it is closed then."""

    def ask_format() -> str:
        codec.probe()
        return spec.protocol or "rows as they are"

    def ask_sink() -> str:
        try:
            sink.probe(Owner(spec.changefeed_id, 0))
        finally:
            sink.close()
        return str(spec.sink)

    yield _judged("sink: format", ask_format)
    yield _judged("sink: reach, rights", ask_sink)
