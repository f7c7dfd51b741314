"""SQL statements about changefeeds as values: one frozen class for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Setting: TypeAlias = tuple[tuple[str, ...], Any]  # where in the configuration, and what


@dataclass(frozen=True, slots=True)
class CreateChangefeed:
    """A new changefeed; with `explain` only what it would do.

    Attributes:
        name: None: made from source and sink.
        tables: table filter rules; empty: as the settings say, else all tables.
    """

    name: str | None
    tables: tuple[str, ...]
    source: str
    sink: str
    settings: tuple[Setting, ...] = ()
    explain: bool = False


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Settings to change; None takes one back to its default."""

    name: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class AddTables:
    """Table filter rules of further tables."""

    name: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropTables:
    """Table filter rules of tables to capture no more."""

    name: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """Where to begin anew; exactly one is given."""

    name: str
    commit_ts: int | None = None
    position: str | None = None
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class ResnapshotTable:
    """Rows of a table to be read again."""

    name: str
    table: str
    keys: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class CancelResnapshot:
    """One that is to end where it is."""

    name: str
    which: str


@dataclass(frozen=True, slots=True)
class ShowResnapshots:
    """List them."""

    name: str


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One row whose changes are looked for; `key` has the columns of its key with their values."""

    name: str
    table: str
    key: tuple[tuple[str, str], ...]
    since: str = ""
    until: str = ""
    limit: int | None = None
    log: bool = False
    values: bool = False


@dataclass(frozen=True, slots=True)
class ParkedRows:
    """Parked rows to be listed (no verb), sent again (`retry`) or forgotten (`drop`).

    Without a table all are meant, without a key all of the table.
    """

    name: str
    verb: str = ""
    table: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop one."""

    name: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Let one run again, behind `commit_ts` where that is given."""

    name: str
    commit_ts: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove one."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowChangefeeds:
    """List them; without `every` the finished ones are left out."""

    every: bool = False


@dataclass(frozen=True, slots=True)
class ShowChangefeed:
    """Tell what is known about one: its settings or, with `progress`, how far it is."""

    name: str
    progress: bool = False


@dataclass(frozen=True, slots=True)
class ShowOfChangefeed:
    """List what belongs to one: its `tables`, `schema changes`, `log` or a `sample` of changes."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class ApplyText:
    """Changefeeds as a text in YAML declares them; with `explain` only the difference."""

    text: str
    prune: bool = False
    adopt: bool = False
    explain: bool = False


@dataclass(frozen=True, slots=True)
class ExportText:
    """Changefeeds to be written as such a text: one, or all; `owner` stands in it."""

    name: str = ""
    owner: str = ""


Statement: TypeAlias = (
    ShowOfChangefeed
    | ApplyText
    | ExportText
    | CreateChangefeed
    | SetOptions
    | AddTables
    | DropTables
    | Reset
    | ResnapshotTable
    | CancelResnapshot
    | ShowResnapshots
    | TraceRow
    | ParkedRows
    | Pause
    | Resume
    | Drop
    | ShowChangefeeds
    | ShowChangefeed
)
