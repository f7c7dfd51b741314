"""Looking after Delta tables from outside of a feed: their state, leftovers, small files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import unquote

from rowferry.flow.sink.contract import TableStatus
from rowferry.flow.sink.lake.commit import TargetSettings
from rowferry.flow.sink.lake.delta.deletion_vector import vector_path
from rowferry.flow.sink.lake.delta.log import LOG, DeltaLog, TableState
from rowferry.flow.sink.lake.delta.target import DeltaTarget
from rowferry.flow.sink.lake.layout import table_directories, tree
from rowferry.flow.sink.lake.runs import run_path
from rowferry.flow.sink.lake.table_upkeep import TableUpkeep
from rowferry.flow.sink.lake.upkeep import LakeUpkeep, is_pending
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class DeltaUpkeep(LakeUpkeep):
    """The Delta tables of a lake, one after the other."""

    def __init__(
        self,
        files: Files,
        settings: TargetSettings,
        upkeep_of: Callable[[DeltaTarget], TableUpkeep],
    ) -> None:
        super().__init__(files)
        self._settings, self._upkeep_of = settings, upkeep_of

    def status(self) -> Iterator[TableStatus]:
        """Yield the state of each table."""
        for target in self._targets():
            if status := self._upkeep_of(target).status():
                yield status

    def optimize(self, now_ms: int) -> Iterator[tuple[str, int]]:
        """Merge small files of each table; yield how many files were replaced.

        A feed may run meanwhile: one of the two commits first, and the other looks again.
        """
        for target in self._targets():
            owner = target.refreshed().configuration.get("rowferry.changefeed", "")
            count = self._upkeep_of(target).optimize(self.note(owner, now_ms), self._files.locked)
            if count:
                target.write_checkpoint(now_ms)
            yield target.directory, count

    def orphans(self) -> Iterator[str]:
        """Yield the files that no commit names, nor a plan that is still to be carried out."""
        number = self.progress().number
        for target in self._targets():
            state = target.refreshed()
            known = _known(target.directory, state)
            for path in tree(self._files, target.directory):
                inside = path.removeprefix(f"{target.directory}/")
                if path in known or inside.startswith(f"{LOG}/") or is_pending(inside, number):
                    continue
                yield path

    def expired(self, before_ms: int, now_ms: int) -> Iterator[str]:
        """Yield the files that were taken out of their tables before a moment.

        After them, of each table, the files of its log that are older than it keeps its log.
        """
        for target in self._targets():
            state = target.refreshed()
            needed = {f.path for f in state.files.values()}
            needed |= {p for f in state.files.values() if f.vector and (p := vector_path(f.vector))}
            old = []
            for remove in state.removed.values():
                names = [unquote(remove["path"])]
                if remove.get("deletionVector"):
                    names += [vector_path(remove["deletionVector"]) or ""]
                if remove.get("deletionTimestamp", 0) < before_ms:
                    old += names
                else:
                    needed |= set(names)
            for name in sorted({n for n in old if n} - needed):
                path = f"{target.directory}/{name}"
                moment("look for expired file")
                if self._files.exists(path):
                    yield path
            kept_ms = retention_ms(state.configuration.get(RETENTION, ""))
            if kept_ms is not None:
                log = DeltaLog(self._files, target.directory)
                since_ms = min(before_ms, now_ms - kept_ms)
                yield from old_log_files(self._files, log, since_ms, state.version)

    def _targets(self) -> Iterator[DeltaTarget]:
        """Yield the tables that changefeeds have made; those of others are none of ours."""
        for directory in table_directories(self._files, LOG):
            target = DeltaTarget(self._files, directory, self._settings)
            if target.owner():
                yield target


def _known(directory: str, state: TableState) -> set[str]:
    """Return the paths of files that the log names, also of removed ones.

    The log has them as URLs: the directory of a partition may have a space in its name.
    """
    paths = set()
    for action in [*(f.add for f in state.files.values()), *state.removed.values()]:
        paths.add(f"{directory}/{unquote(action['path'])}")
        vector = action.get("deletionVector")
        if vector and (name := vector_path(vector)):
            paths.add(f"{directory}/{name}")
    return paths | {run_path(directory, f.path) for f in state.files.values()}


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
