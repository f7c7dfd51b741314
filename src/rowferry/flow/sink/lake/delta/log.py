"""A Delta table's log: what it holds now, and how a commit joins it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from rowferry.errors import FileConflict, SinkDamaged, TargetUnfit
from rowferry.flow.sink.lake.commit import Guard
from rowferry.flow.sink.lake.data_file import read_parquet
from rowferry.flow.sink.lake.delta.checkpoint import checkpoint_bytes, plain_action
from rowferry.flow.sink.lake.delta.partition_values import stored_layout
from rowferry.flow.sink.lake.delta.tombstones import Tombstones, file_key, named_until
from rowferry.flow.sink.lake.stored_columns import NUMBERINGS, StoredColumns
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"[0-9]{20}\.json")
ROW_COMMITS: Final = ("MERGE", "WRITE")  # operations by which rows come in, by mode
_MOST_LOOKS: Final = 2000  # commits that are looked at for one question
_LAST: Final = "_last_checkpoint"
_REMOVED: Final = "_rowferry.removed"  # stands in a log that is being deleted
_AT_ONCE: Final = 4096  # actions of a checkpoint that are read together
# What we know to read and keep; a table that needs more is not touched.
READER_FEATURES: Final = frozenset({"columnMapping", "deletionVectors", "timestampNtz"})
WRITER_FEATURES: Final = READER_FEATURES | {"appendOnly", "invariants"}


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the table's present version: the log's own words about it."""

    add: dict[str, Any]

    @property
    def path(self) -> str:
        """The file's path below the table."""
        return unquote(self.add["path"])

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(self.add["size"])

    @property
    def records(self) -> int:
        """Its rows, also those that a deletion vector takes away."""
        stats = self.add.get("stats")
        try:
            return int(json.loads(stats).get("numRecords", 0)) if stats else 0
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise SinkDamaged(f"the log tells no number of rows of {self.path}") from None

    @property
    def vector(self) -> dict[str, Any] | None:
        """Its deletion vector as the log names it."""
        descriptor: dict[str, Any] | None = self.add.get("deletionVector")
        return descriptor

    @property
    def deleted(self) -> int:
        """How many of its rows are deleted."""
        return int(self.vector["cardinality"]) if self.vector else 0

    def removal(self, at_ms: int, data_change: bool = True) -> dict[str, Any]:
        """Return the action that takes it away."""
        action = {
            "path": self.add["path"],
            "deletionTimestamp": at_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": self.add.get("partitionValues") or {},
            "size": self.add["size"],
        }
        if self.vector:
            action["deletionVector"] = self.vector
        return {"remove": action}


