"""The storage sink: tasks create numbered data files, the driver makes them visible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, ClassVar, cast

from rowferry.change.chunk import Rows, SchemaChange
from rowferry.change.plan import Again, Output, Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import (
    FileConflict,
    OptionsConflict,
    SinkError,
    SinkUnavailable,
    SnapshotGone,
)
from rowferry.flow.dispatch.by_slice import BySlice
from rowferry.flow.encode.contract import Codec, Encoded, Format, RowFormat
from rowferry.flow.sink.contract import Owner, SinkTraits
from rowferry.flow.sink.storage.compress import SUFFIXES, DataContent, nothing
from rowferry.flow.sink.storage.expire import expire
from rowferry.flow.sink.storage.file_numbers import FileNumbers
from rowferry.flow.sink.storage.files import Files, Staged, Stored, each, each_fenced, walk
from rowferry.flow.sink.storage.index_file import Naming, metadata_content
from rowferry.flow.sink.storage.local_files import LocalFiles, local_root
from rowferry.flow.sink.storage.measures import expansions, last_numbers
from rowferry.flow.sink.storage.options import (
    LayoutOptions,
    StorageOptions,
    StorageSettings,
    read_settings,
)
from rowferry.flow.sink.storage.ownership import Ownership, owner_lost
from rowferry.flow.sink.storage.paths import (
    METADATA,
    OWNER,
    Directory,
    IndexFile,
    date_text,
    index_path,
)
from rowferry.flow.sink.storage.published_marks import PublishedMarks
from rowferry.flow.sink.storage.schema_file import of_changes, of_table
from rowferry.flow.sink.storage.small_files import SmallFiles
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import PlaceKeys
from rowferry.spec.uri_form import DIRECTORY, UriForm

_LEAST_SEGMENT = 1024


class StorageSink:
    """Files in a directory tree, numbered in the plan, visible once published."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=True,
        needs_shuffle=False,
        kind="storage",
        refuses_no_row="refuses no single row: a file takes what its format can say",
        section="sink.cloud-storage-config",
        atomicity=("none", "table"),
        takes_partial_rows=True,
        takes_raw_changes=True,
        place_keys=PlaceKeys(("uri",), ("uri",), itemgetter("uri")),
        form=UriForm("Directory", address=None, path=DIRECTORY, login=False),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (StorageOptions.TABLE, LayoutOptions.TABLE)
    in_directory: ClassVar[bool] = True  # the URI's path is one of this machine
    dispatch: ClassVar[BySlice] = BySlice()

    def __init__(
        self,
        spec: ChangefeedSpec,
        codec: Format,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.settings = read_settings(spec)
        self._format = codec if isinstance(codec, RowFormat) else None
        self._codec = cast(Codec, codec)  # where there is no such one
        kind = self.settings.storage.compression
        if self._format is not None and kind != "none":
            raise OptionsConflict(
                f"compression = {kind}: files of protocol {spec.protocol} are compressed inside, "
                f"by sink.{spec.protocol}.compression; leave it out"
            )
        suffix = "." + codec.TRAITS.file_suffix.removeprefix(".") + SUFFIXES[kind]
        self._naming = Naming(self.settings.layout.file_index_digit, suffix)
        self._files = self.files_of(spec, self.settings)
        self.counts = self._files.counts
        self._ownership = Ownership(self._files)
        self._small = SmallFiles(self._files, self._ownership)
        self._now = now or self._wall_clock
        self._marks = PublishedMarks(self._files, self._naming, self.settings, self._now)
        self._numbers = FileNumbers(self._files, self._marks)
        self._shown: set[tuple[TableId, int]] = set()  # versions whose schema file is there
        self._expansion: dict[TableId, float] = {}
        self._cleanup_at: datetime | None = None
        self._reached = 0  # what `metadata` must tell at least

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
        """Return access to the place that the sink URI names; asks nobody.

        Raises:
            BadInput: the URI names no such place, or an option cannot be used.
        """
        return LocalFiles(local_root(spec.sink), settings.storage.fsync)

    @property
    def flush_interval_s(self) -> float:
        """How often the loop should run."""
        return self.settings.storage.flush_interval.total_seconds()

    def _wall_clock(self) -> datetime:
        return datetime.now(self.settings.layout.time_zone)

    # --- before a run ----------------------------------------------------------------------------

    def probe(self, owner: Owner) -> None:
        """Ask whether this owner may write here; writes nothing.

        Raises:
            SinkUnwritable: not a directory, or no permission.
            SinkOwned: another changefeed's output is here.
            SinkDamaged: a file of ours cannot be read; the text has the cure.
        """
        moment("probe storage")
        self._files.check_writable()
        self._ownership.probe(owner)
        self._marks.checkpoint_in(self._files.get(METADATA))
        known = walk(self._files, self.settings.layout.date_separator)
        indexes = [path for path, kind in known if isinstance(kind, IndexFile)]
        each(self._files, lambda path: self._marks.number_in(self._files.get(path), path), indexes)

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Ask the format of rows, if there is one; else any table can go here."""
        if self._format is not None:
            for table in tables:
                self._format.check_table(table)

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Claim the directory, making it if needed; older epochs can publish nothing from here on.

        Raises:
            SinkUnwritable, SinkOwned, SinkDamaged: as `probe`.
            Fenced: a higher epoch has claimed it.
            TargetLost, TargetWentBack: files that were published are gone, or older ones are there.
        """
        moment("open storage")
        self._files.check_writable()
        if owner.continues:
            self._marks.require_delivered(owner)
        self._files.prepare()
        if self._ownership.claim(owner):
            self._marks.checkpoint_in(self._files.get(METADATA))
        else:
            self._small.shut_out_older_owners(owner, self._marks.checkpoint_in)
        moment("sweep storage")
        self._files.sweep()
        self._numbers.resume(state)
        self._reached = owner.delivered
        self._shown = set()
        if self.settings.storage.file_expiration_days:
            self._cleanup_at = self.settings.storage.file_cleanup_cron_spec.after(self._now())

    # --- planning --------------------------------------------------------------------------------

    @property
    def whole_transactions(self) -> bool:
        """Whether `transaction-atomicity` keeps a transaction's rows of a table in one file."""
        return self.settings.layout.transaction_atomicity == "table"

    @property
    def separates_partitions(self) -> bool:
        """Whether each table partition has its own directory."""
        return self.settings.layout.enable_partition_separator

    def segment_bytes(self, table: TableId) -> int:
        """Return how much log makes about `file-size` bytes, as the table's last files measured."""
        wanted = self.settings.storage.file_size / self._expansion.get(table, 1.0)
        return max(_LEAST_SEGMENT, round(wanted))

    def partition_label(self, commit_ts: int) -> str:
        """Return the date directory of a commit-ts; empty without date directories."""
        return date_text(
            commit_ts, self.settings.layout.date_separator, self.settings.layout.time_zone
        )

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give every slice of every segment the next number of its directory; writes nothing."""
        moment("read discards")
        discards = self._ownership.discard_count()
        places = [
            (segment.ordinal, place, self._directory_of(piece, tables[piece], date), piece)
            for segment in stretch.segments
            for date in [self._date_of(segment)]
            for place, piece in enumerate(segment.slices)
        ]
        touched = list(dict.fromkeys(where for _, _, where, _ in places))
        last = self._numbers.last_of(touched)
        outputs: list[Output] = []
        for ordinal, place, where, piece in places:
            last[where] = number = last[where] + 1
            target = {
                "directory": where,
                "number": number,
                "path": f"{where}/{self._naming.data_name(number)}",
                "discards": discards,
            }
            if not self._files.has_locks:
                target |= self._facts_of_empty_file(tables[piece])
            outputs.append(Output(ordinal, place, target))
        return tuple(outputs), self._numbers.foresee(last)

    def _directory_of(self, piece: TableSlice, table: TableSchema, date: str) -> str:
        physical_id = piece.physical_id if self.settings.layout.enable_partition_separator else None
        return Directory(*table.written_as, piece.version, physical_id, date).path

    def _date_of(self, segment: Segment) -> str:
        date = self.partition_label(segment.first_commit_ts)
        if date != self.partition_label(segment.last_commit_ts):
            raise SinkError(
                f"segment {segment.ordinal} holds commits of {date} and of "
                f"{self.partition_label(segment.last_commit_ts)}; one file has one date"
            )
        return date

    # --- in tasks --------------------------------------------------------------------------------

    def write(
        self, segment: Segment, outputs: Sequence[Output], frames: Iterator[tuple[int, Encoded]]
    ) -> Iterator[Receipt]:
        """Create the segment's files, an empty one where a slice had no frames.

        On return all of them are durable under their final names.

        Raises:
            FileConflict: a file of a number exists with other content.
            PlanDiscarded: the plan was discarded while the task ran.
            TargetLost: all that was written here is gone.
        """

        def fill(staged: Mapping[int, DataContent], rows: dict[int, int]) -> None:
            for place, frame in frames:
                staged[place].add(frame.value_bytes())
                rows[place] += frame.row_count

        return self._write(segment, outputs, fill)

    def write_rows(
        self,
        segment: Segment,
        outputs: Sequence[Output],
        tables: Sequence[TableSchema],
        rows: Iterator[tuple[int, Rows]],
    ) -> Iterator[Receipt]:
        """Create the segment's files of rows; promises and raises as `write`."""
        row_format = self._format
        if row_format is None:
            raise TypeError("the protocol is not one of rows")

        def fill(staged: Mapping[int, DataContent], counts: dict[int, int]) -> None:
            files = {p: row_format.file(tables[p], content.put) for p, content in staged.items()}
            for place, chunk in rows:
                files[place].add(chunk)
                counts[place] += len(chunk)
            for file in files.values():
                file.finish()

        return self._write(segment, outputs, fill)

    def _write(
        self,
        segment: Segment,
        outputs: Sequence[Output],
        fill: Callable[[Mapping[int, DataContent], dict[int, int]], None],
    ) -> Iterator[Receipt]:
        kind = self.settings.storage.compression
        staged = {o.slice: DataContent(self._files.stage(), kind) for o in outputs}
        rows = dict.fromkeys(staged, 0)
        try:
            fill(staged, rows)
            moment("put data files")
            self._files.flush([content.finish() for content in staged.values()])
            moment("name data files")
            with self._ownership.admit(outputs[0].target["discards"] if outputs else 0):
                made = each(
                    self._files, lambda o: _create(staged[o.slice].staged, o, segment), outputs
                )
            self._files.settle()
            moment("data files put")
        except SinkUnavailable:
            if self._files.get(OWNER) is None:
                raise owner_lost(self._files) from None  # nothing can be put into what is gone
            raise
        finally:
            for content in staged.values():
                content.staged.abandon()
        already = {o.slice: not new for o, new in zip(outputs, made, strict=True)}
        size = {place: content.size for place, content in staged.items()}
        total = sum(size.values())
        return iter(
            Receipt(
                segment=segment.ordinal,
                slice=o.slice,
                rows=rows[o.slice],
                bytes=size[o.slice],
                source_bytes=segment.log_bytes * size[o.slice] // total if total else 0,
                note={"path": o.target["path"], "already": already[o.slice]},
            )
            for o in outputs
        )

    # --- publishing ------------------------------------------------------------------------------

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Make the plan's files visible, then its schema changes, then the watermark.

        Each step may be repeated: schema files are created once, indexes and metadata only go
        forward. So a crash between any two steps is repaired by publishing again.

        Raises:
            Fenced: another owner has claimed the directory.
            SinkError: a file of the plan was not written.
        """
        self._require_written(plan, receipts)
        pieces = (p for s in plan.stretch.segments for p in s.slices)
        self._show_table_versions(tables[p].at(p.version) for p in pieces)
        self._advance_indexes(last_numbers(plan))
        self._show_schema_changes(plan.stretch.schema_changes)
        if plan.stretch.watermark is not None:
            self._advance_metadata(plan.stretch.watermark)
        self._remember(plan, receipts)
        if plan.stretch.watermark is not None:
            self._expire_if_due(plan.stretch.watermark)

    def discard(self, plan: Plan) -> bool:
        """Remove the plan's files that no index names; its tasks create no more of them.

        Those that an index names stay: readers may have seen them.

        Where no lock keeps a task out that is still at work, each of these numbers stays taken by
        an empty file, which fits every plan.

        Raises:
            Fenced: another owner has claimed the directory.
        """
        self._ownership.count_discard()
        by_directory: dict[str, list[dict[str, Any]]] = {}
        for output in plan.outputs:
            by_directory.setdefault(output.target["directory"], []).append(output.target)

        moment("discard data files")

        def clear(directory: str) -> bool:
            self._numbers.ask_again(directory)
            index = index_path(directory)
            with self._ownership.fenced():
                visible = self._marks.number_in(self._files.get(index), index)
                hidden = [t for t in by_directory[directory] if t["number"] > visible]
                for target in hidden:
                    if self._files.has_locks:
                        self._files.delete(target["path"])
                    else:
                        self._files.overwrite(target["path"], self._empty_file(target))
            return len(hidden) < len(by_directory[directory])

        return any(each_fenced(self._files, clear, by_directory))

    def _facts_of_empty_file(self, table: TableSchema) -> dict[str, Any]:
        """Return what an output must tell, so that `discard` can make a data file without rows."""
        if self._format is not None:
            return {"table": table.to_json()}
        head = self._codec.file_head(table)
        return {"head": head.decode()} if head else {}

    def _empty_file(self, target: dict[str, Any]) -> bytes:
        """Return a data file without rows, of the table whose file was to be there."""
        if self._format is None:
            return nothing(self.settings.storage.compression, target.get("head", "").encode())
        pieces: list[bytes] = []
        self._format.file(TableSchema.from_json(target["table"]), pieces.append).finish()
        return b"".join(pieces)

    def close(self) -> None:
        """Let connections and local space go."""
        self._files.close()

    def _require_written(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        moment("look for data files")
        written = {(r.segment, r.slice) for r in receipts}
        unsure = [o.target["path"] for o in plan.outputs if (o.segment, o.slice) not in written]
        for path, there in zip(unsure, each(self._files, self._files.exists, unsure), strict=True):
            if not there:
                raise SinkError(
                    f"{self._files.shown(path)} of micro-batch {plan.micro_batch} was not written"
                )

    def _show_table_versions(self, schemas: Iterable[TableSchema]) -> None:
        moment("put schema files")
        new = {(s.id, s.version): s for s in schemas if (s.id, s.version) not in self._shown}
        documents = (of_table(s, self.settings.storage.output_column_id) for s in new.values())
        # Where a DDL's own file of a version is there, it says more; it stays.
        self._small.put(
            {d.path: d.content() for d in documents}, lambda path, stored: stored is None
        )
        self._shown.update(new)

    def _show_schema_changes(self, changes: Sequence[SchemaChange]) -> None:
        moment("put schema change files")
        documents = of_changes(changes, self.settings.storage.output_column_id)
        contents = {d.path: d.content() for d in documents}
        self._small.put(contents, lambda path, old: old is None or old.data != contents[path])

    def _advance_indexes(self, numbers: Mapping[str, int]) -> None:
        moment("publish index")
        paths = {index_path(directory): directory for directory in numbers}
        contents = {p: self._naming.index_content(numbers[d]) for p, d in paths.items()}

        def is_behind(path: str, old: Stored | None) -> bool:
            number = self._marks.number_in(old, path)
            self._numbers.require_index(paths[path], number)
            return number < numbers[paths[path]]

        self._small.put(contents, is_behind)

    def _advance_metadata(self, watermark: int) -> None:
        moment("publish metadata")

        def is_behind(path: str, old: Stored | None) -> bool:
            self._marks.require_metadata(old, self._reached)
            return self._marks.checkpoint_in(old) < watermark

        self._small.put({METADATA: metadata_content(watermark)}, is_behind)
        self._reached = max(self._reached, watermark)

    def _expire_if_due(self, watermark: int) -> None:
        if self._cleanup_at is None or (now := self._now()) < self._cleanup_at:
            return
        gone = expire(self._files, self._ownership, self.settings, watermark)
        self._numbers.forget(gone)
        self._cleanup_at = self.settings.storage.file_cleanup_cron_spec.after(now)

    def _remember(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        self._numbers.publish(last_numbers(plan), plan.sink_state)
        self._expansion.update(expansions(plan, receipts))


def _create(content: Staged, output: Output, segment: Segment) -> bool:
    """Give a file its final name; False: the name has content that stands for it.

    Raises:
        FileConflict: it has other content than it must.
        SnapshotGone: an earlier try wrote it, and what it read cannot be read again.
    """
    try:
        return content.create(output.target["path"])
    except FileConflict:
        if segment.again is Again.EQUIVALENT:
            return False  # an earlier try's rows, of an earlier moment: they fit the plan as well
        if segment.again is Again.NEVER:
            raise SnapshotGone(
                f"{output.target['path']} holds an earlier try of a snapshot that has no key"
            ) from None
        raise
