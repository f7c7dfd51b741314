"""What an operator can do with changefeeds: one method for each, whatever face asked for it.

Every method works on the meta database (and, to check something new, on source and sink): any
server takes any request, and the owner of the changefeed sees the change within a second or two.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias

from rowferry.change.sampled_change import SampledChange
from rowferry.control import lifecycle
from rowferry.control.feed.leaving import leave_sink
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator import observation, resnapshots
from rowferry.control.operator.actor import (
    Role,
    acts,
    acts_unseen,
    current_actor,
    foresees,
    looks,
)
from rowferry.control.operator.checks import explain
from rowferry.control.operator.checks.endpoints import (
    Endpoint,
    Listed,
    Side,
    check_endpoint,
    list_source,
)
from rowferry.control.operator.checks.health import Health
from rowferry.control.operator.checks.prepare import PreparedFeed, check_rules, examine
from rowferry.control.operator.operation_forms import (
    ChangedSettings,
    Created,
    Held,
    LastChanges,
    Seen,
    Synced,
    TargetTables,
    Wanted,
)
from rowferry.control.operator.owners import Owners
from rowferry.control.operator.row_operations import RowOperations
from rowferry.control.operator.settings import start_place
from rowferry.control.operator.settings.form_facts import form_facts
from rowferry.control.operator.settings.new_settings import altered
from rowferry.control.operator.settings.table_rules import (
    filter_rules,
    refuse_rule_files,
    with_rules,
    with_tables,
    without_tables,
)
from rowferry.control.store.contract import (
    FeedRecord,
    FleetServer,
    LogLine,
    MetaStore,
    Sample,
    Subscribing,
)
from rowferry.errors import BadInput, BadOption, ChangefeedExists, IllegalMove, NoSuchChangefeed
from rowferry.flow.assemble import check_reach, option_tables, sink_traits
from rowferry.flow.sink.contract import TableStatus
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.build import build_spec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.reach import ANYWHERE, Reach

__all__ = ["ChangedSettings", "Created", "Held", "Operations", "Seen", "Synced", "Wanted"]

_MOST_LINES: Final = 500
LISTED: Final = (
    FeedState.NORMAL,
    FeedState.STOPPED,
    FeedState.FAILED,
    FeedState.WARNING,
    FeedState.PENDING,
)
ChangeRules: TypeAlias = Callable[[Sequence[str], Sequence[str], bool], tuple[str, ...]]


class Operations(RowOperations):
    """The operator's verbs, on one meta database. Safe for use from several threads.

    All methods that name a changefeed raise NoSuchChangefeed where there is none of that id, and
    BadInput (or a StateError) with one line for everything that cannot be done; nothing was then
    changed. Errors of source and sink come as they are.
    """

    def __init__(
        self,
        store: MetaStore,
        now: Callable[[], float] = time.time,
        reach: Reach = ANYWHERE,
        secrets: SecretSources = NO_STORE,
        here: Callable[[str], tuple[SampledChange, ...] | None] = lambda changefeed: None,
        tables_here: Callable[[str], tuple[TableStatus, ...] | None] = lambda changefeed: None,
    ) -> None:
        """Work on a meta database; `reach` is what changefeeds may name.

        `secrets` is where the values of references come from; `here` returns the last changes of a
        changefeed that this process runs, and None of any other; `tables_here` what the tables of
        its sink are made of.
        """
        super().__init__(store, now, secrets, reach)
        self._here, self._tables_here = here, tables_here
        self._locks: dict[str, threading.Lock] = {}
        self._owners = Owners(store, now)

    # --- create, list, see -----------------------------------------------------------------------

    @acts(Role.ADMIN)
    def create(self, wanted: Wanted, dry_run: bool = False) -> Created:
        """Check a new changefeed, ask source and sink whether it can run, and store it.

        With `dry_run` everything is checked and nothing stored: what `EXPLAIN` shows.

        Raises:
            ChangefeedExists: the id is taken.
        """
        refuse_rule_files(wanted.config)
        spec, notices = build_spec(
            start_place.source_with_start_ts(wanted.source_uri, wanted.start_ts),
            wanted.sink_uri,
            wanted.config,
            wanted.changefeed_id,
            tables=option_tables,
            target_ts=wanted.target_ts or 0,
            sinks=sink_traits,
        )
        check_reach(self._reach, spec)
        if self.store.feed(spec.changefeed_id) is not None:
            raise ChangefeedExists(
                f"changefeed {spec.changefeed_id} exists already; use another id"
            )
        with _closing(examine(spec, None, notices, secrets=self._secrets)) as prepared:
            spec = replace(prepared.spec, managed_by=wanted.managed_by)
            cluster_id = prepared.flow.capture.cluster_id()
            if cluster_id and wanted.only_cluster not in (0, cluster_id):
                raise BadOption(
                    f"{spec.source} is cluster {cluster_id}, not {wanted.only_cluster}; nothing "
                    "was made"
                )
            if dry_run:
                feed = explain.unstored(spec, self._now())
            else:
                cluster_id = cluster_id or wanted.cluster_id
                subscribing = _with_table_id(wanted.subscribing, prepared)
                feed = self.store.create_changefeed(spec, cluster_id, subscribing, wanted.paused)
            return explain.described(prepared, feed, dry_run)

    @looks
    def feeds(self, states: Sequence[FeedState] = ()) -> tuple[FeedRecord, ...]:
        """Return changefeeds in these states, by id; no states: all that TiCDC's list shows.

        That is: normal, stopped, failed, warning, pending; the finished ones must be asked for.
        """
        wanted = states or LISTED
        return tuple(feed for feed in self.store.feeds() if feed.state in wanted)

    @looks
    def see(self, changefeed: str, samples_s: float = 900.0) -> Seen:
        """Return one changefeed with its progress and the samples of the last seconds."""
        return observation.see(self.store, self._feed(changefeed), self._now(), samples_s)

    @looks
    def day(self, changefeed: str) -> tuple[Sample, ...]:
        """Return what it did in the last day: one sample for each five minutes."""
        return observation.day(self.store, self._feed(changefeed), self._now())

    @acts_unseen(Role.OPERATOR, "the log of a changefeed")
    def log(self, changefeed: str, limit: int = 200) -> tuple[LogLine, ...]:
        """Return the last lines that servers logged about it, newest first."""
        self._feed(changefeed)
        if not 0 < limit <= _MOST_LINES:
            raise BadInput(f"limit: expected 1 to {_MOST_LINES} lines")
        return self.store.log_lines(changefeed, limit)

    @looks
    def columns(self, changefeed: str, table: str) -> tuple[tuple[str, str, bool], ...]:
        """Return the columns of a captured table: name, type, and whether it is part of the key.

        Raises:
            NoSuchTable: the changefeed does not capture it.
        """
        schema = resnapshots.captured_schema(self.store, self._feed(changefeed), table)
        key = set(schema.handle_key)
        return tuple((one.name, one.type.sql, one.name in key) for one in schema.columns)

    @looks
    def last_changes(self, changefeed: str) -> LastChanges:
        """Return the last changes that were delivered; values only for operators and admins.

        They are in the memory of the server that runs the changefeed, and nowhere else.
        """
        actor = current_actor.get()
        with_values = actor is None or actor.role >= Role.OPERATOR
        feed = self._feed(changefeed)
        return observation.last_changes(self.store, feed, self._here(changefeed), with_values)

    @looks
    def target_tables(self, changefeed: str) -> TargetTables:
        """Return what the tables of its sink are made of: files, rows, deleted rows, size.

        The server that runs the changefeed knows it; nobody reads the tables for it.
        """
        feed = self._feed(changefeed)
        return observation.target_tables(self.store, feed, self._tables_here(changefeed))

    # --- the lifecycle ---------------------------------------------------------------------------

    @acts(Role.OPERATOR)
    def pause(self, changefeed: str) -> FeedRecord:
        """Stop it at the next border. Paused already: nothing changes."""
        return self._moved(changefeed, Verb.PAUSE, lambda state: state is FeedState.STOPPED)

    @acts(Role.OPERATOR)
    def resume(self, changefeed: str, overwrite_checkpoint_ts: int | None = None) -> FeedRecord:
        """Let it run again, on the server that claims it first.

        With `overwrite_checkpoint_ts` it goes on from there, as after `reset`. One that waits
        after an error tries again at once. Running already: nothing changes. An overwrite is
        refused for both.
        """
        if overwrite_checkpoint_ts is not None:
            state = self._feed(changefeed).state
            if _wants_to_run(state):
                raise IllegalMove(
                    f"changefeed {changefeed} is {state}: pause it before its checkpoint is "
                    "overwritten"
                )
            self.reset(changefeed, commit_ts=overwrite_checkpoint_ts)
        # One in `warning` runs: what is resumed is its next try, as if the error were over.
        waits = self._feed(changefeed).state is FeedState.WARNING
        return self._moved(changefeed, Verb.RECOVER if waits else Verb.RESUME, _goes_on)

    def _moved(self, changefeed: str, verb: Verb, done: Callable[[FeedState], bool]) -> FeedRecord:
        """Change the state by a verb, unless that was done already."""
        try:
            if not done(self._feed(changefeed).state):
                self.store.move(changefeed, verb)
        except IllegalMove:
            if not done(self._feed(changefeed).state):  # else somebody else was faster
                raise
        return self._feed(changefeed)

    @acts(Role.ADMIN)
    def remove(self, changefeed: str) -> FeedRecord | None:
        """Stop it at the next border and forget it; None: there was none.

        Where a server is in the middle of a long micro-batch, the changefeed is still listed on
        return, and goes when that ends.
        """
        feed = self.store.feed(changefeed)
        if feed is None:
            return None
        try:
            self.store.request_cancel(changefeed)
            left = self._owners.wait_until_left(changefeed)
            if left is not None and not (self._owners.at_work(left) and left.state.runs):
                leave_sink(left.spec, self._secrets, self._reach)
                self.store.remove(changefeed)
        except NoSuchChangefeed:
            pass  # its owner was faster
        return feed

    # --- settings --------------------------------------------------------------------------------

    @acts(Role.ADMIN)
    def update(self, changefeed: str, changed: ChangedSettings) -> FeedRecord:
        """Store new settings of a stopped or failed changefeed, checked as at creation.

        A value `***`, as answers show secrets, keeps what is stored. A plan that was recorded and
        not finished would still go to the old sink: where that changes, the plan is discarded, and
        rows of it that arrived come again. One that has made schema changes in a database has all
        of its rows there, and is carried out to its end.

        Raises:
            IllegalMove: it is neither stopped nor failed.
            SpecChanged: something that can never be changed.
        """
        with self._altering(changefeed):
            feed = self._feed(changefeed)
            with _closing(altered(feed, changed, self._reach, self._secrets)) as prepared:
                spec, old = prepared.spec, feed.spec
                if (spec.sink, spec.section("sink")) != (old.sink, old.section("sink")):
                    self._owners.discard_pending(
                        feed, prepared.flow, "the sink was changed", leaves_made=True
                    )
                self.store.move(changefeed, Verb.UPDATE)  # nobody has resumed it meanwhile
                return self.store.update_spec(changefeed, spec, feed.spec_version)

    @foresees
    def check_endpoint(
        self, side: Side, uri: str, config: Mapping[str, Any], changefeed: str = ""
    ) -> tuple[Health, ...]:
        """Return what is found out about a source or a sink on its own. Nothing is changed.

        With `changefeed`, `***` stands for the secrets that are stored of it.
        """
        return check_endpoint(self._end(side, uri, config, changefeed), self._reach, self._secrets)

    @foresees
    def list_source(
        self, uri: str, config: Mapping[str, Any], database: str = "", changefeed: str = ""
    ) -> Listed:
        """Return databases of a source or, of a named one, its tables; a bounded number."""
        end = self._end("source", uri, config, changefeed)
        return list_source(end, database, self._reach, self._secrets)

    def _end(self, side: Side, uri: str, config: Mapping[str, Any], changefeed: str) -> Endpoint:
        stored = self._feed(changefeed).spec if changefeed else None
        return Endpoint(side, uri, config, stored)

    @looks
    def form_facts(self) -> dict[str, Any]:
        """Return what a form for changefeeds is made of."""
        return form_facts(self._reach)

    @foresees
    def foresee_update(
        self, changefeed: str, changed: ChangedSettings, as_if: FeedState | None = None
    ) -> Created:
        """Return what `update` would do, in the state `as_if`; raises as that does."""
        feed = self._feed(changefeed)
        feed = feed if as_if is None else replace(feed, state=as_if)
        with _closing(altered(feed, changed, self._reach, self._secrets)) as prepared:
            return explain.described(prepared, replace(feed, spec=prepared.spec), dry_run=True)

    @acts(Role.ADMIN)
    def add_tables(self, changefeed: str, patterns: Sequence[str]) -> FeedRecord:
        """Capture further tables, also while it runs; those that exist are snapshotted.

        With `snapshot = never` only their changes are captured, from the next border on.

        Raises:
            BadFilterRule: a pattern that is not `DATABASE.TABLE`.
            NoSuchTable, TableIneligible: as at creation.
        """
        return self._change_rules(changefeed, patterns, with_tables, "tables added")

    @acts(Role.ADMIN)
    def drop_tables(self, changefeed: str, patterns: Sequence[str]) -> FeedRecord:
        """Capture these no more, also while it runs, from the next border on.

        Raises:
            BadFilterRule: a pattern that is not `DATABASE.TABLE`.
            OptionsConflict: nothing would be left.
        """
        return self._change_rules(changefeed, patterns, without_tables, "tables dropped")

    def _change_rules(
        self, changefeed: str, patterns: Sequence[str], change: ChangeRules, what: str
    ) -> FeedRecord:
        with self._altering(changefeed):
            feed = self._feed(changefeed)
            if not _wants_to_run(feed.state):
                lifecycle.move(feed.state, Verb.UPDATE)
            old = feed.spec
            rules = change(filter_rules(old), patterns, old.options(FeedOptions).case_sensitive)
            if rules == filter_rules(old):
                return feed
            spec = with_rules(old, rules)
            check_reach(self._reach, spec)
            check_rules(old, spec, self._secrets)
            updated = self.store.update_spec(changefeed, spec, feed.spec_version)
            self.store.note(changefeed, what, {"tables": list(patterns), "rules": list(rules)})
            return updated

    # --- progress --------------------------------------------------------------------------------

    @acts(Role.OPERATOR)
    def reset(
        self,
        changefeed: str,
        commit_ts: int | None = None,
        position: str | None = None,
        snapshot: bool = False,
    ) -> FeedRecord:
        """Begin anew: behind a commit-ts, at a position (FILE:OFFSET or GTIDs), or with a snapshot.

        Exactly one must be given, of a changefeed that does not run. Rows may come again, and the
        watermark may go back: what reads the target must bear that. A plan that was recorded and
        not finished is discarded.

        Raises:
            IllegalMove: it runs.
            LeaseHeld: it was paused, and a server has not come to the end of its micro-batch yet.
            SpecChanged: somebody else has changed its settings meanwhile.
            BadOption, LogLost, SourceMismatch: the source has no such place, or no longer.
        """
        if [commit_ts is not None, position is not None, snapshot].count(True) != 1:
            raise BadInput("reset to one of: a commit-ts, a position, a new snapshot")
        with self._altering(changefeed):
            feed = self._feed(changefeed)
            if _wants_to_run(feed.state):
                raise IllegalMove(
                    f"cannot reset changefeed {changefeed} while it is {feed.state}; pause it first"
                )
            spec, words = start_place.moved(feed.spec, commit_ts, position)
            if commit_ts is not None:
                stored = self.store.position(changefeed)
                spec = start_place.at_position(spec, commit_ts, stored, feed.spec)
            check_reach(self._reach, spec)
            with _closing(examine(spec, spec, anew=True, secrets=self._secrets)) as prepared:
                self._owners.discard_pending(feed, prepared.flow, f"reset to {words}", snapshot)
            return self.store.reset(changefeed, spec, words, snapshot, feed.spec_version)

    @looks
    def synced(self, changefeed: str) -> Synced:
        """Return whether it has caught up and stays so."""
        return observation.synced(self.store, self._feed(changefeed), self._now())

    # --- servers ---------------------------------------------------------------------------------

    @looks
    def servers(self) -> tuple[FleetServer, ...]:
        """Return the servers that are alive, by address; the first of them is called the owner."""
        return observation.live_servers(self.store, self._now())

    # --- pieces ----------------------------------------------------------------------------------

    def _altering(self, changefeed: str) -> threading.Lock:
        """Return what keeps others out while settings are read, changed and written back."""
        return self._locks.setdefault(changefeed, threading.Lock())


def _wants_to_run(state: FeedState) -> bool:
    return state.runs or state is FeedState.PENDING


def _goes_on(state: FeedState) -> bool:
    """Return whether there is nothing to resume: no operator and no error keeps it waiting."""
    return _wants_to_run(state) and state is not FeedState.WARNING


def _with_table_id(subscribing: Subscribing | None, prepared: PreparedFeed) -> Subscribing | None:
    """Return a subscription with the id that its source has for the table."""
    if subscribing is None:
        return None
    ids = (t.table_id for t in prepared.tables if t.id == subscribing.table)
    return replace(subscribing, table_id=next(ids, 0))


@contextmanager
def _closing(prepared: PreparedFeed) -> Iterator[PreparedFeed]:
    try:
        yield prepared
    finally:
        prepared.flow.sink.close()
