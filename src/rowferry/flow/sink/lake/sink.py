"""The sink of lake tables: tasks write data files and key runs, the driver commits them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output, Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput, OptionsConflict, SinkError, TargetLost, TargetWentBack
from rowferry.flow.dispatch.table_layouts import TableLayouts
from rowferry.flow.sink.contract import RESTORE, Owner, SinkTraits, TableStatus, UpkeepPiece
from rowferry.flow.sink.defaults import SegmentDefaults
from rowferry.flow.sink.lake.columns import LakeColumns
from rowferry.flow.sink.lake.commit import (
    CommitNote,
    LakeTables,
    LakeTarget,
    NewFile,
    TargetSettings,
)
from rowferry.flow.sink.lake.history import TableHistory
from rowferry.flow.sink.lake.layout import PROGRESS, Progress, table_directory
from rowferry.flow.sink.lake.layouts import LakeLayouts
from rowferry.flow.sink.lake.options import LakeFileOptions, LakeOptions
from rowferry.flow.sink.lake.progress_file import ProgressFile
from rowferry.flow.sink.lake.runs import run_path
from rowferry.flow.sink.lake.table_changes import TableChanges, moved_directories
from rowferry.flow.sink.lake.table_upkeep import Merge, TableUpkeep
from rowferry.flow.sink.lake.task_files import TaskFiles, path_of, root_of
from rowferry.flow.sink.lake.upkeep import LakeUpkeep, OwnUpkeep
from rowferry.flow.sink.storage.files import Files, each_fenced
from rowferry.flow.sink.storage.ownership import Ownership, owner_lost
from rowferry.flow.sink.storage.paths import OWNER
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable


class LakeSink(SegmentDefaults, ABC):
    """Tables of a lake below one prefix, whatever their format."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=True,
        needs_shuffle=False,
        kind="lake",
        commits_versions=True,
        refuses_no_row="refuses no single row: a table that cannot take one refuses its schema",
        section="sink.lake",
        protocol="none",
        default_protocol="parquet",
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (LakeOptions.TABLE, LakeFileOptions.TABLE)
    HAS_TRANSFORMS: ClassVar[bool]  # tables may be partitioned by transforms of columns
    EMPTY_IS_NULL: ClassVar[bool]  # readers take an empty text that names a partition as NULL

    def __init__(self, spec: ChangefeedSpec, codec: object) -> None:
        options, files = spec.options(LakeOptions), spec.options(LakeFileOptions)
        other = self.TRAITS.default_protocol
        if other in (spec.config.get("sink") or {}):
            raise OptionsConflict(
                f"sink.{other} is for files of changes; tables of a lake follow sink.lake; leave "
                "it out"
            )
        self._changefeed = spec.changefeed_id
        self._options = options
        self._lake = LakeColumns(options.mode, options.zero_date)
        self._files = self.files_of(spec, files.worker_count, files.fsync)
        self.counts = self._files.counts
        self._ownership = Ownership(self._files, self._table_of)
        self._task_files = TaskFiles(self._files, self._ownership, self._lake, self.EMPTY_IS_NULL)
        layouts = LakeLayouts(
            TableLayouts(spec, options.layouts), options.target_file_size, self.HAS_TRANSFORMS
        )
        self._settings = TargetSettings(
            self._lake,
            options.target_file_size or files.file_size,
            options.checkpoint_interval,
            options.optimize_after,
            layouts,
        )
        self.flush_interval_s = files.flush_interval.total_seconds()
        self._progress = ProgressFile(self._files, self._ownership)
        self._targets: dict[str, LakeTarget] = {}
        self._owner: Owner | None = None
        self._incarnation = 0
        self._begun = 0
        self._number = 0
        self._delivered: set[str] = set()
        self._reached = 0
        self._noted = Progress()  # in the lake when it was opened, until the first plan is made
        self._own_upkeep = OwnUpkeep(self._upkeep_of, options.optimize_after)

    @classmethod
    @abstractmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the place that the sink URI names; asks nobody."""

    @abstractmethod
    def target_at(self, directory: str) -> LakeTarget:
        """Return the table of a directory; asks nobody."""

    @abstractmethod
    def tables(self) -> LakeTables:
        """Return all tables; asks nobody."""

    @abstractmethod
    def history(self, directory: str) -> TableHistory:
        """Return the versions of a table; asks nobody."""

    @abstractmethod
    def table_upkeep(self, target: Any) -> TableUpkeep:
        """Return what keeps a table of `target_at` in shape; asks nobody."""

    @abstractmethod
    def upkeep(self) -> LakeUpkeep:
        """Return what looks after the tables without a feed."""

    # --- before a run ----------------------------------------------------------------------------

    def probe(self, owner: Owner) -> None:
        """Ask whether this owner may write here; writes nothing."""
        moment("probe lake")
        self._files.check_writable()
        self._ownership.probe(owner)
        self._progress.read()

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Refuse tables that cannot be in a lake, and places that hold somebody else's.

        Raises:
            BadLayout: a table cannot have the partitions that its rule asks for.
            SinkOwned: a table is there that this changefeed has not made, as far as can be told.
        """
        seen: dict[str, TableId] = {}
        for table in tables:
            self._lake.check(table)
            self._settings.layouts.check(table, self._lake)
            directory = table_directory(table.written_as)
            other = seen.setdefault(directory, table.id)
            if other != table.id and not self._lake.changelog:
                raise BadInput(
                    f"{other} and {table.id} would be the same lake table {table.written_as}, "
                    "where rows of equal keys replace each other; correct the routing rules, or "
                    "set sink.lake.mode = 'changelog'"
                )
            target = self._target(directory)
            target.check(self._changefeed)
            if target.exists():
                self._ownership.require_mark(self.tables().shown(directory))

    def _table_of(self, changefeed: str) -> str | None:
        """Return a table that a changefeed of this name has made; None: there is none."""
        tables = self.tables()
        own = (d for d in tables.directories() if self.target_at(d).owner() == changefeed)
        first = next(own, None)
        return None if first is None else tables.shown(first)

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Claim the prefix; older epochs can commit nothing from here on.

        Raises:
            SinkOwned, Fenced: somebody else writes here.
            TargetLost, TargetWentBack: what was delivered is gone, or older files are there.
        """
        moment("open lake")
        self._files.check_writable()
        if owner.continues:
            self._require_delivered(owner)
        self._files.prepare()
        self._ownership.claim(owner)
        moment("sweep lake")
        self._files.sweep()
        self._owner = owner
        self._noted = self._progress.read()
        self._reached = max(owner.delivered, self._noted.checkpoint_ts)
        self._targets = {}
        if state is None or state.get("delivered") == {}:
            # Nothing was delivered yet, or all that was counts no more: tables are filled anew.
            number = state["number"] if state is not None else 0
            state = {"incarnation": owner.epoch, "number": number, "delivered": []}
        elif not owner.continues:
            state = {**state, "begun": owner.epoch}  # a reset: tables are met anew
        self._remember(state)

    def _remember(self, state: dict[str, Any]) -> None:
        self._incarnation = state["incarnation"]
        self._begun = state.get("begun", 0)
        self._number = state["number"]
        self._delivered = set(state.get("delivered") or ())

    def _require_delivered(self, owner: Owner) -> None:
        moment("look for what the lake has")
        if self._files.get(OWNER) is None:
            raise owner_lost(self._files)
        progress = self._progress.read()
        if owner.delivered and progress.checkpoint_ts < owner.delivered:
            shown = self._files.shown(PROGRESS)
            if not progress.checkpoint_ts:
                raise TargetLost(f"{shown} is gone; {RESTORE}")
            raise TargetWentBack(
                f"{shown} says that the lake's tables hold all up to commit-ts "
                f"{progress.checkpoint_ts} only, but it was delivered up to {owner.delivered}: "
                "older files were put in place"
            )

    # --- planning --------------------------------------------------------------------------------

    def segment_bytes(self, table: TableId) -> int:
        """Return how much log one file's rows should come from."""
        return self._settings.layouts.of(table).file_size or self._settings.file_size

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give every slice of every segment the name of its data file; writes none of them.

        Plans that the lake has and nobody knows any more count as given up from here on.

        Raises:
            BadInput: a table has no key.
            SchemaChangeRefused: a table cannot get the columns of its rows.
            BadLayout: it cannot have, or has not, the partitions that its rule asks for.
            TargetLost: a table that was delivered to is gone.
        """
        moment("read discards of lake")
        discards = self._ownership.discard_count()
        if self._is_ahead(discards):
            self._ownership.count_discard()
            discards = self._ownership.discard_count()
        number = self._number + 1
        outputs = []
        touched = set()
        for segment in stretch.segments:
            for place, piece in enumerate(segment.slices):
                table = tables[piece]
                directory = table_directory(table.written_as)
                touched.add(directory)
                target = {
                    **self._place(directory, table, f"{self._incarnation:x}-{number:x}"),
                    "path": f"part-{self._incarnation:05d}-{discards:03d}-{number:010d}-"
                    f"{segment.ordinal:05d}-{place:03d}.parquet",
                    "discards": discards,
                }
                outputs.append(Output(segment.ordinal, place, target))
        state = {
            "incarnation": self._incarnation,
            "begun": self._begun,
            "number": number,
            "discards": discards,
            "delivered": sorted(
                moved_directories(
                    self._delivered | touched, stretch.schema_changes, self._options.on_drop
                )
            ),
        }
        return tuple(outputs), state

    def _is_ahead(self, discards: int) -> bool:
        """Return, once, whether the lake has plans that nobody knows: the meta database went back.

        What is planned now gets their numbers, and must not be taken for what they were.
        """
        noted, known, self._noted = self._noted, self._number, Progress()
        if noted.incarnation == self._incarnation:
            self._number = max(known, noted.number)
        return self._number > known and noted.discards >= discards

    def _place(self, directory: str, table: TableSchema, fresh: str) -> dict[str, Any]:
        """Return where the rows of a table go, and what its columns are called there."""
        self._lake.check(table)
        layout = self._settings.layouts.of(table.id)
        self._settings.layouts.check(table, self._lake)
        target = self._target(directory)
        target.check(self._changefeed)
        if directory in self._delivered and not target.exists():
            raise TargetLost(f"{self._files.shown(directory)} is gone, a lake table; {RESTORE}")
        application = f"rowferry/{self._changefeed}/{self._incarnation}"
        columns = target.file_columns(table, application, self._begun)
        ids: dict[str, Any] = {"ids": columns.ids} if columns.ids else {}
        ids |= {"partition-by": layout.texts} if layout.fields else {}
        root = target.root(f"{directory}-{fresh}")
        return {"directory": directory, "root": root, "names": columns.names, **ids}

    def _target(self, directory: str) -> LakeTarget:
        if directory not in self._targets:
            self._targets[directory] = self.target_at(directory)
        return self._targets[directory]

    # --- in tasks --------------------------------------------------------------------------------

    def write_rows(
        self,
        segment: Segment,
        outputs: Sequence[Output],
        tables: Sequence[TableSchema],
        rows: Iterator[tuple[int, Rows]],
    ) -> Iterator[Receipt]:
        """Write a data file and a key run for each table of the segment that has changes.

        Raises:
            FileConflict: a file of that name exists with other content.
            PlanDiscarded: the plan was discarded while the task ran.
        """
        return self._task_files.write(segment, outputs, tables, rows)

    # --- publishing ------------------------------------------------------------------------------

    def has_rows_of(self, plan: Plan) -> bool:
        """Return whether all rows of a plan were committed by an earlier run."""
        note = self._note(plan)
        if self._has_begun(plan):
            return True
        directories = {o.target["directory"] for o in plan.outputs}
        return bool(directories) and all(self._target(d).has_rows(note) for d in directories)

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Commit the rows of each table, then the schema changes in order, then the watermark.

        Each step is done once, however often it is tried: tables know the micro-batches that they
        have, and `rowferry.progress` the schema changes that were made.

        Raises:
            Fenced: another owner has claimed the prefix.
        """
        moment("publish lake")
        with self._ownership.fenced():
            pass
        note = self._note(plan)
        begun = self._has_begun(plan)
        if not begun:
            self._begin_anew(note)
            self._commit_rows(plan, note, receipts, tables)
        self._change_tables(plan, note)
        self._advance(plan, note, len(plan.stretch.schema_changes))
        if plan.sink_state:
            self._remember(plan.sink_state)
        written = {o.target["directory"] for o in plan.outputs}
        changed = (c.written_as for c in plan.stretch.schema_changes)
        written |= {table_directory(table) for table in changed if table.table}
        self._own_upkeep.wrote(sorted(written), note)

    def _note(self, plan: Plan) -> CommitNote:
        owner = self._owner
        state = plan.sink_state or {}
        return CommitNote(
            changefeed=self._changefeed,
            incarnation=state.get("incarnation", self._incarnation),
            epoch=owner.epoch if owner else plan.epoch,
            micro_batch=plan.micro_batch,
            discards=state.get("discards", 0),
            checkpoint_ts=plan.stretch.watermark or self._reached,
            at_ms=plan.planned_at_ms,
            since_ts=self._reached,
            settled=plan.stretch.watermark is not None,
            begun=state.get("begun", self._begun),
        )

    def _has_begun(self, plan: Plan) -> bool:
        """Return whether all rows are there, as a schema change of the plan was begun, or all."""
        progress = self._progress.read()
        state = plan.sink_state or {}
        if progress.incarnation != state.get("incarnation", self._incarnation):
            return False
        discards = state.get("discards", 0)
        if progress.micro_batch == plan.micro_batch:  # or that of a plan that was given up
            return bool(progress.discards == discards)
        return bool(progress.micro_batch > plan.micro_batch and progress.discards >= discards)

    def _begin_anew(self, note: CommitNote) -> None:
        """Empty the tables of an earlier filling, once, before the first rows of this one."""
        if self._progress.read().incarnation == note.incarnation:
            return
        for directory in self.tables().directories():
            target = self._target(directory)
            if target.owner() == self._changefeed:  # others may have tables here, too
                target.truncate(note, None, self._ownership.fenced)

    def _commit_rows(
        self,
        plan: Plan,
        note: CommitNote,
        receipts: Sequence[Receipt],
        tables: Mapping[TableSlice, TableSchema],
    ) -> None:
        by_output = {(r.segment, r.slice): r for r in receipts}
        pieces = {
            (s.ordinal, place): p for s in plan.stretch.segments for place, p in enumerate(s.slices)
        }
        unsure = {
            o.target["directory"] for o in plan.outputs if (o.segment, o.slice) not in by_output
        }
        done = {directory for directory in unsure if self._target(directory).has_rows(note)}
        files: dict[str, list[NewFile]] = {}
        schemas: dict[str, TableSchema] = {}
        for output in sorted(plan.outputs, key=lambda o: (o.segment, o.slice)):
            directory = output.target["directory"]
            if directory in done:
                continue
            piece = pieces[output.segment, output.slice]
            schemas[directory] = tables[piece].at(piece.version)
            receipt = by_output.get((output.segment, output.slice))
            files.setdefault(directory, []).extend(self._new_files(plan, output, receipt))

        def commit(directory: str) -> None:
            self._target(directory).commit_rows(
                note,
                schemas[directory],
                files[directory],
                self._ownership.fenced,
                delivered=directory in self._delivered,
            )

        each_fenced(self._files, commit, files)

    def _new_files(self, plan: Plan, output: Output, receipt: Receipt | None) -> list[NewFile]:
        if receipt is None or receipt.note is None:
            raise SinkError(
                f"{self._files.shown(output.target['directory'])}/{output.target['path']} of "
                f"micro-batch {plan.micro_batch} was not written"
            )
        return [
            NewFile(
                path_of(output, note.get("mark", "")),
                note.get("rows", 0),
                note.get("size", 0),
                note.get("stats", ""),
                bool(note.get("run")),
                root_of(output),
                tuple(note.get("partition") or ()),
            )
            for note in receipt.note.get("files") or [receipt.note]
        ]

    def _change_tables(self, plan: Plan, note: CommitNote) -> None:
        changes = plan.stretch.schema_changes
        if not changes:
            return
        progress = self._progress.read()
        done = 0
        if not self._has_begun(plan):
            self._advance(plan, note, 0, final=False)
        elif progress.micro_batch > plan.micro_batch:
            return
        else:
            done = progress.changes
        doing = TableChanges(
            self.tables(), self._target, self._options.on_drop, self._ownership.fenced
        )
        begun = self._delivered | {o.target["directory"] for o in plan.outputs}
        self._targets = {}  # a change goes by what is there now
        for number, change in enumerate(changes, 1):
            if number > done:
                delivered = moved_directories(begun, changes[: number - 1], self._options.on_drop)
                doing.apply(note, change, self._lake.changelog, delivered)
                self._targets = {}  # directories may have changed places
                self._advance(plan, note, number, final=False)

    def _advance(self, plan: Plan, note: CommitNote, changes: int, final: bool = True) -> None:
        """Note how far the plan is there; nothing ever goes back."""
        reached = self._progress.advance(plan, note, changes, final)
        self._reached = max(self._reached, reached)

    def discard(self, plan: Plan) -> bool:
        """Remove the plan's files that no commit names; its tasks create no more of them.

        Raises:
            Fenced: another owner has claimed the prefix.
        """
        self._ownership.count_discard()
        note = self._note(plan)
        seen = {
            d: self._target(d).forbid(note, self._ownership.fenced)
            for d in sorted({o.target["directory"] for o in plan.outputs})
        }
        moment("discard lake files")
        for output in plan.outputs:
            root = root_of(output)
            if seen[output.target["directory"]]:
                continue
            for path in self._paths(output):
                with self._ownership.fenced():
                    self._files.delete(f"{root}/{path}")
                    self._files.delete(run_path(root, path))
        for directory in sorted({root_of(o) for o in plan.outputs}):
            with self._ownership.fenced():
                for place in (run_path(directory, "x").rpartition("/")[0], directory):
                    self._files.prune(place)
                self._files.prune(directory.rpartition("/")[0])
        return any(seen.values()) or self._has_begun(plan)

    def _paths(self, output: Output) -> list[str]:
        """Return the files that tasks may have written for an output, in its directory."""
        plain = str(output.target["path"])
        if not output.target.get("partition-by"):
            return [plain]
        stem = plain.removesuffix(".parquet") + "-"
        names = [e.name for e in self._files.entries(root_of(output)) if e.name.startswith(stem)]
        return [plain, *names]

    # --- upkeep ----------------------------------------------------------------------------------

    def due_upkeep(self, most: int) -> tuple[UpkeepPiece, ...]:
        """Return what is to be merged now; what sums logs up is done here.

        Names of new files have the owner's epoch: whoever was replaced writes others.
        """
        owner = self._owner
        moment("look for upkeep of lake")
        return self._own_upkeep.due(f"{owner.epoch:05d}", most) if owner is not None else ()

    def do_upkeep(self, work: dict[str, Any]) -> dict[str, Any]:
        """Write the file that takes the place of others, in a task."""
        merge = Merge.from_json(work)
        return self.table_upkeep(self.target_at(merge.directory)).write(merge)

    def commit_upkeep(self, done: Sequence[tuple[UpkeepPiece, dict[str, Any]]]) -> int:
        """Commit what tasks have written, as far as the files that it replaces are as they were.

        Raises:
            Fenced: another owner has claimed the prefix.
        """
        moment("commit upkeep of lake")
        return self._own_upkeep.commit(done, self._ownership.fenced)

    def table_statuses(self) -> tuple[TableStatus, ...]:
        """Return what the tables are made of, as far as this owner has seen them."""
        moment("look what lake tables are made of")
        return self._own_upkeep.statuses(self._delivered)

    def _upkeep_of(self, directory: str) -> TableUpkeep:
        return self.table_upkeep(self._target(directory))

    # --- afterwards ------------------------------------------------------------------------------

    def commits_of(
        self, table: TableSchema, micro_batches: Collection[int]
    ) -> dict[int, dict[str, str]]:
        """Return the commits of a table, by micro-batch."""
        target = self.target_at(table_directory(table.written_as))
        known = target.commits_of(self._changefeed, micro_batches)
        return {number: {"version": version} for number, version in known.items()}

    def file_of(self, output: Output) -> str:
        """Return the data file of an output."""
        return self._files.shown(f"{root_of(output)}/{output.target['path']}")

    def close(self) -> None:
        """Let connections and local space go."""
        self._files.close()