@dataclass(slots=True)
class TableState:
    """A table at one version of its log."""

    version: int = -1
    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, LiveFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    removed: Tombstones = field(default_factory=Tombstones)

    @property
    def exists(self) -> bool:
        """Whether there is a table at all."""
        return bool(self.metadata)

    @property
    def configuration(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def columns(self) -> StoredColumns | None:
        """The table's columns; None: they are not ours. Whoever has read the log has seen them."""
        settings = self.configuration
        mapped = settings.get("delta.columnMapping.mode", "none") != "none"
        noted = int(settings.get("rowferry.max-column-id", "0"))
        numberings = settings.get(NUMBERINGS, "").split()
        return StoredColumns.read(self.metadata["schemaString"], mapped, noted, numberings)

    def apply(self, action: dict[str, Any]) -> None:
        """Do what one action of a commit says.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is none.
        """
        if add := action.get("add"):
            self.files[_named(add)] = LiveFile({**add, "size": int(add["size"])})
            self.removed.discard(file_key(add))
        elif remove := action.get("remove"):
            known = self.files.get(_named(remove))
            if known is not None and file_key(known.add) == file_key(remove):
                del self.files[remove["path"]]
            at_ms = int(remove.get("deletionTimestamp") or 0)
            self.removed.add({**remove, "dataChange": False, "deletionTimestamp": at_ms})
        elif txn := action.get("txn"):
            self.transactions[txn["appId"]] = int(txn["version"])
        elif metadata := action.get("metaData"):
            self.metadata = {**metadata}
        elif protocol := action.get("protocol"):
            self.protocol = {**protocol}

    def apply_rows(self, kind: str, rows: pa.ChunkedArray) -> None:
        """Do what rows of a checkpoint say, which are actions of one kind.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: they are none.
        """
        if kind == "remove" and self.removed.add_rows(rows, self.files):
            return
        for form in rows.to_pylist():
            self.apply({kind: plain_action(form)})

    def actions(self) -> Iterator[dict[str, Any]]:
        """Yield the actions that make this state, for a checkpoint; removals are not among them."""
        yield {"protocol": self.protocol}
        yield {"metaData": self.metadata}
        for name, number in self.transactions.items():
            yield {"txn": {"appId": name, "version": number}}
        yield from ({"add": {**f.add, "dataChange": False}} for f in self.files.values())


def _named(action: dict[str, Any]) -> str:
    """Return the path in an action, whose other parts are as they are used.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is another form.
    """
    path, stats = action["path"], action.get("stats")
    if not isinstance(path, str) or not isinstance(stats, str | None):
        raise ValueError
    if vector := action.get("deletionVector"):
        int(vector["cardinality"])
    return path


class DeltaLog:
    """The log of one table below a prefix."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.directory = directory

    @property
    def shown(self) -> str:
        """The table's place as users know it."""
        return self._files.shown(self.directory)

    def read(self) -> TableState:
        """Return the table as it is now; without a log, an empty state.

        Raises:
            TargetUnfit: it needs more than we know.
            SinkDamaged: its log cannot be read.
        """
        return self._checked(self._as_written())

    def configuration(self) -> dict[str, str]:
        """Return the table's properties, also where it needs more than we know."""
        state = self._as_written()
        with self._read_as_log("its metadata"):
            return state.configuration

    def _as_written(self) -> TableState:
        state = TableState()
        moment("read delta checkpoint")
        last = self._files.get(self._path(_LAST))
        if last is not None:
            state = self._from_checkpoint(self._parsed(last.data, _LAST))
        self._follow(state, None)
        if state.version >= 0 and not state.exists:
            raise SinkDamaged(
                f"{self.shown}/{LOG}: its first commits are gone, and no checkpoint holds them"
            )
        return state

    def refreshed(self, state: TableState) -> TableState:
        """Take in what was committed since; the state is changed, or another is returned.

        That no next commit is there tells nothing where the state's own is gone: others clean the
        log up behind their checkpoints, and the table may be deleted.
        """
        self._follow(state, None)
        moment("look for delta commit")
        if state.version < 0 or not self._files.exists(self._path(_version_name(state.version))):
            return self.read()
        return self._checked(state)

    def _checked(self, state: TableState) -> TableState:
        self._check_protocol(state)
        return state

    def _follow(self, state: TableState, last: int | None) -> None:
        """Apply the commits behind a state's version, up to one, or all that are there."""
        moment("read delta commits")
        while last is None or state.version < last:
            name = _version_name(state.version + 1)
            stored = self._files.get(self._path(name))
            if stored is None:
                return
            with self._read_as_log(name):
                for line in stored.data.splitlines():
                    if line.strip():
                        state.apply(self._parsed(line, name))
            state.version += 1

    def versions(self) -> list[int]:
        """Return the versions whose commits are there, ascending."""
        moment("list delta commits")
        names = (entry.name for entry in self._files.entries(f"{self.directory}/{LOG}"))
        return sorted(int(n[:20]) for n in names if len(n) == 25 and n.endswith(".json"))

    def delete(self, names: Iterable[str]) -> None:
        """Delete files of the log; what is left when that is cut off tells so.

        It is no table once the first commit is gone: readers are led to no checkpoint any more.
        """
        given = sorted({*names} - {_REMOVED}, key=lambda name: (name != _LAST, name))
        moment("delete delta log")
        if given:
            self._files.overwrite(self._path(_REMOVED), b"{}\n")
        for name in [*given, _REMOVED]:
            self._files.delete(self._path(name))

    def delete_rest(self, guard: Guard) -> None:
        """Delete what a removal that was cut off has left, before there is a table again.

        Commits of the old one would follow those of the new.
        """
        moment("look for rest of delta log")
        if self._files.exists(self._path(_REMOVED)):
            with guard():
                entries = self._files.entries(f"{self.directory}/{LOG}")
                self.delete(e.name for e in entries if not e.is_directory)

    def commit_info(self, version: int) -> dict[str, Any]:
        """Return what a commit says about itself; of one that is gone, nothing."""
        moment("read delta commit")
        stored = self._files.get(self._path(_version_name(version)))
        for line in stored.data.splitlines() if stored else ():
            action = self._parsed(line, _version_name(version)) if line.strip() else {}
            if isinstance(action.get("commitInfo"), dict):
                return dict(action["commitInfo"])
        return {}

    def may_have_added(self, path: str, since: int, until: int) -> bool:
        """Return whether a commit behind a version, up to another, adds a file, or is gone."""
        moment("look for file in delta commits")
        for version in range(since + 1, until + 1):
            name = _version_name(version)
            stored = self._files.get(self._path(name))
            if stored is None:
                return True
            with self._read_as_log(name):
                actions = [self._parsed(line, name) for line in stored.data.splitlines() if line]
                if any(unquote(add["path"]) == path for a in actions if (add := a.get("add"))):
                    return True
        return False

    def state_at(self, version: int) -> TableState | None:
        """Return the table at an earlier version; None: its commits are gone."""
        moment("list delta checkpoints")
        sums = {
            int(name[:20])
            for entry in self._files.entries(f"{self.directory}/{LOG}")
            if (name := entry.name).endswith(".checkpoint.parquet") and len(name) == 39
        }
        usable = [number for number in sums if number <= version]
        state = TableState()
        if usable and not self._files.exists(self._path(_version_name(0))):
            state = self._from_checkpoint({"version": max(usable)})
        self._follow(state, version)
        if state.version != version or not state.exists:
            return None
        with self._read_as_log("its metadata"):
            _ = state.columns
        return state

    def commit(self, state: TableState, actions: Iterable[dict[str, Any]]) -> bool:
        """Add a commit behind the state's version; False: another one has taken its place.

        True is also the answer if these very bytes are there: an answer was lost.
        """
        given = list(actions)
        name = _version_name(state.version + 1)
        data = b"".join(_line(action) for action in given)
        moment("commit delta version")
        try:
            self._files.create(self._path(name), data)
        except FileConflict:
            return False
        moment("delta version committed")
        for action in given:
            state.apply(action)
        state.version += 1
        return True

    def commits_of(self, changefeed: str, micro_batches: Collection[int]) -> dict[int, str]:
        """Return the versions that micro-batches of a changefeed have made; the newest first."""
        moment("look for delta commits")
        names = [e.name for e in self._files.entries(f"{self.directory}/{LOG}")]
        versions: dict[int, str] = {}
        first = min(micro_batches, default=0)
        for name in sorted((n for n in names if _COMMIT.fullmatch(n)), reverse=True)[:_MOST_LOOKS]:
            stored = self._files.get(self._path(name))
            about = self._commit_info(stored.data, name) if stored else {}
            number = about.get("rowferry.micro-batch")
            if about.get("rowferry.changefeed") != changefeed:
                continue
            if not isinstance(number, int) or not number:
                continue
            if number in micro_batches and about.get("operation") in ROW_COMMITS:
                versions[number] = str(int(name.partition(".")[0]))
            if number < first:
                break
        return versions

    def _commit_info(self, data: bytes, name: str) -> dict[str, Any]:
        for line in data.splitlines()[:3]:
            if b"commitInfo" in line[:20]:
                info = self._parsed(line, name).get("commitInfo")
                return info if isinstance(info, dict) else {}
        return {}

    def write_checkpoint(self, state: TableState, now_ms: int) -> None:
        """Sum the state up, so that readers need not read all commits."""
        since_ms = named_until(state.configuration, now_ms)
        state.removed.forget(since_ms)
        content, count = checkpoint_bytes(state.actions(), state.removed.since(since_ms))
        path = self._path(f"{state.version:020d}.checkpoint.parquet")
        moment("put delta checkpoint")
        if not self._files.exists(path):
            self._files.overwrite(path, content)
        summary = {"version": state.version, "size": count}
        self._files.overwrite(self._path(_LAST), json.dumps(summary).encode())

    def _from_checkpoint(self, last: dict[str, Any]) -> TableState:
        with self._read_as_log(_LAST):
            version, parts = int(last["version"]), int(last.get("parts") or 0)
            if version < 0 or parts < 0:
                raise ValueError
        # One by one: what the number says is not believed.
        names = (
            f"{version:020d}.checkpoint"
            + (f".{number:010d}.{parts:010d}.parquet" if parts else ".parquet")
            for number in range(1, max(parts, 1) + 1)
        )
        state = TableState(version)
        for name in names:
            stored = self._files.get(self._path(name))
            if stored is None:
                return TableState()  # perhaps every commit is still there
            try:
                rows = read_parquet(stored.data)
            except (pa.ArrowException, OSError):
                raise SinkDamaged(f"{self.shown}/{LOG}/{name} is no checkpoint") from None
            with self._read_as_log(name):
                for kind in ("protocol", "metaData", "txn", "add", "remove"):
                    if kind in rows.column_names:
                        forms = rows.column(kind).drop_null()
                        for at in range(0, len(forms), _AT_ONCE):
                            state.apply_rows(kind, forms.slice(at, _AT_ONCE))
        return state

    @contextmanager
    def _read_as_log(self, name: str) -> Iterator[None]:
        """Turn what a file of another form leads to into an error of ours."""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise SinkDamaged(
                f"{self.shown}/{LOG}/{name} does not hold what a log of Delta's holds"
            ) from None

    def _check_protocol(self, state: TableState) -> None:
        if not state.exists:
            return
        with self._read_as_log("its protocol and metadata"):
            _ = state.columns
            self._check_known(state)

    def _check_known(self, state: TableState) -> None:
        protocol = state.protocol
        unknown = set(protocol.get("readerFeatures") or ()) - READER_FEATURES
        unknown |= set(protocol.get("writerFeatures") or ()) - WRITER_FEATURES
        reader, writer = protocol.get("minReaderVersion", 0), protocol.get("minWriterVersion", 0)
        if reader > 3 or writer > 7 or (2 < writer < 7):
            unknown.add(f"reader version {reader}, writer version {writer}")
        if unknown:
            raise TargetUnfit(
                f"{self.shown} needs what this version cannot keep: {', '.join(sorted(unknown))}; "
                "drop these table features, or let the changefeed write another table"
            )
        columns = list(state.metadata.get("partitionColumns") or ())
        if columns != stored_layout(state.configuration):
            raise TargetUnfit(
                f"{self.shown} is partitioned by {', '.join(columns) or 'nothing'}, and no "
                "changefeed did it; let the changefeed write another table"
            )

    def _path(self, name: str) -> str:
        return f"{self.directory}/{LOG}/{name}"

    def _parsed(self, data: bytes, name: str) -> dict[str, Any]:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise SinkDamaged(f"{self.shown}/{LOG}/{name} holds something else than JSON objects")
        return document


def _version_name(version: int) -> str:
    return f"{version:020d}.json"


def _line(action: dict[str, Any]) -> bytes:
    return json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
