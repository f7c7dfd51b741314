"""Brings the changefeeds of a meta database to what files declare, by the difference.

First everything is looked at and checked, source and sink of each change included; where anything
is wrong, nothing is done. Then changes are carried out one by one, and a failure of one does not
keep the others from theirs. Whatever ends it, the next time goes on from what there is then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.actor import Role, require
from rowferry.control.operator.operations import ChangedSettings, Operations, Wanted
from rowferry.control.operator.settings.difference import ChangedSetting, as_declared, differences
from rowferry.control.operator.settings.start_place import source_with_start_ts, with_start_of
from rowferry.control.operator.settings.table_rules import refuse_rule_files
from rowferry.control.store.contract import FeedRecord
from rowferry.errors import BadOption, ChangefeedExists, IllegalMove, RowferryError
from rowferry.flow.assemble import option_tables, secret_tables, sink_traits
from rowferry.spec.active_active import ActiveActive, read_active_active
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.declared import Declaration, DeclaredFeed
from rowferry.spec.secret_places import with_secrets
from rowferry.spec.secrets import HIDDEN
from rowferry.spec.uri import Uri

NOTE: Final = "apply"  # what lines of history are about
_PAUSED: Final = "paused for new settings"
_RESUMED: Final = "resumed with new settings"


class Action(StrEnum):
    """What is to be done with a changefeed."""

    CREATE = "create"
    CHANGE = "change"
    REMOVE = "remove"
    LEAVE = "leave"  # it is no longer declared, and is not to be removed
    NOTHING = "nothing"


class Outcome(StrEnum):
    """What became of it."""

    PLANNED = "planned"
    DONE = "done"
    REFUSED = "refused"  # it was found to be wrong before anything was done
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Step:
    """One changefeed, and what is done with it.

    Attributes:
        differences: what is other than declared; secrets are hidden.
        tables: of a new one, those that it captures.
        notices: what the user should know, a line each.
        error: why it was refused, or how it failed.
    """

    changefeed: str
    owner: str
    action: Action
    differences: tuple[ChangedSetting, ...] = ()
    tables: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    outcome: Outcome = Outcome.PLANNED
    error: RowferryError | None = None


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """What is wanted.

    Attributes:
        dry_run: tell the difference, and change nothing.
        prune: remove what an owner's files had declared and do no more.
        adopt: take over changefeeds that another owner, or none, looks after.
    """

    declarations: tuple[Declaration, ...]
    dry_run: bool = False
    prune: bool = False
    adopt: bool = False


def apply_declared(operations: Operations, request: ApplyRequest) -> tuple[Step, ...]:
    """Carry out what files declare; returns a step for each changefeed, in the order of work.

    Where one is refused, none was carried out. Changefeeds that no file of these owners ever
    declared are not looked at. On repeat: nothing is left to do.

    Raises:
        RoleTooLow: only admins may ask for it.
        BadOption: a changefeed is declared twice.
    """
    require(Role.ADMIN, "apply")
    _refuse_twice(request.declarations)
    work = _Work(operations, request)
    steps = work.planned()
    if request.dry_run or any(step.outcome is Outcome.REFUSED for step in steps):
        return steps
    return tuple(work.carried_out(step) for step in steps)


def _refuse_twice(declarations: Sequence[Declaration]) -> None:
    owners: dict[str, str] = {}
    for declaration in declarations:
        for feed in declaration.feeds:
            if feed.id in owners:
                raise BadOption(
                    f"changefeed {feed.id} is declared twice, by {owners[feed.id]} and by "
                    f"{declaration.owner}"
                )
            owners[feed.id] = declaration.owner


class _Work:
    def __init__(self, operations: Operations, request: ApplyRequest) -> None:
        self._operations = operations
        self._store = operations.store
        self._request = request
        self._declared = {f.id: f for d in request.declarations for f in d.feeds}

    # --- looking ---------------------------------------------------------------------------------

    def planned(self) -> tuple[Step, ...]:
        """Return what is to be done, checked: changes first, then new ones, removals last."""
        steps = [
            self._judged(feed, declaration.owner)
            for declaration in self._request.declarations
            for feed in declaration.feeds
        ]
        owners = {d.owner for d in self._request.declarations}
        action = Action.REMOVE if self._request.prune else Action.LEAVE
        for stored in self._store.feeds():
            if stored.spec.managed_by in owners and stored.id not in self._declared:
                steps.append(Step(stored.id, stored.spec.managed_by, action))
        order = (Action.CHANGE, Action.CREATE, Action.REMOVE, Action.LEAVE, Action.NOTHING)
        return tuple(sorted(steps, key=lambda s: (order.index(s.action), s.owner, s.changefeed)))

    def _judged(self, feed: DeclaredFeed, owner: str) -> Step:
        stored = self._store.feed(feed.id)
        action = Action.CREATE if stored is None else Action.CHANGE
        try:
            if stored is None:
                return self._new(feed, owner)
            return self._changed(feed, owner, stored)
        except RowferryError as err:
            return Step(feed.id, owner, action, outcome=Outcome.REFUSED, error=err)

    def _new(self, feed: DeclaredFeed, owner: str) -> Step:
        spec = _spec(feed, owner)
        _refuse_hidden(spec)
        created = self._operations.create(_wanted(feed, owner), dry_run=True)
        return Step(
            feed.id,
            owner,
            Action.CREATE,
            tuple(as_declared(created.feed.spec, paused=bool(feed.paused))),
            tuple(map(str, created.eligible)),
            created.notices,
        )

    def _changed(self, feed: DeclaredFeed, owner: str, stored: FeedRecord) -> Step:
        self._check_owner(stored, owner)
        new = _settled(_spec(feed, owner), stored.spec)
        _refuse_hidden(new)
        changes = [*differences(stored.spec, new), *self._of_state(feed, stored)]
        if not changes:
            return Step(feed.id, owner, Action.NOTHING)
        notices: tuple[str, ...] = ()
        if new != replace(stored.spec, managed_by=owner):
            if stored.state is FeedState.FINISHED:
                raise IllegalMove(
                    f"changefeed {feed.id} is finished, and what is finished cannot be changed; "
                    "declare a new one under another id"
                )
            as_if = FeedState.FAILED if stored.state is FeedState.FAILED else FeedState.STOPPED
            foreseen = self._operations.foresee_update(feed.id, _change(new), as_if)
            notices = foreseen.notices
        return Step(feed.id, owner, Action.CHANGE, tuple(changes), notices=notices)

    def _check_owner(self, stored: FeedRecord, owner: str) -> None:
        present = stored.spec.managed_by
        if present == owner or self._request.adopt:
            return
        whose = f"is looked after by {present!r}" if present else "was not made by a file"
        raise ChangefeedExists(
            f"changefeed {stored.id} exists and {whose}; use another id, or take it over with "
            "--adopt"
        )

    def _of_state(self, feed: DeclaredFeed, stored: FeedRecord) -> list[ChangedSetting]:
        wanted = feed.paused
        if wanted is None and self._left_paused(stored):
            wanted = False
        if wanted is None or stored.state in (FeedState.FAILED, FeedState.FINISHED):
            return []
        is_paused = stored.state is FeedState.STOPPED
        return [] if is_paused == wanted else [ChangedSetting("paused", is_paused, wanted)]

    def _left_paused(self, stored: FeedRecord) -> bool:
        """Return whether we paused it for new settings, and were ended before we resumed it."""
        if stored.state is not FeedState.STOPPED:
            return False
        moves = 0
        for note in self._store.history(stored.id):
            if note.what == NOTE:
                return note.details.get("what") == _PAUSED and moves <= 1
            moves += note.what == "state"
        return False

    # --- doing -----------------------------------------------------------------------------------

    def carried_out(self, step: Step) -> Step:
        """Carry out one step; its failure is its outcome."""
        try:
            match step.action:
                case Action.CREATE:
                    self._create(self._declared[step.changefeed], step.owner)
                case Action.CHANGE:
                    self._change(self._declared[step.changefeed], step.owner)
                case Action.REMOVE:
                    self._operations.remove(step.changefeed)
                case _:
                    return step
        except RowferryError as err:
            return replace(step, outcome=Outcome.FAILED, error=err)
        return replace(step, outcome=Outcome.DONE)

    def _create(self, feed: DeclaredFeed, owner: str) -> None:
        # At once as it should be: between two steps a server could begin it, and deliver rows.
        self._operations.create(replace(_wanted(feed, owner), paused=bool(feed.paused)))

    def _change(self, feed: DeclaredFeed, owner: str) -> None:
        stored = self._operations.see(feed.id, 0.0).feed
        new = _settled(_spec(feed, owner), stored.spec)
        rest = self._of_state(feed, stored)
        if replace(new, managed_by="") != replace(stored.spec, managed_by=""):
            self._update(feed, stored, new)
        else:
            if new != stored.spec:  # only who looks after it: whoever runs it need not stop
                self._store.update_spec(feed.id, new, stored.spec_version)
            for one in rest:
                self._move(feed.id, paused=bool(one.after))

    def _update(self, feed: DeclaredFeed, stored: FeedRecord, new: ChangefeedSpec) -> None:
        """Store new settings; a changefeed that runs is paused for it, and runs again behind it."""
        ran = stored.state not in (FeedState.STOPPED, FeedState.FAILED)
        resume = feed.paused is False or ran or self._left_paused(stored)
        resume = (resume or stored.state is FeedState.FAILED) and not feed.paused
        if ran:
            self._store.note(feed.id, NOTE, {"what": _PAUSED})
            self._operations.pause(feed.id)
        try:
            self._operations.update(feed.id, _change(new))
        except RowferryError:
            if ran:
                self._move(feed.id, paused=False)  # as it was, with the settings that it had
            raise
        if resume:
            self._move(feed.id, paused=False)

    def _move(self, changefeed: str, paused: bool) -> None:
        if paused:
            self._operations.pause(changefeed)
            return
        self._operations.resume(changefeed)
        self._store.note(changefeed, NOTE, {"what": _RESUMED})


# --- pieces --------------------------------------------------------------------------------------


def _wanted(feed: DeclaredFeed, owner: str) -> Wanted:
    return Wanted(
        source_uri=feed.source,
        sink_uri=feed.sink,
        changefeed_id=feed.id,
        config=feed.config,
        start_ts=feed.start_ts or None,
        target_ts=feed.target_ts or None,
        managed_by=owner,
    )


def _change(new: ChangefeedSpec) -> ChangedSettings:
    return ChangedSettings(
        source_uri=new.source.reveal(),
        sink_uri=new.sink.reveal(),
        config=new.config,
        target_ts=new.target_ts,
        managed_by=new.managed_by,
    )


def _spec(feed: DeclaredFeed, owner: str) -> ChangefeedSpec:
    """Return the settings of a declared changefeed, checked without asking anybody."""
    refuse_rule_files(feed.config)
    spec, _ = build_spec(
        source_with_start_ts(feed.source, feed.start_ts),
        feed.sink,
        feed.config,
        feed.id,
        tables=option_tables,
        target_ts=feed.target_ts,
        sinks=sink_traits,
    )
    return replace(spec, managed_by=owner)


def _refuse_hidden(spec: ChangefeedSpec) -> None:
    """Refuse `***` where a secret stands: an export writes it, and nobody knows what it was."""

    def look(secret: str, place: str) -> str:
        if secret == HIDDEN:
            what = f"the {place} URI" if place in ("source", "sink") else place
            raise BadOption(
                f"changefeed {spec.changefeed_id}: {what} has {HIDDEN} in the place of a secret; "
                "write where the secret is: env:NAME, file:/PATH or vault:MOUNT/PATH#FIELD"
            )
        return secret

    with_secrets(spec, secret_tables(spec), look)


def _settled(new: ChangefeedSpec, old: ChangefeedSpec) -> ChangefeedSpec:
    """Return declared settings with what was settled when the changefeed was created, or later.

    Where it once began cannot be changed, and a reset begins elsewhere: a file need not follow.
    """
    new = with_start_of(new, old)
    new = replace(new, source=_same(new.source, old.source), sink=_same(new.sink, old.sink))
    mode = read_active_active(new)
    if mode.enabled and not mode.cluster_id and (name := read_active_active(old).cluster_id):
        new = replace(new, config={**new.config, ActiveActive.cluster_id.key: name})
    return new


def _same(new: Uri, old: Uri) -> Uri:
    """Return the stored URI where the declared one says the same in another order."""
    alike = replace(new, parameters=old.parameters) == old
    return old if alike and dict(new.parameters) == dict(old.parameters) else new


def to_json(step: Step) -> Mapping[str, Any]:
    """Return a step as faces send it."""
    return {
        "changefeed": step.changefeed,
        "owner": step.owner,
        "action": str(step.action),
        "outcome": str(step.outcome),
        "differences": [
            {"key": one.key, "before": one.before, "after": one.after} for one in step.differences
        ],
        "tables": list(step.tables),
        "notices": list(step.notices),
        "error": None
        if step.error is None
        else {"code": step.error.code, "message": step.error.words},
    }
