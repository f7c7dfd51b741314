"""What a task writes of a lake: data files and key runs, under the names of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rowferry.change.chunk import Rows
from rowferry.change.plan import Again, Output, Receipt, Segment
from rowferry.change.table import TableSchema
from rowferry.errors import FileConflict, SinkUnavailable, SnapshotGone
from rowferry.flow.sink.lake.columns import LakeColumns
from rowferry.flow.sink.lake.commit import FileColumns
from rowferry.flow.sink.lake.draft import FileDraft, Made
from rowferry.flow.sink.lake.partitioning import FileLayout
from rowferry.flow.sink.lake.runs import run_path
from rowferry.flow.sink.storage.files import Files, Staged
from rowferry.flow.sink.storage.ownership import Ownership, owner_lost
from rowferry.flow.sink.storage.paths import OWNER
from rowferry.moment import moment


class TaskFiles:
    """Writes the files of segments; see `LakeSink.write_rows` for what it promises."""

    def __init__(
        self, files: Files, ownership: Ownership, lake: LakeColumns, empty_is_null: bool
    ) -> None:
        self._files, self._ownership = files, ownership
        self._lake, self._empty_is_null = lake, empty_is_null

    def write(
        self,
        segment: Segment,
        outputs: Sequence[Output],
        tables: Sequence[TableSchema],
        rows: Iterator[tuple[int, Rows]],
    ) -> Iterator[Receipt]:
        """Write a data file and a key run for each table of the segment that has changes."""
        drafts = {
            o.slice: FileDraft(
                self._lake,
                tables[o.slice],
                FileColumns(o.target["names"], o.target.get("ids") or {}),
                FileLayout.read(o.target.get("partition-by") or ()),
                self._empty_is_null,
            )
            for o in outputs
        }
        for place, chunk in rows:
            drafts[place].add(chunk)
        made = {place: draft.finish() for place, draft in drafts.items()}
        staged = {
            (o.slice, one.mark, kind): self._files.stage(content)
            for o in outputs
            for one in made[o.slice]
            for kind, content in (("data", one.data), ("run", one.run))
            if content
        }
        try:
            moment("put lake files")
            self._files.flush(list(staged.values()))
            moment("name lake files")
            with self._ownership.admit(outputs[0].target["discards"] if outputs else 0):
                for output in outputs:
                    made[output.slice] = [
                        self._named(segment, output, drafts[output.slice], one, staged)
                        for one in made[output.slice]
                    ]
            self._files.settle()
            moment("lake files put")
        except SinkUnavailable:
            if self._files.get(OWNER) is None:
                raise owner_lost(self._files) from None
            raise
        finally:
            for one in staged.values():
                one.abandon()
        return iter(
            Receipt(
                segment=segment.ordinal,
                slice=o.slice,
                rows=drafts[o.slice].changes,
                bytes=sum(len(one.data) + len(one.run) for one in made[o.slice]),
                source_bytes=segment.log_bytes // max(1, len(outputs)),
                note=_note_of(made[o.slice]),
            )
            for o in outputs
        )

    def _named(
        self,
        segment: Segment,
        output: Output,
        draft: FileDraft,
        made: Made,
        staged: Mapping[tuple[int, str, str], Staged],
    ) -> Made:
        """Give the files their names; return what is there now."""
        directory, path = root_of(output), path_of(output, made.mark)
        try:
            if (output.slice, made.mark, "data") in staged:
                staged[output.slice, made.mark, "data"].create(f"{directory}/{path}")
            if (output.slice, made.mark, "run") in staged:
                staged[output.slice, made.mark, "run"].create(run_path(directory, path))
        except FileConflict:
            if segment.again is Again.NEVER:
                raise SnapshotGone(
                    f"{path} holds an earlier try of a snapshot that has no key"
                ) from None
            if segment.again is not Again.EQUIVALENT or made.mark:
                raise
            # An earlier try's rows, of an earlier moment, fit the plan as well; its run may be
            # missing or be of this try, so it is made of what is there.
            stored = self._files.get(f"{directory}/{path}")
            made = draft.of_stored(stored.data) if stored is not None else made
            if made.run:
                self._files.overwrite(run_path(directory, path), made.run)
        return made


def path_of(output: Output, mark: str) -> str:
    """Return the name of an output's file; `mark` tells those of partitions from each other."""
    plain = str(output.target["path"])
    return f"{plain.removesuffix('.parquet')}-{mark}.parquet" if mark else plain


def _note_of(files: Sequence[Made]) -> dict[str, Any]:
    """Return what a receipt tells about the files of an output."""
    notes = [{**one.note, "size": len(one.data), "run": bool(one.run)} for one in files]
    if not any(one.mark for one in files):
        return notes[0]
    marked = [{**note, "mark": one.mark} for one, note in zip(files, notes, strict=True)]
    return {"rows": sum(note["rows"] for note in notes), "files": marked}


def root_of(output: Output) -> str:
    """Return where an output's files are; plans of earlier versions name the directory only."""
    return str(output.target.get("root") or output.target["directory"])
