"""Which files of a Delta table's log are not needed any more: old ones behind a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from rowferry.flow.sink.lake.delta.log import LOG, DeltaLog
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

RETENTION: Final = "delta.logRetentionDuration"
_DEFAULT_MS: Final = 30 * 86_400_000  # the format's own
_NAMED: Final = re.compile(r"([0-9]{20})\.(json|crc|checkpoint(\.[0-9A-Za-z.-]+)?\.parquet)")
_INTERVAL: Final = re.compile(r"interval((?:\s+[0-9]+\s+[a-z]+)+)")
_PART: Final = re.compile(r"([0-9]+)\s+([a-z]+?)s?(?:\s|$)")
_UNIT_MS: Final = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 7 * 86_400_000,
}


def retention_ms(given: str) -> int | None:
    """Return how long a table keeps its log; None: its property says what we do not understand."""
    if not given:
        return _DEFAULT_MS
    match = _INTERVAL.fullmatch(given.strip().lower())
    parts = _PART.findall(match[1]) if match else []
    if not parts or any(unit not in _UNIT_MS for _, unit in parts):
        return None
    return sum(int(number) * _UNIT_MS[unit] for number, unit in parts)


def old_log_files(files: Files, log: DeltaLog, before_ms: int, newest: int) -> Iterator[str]:
    """Yield the files of a log that no version needs whose successor came after a moment.

    They are commits before a checkpoint, and the checkpoints before it; the oldest come first, so
    that what is left after a crash has no gap. `newest`: the table's present version.
    """
    moment("list delta log")
    folder = f"{log.directory}/{LOG}"
    named = [
        (int(match[1]), entry.name)
        for entry in files.entries(folder)
        if (match := _NAMED.fullmatch(entry.name))
    ]
    last = _last_checkpoint(files, folder)
    # Readers begin at the checkpoint that the log itself names, or before it.
    sums = [n for n, name in named if name.endswith(".checkpoint.parquet") and n <= last]
    needed = 0  # versions from here on are to be read, with the newest checkpoint behind them
    for version in sorted(n for n, name in named if name.endswith(".json")):
        at_ms = log.commit_info(version).get("timestamp")
        if version >= newest or not isinstance(at_ms, int) or at_ms >= before_ms:
            break
        needed = version
    first = max((n for n in sums if n <= needed), default=0)
    for version, name in sorted(named):
        if version < first:
            yield f"{folder}/{name}"


def _last_checkpoint(files: Files, folder: str) -> int:
    moment("read last delta checkpoint")
    stored = files.get(f"{folder}/_last_checkpoint")
    try:
        return int(json.loads(stored.data)["version"]) if stored else -1
    except (ValueError, KeyError, TypeError, RecursionError):
        return -1
