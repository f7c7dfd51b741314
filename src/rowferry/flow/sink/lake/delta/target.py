"""One Delta table: rows, schema changes and truncation, each as one commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import PlanDiscarded, SinkOwned, SinkUnavailable, TargetLost, TargetUnfit
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.commit import (
    CommitNote,
    FileColumns,
    Guard,
    NewFile,
    TargetSettings,
    foreign_words,
    is_another,
    is_known,
    noted_changefeed,
    require_delivered,
)
from rowferry.flow.sink.lake.delta.actions import (
    CHANGEFEED,
    DROPPED,
    Action,
    TableShape,
    added_file,
    commit_head,
    metadata_actions,
    transaction,
    wide_stats,
)
from rowferry.flow.sink.lake.delta.deletion_vector import (
    RowNumbers,
    vector_file,
    vector_in,
    vector_path,
)
from rowferry.flow.sink.lake.delta.log import ROW_COMMITS, DeltaLog, LiveFile, TableState
from rowferry.flow.sink.lake.delta.partition_values import (
    held_values,
    partition_values,
    stored_layout,
)
from rowferry.flow.sink.lake.delta.rewrite import Rewriter
from rowferry.flow.sink.lake.key_run import GONE
from rowferry.flow.sink.lake.layout import table_at
from rowferry.flow.sink.lake.layouts import require_columns
from rowferry.flow.sink.lake.runs import RunStore, TouchedKeys
from rowferry.flow.sink.lake.shared_cache import SharedCache
from rowferry.flow.sink.lake.stored_columns import (
    Evolution,
    StoredColumns,
    evolve,
    numbering_of,
)
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_TRIES: Final = 50
_Vector: TypeAlias = tuple[Action, npt.NDArray[np.integer[Any]]]
_VECTORS: Final = SharedCache[_Vector](256 << 20)  # what live files need, as far as it fits
_ABOUT: Final = 1024  # bytes of a descriptor and its place, at most


class DeltaTarget:
    """A Delta table below the prefix of a lake."""

    def __init__(self, files: Files, directory: str, settings: TargetSettings) -> None:
        self.directory = directory
        self._files = files
        self._settings = settings
        self._lake = settings.lake
        self._log = DeltaLog(files, directory)
        self._runs = RunStore(files, directory, self._held)
        self._state: TableState | None = None
        self._vectors = _VECTORS.part()
        self._key: tuple[str, ...] = ()

    # --- what is there ---------------------------------------------------------------------------

    @property
    def state(self) -> TableState:
        """The table as it was last seen."""
        return self._state if self._state is not None else self.refreshed()

    def refreshed(self) -> TableState:
        """Return the table as it is now."""
        known, self._state = self._state, None  # not kept if reading fails half-way
        self._state = self._log.read() if known is None else self._log.refreshed(known)
        self._vectors.keep(self._state.files)
        return self._state

    def exists(self) -> bool:
        """Return whether there is a table."""
        return self.state.exists

    def commits_of(self, changefeed: str, micro_batches: Collection[int]) -> dict[int, str]:
        """Return the versions that have the rows of micro-batches."""
        return self._log.commits_of(changefeed, micro_batches)

    def owner(self) -> str:
        """Return the changefeed that made the table; empty: none did. It may need what we lack."""
        return self._log.configuration().get(CHANGEFEED, "")

    def identity(self) -> str:
        """Return the table's id, which stays when it is moved."""
        return str(self.state.metadata.get("id", ""))

    def is_dropped(self) -> bool:
        """Return whether the source has dropped the table."""
        return DROPPED in self.state.configuration

    def check(self, changefeed: str) -> None:
        """Raise unless there is no table, or one of this changefeed that we can keep."""
        self._check(self.state, changefeed)

    def _check(self, state: TableState, changefeed: str) -> None:
        if not state.exists:
            return
        owner = state.configuration.get(CHANGEFEED)
        if owner != changefeed:
            whose = foreign_words(owner or "", noted_changefeed(state.transactions))
            raise SinkOwned(
                f"{self._log.shown} is a Delta table that {whose}; choose another sink URI, give "
                "the table another name by a routing rule, or delete the table"
            )
        if self._columns(state) is None:
            raise TargetUnfit(
                f"{self._log.shown} has columns that this changefeed did not give it; drop them, "
                "or begin anew: delete the table, then rowferry changefeed reset --snapshot"
            )

    def _columns(self, state: TableState) -> StoredColumns | None:
        return state.columns

    def _next_columns(
        self, state: TableState, table: TableSchema, application: str, begun: int
    ) -> Evolution:
        fresh = self._is_fresh(state, table, application)
        return self._evolution(state, table, fresh, begun, _is_another(state, table))

    def _evolution(
        self, state: TableState, table: TableSchema, fresh: bool, begun: int, succeeds: bool
    ) -> Evolution:
        old, numbering = None if fresh else self._columns(state), numbering_of(table, begun)
        return evolve(old, table, self._lake, numbering=numbering, succeeds=succeeds)

    def _is_fresh(self, state: TableState, table: TableSchema, application: str) -> bool:
        """Return whether a version of the source's table begins with nothing of what is there."""
        if not state.exists or not is_known(state.transactions, application):
            return True
        return _is_another(state, table) and not self._lake.changelog

    def _held(self, path: str) -> dict[str, pa.Scalar]:
        files = {f.path: f for f in self.state.files.values()}
        return held_values(files[path].add, self.state.columns) if path in files else {}

    def root(self, fresh: str) -> str:
        """Return where data files go: the table is a directory."""
        return self.directory

    def file_columns(self, table: TableSchema, application: str, begun: int = 0) -> FileColumns:
        """Return the names that the columns of a table version have in data files."""
        columns = self._next_columns(self.state, table, application, begun).columns
        fresh = self._is_fresh(self.state, table, application)
        self._require_layout(self.state, table, columns, fresh)
        return FileColumns(columns.physical)

    def _require_layout(
        self, state: TableState, table: TableSchema, new: StoredColumns, fresh: bool
    ) -> None:
        """Raise where a table with rows has other partitions than asked for, or loses a column."""
        layouts = self._settings.layouts
        if fresh or not state.files:
            layouts.check(table, self._lake)
            return
        stored, old = stored_layout(state.configuration), self._columns(state)
        if old is not None:
            require_columns(old, new, stored, str(table.id))
        layouts.require_same(layouts.of(table.id), stored, self._log.shown)

    def has_rows(self, note: CommitNote) -> bool:
        """Return whether the micro-batch was committed."""
        return note.is_done(self.refreshed().transactions)

    # --- commits ---------------------------------------------------------------------------------

    def commit_rows(
        self,
        note: CommitNote,
        table: TableSchema,
        files: Sequence[NewFile],
        guard: Guard,
        delivered: bool = False,
    ) -> None:
        """Commit a micro-batch's rows, replacing those of the same keys."""
        self._fit_rows(note, table, guard)

        def actions(state: TableState) -> list[Action] | None:
            if note.is_done(state.transactions):
                return None
            if delivered:
                require_delivered(state.transactions, note, self._log.shown)
            if state.transactions.get(note.discards_name, 0) > note.discards:
                raise PlanDiscarded(f"{self._log.shown}: this plan was given up meanwhile")
            anew = self._is_fresh(state, table, note.application)
            evolution = self._next_columns(state, table, note.application, note.begun)
            steps = commit_head(note, ROW_COMMITS[self._lake.changelog], {})
            steps += [transaction(note.application, note.micro_batch, note)]
            if note.discards:
                steps.append(transaction(note.discards_name, note.discards, note))
            steps += self._metadata(state, note, evolution.columns, table, anew)
            old = [] if anew else list(state.files.values())
            if anew:
                steps += [f.removal(note.at_ms) for f in state.files.values()]
            self._require_layout(state, table, evolution.columns, anew)
            return steps + self._changed_rows(note, table, evolution.columns, files, old)

        self._commit(note, actions, guard)
        self._runs.forget([f.path for f in files if not f.rows and f.has_run])

    def _fit_rows(self, note: CommitNote, table: TableSchema, guard: Guard) -> None:
        """Write the rows that are there anew, where a version's columns ask for it."""

        def actions(state: TableState) -> list[Action] | None:
            done = note.is_done(state.transactions)
            if done or self._is_fresh(state, table, note.application):
                return None
            evolution = self._next_columns(state, table, note.application, note.begun)
            if not evolution.rewrites:
                return None
            steps = commit_head(note, "CHANGE COLUMNS", {})
            steps += self._metadata(state, note, evolution.columns, table, fresh=False)
            return steps + self._rewriter(note).evolved(
                list(state.files.values()), evolution, table, self.rows_gone
            )

        self._commit(note, actions, guard)

    def _changed_rows(
        self,
        note: CommitNote,
        table: TableSchema,
        columns: StoredColumns,
        files: Sequence[NewFile],
        old: Sequence[LiveFile],
    ) -> list[Action]:
        texts = self._settings.layouts.of(table.id).texts
        adds = {
            f.path: added_file(f, note.at_ms, partition_values(f.partition, texts, columns))
            for f in files
            if f.rows
        }
        if self._lake.changelog:
            return [{"add": add} for add in adds.values()]
        key = self.key_names(table, columns)
        with_runs = [f for f in files if f.has_run]
        if not with_runs:
            return []
        touched = TouchedKeys([self._runs.run(f.path, key) for f in with_runs])
        gone = {f.path: d for f, d in zip(with_runs, touched.dead, strict=True) if len(d)}
        removals: list[Action] = []
        # The newest first: most changes are of what changed lately.
        for file, rows in self._runs.old_rows(key, touched.keys, reversed(old), self.rows_gone):
            removals.append(file.removal(note.at_ms))
            gone[file.path] = np.union1d(self.rows_gone(file), rows)
            adds[file.path] = {**file.add, "dataChange": True}
        for path in [p for p, d in gone.items() if _records(adds[p]) == len(d)]:
            del adds[path], gone[path]  # all of its rows were replaced at once
        self._put_vectors(note, adds, gone)
        return removals + [{"add": add} for add in adds.values()]

    def _put_vectors(
        self, note: CommitNote, adds: dict[str, Action], gone: dict[str, RowNumbers]
    ) -> None:
        if not gone:
            return
        version = (self._state.version if self._state else -1) + 1
        name = f"{note.application}/{note.micro_batch}/{note.discards}/{self.directory}/{version}"
        # Names follow the content: an earlier try may have met the files in another order.
        digest = blake2b(digest_size=16)
        for rows in gone.values():
            digest.update(f"{len(rows)}/".encode() + rows.astype("<i8").tobytes())
        name += f"/{digest.hexdigest()}"
        made = vector_file(uuid5(NAMESPACE_URL, name), list(gone.values()))
        moment("put deletion vectors")
        self._files.create(f"{self.directory}/{made.name}", made.content)
        for path, descriptor in zip(gone, made.descriptors, strict=True):
            add = adds[path]
            if stats := add.get("stats"):
                add = {**add, "stats": wide_stats(stats)}
            adds[path] = {**add, "deletionVector": descriptor}
            self._keep_vector(path, descriptor, gone[path])

    def rows_gone(self, file: LiveFile) -> RowNumbers:
        """Return the rows of a data file that its deletion vector takes away."""
        descriptor = file.vector
        if descriptor is None:
            return np.zeros(0, np.int64)
        known = self._vectors.get(file.path)
        if known is not None and known[0] == descriptor:
            return known[1].astype(np.int64)
        name = vector_path(descriptor)
        if name is None:
            raise TargetUnfit(
                f"{self._log.shown}: {file.path} has a deletion vector of the kind "
                f"{descriptor['storageType']!r}, which we do not read; purge it with OPTIMIZE or "
                "REORG"
            )
        moment("read deletion vectors")
        stored = self._files.get(f"{self.directory}/{name}")
        if stored is None:
            raise TargetLost(f"{self._log.shown}/{name} is gone, a deletion vector; {RESTORE}")
        rows = vector_in(stored.data, descriptor, self._log.shown)
        self._keep_vector(file.path, descriptor, rows)
        return rows

    def _keep_vector(self, path: str, descriptor: Action, rows: RowNumbers) -> None:
        held = rows.astype(np.uint32) if not len(rows) or rows[-1] < GONE else rows
        self._vectors.put(path, (descriptor, held), held.nbytes + _ABOUT)

    def commit_schema(
        self,
        note: CommitNote,
        change: SchemaChange,
        guard: Guard,
        anew: bool = False,
        delivered: bool = False,
    ) -> None:
        """Give the table the columns of a schema change; `anew`: and no rows."""
        table, creates = change.schema, change.kind is DdlKind.CREATE_TABLE
        if table is None:
            return

        def actions(state: TableState) -> list[Action] | None:
            if delivered:
                require_delivered(state.transactions, note, self._log.shown)
            is_recorded = note.has_change(state.transactions, change.commit_ts)
            fresh = self._is_fresh(state, table, note.application) or (anew and not is_recorded)
            succeeds = creates or _is_another(state, table)
            evolution = self._evolution(state, table, fresh, note.begun, succeeds)
            self._require_layout(state, table, evolution.columns, fresh)
            steps = self._metadata(state, note, evolution.columns, table, fresh)
            if is_recorded and not steps:
                return None
            head = commit_head(note, "CHANGE COLUMNS", {"statement": change.query})
            head += _noted(note, change)
            if fresh:
                steps += [f.removal(note.at_ms) for f in state.files.values()]
            elif evolution.rewrites:
                old = list(state.files.values())
                steps += self._rewriter(note).evolved(old, evolution, table, self.rows_gone)
            return head + steps

        self._commit(note, actions, guard)

    def truncate(self, note: CommitNote, change: SchemaChange | None, guard: Guard) -> None:
        """Take all rows away; without a change: of a filling that was given up."""

        def actions(state: TableState) -> list[Action] | None:
            known = is_known(state.transactions, note.application)
            if not state.exists or (change is None and (known or not state.files)):
                return None
            removals = [f.removal(note.at_ms) for f in state.files.values()]
            if change is None:
                # Without a note of ours: the first rows then give the table their own columns.
                return commit_head(note, "TRUNCATE", {"statement": "reset"}) + removals
            if note.has_change(state.transactions, change.commit_ts) and not state.files:
                return None
            steps = commit_head(note, "TRUNCATE", {"statement": change.query})
            steps += _noted(note, change)
            if known and change.schema is not None:  # its columns have their numbers anew
                columns = self._next_columns(
                    state, change.schema, note.application, note.begun
                ).columns
                self._require_layout(state, change.schema, columns, fresh=True)
                steps += self._metadata(state, note, columns, change.schema, fresh=False)
            return steps + removals

        self._commit(note, actions, guard)

    def mark_dropped(self, note: CommitNote, change: SchemaChange, guard: Guard) -> None:
        """Note that the source has dropped the table; its rows stay."""

        def actions(state: TableState) -> list[Action] | None:
            if not state.exists or DROPPED in state.configuration:
                return None
            settings = {**state.configuration, DROPPED: str(change.commit_ts)}
            head = commit_head(note, "SET TBLPROPERTIES", {"statement": change.query})
            return [*head, {"metaData": {**state.metadata, "configuration": settings}}]

        self._commit(note, actions, guard)

    def forbid(self, note: CommitNote, guard: Guard) -> bool:
        """Let no commit of a plan in that was given up; return whether it is there already."""
        if note.is_done(self.refreshed().transactions):
            return True
        if self._files.has_locks or not self.state.exists:
            return False

        def actions(state: TableState) -> list[Action] | None:
            discards = state.transactions.get(note.discards_name, 0)
            if note.is_done(state.transactions) or discards > note.discards:
                return None
            head = commit_head(note, "SET TBLPROPERTIES", {"statement": "discard"})
            notes = note.given_up(state.transactions).items()
            return [*head, *(transaction(name, number, note) for name, number in notes)]

        self._commit(note, actions, guard)
        return note.is_done(self.state.transactions)

    def write_checkpoint(self, now_ms: int) -> None:
        """Sum the log up."""
        self._log.write_checkpoint(self.state, now_ms)

    def commit(
        self,
        note: CommitNote,
        actions: Callable[[TableState], list[Action] | None],
        guard: Guard,
    ) -> None:
        """Commit what `actions` makes of the table as it is now; None: nothing."""
        self._commit(note, actions, guard)

    # --- pieces ----------------------------------------------------------------------------------

    def _rewriter(self, note: CommitNote) -> Rewriter:
        key = () if self._lake.changelog else self._key
        return Rewriter(self._files, self.directory, self._lake, note, key)

    def key_names(self, table: TableSchema, columns: StoredColumns) -> tuple[str, ...]:
        """Return the key's columns in data files."""
        wanted = {name.lower() for name in table.handle_key}
        names = tuple(f.physical for f in columns.fields if f.source and f.name.lower() in wanted)
        self._key = names
        return names

    def _commit(
        self,
        note: CommitNote,
        actions: Callable[[TableState], list[Action] | None],
        guard: Guard,
    ) -> None:
        for _ in range(_TRIES):
            state = self.refreshed()
            self._check(state, note.changefeed)
            new_actions = actions(state)
            if new_actions is None:
                with guard():
                    return
            if not state.exists:
                self._log.delete_rest(guard)
            self._state = None  # until it is known what became of the commit
            with guard():
                done = self._log.commit(state, new_actions)
            self._state = state
            if done:
                gone = {a["remove"]["path"] for a in new_actions if "remove" in a}
                self._runs.forget(sorted(gone - set(state.files)))
                return
        raise SinkUnavailable(f"{self._log.shown} is committed to by others all the time")

    def _metadata(
        self,
        state: TableState,
        note: CommitNote,
        columns: StoredColumns,
        table: TableSchema,
        fresh: bool,
    ) -> list[Action]:
        """Return the actions that give the table its columns; none where it has them."""
        layout = self._settings.layouts.of(table.id)
        mode = "changelog" if self._lake.changelog else "upsert"
        name = str(table_at(self.directory))
        return metadata_actions(state, note, columns, table, TableShape(name, mode, layout), fresh)


def _is_another(state: TableState, table: TableSchema) -> bool:
    """Return whether the source has dropped the table that is there, before this version of one."""
    return is_another(state.configuration.get(DROPPED, ""), table)


def _noted(note: CommitNote, change: SchemaChange) -> list[Action]:
    notes = note.schema_notes(change.commit_ts).items()
    return [transaction(name, number, note) for name, number in notes]


def _records(add: Action) -> int:
    return LiveFile(add).records
