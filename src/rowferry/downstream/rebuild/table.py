"""One table as it was at some commit-ts: what to read, and how to read it in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId, TableSchema
from rowferry.downstream.rebuild.content import contents
from rowferry.downstream.rebuild.images import Remaining, VersionFollower
from rowferry.downstream.rebuild.lineage import Lineage, SourceFile, read_catalog, read_checkpoint
from rowferry.downstream.rebuild.stored_feed import StoredFeed, reopen
from rowferry.errors import BadInput, BadOption, DecodeError, OptionsConflict
from rowferry.flow.sink.storage.files import each
from rowferry.flow.sink.storage.options import StorageOptions
from rowferry.spec.changefeed import ChangefeedSpec

_MILLISECOND: Final = (1 << PHYSICAL_SHIFT) - 1


@dataclass(frozen=True)
class TablePlan:
    """What to read for one table; small enough to be sent to tasks.

    Attributes:
        key: the columns by which rows are told apart; empty: none, rows are counted.
        key_given: the user named the key.
        as_of: rows committed later are left out; None: all that is visible counts.
    """

    spec: ChangefeedSpec
    lineage: Lineage
    key: tuple[str, ...]
    key_given: bool
    as_of: int | None

    @property
    def schema(self) -> TableSchema:
        """The table's last version, under the name that it has now."""
        return replace(self.lineage.schema, id=self.lineage.table)

    def images(self, files: Sequence[SourceFile]) -> Iterator[pa.Table]:
        """Read some of the files; yield their row images as rows of the last version.

        Raises:
            DecodeError: a file is not of the format; names it.
            SinkDamaged: a file is gone.
            BadInput: what happened to the table cannot be followed exactly.
        """
        feed = reopen(self.spec)
        codec = feed.codec
        payloads = contents(feed.files, [file.path for file in files])
        for file, data in zip(files, payloads, strict=True):
            steps = self.lineage.steps[file.step :]
            following = VersionFollower(steps, self.key, self.key_given)
            first = 0
            try:
                for change in codec.decode(data, steps[0].schema):
                    if isinstance(change, Rows) and (rows := self._early(change)) is not None:
                        yield following.images(rows, file.ordinal, first)
                        first += len(rows)
            except DecodeError as err:
                raise DecodeError(f"{feed.files.shown(file.path)}: {err.words}") from None

    def _early(self, rows: Rows) -> Rows | None:
        if self.as_of is None:
            return rows
        early = np.flatnonzero(rows.commit_ts <= self.as_of)
        if not len(early):
            return None
        return rows if len(early) == len(rows) else rows.take(early)


def plan_tables(
    feed: StoredFeed,
    tables: Sequence[TableId] = (),
    as_of: int | None = None,
    key: Sequence[str] = (),
) -> list[TablePlan]:
    """Find out what makes some tables (none named: all that there are).

    Args:
        feed: the storage.
        tables: which ones.
        as_of: a commit-ts up to which everything counts; None: the checkpoint, or all that is
            visible where rows do not tell when they were committed.
        key: columns that name a row, for a table whose schema files tell no primary key.

    Raises:
        NoSuchTable: there is none of such a name at that time.
        BadInput: what is asked for cannot be exact, and why.
        SinkDamaged: a schema, index or metadata file cannot be read, or a data file is missing.
    """
    precision = feed.codec.commit_time
    _refuse_unseen_moves(feed)
    if as_of is not None and precision.exactness == "none":
        raise OptionsConflict(
            f"as of {as_of}: rows do not tell when they were committed, because {precision.why}"
        )
    if as_of is not None and precision.exactness == "millisecond" and ~as_of & _MILLISECOND:
        raise OptionsConflict(
            f"as of {as_of}: {precision.why}; {as_of | _MILLISECOND} is the end of that millisecond"
        )
    checkpoint = read_checkpoint(feed.files)
    if checkpoint is None:
        raise BadInput(
            f"{feed.files.shown('metadata')} is not there: the changefeed has not reached its "
            "first checkpoint, so nothing is complete"
        )
    if as_of is not None and as_of > checkpoint:
        raise BadOption(f"as of {as_of}: the storage is complete up to {checkpoint} only")
    until = checkpoint if as_of is None and precision.exactness == "exact" else as_of
    catalog = read_catalog(feed.files, until)

    def plan_of(table: TableId) -> TablePlan:
        lineage = catalog.lineage(feed.files, table)
        if lineage.shared and precision.exactness == "none":
            raise OptionsConflict(
                f"{table}: several nodes have written its files, whose rows do not tell when they "
                f"were committed, because {precision.why}"
            )
        named = tuple(lineage.schema.column(c).name for c in key) or lineage.schema.handle_key
        return TablePlan(feed.spec, lineage, named, bool(key), until)

    return each(feed.files, plan_of, tables or sorted(catalog.tables))


def rebuild_here(plan: TablePlan) -> pa.Table:
    """Rebuild a table in this process, in canonical values."""
    rebuilt = rebuild_within(plan, None)
    assert rebuilt is not None
    return rebuilt


def rebuild_within(plan: TablePlan, most_bytes: int | None) -> pa.Table | None:
    """Rebuild a table here as `rebuild_here` does; None: its changes are more than so many bytes.

    No more than that, and what one piece of a file gives, is held to find it out.
    """
    remaining, held = Remaining(plan.schema, plan.key), 0
    for images in plan.images(plan.lineage.files):
        held += images.nbytes
        if most_bytes is not None and held > most_bytes:
            return None
        remaining.add(images)
    return remaining.rows()


def _refuse_unseen_moves(feed: StoredFeed) -> None:
    why = feed.codec.unseen_moves
    if why and feed.spec.options(StorageOptions).output_raw_change_event:
        raise OptionsConflict(
            f"output-raw-change-event with {why}: an update that changes a key does not tell the "
            "old one, so no table can be rebuilt exactly"
        )
