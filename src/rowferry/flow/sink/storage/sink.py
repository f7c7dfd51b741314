"""The storage sink: tasks create numbered data files, the driver makes them visible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Again, Output, Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import FileConflict, SinkError, SinkUnavailable, SnapshotGone
from rowferry.flow.dispatch.by_slice import BySlice
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner, SinkTraits
from rowferry.flow.sink.storage.expire import expire
from rowferry.flow.sink.storage.files import Files, Staged, Stored
from rowferry.flow.sink.storage.index_file import Naming, metadata_content, read_metadata
from rowferry.flow.sink.storage.local_files import LocalFiles, local_root
from rowferry.flow.sink.storage.options import SINK_TABLE, STORAGE_TABLE, read_settings
from rowferry.flow.sink.storage.ownership import Ownership
from rowferry.flow.sink.storage.paths import (
    METADATA,
    Directory,
    IndexFile,
    date_text,
    index_path,
)
from rowferry.flow.sink.storage.schema_file import of_change, of_table
from rowferry.flow.sink.storage.walk import walk
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable

_KEPT_IN_STATE = 256  # directories; the numbers of others are read from CDC.index again
_KEPT_IN_MEMORY = 65536
_LEAST_SEGMENT = 1024
_EXPANSION_BOUNDS = (1 / 64, 64.0)  # a table whose rows are mostly dropped gets no endless ones


class Storage:
    """Files in a directory tree, numbered in the plan, visible once published."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=True, shows_rows_on_write=False, needs_shuffle=False
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (STORAGE_TABLE, SINK_TABLE)
    dispatch: ClassVar[BySlice] = BySlice()

    def __init__(
        self,
        spec: ChangefeedSpec,
        codec: Codec,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.settings = read_settings(spec)
        self._naming = Naming(
            self.settings.index_digits, "." + codec.TRAITS.file_suffix.removeprefix(".")
        )
        self._files: Files = LocalFiles(local_root(spec.sink), self.settings.fsync)
        self._ownership = Ownership(self._files)
        self._now = now or self._wall_clock
        self._state: dict[str, int] = {}  # last numbers as of the last published plan
        self._last: dict[str, int] = {}  # the same, once CDC.index was asked; newest at the end
        self._shown: set[tuple[TableId, int]] = set()  # versions whose schema file is there
        self._expansion: dict[TableId, float] = {}
        self._cleanup_at: datetime | None = None

    @property
    def flush_interval_s(self) -> float:
        """How often the loop should run."""
        return self.settings.flush_interval_s

    def _wall_clock(self) -> datetime:
        return datetime.now(self.settings.time_zone)

    # --- before a run ----------------------------------------------------------------------------

    def probe(self, owner: Owner) -> None:
        """Ask whether this owner may write here; writes nothing.

        Raises:
            SinkUnwritable: not a directory, or no permission.
            SinkOwned: another changefeed's output is here.
            SinkDamaged: a file of ours cannot be read; the text has the cure.
        """
        self._files.check_writable()
        self._ownership.probe(owner)
        self._checkpoint_in(self._files.get(METADATA))
        for path, kind in walk(self._files, self.settings.date_separator):
            if isinstance(kind, IndexFile):
                self._number_in(self._files.get(path), path)

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Any table can go here."""

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Claim the directory, making it if needed; older epochs can publish nothing from here on.

        Raises:
            SinkUnwritable, SinkOwned, SinkDamaged: as `probe`.
            Fenced: a higher epoch has claimed it.
        """
        self._files.check_writable()
        self._files.prepare()
        self._ownership.claim(owner)
        with self._ownership.fenced():
            stored = self._files.get(METADATA)
            self._checkpoint_in(stored)
            if stored is not None:
                # An older owner that read it before us now finds it changed, wherever tags decide.
                self._files.swap(METADATA, stored.data, stored)
        self._files.sweep()
        self._state = dict(state["last"]) if state else {}
        self._last, self._shown = {}, set()
        if self.settings.expiration_days:
            self._cleanup_at = self.settings.cleanup.after(self._now())

    # --- planning --------------------------------------------------------------------------------

    @property
    def whole_transactions(self) -> bool:
        """Whether `transaction-atomicity` keeps a transaction's rows of a table in one file."""
        return self.settings.atomicity == "table"

    @property
    def separates_partitions(self) -> bool:
        """Whether each table partition has its own directory."""
        return self.settings.partition_separator

    def segment_bytes(self, table: TableId) -> int:
        """Return how much log makes about `file-size` bytes, as the table's last files measured."""
        wanted = self.settings.file_size_bytes / self._expansion.get(table, 1.0)
        return max(_LEAST_SEGMENT, round(wanted))

    def same_day(self, commit_ts: int) -> str:
        """Return the date directory of a commit-ts; empty without date directories."""
        return date_text(commit_ts, self.settings.date_separator, self.settings.time_zone)

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give every slice of every segment the next number of its directory; writes nothing."""
        discards = self._ownership.discards()
        last: dict[str, int] = {}
        outputs: list[Output] = []
        for segment in stretch.segments:
            date = self._date_of(segment)
            for place, piece in enumerate(segment.slices):
                physical_id = piece.physical_id if self.settings.partition_separator else None
                name = tables[piece].written_as
                where = Directory(*name, piece.version, physical_id, date).path
                number = last.get(where, -1)
                number = (number if number >= 0 else self._last_number(where)) + 1
                last[where] = number
                target = {
                    "directory": where,
                    "number": number,
                    "path": f"{where}/{self._naming.data_name(number)}",
                    "discards": discards,
                }
                outputs.append(Output(segment.ordinal, place, target))
        return tuple(outputs), {"last": _moved_on(self._state, last, _KEPT_IN_STATE)}

    def _date_of(self, segment: Segment) -> str:
        date = self.same_day(segment.first_commit_ts)
        if date != self.same_day(segment.last_commit_ts):
            raise SinkError(
                f"segment {segment.ordinal} holds commits of {date} and of "
                f"{self.same_day(segment.last_commit_ts)}; one file has one date"
            )
        return date

    def _last_number(self, directory: str) -> int:
        """Return the last number in use: published, or recorded by CDC.index and occupied."""
        known = self._last.get(directory)
        if known is not None:
            return known
        index = index_path(directory)
        recorded = self._number_in(self._files.get(index), index)
        if recorded and not self._files.exists(f"{directory}/{self._naming.data_name(recorded)}"):
            recorded -= 1
        found = max(recorded, self._state.get(directory, 0))
        self._last[directory] = found
        return found

    # --- in tasks --------------------------------------------------------------------------------

    def write(
        self, segment: Segment, outputs: Sequence[Output], frames: Iterator[tuple[int, Encoded]]
    ) -> Iterator[Receipt]:
        """Create the segment's files, an empty one where a slice had no frames.

        On return all of them are durable under their final names.

        Raises:
            FileConflict: a file of a number exists with other content.
            PlanDiscarded: the plan was discarded while the task ran.
        """
        staged = {o.slice: self._files.stage() for o in outputs}
        rows, size = dict.fromkeys(staged, 0), dict.fromkeys(staged, 0)
        already: dict[int, bool] = {}
        try:
            for place, frame in frames:
                if length := frame.nbytes:
                    staged[place].append(frame.value_bytes())
                rows[place] += frame.row_count
                size[place] += length
            self._files.flush(staged.values())
            with self._ownership.admit(outputs[0].target["discards"] if outputs else 0):
                for output in outputs:
                    already[output.slice] = not _create(staged[output.slice], output, segment)
            self._files.settle()
        finally:
            for content in staged.values():
                content.abandon()
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
        self._advance_indexes(_last_numbers(plan))
        self._show_schema_changes(plan.stretch.schema_changes)
        if plan.stretch.watermark is not None:
            self._advance_metadata(plan.stretch.watermark)
            self._expire_if_due(plan.stretch.watermark)
        self._remember(plan, receipts)

    def discard(self, plan: Plan) -> None:
        """Remove the plan's files that no index names; its tasks create no more of them.

        Raises:
            Fenced: another owner has claimed the directory.
        """
        self._ownership.count_discard()
        by_directory: dict[str, list[dict[str, Any]]] = {}
        for output in plan.outputs:
            by_directory.setdefault(output.target["directory"], []).append(output.target)
        for directory, targets in by_directory.items():
            self._last.pop(directory, None)
            index = index_path(directory)
            with self._ownership.fenced():
                visible = self._number_in(self._files.get(index), index)
                for target in targets:
                    if target["number"] > visible:
                        self._files.delete(target["path"])

    def close(self) -> None:
        """Nothing is held between two calls."""

    def _require_written(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        written = {(r.segment, r.slice) for r in receipts}
        for output in plan.outputs:
            path = output.target["path"]
            if (output.segment, output.slice) not in written and not self._files.exists(path):
                raise SinkError(
                    f"{self._files.shown(path)} of micro-batch {plan.micro_batch} was not written"
                )

    def _show_table_versions(self, schemas: Iterable[TableSchema]) -> None:
        new = {(s.id, s.version): s for s in schemas if (s.id, s.version) not in self._shown}
        found = (of_table(s, self.settings.output_column_id) for s in new.values())
        # Where a DDL's own file of a version is there, it says more; it stays.
        contents = {d.path: d.content() for d in found if not self._files.exists(d.path)}

        def show(path: str, content: Staged) -> None:
            if not self._files.exists(path):
                content.create(path)

        self._put(contents, show)
        self._shown.update(new)

    def _show_schema_changes(self, changes: Sequence[SchemaChange]) -> None:
        documents = [of_change(c, self.settings.output_column_id) for c in changes]
        contents = {d.path: d.content() for d in documents}

        def show(path: str, content: Staged) -> None:
            stored = self._files.get(path)
            if stored is None or stored.data != contents[path]:
                self._swap(path, content, stored)

        self._put(contents, show)

    def _advance_indexes(self, numbers: Mapping[str, int]) -> None:
        last = {index_path(directory): number for directory, number in numbers.items()}

        def advance(path: str, content: Staged) -> None:
            stored = self._files.get(path)
            if self._number_in(stored, path) < last[path]:
                self._swap(path, content, stored)

        self._put({p: self._naming.index_content(n) for p, n in last.items()}, advance)

    def _advance_metadata(self, watermark: int) -> None:
        def advance(path: str, content: Staged) -> None:
            stored = self._files.get(path)
            if self._checkpoint_in(stored) < watermark:
                self._swap(path, content, stored)

        self._put({METADATA: metadata_content(watermark)}, advance)

    def _put(self, contents: Mapping[str, bytes], put: Callable[[str, Staged], None]) -> None:
        """Stage all contents, then let `put` name each, in order and as the owner.

        On return all of them are durable.
        """
        staged: dict[str, Staged] = {}
        try:
            for path, content in contents.items():
                staged[path] = self._files.stage(content)
            self._files.flush(staged.values())
            for path, ready in staged.items():
                with self._ownership.fenced():
                    put(path, ready)
            self._files.settle()
        finally:
            for ready in staged.values():
                ready.abandon()

    def _swap(self, path: str, content: Staged, expected: Stored | None) -> None:
        if not content.swap(path, expected):
            raise SinkUnavailable(
                f"{self._files.shown(path)} was changed by somebody else meanwhile"
            )

    def _number_in(self, stored: Stored | None, path: str) -> int:
        return self._naming.read_index(stored.data, self._files.shown(path)) if stored else 0

    def _checkpoint_in(self, stored: Stored | None) -> int:
        return read_metadata(stored.data, self._files.shown(METADATA)) if stored else -1

    def _expire_if_due(self, watermark: int) -> None:
        if self._cleanup_at is None or (now := self._now()) < self._cleanup_at:
            return
        gone = expire(self._files, self._ownership, self.settings, watermark)
        self._last = {d: n for d, n in self._last.items() if d not in gone}
        self._state = {d: n for d, n in self._state.items() if d not in gone}
        self._cleanup_at = self.settings.cleanup.after(now)

    def _remember(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        self._last = _moved_on(self._last, _last_numbers(plan), _KEPT_IN_MEMORY)
        if plan.sink_state:
            self._state = _moved_on(self._state, plan.sink_state["last"], _KEPT_IN_STATE)
        self._expansion.update(_expansions(plan, receipts))


def _create(content: Staged, output: Output, segment: Segment) -> bool:
    """Give a file its final name; False: the name has content that stands for it.

    Raises:
        FileConflict: it has other content than it must.
        SnapshotGone: an earlier try wrote it, and what it read cannot be read again.
    """
    try:
        return content.create(output.target["path"])
    except FileConflict:
        if segment.again is Again.AS_GOOD:
            return False  # an earlier try's rows, of an earlier moment: they fit the plan as well
        if segment.again is Again.NEVER:
            raise SnapshotGone(
                f"{output.target['path']} holds an earlier try of a snapshot that has no key"
            ) from None
        raise


def _last_numbers(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for output in plan.outputs:
        directory, number = output.target["directory"], output.target["number"]
        found[directory] = max(number, found.get(directory, 0))
    return found


def _moved_on(old: Mapping[str, int], new: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the newest entries of both, those of `new` last; no number goes back."""
    found = {k: v for k, v in old.items() if k not in new}
    found.update((k, max(v, old.get(k, 0))) for k, v in new.items())
    return dict(list(found.items())[-most:])


def _expansions(plan: Plan, receipts: Sequence[Receipt]) -> dict[TableId, float]:
    """Return file bytes per log byte of each table that the receipts measured."""
    slices = {s.ordinal: s.slices for s in plan.stretch.segments}
    read: dict[TableId, int] = {}
    written: dict[TableId, int] = {}
    for receipt in receipts:
        table = slices[receipt.segment][receipt.slice].table
        read[table] = read.get(table, 0) + receipt.source_bytes
        written[table] = written.get(table, 0) + receipt.bytes
    least, most = _EXPANSION_BOUNDS
    return {t: min(max(written[t] / n, least), most) for t, n in read.items() if n > 0}
