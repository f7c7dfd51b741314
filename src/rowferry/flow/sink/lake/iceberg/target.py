"""One Iceberg table: rows, schema changes and truncation, each as one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from rowferry.change.chunk import SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import PlanDiscarded, SinkOwned, SinkUnavailable, TargetUnfit
from rowferry.flow.sink.lake.commit import (
    CommitNote,
    FileColumns,
    Guard,
    NewFile,
    TargetSettings,
    is_known,
)
from rowferry.flow.sink.lake.iceberg.bounds import data_entry
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.gone_rows import GoneRows
from rowferry.flow.sink.lake.iceberg.key_runs import IcebergRuns
from rowferry.flow.sink.lake.iceberg.partition_spec import (
    FILE_SIZE,
    PARTITION_BY,
    next_spec,
    record_of,
    spec_of,
)
from rowferry.flow.sink.lake.iceberg.position_deletes import (
    Positions,
    deletes_content,
    deletes_entry,
)
from rowferry.flow.sink.lake.iceberg.rewrite import IcebergRewriter, by_partition
from rowferry.flow.sink.lake.iceberg.snapshot import SnapshotDraft, SnapshotWriter
from rowferry.flow.sink.lake.iceberg.state import (
    CHANGEFEED,
    COLUMNS,
    DROPPED,
    KEY,
    MAX_COLUMN,
    MODE,
    NOTE,
    IcebergFile,
    IcebergState,
    StateReader,
    row_snapshots,
)
from rowferry.flow.sink.lake.iceberg.types import field_ids, has_columns, schema_of
from rowferry.flow.sink.lake.iceberg.updates import (
    absent,
    forgotten,
    known_partitions,
    new_layout,
    new_partitions,
    new_schema,
    new_snapshot,
    new_table,
    settings_changed,
    unchanged,
)
from rowferry.flow.sink.lake.key_run import GONE
from rowferry.flow.sink.lake.layouts import require_columns
from rowferry.flow.sink.lake.partitioning import FileLayout
from rowferry.flow.sink.lake.runs import TouchedKeys
from rowferry.flow.sink.lake.stored_columns import Evolution, StoredColumns, evolve
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_TRIES: Final = 50
_OWN_SETTINGS: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}


@dataclass(slots=True)
class _Change:
    """What one commit does: rows, columns, notes."""

    draft: SnapshotDraft
    columns: StoredColumns | None = None
    settings: dict[str, str] = field(default_factory=dict)
    removed_settings: list[str] = field(default_factory=list)
    summary: dict[str, str] = field(default_factory=dict)
    layout: FileLayout | None = None


class IcebergTarget:
    """An Iceberg table of a catalog, with its files below the prefix of a lake."""

    def __init__(
        self,
        files: Files,
        directory: str,
        settings: TargetSettings,
        catalog: IcebergCatalog,
        history: int,
    ) -> None:
        self.directory = directory
        self._files = files
        self._settings = settings
        self._lake = settings.lake
        self._catalog = catalog
        self._history = history
        self._reader = StateReader(catalog, directory)
        self._runs = IcebergRuns(files, directory)
        self._gone = GoneRows(files, catalog.io)
        self._state: IcebergState | None = None
        self._fresh_root = ""

    # --- what is there ---------------------------------------------------------------------------

    @property
    def state(self) -> IcebergState:
        """The table as it was last seen."""
        return self._state if self._state is not None else self.refreshed()

    def refreshed(self) -> IcebergState:
        """Return the table as it is now."""
        known, self._state = self._state, None  # not kept if reading fails half-way
        self._state = self._reader.read(known)
        return self._state

    @property
    def shown(self) -> str:
        """The table as users know it."""
        return f"the Iceberg table {self.directory} of {self._catalog.shown}"

    def exists(self) -> bool:
        """Return whether there is a table."""
        return self.state.exists

    def identity(self) -> str:
        """Return the table's id, which stays when it is renamed."""
        return str(self.state.metadata.table_uuid) if self.state.exists else ""

    def is_dropped(self) -> bool:
        """Return whether the source has dropped the table."""
        return DROPPED in self.state.properties

    def check(self, changefeed: str) -> None:
        """Raise unless there is no table, or one of this changefeed that we can keep."""
        self._check(self.state, changefeed)

    def _check(self, state: IcebergState, changefeed: str) -> None:
        if not state.exists:
            return
        owner = state.properties.get(CHANGEFEED)
        if owner != changefeed:
            whose = f"belongs to changefeed {owner!r}" if owner else "was not made by a changefeed"
            raise SinkOwned(
                f"{self.shown} {whose}; choose another catalog or prefix, give the table another "
                "name by a routing rule, or drop the table"
            )
        columns = state.columns
        if columns is None or not has_columns(state.metadata.schema(), columns):
            raise TargetUnfit(
                f"{self.shown} has columns that this changefeed did not give it; change them back, "
                "or begin anew: drop the table, then rowferry changefeed reset --snapshot"
            )

    def _next_columns(self, state: IcebergState, table: TableSchema, application: str) -> Evolution:
        known = state.exists and is_known(state.notes, application)
        return evolve(state.columns if known else None, table, self._lake, mapped=True)

    def root(self, fresh: str) -> str:
        """Return where data files go: below the table's location, wherever its name leads."""
        if not self.state.exists:
            return fresh
        return self._catalog.io.path(self.state.metadata.location)

    def file_columns(self, table: TableSchema, application: str) -> FileColumns:
        """Return names and numbers that the columns of a table version have in data files."""
        columns = self._next_columns(self.state, table, application).columns
        known = self.state.exists and is_known(self.state.notes, application)
        self._require_layout(self.state, table, columns, fresh=not known)
        return FileColumns(columns.physical, field_ids(columns))

    def _require_layout(
        self, state: IcebergState, table: TableSchema, new: StoredColumns, fresh: bool
    ) -> None:
        """Raise where a table with rows has other partitions than asked for, or loses a column."""
        layouts = self._settings.layouts
        if fresh or not state.files:
            layouts.check(table, self._lake)
            return
        if state.columns is not None:
            require_columns(state.columns, new, state.layout, str(table.id))
        layouts.require_same(layouts.of(table.id), state.layout, self.shown)

    def has_rows(self, note: CommitNote) -> bool:
        """Return whether the micro-batch was committed."""
        return note.is_done(self.refreshed().notes)

    def rows_gone(self, file: IcebergFile) -> Positions:
        """Return the rows of a data file that count no more."""
        return self._gone.of(self.state, file.location)

    # --- commits ---------------------------------------------------------------------------------

    def commit_rows(
        self, note: CommitNote, table: TableSchema, files: Sequence[NewFile], guard: Guard
    ) -> None:
        """Commit a micro-batch's rows, replacing those of the same keys."""
        self._fit_rows(note, table, guard)
        root = files[0].root if files else self.directory

        def change(state: IcebergState) -> _Change | None:
            if note.is_done(state.notes):
                return None
            if state.notes.get(note.discards_name, 0) > note.discards:
                raise PlanDiscarded(f"{self.shown}: this plan was given up meanwhile")
            anew = not is_known(state.notes, note.application)
            columns = self._next_columns(state, table, note.application).columns
            notes = {note.application: note.micro_batch}
            if note.discards:
                notes[note.discards_name] = note.discards
            old = [] if anew else list(state.files.values())
            self._require_layout(state, table, columns, anew)
            draft = self._changed_rows(note, state, table, columns, files, old)
            if anew and state.exists:
                draft.empties, draft.operation = True, Operation.OVERWRITE
            return self._with_columns(note, state, columns, table, draft, notes, anew)

        self._commit(note, root, change, guard)
        self._runs.forget([_data_path(f) for f in files if not f.rows and f.has_run])

    def _fit_rows(self, note: CommitNote, table: TableSchema, guard: Guard) -> None:
        """Write the rows that are there anew, where a version's columns ask for it."""

        def change(state: IcebergState) -> _Change | None:
            if note.is_done(state.notes) or not is_known(state.notes, note.application):
                return None
            evolution = self._next_columns(state, table, note.application)
            if not evolution.rewrites:
                return None
            draft = self._evolved(note, state, evolution, table)
            return self._with_columns(note, state, evolution.columns, table, draft, {}, anew=False)

        self._commit(note, "", change, guard)

    def _changed_rows(
        self,
        note: CommitNote,
        state: IcebergState,
        table: TableSchema,
        columns: StoredColumns,
        files: Sequence[NewFile],
        old: Sequence[IcebergFile],
    ) -> SnapshotDraft:
        io, layout = self._catalog.io, self._settings.layouts.of(table.id)
        records = {
            f.path: record_of(f.partition, layout, columns) if f.rows else Record() for f in files
        }
        added = [
            data_entry(
                io.location(_data_path(f)), f.rows, f.size, f.stats, columns, records[f.path]
            )
            for f in files
            if f.rows
        ]
        with_runs = [f for f in files if f.has_run]
        if self._lake.changelog or not with_runs:
            return SnapshotDraft(Operation.APPEND, added)
        key = key_names(table.handle_key, columns)
        self._runs.use(columns)
        touched = TouchedKeys([self._runs.run(_data_path(f), key) for f in with_runs])
        gone = [
            (io.location(_data_path(f)), records[f.path], dead)
            for f, dead in zip(with_runs, touched.dead, strict=True)
            if len(dead)
        ]
        old_rows = self._old_rows(state, touched, old, key)
        gone += [(file.location, file.partition, rows) for file, rows in old_rows]
        if not gone:
            return SnapshotDraft(Operation.APPEND, added)
        stem = f"{self.root(files[0].root)}/deletes-{self._token(note, state, 'deletes')}"
        parts = by_partition(gone)
        deletes = [
            self._put_deletes(f"{stem}{f'-{n}' if n else ''}.parquet", rows, record)
            for n, (record, rows) in enumerate(parts)
        ]
        return SnapshotDraft(Operation.OVERWRITE, added, added_deletes=deletes)

    def _old_rows(
        self,
        state: IcebergState,
        touched: TouchedKeys,
        old: Sequence[IcebergFile],
        key: tuple[str, ...],
    ) -> Iterable[tuple[IcebergFile, Positions]]:
        """Yield the files that hold rows of the touched keys, with the rows that go now."""
        left = touched.keys
        for file in reversed(old):  # the newest first: most changes are of what changed lately
            if not len(left):
                return
            places, rows = self._runs.run(file.path, key).look_up(left)
            there = rows != GONE
            places, positions = places[there], rows[there].astype(np.int64)
            alive = ~np.isin(positions, self._gone.of(state, file.location), assume_unique=True)
            if not alive.any():
                continue
            yield file, np.sort(positions[alive])
            rest = np.ones(len(left), np.bool_)
            rest[places[alive]] = False
            left = left.take(np.flatnonzero(rest))

    def _put_deletes(self, path: str, gone: Mapping[str, Positions], part: Record) -> DataFile:
        content = deletes_content(gone)
        moment("put position deletes")
        self._files.overwrite(path, content)
        return deletes_entry(self._catalog.io.location(path), gone, len(content), part)

    def commit_schema(
        self, note: CommitNote, change: SchemaChange, guard: Guard, anew: bool = False
    ) -> None:
        """Give the table the columns of a schema change; `anew`: and no rows."""
        table = change.schema
        if table is None:
            return

        def changed(state: IcebergState) -> _Change | None:
            noted = state.notes.get(note.schema_name, -1) >= change.commit_ts
            fresh = not is_known(state.notes, note.application) or (anew and not noted)
            evolution = evolve(None if fresh else state.columns, table, self._lake, mapped=True)
            self._require_layout(state, table, evolution.columns, fresh)
            if noted and state.columns == evolution.columns and DROPPED not in state.properties:
                return None
            if fresh:
                draft = SnapshotDraft(Operation.DELETE, empties=True)
            elif evolution.rewrites:
                draft = self._evolved(note, state, evolution, table)
            else:
                draft = SnapshotDraft(Operation.REPLACE)
            notes = {note.schema_name: change.commit_ts}
            made = self._with_columns(note, state, evolution.columns, table, draft, notes, fresh)
            made.summary["rowferry.statement"] = change.query
            return made

        fresh = f"{self.directory}-{note.incarnation:x}-s{note.micro_batch:x}-{change.commit_ts:x}"
        self._commit(note, fresh, changed, guard)

    def truncate(self, note: CommitNote, change: SchemaChange | None, guard: Guard) -> None:
        """Take all rows away; without a change: of a filling that was given up."""

        def changed(state: IcebergState) -> _Change | None:
            known = is_known(state.notes, note.application)
            if not state.exists or (change is None and (known or not state.files)):
                return None
            made = _Change(SnapshotDraft(Operation.DELETE, empties=True))
            if change is None:
                # Without a note of ours: the first rows then give the table their own columns.
                made.summary["rowferry.statement"] = "reset"
                return made
            noted = state.notes.get(note.schema_name, -1)
            if noted >= change.commit_ts and not state.files:
                return None
            made.settings = _noted({note.schema_name: max(change.commit_ts, noted)})
            made.summary["rowferry.statement"] = change.query
            return made

        self._commit(note, "", changed, guard)

    def mark_dropped(self, note: CommitNote, change: SchemaChange, guard: Guard) -> None:
        """Note that the source has dropped the table; its rows stay."""

        def changed(state: IcebergState) -> _Change | None:
            if not state.exists or DROPPED in state.properties:
                return None
            made = _Change(SnapshotDraft(Operation.REPLACE))
            made.settings = {DROPPED: str(change.commit_ts)}
            made.summary["rowferry.statement"] = change.query
            return made

        self._commit(note, "", changed, guard)

    def forbid(self, note: CommitNote, guard: Guard) -> bool:
        """Let no commit of a plan in that was given up; return whether it is there already."""
        if note.is_done(self.refreshed().notes):
            return True
        if self._files.has_locks or not self.state.exists:
            return False

        def changed(state: IcebergState) -> _Change | None:
            name = note.discards_name
            if note.is_done(state.notes) or state.notes.get(name, 0) > note.discards:
                return None
            made = _Change(SnapshotDraft(Operation.REPLACE))
            made.settings = _noted({name: note.discards + 1})
            made.summary["rowferry.statement"] = "discard"
            return made

        self._commit(note, "", changed, guard)
        return note.is_done(self.state.notes)

    def maintain(self, note: CommitNote, guard: Guard) -> None:
        """Merge small files, where that is due."""
        wanted = self._settings.optimize_after
        if wanted and self.state.exists:
            size, rewriter = self._file_size(self.state), self._rewriter(note, self.state)
            small = rewriter.mergeable(rewriter.poor(self.state, size), size)
            if max(sum(map(len, small)), len(self.state.deletes)) >= wanted:
                self.optimize(note, guard)

    def optimize(self, note: CommitNote, guard: Guard) -> int:
        """Merge small files and purge deleted rows; return how many files were replaced."""
        count = 0

        def changed(state: IcebergState) -> _Change | None:
            nonlocal count
            columns = state.columns
            if columns is None:
                return None
            rewriter = self._rewriter(note, state)
            draft = rewriter.merged(state, self._file_size(state), columns)
            count = len(draft.removed) + len(draft.removed_deletes)
            return _Change(draft) if draft.has_changes else None

        self._commit(note, "", changed, guard)
        return count

    def commits_of(self, changefeed: str, micro_batches: Collection[int]) -> dict[int, str]:
        """Return the snapshots that have the rows of micro-batches."""
        return row_snapshots(self.refreshed(), changefeed, micro_batches)

    def forget(self, before_ms: int, guard: Guard) -> None:
        """Take snapshots from before a moment out of the table's history."""
        for _ in range(_TRIES):
            state = self.refreshed()
            old = older_than(state.metadata, before_ms) if state.exists else []
            if not old:
                return
            with guard():
                wanted = unchanged(state.metadata)
                if self._catalog.commit(self.directory, state.table, wanted, forgotten(old)):
                    return
        raise SinkUnavailable(f"{self.shown} is committed to by others all the time")

    # --- pieces ----------------------------------------------------------------------------------

    def _file_size(self, state: IcebergState) -> int:
        return self._settings.size_of(state.properties.get(FILE_SIZE, ""))

    def _rewriter(self, note: CommitNote, state: IcebergState) -> IcebergRewriter:
        key: tuple[str, ...] = ()
        if not self._lake.changelog and state.columns is not None:
            key = key_names(state.properties.get(KEY, "").split("\n"), state.columns)
        return IcebergRewriter(
            self._files, self._catalog.io, self.root(""), self._lake, key, self.rows_gone
        )

    def _evolved(
        self, note: CommitNote, state: IcebergState, evolution: Evolution, table: TableSchema
    ) -> SnapshotDraft:
        return self._rewriter(note, state).evolved(state, evolution, table)

    def _with_columns(
        self,
        note: CommitNote,
        state: IcebergState,
        columns: StoredColumns,
        table: TableSchema,
        draft: SnapshotDraft,
        notes: Mapping[str, int],
        anew: bool,
    ) -> _Change:
        settings = {
            CHANGEFEED: note.changefeed,
            COLUMNS: columns.schema_text(),
            MAX_COLUMN: str(columns.max_id),
            MODE: "changelog" if self._lake.changelog else "upsert",
            KEY: "\n".join(table.handle_key),
            **_noted(notes),
        }
        if table.comment:
            settings["comment"] = table.comment
        layout = self._settings.layouts.of(table.id)
        if layout.file_size:
            settings[FILE_SIZE] = str(layout.file_size)
        if layout.fields:
            settings[PARTITION_BY] = "\n".join(layout.texts)
        if not state.exists:
            settings |= _OWN_SETTINGS
        removed = [DROPPED] if DROPPED in state.properties else []
        if not layout.fields and PARTITION_BY in state.properties:
            removed.append(PARTITION_BY)
        if anew:  # what an earlier filling has noted
            removed += [
                f"{NOTE}{name}" for name in state.notes if not name.startswith(note.application)
            ]
        return _Change(draft, columns, settings, removed, layout=layout)

    def _commit(
        self,
        note: CommitNote,
        root: str,
        change: Callable[[IcebergState], _Change | None],
        guard: Guard,
    ) -> None:
        for _ in range(_TRIES):
            state = self.refreshed()
            self._check(state, note.changefeed)
            made = change(state)
            if made is None:
                with guard():
                    return
            with guard():
                done = self._write(note, root, state, made)
            if done:
                gone = [f.path for f in made.draft.removed]
                gone += list(state.files) if made.draft.empties else []
                self._runs.forget(gone)
                self._state = None
                return
        raise SinkUnavailable(f"{self.shown} is committed to by others all the time")

    def _write(self, note: CommitNote, root: str, state: IcebergState, made: _Change) -> bool:
        """Write a snapshot and hand it to the catalog; False: somebody else was first."""
        io = self._catalog.io
        location = state.metadata.location if state.exists else io.location(root)
        columns = made.columns or state.columns
        assert columns is not None
        ids = [s.schema_id for s in state.metadata.schemas] if state.exists else []
        schema = schema_of(columns, max(ids, default=-1) + 1)
        same = state.exists and _same_schema(state, columns)
        if same:
            schema = state.metadata.schema()
        token = self._token(note, state, repr(sorted(made.settings.items())))
        about = {
            "rowferry.changefeed": note.changefeed,
            "rowferry.epoch": str(note.epoch),
            "rowferry.micro-batch": str(note.micro_batch),
            "rowferry.checkpoint-ts": str(note.checkpoint_ts),
            "rowferry.since-ts": str(note.since_ts),
            "rowferry.settled": str(note.settled).lower(),
            **made.summary,
        }
        writer = SnapshotWriter(io, location, token)
        spec = self._spec(state, columns, made)
        snapshot = writer.write(state, schema, made.draft, about, note.at_ms, spec)
        updates = [] if state.exists else new_table(location, uuid5(NAMESPACE_URL, str(token)))
        if not same:
            updates += new_schema(schema)
        if not state.exists:
            updates += new_layout(spec)
        elif spec.spec_id != state.metadata.default_spec_id:
            known = spec.spec_id in {one.spec_id for one in state.metadata.partition_specs}
            updates += known_partitions(spec) if known else new_partitions(spec)
        updates += settings_changed(made.settings, made.removed_settings)
        updates += new_snapshot(snapshot, self._expired(state))
        wanted = unchanged(state.metadata) if state.exists else absent()
        return self._catalog.commit(self.directory, state.table, wanted, tuple(updates))

    def _spec(self, state: IcebergState, columns: StoredColumns, made: _Change) -> PartitionSpec:
        """Return the spec of all files after a commit; only a table without rows gets another."""
        layout = made.layout
        if not state.exists:
            return spec_of(layout or FileLayout(), columns)
        if layout is None or (state.files and not made.draft.empties):
            return state.metadata.spec()
        return next_spec(state.metadata, layout, columns)

    def _expired(self, state: IcebergState) -> list[int]:
        """Return the snapshots that are too many, but for those that tags and branches name."""
        if not state.exists:
            return []
        metadata = state.metadata
        kept = {r.snapshot_id for name, r in metadata.refs.items() if name != MAIN_BRANCH}
        ordered = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)
        many = len(ordered) + 1 - self._history
        return [s.snapshot_id for s in ordered[: max(many, 0)] if s.snapshot_id not in kept]

    def _token(self, note: CommitNote, state: IcebergState, what: str) -> UUID:
        """Return what tells the files of one try of a commit from those of all others."""
        identity = self.identity() if state.exists else ""
        name = f"{note}/{self.directory}/{identity}/{state.snapshot_id}/{what}"
        return uuid5(NAMESPACE_URL, name)


def older_than(metadata: TableMetadata, before_ms: int) -> list[int]:
    """Return the snapshots from before a moment, but for the present one and named ones."""
    kept = {r.snapshot_id for r in metadata.refs.values()} | {metadata.current_snapshot_id}
    return [
        s.snapshot_id
        for s in metadata.snapshots
        if s.timestamp_ms < before_ms and s.snapshot_id not in kept
    ]


def key_names(key: Sequence[str], columns: StoredColumns) -> tuple[str, ...]:
    """Return the key's columns in data files."""
    wanted = {name.lower() for name in key}
    return tuple(f.physical for f in columns.fields if f.source and f.name.lower() in wanted)


def _same_schema(state: IcebergState, columns: StoredColumns) -> bool:
    """Return whether the table has these columns, also their comments."""
    schema = state.metadata.schema()
    wanted = schema_of(columns, schema.schema_id)
    return list(schema.fields) == list(wanted.fields)


def _data_path(file: NewFile) -> str:
    return f"{file.root}/{file.path}"


def _noted(notes: Mapping[str, int]) -> dict[str, str]:
    return {f"{NOTE}{name}": str(value) for name, value in notes.items()}
