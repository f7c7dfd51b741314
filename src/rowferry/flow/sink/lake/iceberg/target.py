"""One Iceberg table: rows, schema changes and truncation, each as one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import PlanDiscarded, SinkOwned, SinkUnavailable, TargetUnfit
from rowferry.flow.sink.lake.commit import (
    CommitNote,
    FileColumns,
    Guard,
    NewFile,
    TargetSettings,
    foreign_words,
    is_another,
    is_known,
    require_delivered,
)
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.changed_rows import ChangedRows, data_path, key_names
from rowferry.flow.sink.lake.iceberg.key_runs import IcebergRuns
from rowferry.flow.sink.lake.iceberg.partition_spec import FILE_SIZE, PARTITION_BY
from rowferry.flow.sink.lake.iceberg.position_deletes import GoneRows, Positions
from rowferry.flow.sink.lake.iceberg.rewrite import IcebergRewriter
from rowferry.flow.sink.lake.iceberg.snapshot import SnapshotDraft
from rowferry.flow.sink.lake.iceberg.snapshot_commits import SnapshotCommits, TableChange
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
    committer,
    row_snapshots,
)
from rowferry.flow.sink.lake.iceberg.types import field_ids, has_columns
from rowferry.flow.sink.lake.iceberg.updates import forgotten, unchanged
from rowferry.flow.sink.lake.layouts import require_columns
from rowferry.flow.sink.lake.stored_columns import (
    NUMBERINGS,
    Evolution,
    StoredColumns,
    evolve,
    numbering_of,
)
from rowferry.flow.sink.storage.files import Files

_TRIES: Final = 50
_OWN_SETTINGS: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}


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
        self._commits = SnapshotCommits(catalog, directory, history)
        self._reader = StateReader(catalog, directory)
        self._runs = IcebergRuns(files, directory)
        self._gone = GoneRows(files, catalog.io)
        self._rows = ChangedRows(files, catalog.io, settings, self._runs, self._gone)
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

    def owner(self) -> str:
        """Return the changefeed that made the table; empty: none did. Its files are not read."""
        table = self._catalog.load(self.directory)
        return table.metadata.properties.get(CHANGEFEED, "") if table is not None else ""

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
            whose = foreign_words(owner or "", committer(state))
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

    def _next_columns(
        self, state: IcebergState, table: TableSchema, application: str, begun: int
    ) -> Evolution:
        fresh = self._is_fresh(state, table, application)
        return self._evolution(state, table, fresh, begun, _is_another(state, table))

    def _is_fresh(self, state: IcebergState, table: TableSchema, application: str) -> bool:
        """Return whether a version of the source's table begins with nothing of what is there."""
        if not state.exists or not is_known(state.notes, application):
            return True
        return _is_another(state, table) and not self._lake.changelog

    def _evolution(
        self,
        state: IcebergState,
        table: TableSchema,
        fresh: bool,
        begun: int,
        succeeds: bool,
    ) -> Evolution:
        """Return the next columns; `fresh`: as if the table were new.

        Also then no column gets the number of another one: readers take older partition specs,
        schemas and bounds with it.
        """
        columns, numbering = state.columns, numbering_of(table, begun)
        if fresh:
            return evolve(None, table, self._lake, True, columns, numbering, succeeds)
        return evolve(columns, table, self._lake, True, None, numbering, succeeds)

    def root(self, fresh: str) -> str:
        """Return where data files go: below the table's location, wherever its name leads."""
        if not self.state.exists:
            return fresh
        return self._catalog.io.path(self.state.metadata.location)

    def file_columns(self, table: TableSchema, application: str, begun: int = 0) -> FileColumns:
        """Return names and numbers that the columns of a table version have in data files."""
        columns = self._next_columns(self.state, table, application, begun).columns
        fresh = self._is_fresh(self.state, table, application)
        self._require_layout(self.state, table, columns, fresh)
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

    def has_held(self, path: str, since: int) -> bool:
        """Return whether a snapshot behind a sequence number has, or takes away, a data file."""
        return self._reader.has_held(self.state, path, since)

    def rows_gone(self, file: IcebergFile) -> Positions:
        """Return the rows of a data file that count no more."""
        return self._gone.of(self.state, file.location)

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
        root = files[0].root if files else self.directory

        def change(state: IcebergState) -> TableChange | None:
            if note.is_done(state.notes):
                return None
            if delivered:
                require_delivered(state.notes, note, self.shown)
            if state.notes.get(note.discards_name, 0) > note.discards:
                raise PlanDiscarded(f"{self.shown}: this plan was given up meanwhile")
            anew = self._is_fresh(state, table, note.application)
            columns = self._next_columns(state, table, note.application, note.begun).columns
            notes = {note.application: note.micro_batch}
            if note.discards:
                notes[note.discards_name] = note.discards
            old = [] if anew else list(state.files.values())
            self._require_layout(state, table, columns, anew)
            place = self.root(files[0].root if files else "")
            stem = f"{place}/deletes-{self._commits.token(note, state, 'deletes')}"
            draft = self._rows.draft(state, table, columns, files, old, stem)
            if anew and state.exists:
                draft.empties, draft.operation = True, Operation.OVERWRITE
            return self._with_columns(note, state, columns, table, draft, notes, anew)

        self._commit(note, root, change, guard)
        self._runs.forget([data_path(f) for f in files if not f.rows and f.has_run])

    def _fit_rows(self, note: CommitNote, table: TableSchema, guard: Guard) -> None:
        """Write the rows that are there anew, where a version's columns ask for it."""

        def change(state: IcebergState) -> TableChange | None:
            if note.is_done(state.notes) or self._is_fresh(state, table, note.application):
                return None
            evolution = self._next_columns(state, table, note.application, note.begun)
            if not evolution.rewrites:
                return None
            draft = self._evolved(note, state, evolution, table)
            return self._with_columns(note, state, evolution.columns, table, draft, {}, anew=False)

        self._commit(note, "", change, guard)

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

        def changed(state: IcebergState) -> TableChange | None:
            if delivered:
                require_delivered(state.notes, note, self.shown)
            noted = note.has_change(state.notes, change.commit_ts)
            fresh = self._is_fresh(state, table, note.application) or (anew and not noted)
            succeeds = creates or _is_another(state, table)
            evolution = self._evolution(state, table, fresh, note.begun, succeeds)
            self._require_layout(state, table, evolution.columns, fresh)
            if noted and state.columns == evolution.columns and DROPPED not in state.properties:
                return None
            if fresh:
                draft = SnapshotDraft(Operation.DELETE, empties=True)
            elif evolution.rewrites:
                draft = self._evolved(note, state, evolution, table)
            else:
                draft = SnapshotDraft(Operation.REPLACE)
            notes = note.schema_notes(change.commit_ts)
            made = self._with_columns(note, state, evolution.columns, table, draft, notes, fresh)
            made.summary["rowferry.statement"] = change.query
            return made

        fresh = f"{self.directory}-{note.incarnation:x}-s{note.micro_batch:x}-{change.commit_ts:x}"
        self._commit(note, fresh, changed, guard)

    def truncate(self, note: CommitNote, change: SchemaChange | None, guard: Guard) -> None:
        """Take all rows away; without a change: of a filling that was given up."""

        def changed(state: IcebergState) -> TableChange | None:
            known = is_known(state.notes, note.application)
            if not state.exists or (change is None and (known or not state.files)):
                return None
            made = TableChange(SnapshotDraft(Operation.DELETE, empties=True))
            if change is None:
                # Without a note of ours: the first rows then give the table their own columns.
                made.summary["rowferry.statement"] = "reset"
                return made
            if note.has_change(state.notes, change.commit_ts) and not state.files:
                return None
            notes = note.schema_notes(change.commit_ts)
            made.settings = _noted(notes)
            if known and change.schema is not None:  # its columns have their numbers anew
                table, draft = change.schema, made.draft
                columns = self._next_columns(state, table, note.application, note.begun).columns
                self._require_layout(state, table, columns, fresh=True)
                made = self._with_columns(note, state, columns, table, draft, notes, anew=False)
            made.summary["rowferry.statement"] = change.query
            return made

        self._commit(note, "", changed, guard)

    def mark_dropped(self, note: CommitNote, change: SchemaChange, guard: Guard) -> None:
        """Note that the source has dropped the table; its rows stay."""

        def changed(state: IcebergState) -> TableChange | None:
            if not state.exists or DROPPED in state.properties:
                return None
            made = TableChange(SnapshotDraft(Operation.REPLACE))
            made.settings = {DROPPED: str(change.commit_ts)}
            made.summary["rowferry.statement"] = change.query
            return made

        self._commit(note, "", changed, guard)

    def forbid(self, note: CommitNote, guard: Guard) -> bool:
        """Let no commit of a plan in that was given up; return whether it is there already."""
        if note.is_done(self.refreshed().notes):
            return True
        # A lock of the directory keeps nothing out of a catalog that is elsewhere: a commit whose
        # answer was lost may still be on its way there.
        if (self._files.has_locks and self._catalog.file) or not self.state.exists:
            return False

        def changed(state: IcebergState) -> TableChange | None:
            discards = state.notes.get(note.discards_name, 0)
            if note.is_done(state.notes) or discards > note.discards:
                return None
            made = TableChange(SnapshotDraft(Operation.REPLACE))
            made.settings = _noted(note.given_up(state.notes))
            made.summary["rowferry.statement"] = "discard"
            return made

        self._commit(note, "", changed, guard)
        return note.is_done(self.state.notes)

    def commit(
        self, note: CommitNote, change: Callable[[IcebergState], TableChange | None], guard: Guard
    ) -> None:
        """Commit what `change` makes of the table as it is now; None: nothing."""
        self._commit(note, "", change, guard)

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
    ) -> TableChange:
        settings = {
            CHANGEFEED: note.changefeed,
            COLUMNS: columns.schema_text(),
            MAX_COLUMN: str(columns.max_id),
            NUMBERINGS: " ".join(columns.numberings),
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
        return TableChange(draft, columns, settings, removed, layout=layout)

    def _commit(
        self,
        note: CommitNote,
        root: str,
        change: Callable[[IcebergState], TableChange | None],
        guard: Guard,
    ) -> None:
        for _ in range(_TRIES):
            state = self.refreshed()
            self._check(state, note.changefeed)
            made = change(state)
            if made is None:
                with guard():
                    return
            self._state = None  # until it is known what became of the commit
            with guard():
                done = self._commits.write(note, root, state, made)
            if done:
                gone = [f.path for f in made.draft.removed]
                gone += list(state.files) if made.draft.empties else []
                self._runs.forget(gone)
                return
            self._state = state
        raise SinkUnavailable(f"{self.shown} is committed to by others all the time")


def _is_another(state: IcebergState, table: TableSchema) -> bool:
    """Return whether the source has dropped the table that is there, before this version of one."""
    return is_another(state.properties.get(DROPPED, ""), table)


def older_than(metadata: TableMetadata, before_ms: int) -> list[int]:
    """Return the snapshots from before a moment, but for the present one and named ones."""
    kept = {r.snapshot_id for r in metadata.refs.values()} | {metadata.current_snapshot_id}
    return [
        s.snapshot_id
        for s in metadata.snapshots
        if s.timestamp_ms < before_ms and s.snapshot_id not in kept
    ]


def _noted(notes: Mapping[str, int]) -> dict[str, str]:
    return {f"{NOTE}{name}": str(value) for name, value in notes.items()}
