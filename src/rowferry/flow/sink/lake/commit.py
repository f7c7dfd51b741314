"""What a commit of a lake's table is about, whatever the table's format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from rowferry.change.chunk import SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.columns import LakeColumns
from rowferry.flow.sink.lake.layouts import LakeLayouts
from rowferry.flow.sink.lake.partitioning import Value

OF_OLD_ROW: Final = 1_000_000
MARK: Final = "rowferry.changefeed"  # the property that says which changefeed has made a table
# Lets its owner in, and keeps everybody else out as far as the storage can.
Guard: TypeAlias = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class CommitNote:
    """Who commits what; it stands in the commit.

    Attributes:
        incarnation: which filling of the lake this is: a reset to a new snapshot begins another.
        discards: how many plans were given up before this one.
        at_ms: the plan's clock reading.
        since_ts: up to where tables were complete before this micro-batch.
        settled: tables are complete up to `checkpoint_ts` with this commit; while one is being
            filled, they are between moments.
        begun: the epoch at which the changefeed has met its tables anew; 0: not since the filling.
    """

    changefeed: str
    incarnation: int
    epoch: int
    micro_batch: int
    discards: int
    checkpoint_ts: int
    at_ms: int
    since_ts: int = 0
    settled: bool = True
    begun: int = 0

    @property
    def application(self) -> str:
        """The name under which a table counts our commits."""
        return f"rowferry/{self.changefeed}/{self.incarnation}"

    @property
    def schema_name(self) -> str:
        """The name under which a table notes the last schema change that it has."""
        return f"{self.application}/schema"

    def schema_notes(self, commit_ts: int) -> dict[str, int]:
        """Return what a table notes of a schema change: which one it has, by which plan."""
        return {
            self.schema_name: commit_ts,
            f"{self.schema_name}/micro-batch": self.micro_batch,
            f"{self.schema_name}/discards": self.discards,
        }

    def has_change(self, notes: Mapping[str, int], commit_ts: int) -> bool:
        """Return whether this very plan has made a schema change in a table with these notes.

        Where an earlier plan made it, rows of before it have come since: it was given up, or the
        log is read again.
        """
        return self.schema_notes(commit_ts).items() <= notes.items()

    @property
    def discards_name(self) -> str:
        """The name under which a table notes how many plans were given up."""
        return f"{self.application}/discards"

    def is_done(self, notes: Mapping[str, int]) -> bool:
        """Return whether this very plan, or a later one, is in a table with these notes.

        One that was given up since may have had the same number, or a higher one: then the meta
        database went back behind it.
        """
        reached = notes.get(self.application, 0)
        return reached >= self.micro_batch and notes.get(self.discards_name, 0) >= self.discards

    def given_up(self, notes: Mapping[str, int]) -> dict[str, int]:
        """Return what a table with these notes is to note when this plan is given up.

        Not that it has this micro-batch, by a plan that was given up earlier: who comes next would
        be taken for that one.
        """
        given_up = {self.discards_name: self.discards + 1}
        if notes.get(self.application, 0) >= self.micro_batch:
            given_up[self.application] = self.micro_batch - 1
        return given_up


def is_known(notes: Mapping[str, int], application: str) -> bool:
    """Return whether a table with these notes has anything of an application."""
    return application in notes or f"{application}/schema" in notes


def foreign_words(owner: str, commits_of: str) -> str:
    """Return what is known of a table that another changefeed, or none, has made; with a cure.

    `owner` is what its mark says, `commits_of` whose commits it has; empty: nothing.
    """
    if owner:
        return f"belongs to changefeed {owner!r}"
    if commits_of:
        return (
            f"has commits of changefeed {commits_of!r}, and has lost the property {MARK} that "
            f"says so; set it to {commits_of!r} again if nobody else has changed the table"
        )
    return "was not made by a changefeed"


def noted_changefeed(notes: Mapping[str, int]) -> str:
    """Return the changefeed that a table has counted commits of; empty: of none."""
    parts = (name.split("/") for name in notes)
    return next((p[1] for p in parts if p[0] == "rowferry" and len(p) > 2), "")


def is_another(dropped: str, table: TableSchema) -> bool:
    """Return whether a version is of another table than that of its name which was dropped.

    `dropped`: the commit-ts of that, as a table in the lake notes it; empty: it was not.
    """
    return dropped.isdecimal() and table.version > int(dropped)


def require_delivered(notes: Mapping[str, int], note: CommitNote, shown: str) -> None:
    """Raise TargetLost unless a table with these notes has what this filling delivered to it."""
    if not is_known(notes, note.application):
        raise TargetLost(f"{shown} is gone, or another table is in its place; {RESTORE}")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that tasks have written, and what its receipt told.

    Attributes:
        path: below the root of the plan.
        root: below the prefix.
        has_run: it has a key run; one without rows may have one, too.
        partition: the values of the partition that its rows are in.
    """

    path: str
    rows: int
    size: int
    stats: str
    has_run: bool
    root: str = ""
    partition: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class FileColumns:
    """What the columns of a table version are called in data files.

    Attributes:
        names: by the names that readers see.
        ids: the number of each name in data files, where the format goes by numbers; a column of
            an old row has that number and `OF_OLD_ROW`.
    """

    names: dict[str, str]
    ids: dict[str, int] = field(default_factory=dict)


