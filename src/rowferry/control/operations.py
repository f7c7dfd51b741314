"""What an operator can do with changefeeds: one method for each, whatever face asked for it.

Every method works on the meta database (and, to check something new, on source and sink): any
server takes any request, and the owner of the changefeed sees the change within a second or two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId
from rowferry.control.lifecycle import State
from rowferry.control.store.contract import Feed, MetaStore, Note, Sample, Server


@dataclass(frozen=True, slots=True)
class Wanted:
    """A changefeed as someone asks for it.

    Attributes:
        changefeed_id: None: made from source and sink.
        config: the configuration with TiCDC's key names, nested; empty: defaults.
        start_ts: begin in the log behind this commit-ts, without a snapshot; None: as the source
            URI says.
        target_ts: end when everything up to this commit-ts was delivered; None: never.
    """

    source_uri: str
    sink_uri: str
    changefeed_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    start_ts: int | None = None
    target_ts: int | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """New settings of a changefeed; what is None stays as it is.

    `config` replaces the whole configuration.
    """

    source_uri: str | None = None
    sink_uri: str | None = None
    config: Mapping[str, Any] | None = None
    target_ts: int | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """What a creation did, or with `dry_run` would do.

    Attributes:
        eligible, ineligible: captured tables, and those that match but have no usable key.
        outputs: for each captured table, where its rows go: a topic, a directory, a table, a URL.
        rules: the rules that decided, in words, a line each.
        notices: what the user should know, a line each.
    """

    feed: Feed
    eligible: tuple[TableId, ...]
    ineligible: tuple[TableId, ...]
    outputs: Mapping[TableId, str]
    rules: tuple[str, ...]
    notices: tuple[str, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """A changefeed with all that is known about where it stands.

    Attributes:
        ranges: progress of each range or snapshot part.
        tables: the captured tables.
        samples: of the last minutes, oldest first.
        history: what happened to it, newest first.
        server: who runs it, as it last announced itself; None: nobody, or unknown.
        cure: what to do about `feed.error`; empty without one.
    """

    feed: Feed
    ranges: tuple[RangeProgress, ...]
    tables: tuple[TableId, ...]
    samples: tuple[Sample, ...]
    history: tuple[Note, ...]
    server: Server | None
    cure: str


@dataclass(frozen=True, slots=True)
class Synced:
    """Whether everything written to the source so far has arrived, as far as can be told."""

    synced: bool
    sink_checkpoint_ts: int
    puller_resolved_ts: int
    last_synced_ts: int
    now_ts: int
    words: str


class Operations:
    """The operator's verbs, on one meta database. Safe for use from several threads.

    All methods that name a changefeed raise NoSuchChangefeed where there is none of that id, and
    BadInput (or a StateError) with one line for everything that cannot be done; nothing was then
    changed.
    """

    def __init__(self, store: MetaStore) -> None:
        self.store = store

    def create(self, wanted: Wanted, dry_run: bool = False) -> Created:
        """Check a new changefeed, ask source and sink whether it can run, and store it.

        With `dry_run` everything is checked and nothing stored: what `EXPLAIN` shows.

        Raises:
            ChangefeedExists: the id is taken.
        """
        raise NotImplementedError

    def feeds(self, states: Sequence[State] = ()) -> tuple[Feed, ...]:
        """Return changefeeds in these states, by id; no states: all that TiCDC's list shows.

        That is: normal, stopped, failed, warning, pending; the finished ones must be asked for.
        """
        raise NotImplementedError

    def see(self, changefeed: str, samples_s: float = 900.0) -> Seen:
        """Return one changefeed with its progress and the samples of the last seconds."""
        raise NotImplementedError

    def pause(self, changefeed: str) -> Feed:
        """Stop it at the next border. Paused already: nothing changes."""
        raise NotImplementedError

    def resume(self, changefeed: str, overwrite_checkpoint_ts: int | None = None) -> Feed:
        """Let it run again, on the server that claims it first.

        With `overwrite_checkpoint_ts` it goes on from there, as after `reset`. Running already:
        nothing changes, and an overwrite is refused.
        """
        raise NotImplementedError

    def update(self, changefeed: str, changed: Changed) -> Feed:
        """Store new settings of a stopped or failed changefeed, checked as at creation.

        Raises:
            IllegalMove: it is neither stopped nor failed.
            SpecChanged: something that can never be changed.
        """
        raise NotImplementedError

    def add_tables(self, changefeed: str, patterns: Sequence[str]) -> Feed:
        """Capture further tables, also while it runs; those that exist are snapshotted."""
        raise NotImplementedError

    def drop_tables(self, changefeed: str, patterns: Sequence[str]) -> Feed:
        """Capture these no more, also while it runs, from the next border on."""
        raise NotImplementedError

    def reset(
        self,
        changefeed: str,
        commit_ts: int | None = None,
        position: str | None = None,
        snapshot: bool = False,
    ) -> Feed:
        """Begin anew: behind a commit-ts, at a position (FILE:OFFSET or GTIDs), or with a snapshot.

        Exactly one must be given, of a changefeed that does not run. Rows may come again, and the
        watermark may go back: what reads the target must bear that.
        """
        raise NotImplementedError

    def remove(self, changefeed: str) -> Feed | None:
        """Stop it at the next border and forget it; None: there was none."""
        raise NotImplementedError

    def synced(self, changefeed: str) -> Synced:
        """Return whether it has caught up and stays so."""
        raise NotImplementedError

    def servers(self) -> tuple[Server, ...]:
        """Return the servers that are alive, by address; the first of them is called the owner."""
        raise NotImplementedError
