"""The versions of one Delta table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from rowferry.errors import NoSuchVersion, TargetUnfit
from rowferry.flow.sink.lake.delta.log import DeltaLog, TableState
from rowferry.flow.sink.lake.delta.partition_values import held_values
from rowferry.flow.sink.lake.delta.target import DeltaTarget
from rowferry.flow.sink.lake.history import TableCommit, TablePart, TableVersion
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_READERS: Final = 8


class DeltaHistory:
    """Versions as the log has them."""

    def __init__(self, files: Files, target: DeltaTarget) -> None:
        self._files = files
        self._target = target
        self._log = DeltaLog(files, target.directory)

    @property
    def shown(self) -> str:
        """The table's place."""
        return self._log.shown

    def commits(self) -> list[TableCommit]:
        """Return the commits that are there, the oldest first."""
        versions = self._log.versions()
        with ThreadPoolExecutor(_READERS) as pool:
            infos = list(pool.map(self._log.commit_info, versions))
        return [_commit(n, info) for n, info in zip(versions, infos, strict=True)]

    def begins(self) -> bool:
        """Return whether the first commit is still there."""
        return self._log.versions()[:1] == [0]

    def version(self, number: int | None = None) -> TableVersion:
        """Return the table at a version; None: the present one."""
        state = self._state(number)
        columns = state.columns
        if columns is None:
            raise TargetUnfit(f"{self.shown} has columns that no changefeed gave it")
        parts = tuple(
            TablePart(
                f"{self._target.directory}/{file.path}",
                self._target.rows_gone(file),
                held_values(file.add, columns),
            )
            for file in state.files.values()
        )
        settings = state.configuration
        return TableVersion(
            self._noted_commit(state.version),
            columns,
            tuple(name for name in settings.get("rowferry.key", "").split("\n") if name),
            settings.get("rowferry.mode", ""),
            parts,
            numbered=False,
        )

    def require(self, number: int) -> None:
        """Raise where files of a version were deleted."""
        self._state(number)

    def _state(self, number: int | None) -> TableState:
        """Return the log's words about a version of which all files are there."""
        present = self._log.read()
        if number is None or number == present.version:
            state: TableState | None = present
        else:
            state = self._log.state_at(number)
        if state is None or not state.exists:
            raise NoSuchVersion(f"{self.shown} has no version {number}, or not any more")
        moment("look for files of an earlier version")
        for file in state.files.values():
            path = f"{self._target.directory}/{file.path}"
            if file.path not in present.files and not self._files.exists(path):
                raise NoSuchVersion(
                    f"version {state.version} of {self.shown} has expired: "
                    f"{self._files.shown(path)} was deleted; name a later moment"
                )
        return state

    def _noted_commit(self, version: int) -> TableCommit:
        """Return a commit with a watermark: its own, or that of the last one of ours before it."""
        last = _commit(version, self._log.commit_info(version))
        at = version
        while last.checkpoint_ts is None and at > 0:
            at -= 1
            earlier = _commit(at, self._log.commit_info(at))
            last = replace(earlier, version=version, at_ms=last.at_ms)
        return last

    def readers(self, number: int) -> dict[str, str]:
        """Return how others read a version."""
        place = self.shown
        return {
            "delta-rs": f'DeltaTable("{place}", version={number})',
            "Spark": f'spark.read.format("delta").option("versionAsOf", {number}).load("{place}")',
            "DuckDB": f"SELECT * FROM delta_scan('{place}', version => {number})",
            "Polars": f'pl.scan_delta("{place}", version={number})',
        }


def _commit(version: int, info: dict[str, Any]) -> TableCommit:
    mark, settled = info.get("rowferry.checkpoint-ts"), info.get("rowferry.settled", True)
    if not info.get("rowferry.micro-batch"):
        mark = None  # files were merged by hand
    since = int(info.get("rowferry.since-ts", 0))
    return TableCommit(version, int(info.get("timestamp", 0)), mark, since, bool(settled))