class LakeTables(Protocol):
    """All tables of a lake, by their directories: `<database>/<table>`."""

    def directories(self, database: str = "") -> Iterator[str]:
        """Yield the tables that are there; `database`: those of one directory of a database."""

    def remove(self, directory: str, guard: Guard) -> None:
        """Delete a table; what is left of it after a crash is no table any more."""

    def rename(self, old: str, new: str, guard: Guard) -> None:
        """Give a table another name, which no other has. Repeated after a crash it ends that."""

    def shown(self, directory: str) -> str:
        """Return a table's name as users know it, for errors."""


class LakeTarget(Protocol):
    """One table of a lake. Every change is one commit, and done once however often it is tried."""

    directory: str

    def exists(self) -> bool:
        """Return whether there is a table."""

    def owner(self) -> str:
        """Return the changefeed that made the table, whatever is in it; empty: none did."""

    def identity(self) -> str:
        """Return what tells a table from all others, wherever it is moved to."""

    def check(self, changefeed: str) -> None:
        """Raise unless there is no table, or one of this changefeed that we can keep.

        Raises:
            SinkOwned: it is somebody else's.
            TargetUnfit: it has features or columns that we do not know.
        """

    def root(self, fresh: str) -> str:
        """Return where data files go; `fresh` is a place that nobody uses, for a new table."""

    def file_columns(self, table: TableSchema, application: str, begun: int = 0) -> FileColumns:
        """Return what the columns of a table version are called in data files.

        `begun`: see `numbering_of`.

        Raises:
            SchemaChangeRefused: the table cannot get these columns.
            BadLayout: it has other partitions than its rule asks for.
        """

    def has_rows(self, note: CommitNote) -> bool:
        """Return whether the micro-batch was committed."""

    def commit_rows(
        self,
        note: CommitNote,
        table: TableSchema,
        files: Sequence[NewFile],
        guard: Guard,
        delivered: bool = False,
    ) -> None:
        """Commit a micro-batch's rows; a commit that is found done is done.

        `delivered`: the table has had rows of this filling, so that it is not made anew.

        Raises:
            TargetLost: it was delivered to, and is gone.
            PlanDiscarded: the plan was given up meanwhile.
            Fenced: somebody else has claimed the lake.
        """

    def commit_schema(
        self,
        note: CommitNote,
        change: SchemaChange,
        guard: Guard,
        anew: bool = False,
        delivered: bool = False,
    ) -> None:
        """Give the table the columns of a schema change; `anew`: and nothing else, as if new.

        Raises:
            TargetLost: it was `delivered` to, and is gone.
        """

    def truncate(self, note: CommitNote, change: SchemaChange | None, guard: Guard) -> None:
        """Take all rows away; without a change, those of an earlier filling of the lake."""

    def mark_dropped(self, note: CommitNote, change: SchemaChange, guard: Guard) -> None:
        """Note that the source has dropped the table; its rows stay."""

    def is_dropped(self) -> bool:
        """Return whether the source has dropped the table."""

    def forbid(self, note: CommitNote, guard: Guard) -> bool:
        """Let no commit of a plan in that was given up; return whether it is there already."""

    def commits_of(self, changefeed: str, micro_batches: Collection[int]) -> dict[int, str]:
        """Return which commit of the table's history has the rows of a micro-batch, by its number.

        Commits that the history does not hold any more are left out.
        """


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """What targets of one changefeed share."""

    lake: LakeColumns
    file_size: int
    checkpoint_interval: int
    optimize_after: int
    layouts: LakeLayouts = field(default_factory=LakeLayouts)

    def size_of(self, noted: str) -> int:
        """Return the size that a table's files should have; `noted` is what the table says."""
        return int(noted) if noted.isdecimal() and int(noted) else self.file_size
