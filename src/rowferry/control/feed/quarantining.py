"""What a changefeed's loop does about refused rows: park them, hold their keys back, send again.

A refusal is found while a plan runs. The plan is then recorded again with the keys that were
refused, and carried out again with their rows parked: a replay parks the same rows. Parked rows
are durable before anything of the plan is published. Rows that are sent again are a plan of their
own, between two plans of the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rowferry.change.plan import Plan, Segment, Stretch, TableSlice
from rowferry.change.quarantine import (
    EVERY_KEY,
    KEY_SHAPE,
    LIMIT_BYTES,
    REFUSALS_LOGGED,
    DivertedRow,
    ParkedKey,
    ParkedRow,
    PlanQuarantine,
    RefusedKey,
    by_table,
    places_in,
    too_many,
)
from rowferry.change.table import TableSchema
from rowferry.control.feed.lease import Claim
from rowferry.control.store.contract import MetaStore
from rowferry.errors import QuarantineFull, RowRejected
from rowferry.flow.assemble import Flow
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.parking import joined_images, shape_of

_AGAIN_BYTES: Final = 8 << 20  # of rows that are sent again by one plan
_AGAIN_ROWS: Final = 500
_LASTS_S: Final = 1.0  # what is parked, where nothing else is to be done
_READ_AGAIN: Final = "drop them, and read the rows again: rowferry changefeed resnapshot"


class Quarantining:
    """The quarantine of one changefeed under one claim. Not for use from several threads."""

    def __init__(self, store: MetaStore, claim: Claim, flow: Flow) -> None:
        self._store, self._claim, self._flow = store, claim, flow
        self._rows: tuple[ParkedRow, ...] | None = None  # as they were last seen; None: not yet
        self._seen_at = 0.0

    def look(self) -> tuple[ParkedRow, ...]:
        """Return the parked rows; without any, the meta database is asked once only.

        Nobody else parks rows of this changefeed while the claim is in force.
        """
        if self._rows is None or self._rows:
            self._seen_at = time.monotonic()
            self._rows = self._store.parked(self._claim.changefeed)
        return self._rows

    @property
    def is_fresh(self) -> bool:
        """Whether they were seen a moment ago: a quiet changefeed need not ask all the time."""
        if self._rows is None:
            return False
        return not self._rows or time.monotonic() - self._seen_at < _LASTS_S

    def refuse_full(self) -> None:
        """Refuse to go on with more rows than may be parked.

        Raises:
            QuarantineFull: there are.
        """
        rows = self._rows or ()
        size = sum(row.size for row in rows)
        limit = self._flow.quarantine.quarantine_limit
        if len(rows) > limit or size > LIMIT_BYTES:
            name = self._claim.changefeed
            raise QuarantineFull(
                f"changefeed {name} has {len(rows)} parked rows of {size} bytes in all, and the "
                f"limit is {limit} rows and {LIMIT_BYTES} bytes; they are listed by: rowferry "
                f"changefeed quarantine list -c {name}"
            )

    def of_plan(self, versions: Mapping[tuple[int, int], TableSchema]) -> PlanQuarantine | None:
        """Return what the next plan says of parked rows."""
        rows = self._rows or ()
        if not self._flow.quarantine.parks and not rows:
            return None
        newest, decide = self._newest(versions), self._flow.decide
        now = {table_id: shape_of(decide.seen_as(table)) for table_id, table in newest.items()}
        keys = set()
        for row in rows:
            shape = now.get(row.table_id, row.shape)
            known = shape[:KEY_SHAPE] == row.shape[:KEY_SHAPE]
            keys.add(ParkedKey(row.table_id, row.key if known else EVERY_KEY))
        return PlanQuarantine(parked=by_table(keys))

    def with_refused(self, plan: Plan, refused: Sequence[RefusedKey]) -> Plan:
        """Return a plan that parks the rows of more keys, or lets more keys stay parked.

        Raises:
            RowRejected: nothing of it is new: the rows cannot be kept from being sent.
        """
        asked = plan.quarantine or PlanQuarantine()
        if asked.is_of_retry:
            return self._without(plan, asked, refused)
        known = {ParkedKey(one.table_id, key) for one in asked.parked for key in one.keys}
        if all(one.parked_key in known for one in refused):
            raise RowRejected(refused[0].cause)
        fresh = [one for one in refused if one.parked_key not in known]
        keys = known.union(one.parked_key for one in fresh)
        more = replace(asked, parked=by_table(keys), refused=(*asked.refused, *fresh))
        return plan.with_(quarantine=more)

    def park(self, plan: Plan, rows: Sequence[DivertedRow]) -> None:
        """Make the rows durable that a run of a plan has parked; nothing of it is published yet.

        Raises:
            QuarantineFull: tasks have parked more together than one micro-batch may.
        """
        asked = plan.quarantine
        if asked is None or asked.is_of_retry or not asked.parked:
            return
        limit = self._flow.quarantine.quarantine_limit
        if len(rows) > limit or sum(len(row.image) for row in rows) > LIMIT_BYTES:
            raise too_many(limit, REFUSALS_LOGGED if asked.refused else "others wait behind them")
        self._store.park(self._claim, plan, rows)
        self._rows = None

    def forget(self) -> None:
        """Ask the meta database the next time: what was known here may have changed."""
        self._rows = None

    # --- sending again ----------------------------------------------------------------------------

    def again(
        self,
        versions: Mapping[tuple[int, int], TableSchema],
        make_plan: Callable[[Stretch, PlanQuarantine], Plan],
    ) -> Plan | None:
        """Return a plan that sends rows again that were asked for; None: there are none."""
        rows = self._rows or ()
        wanted = {row.parked_key for row in rows if row.wanted}
        if not wanted:
            return None
        newest = self._newest(versions)
        chosen = [row for row in rows if row.parked_key in wanted]
        sent = self._last_of_each(chosen)
        stays = {
            row.parked_key: RefusedKey(*row.parked_key, words)
            for row in sent
            if (words := outdated(row, newest.get(row.table_id), self._flow.decide))
        }
        sent = _fitting([row for row in sent if row.parked_key not in stays])
        ends = {row.parked_key: row.place for row in sent}
        done = [r.place for r in chosen if r.parked_key in ends and r.place <= ends[r.parked_key]]
        asked = PlanQuarantine(again=tuple(done), stays=tuple(stays.values()))
        position = self._store.position(self._claim.changefeed)
        return make_plan(Stretch(_segments(sent, newest), (), position), asked)

    def filled(self, plan: Plan) -> Plan:
        """Return a plan as tasks get it: with the rows that it sends again, and the limit."""
        options = self._flow.quarantine
        if plan.quarantine is None and not options.parks:
            return plan
        asked = plan.quarantine or PlanQuarantine()
        now = replace(asked, limit=options.quarantine_limit, parks=options.parks)
        plan = plan.with_(quarantine=now)
        if not asked.is_of_retry:
            return plan
        places = [place for s in plan.stretch.segments for place in places_in(s.read)]
        rows = {row.place: row for row in self._store.parked(self._claim.changefeed, places)}
        segments = tuple(
            replace(s, payload=joined_images(rows[p].image for p in places_in(s.read) if p in rows))
            for s in plan.stretch.segments
        )
        return plan.with_(stretch=replace(plan.stretch, segments=segments))

    def _newest(self, versions: Mapping[tuple[int, int], TableSchema]) -> dict[int, TableSchema]:
        """Return the newest version of each captured table by its id."""
        newest: dict[int, TableSchema] = {}
        for (table_id, version), table in versions.items():
            if table_id not in newest or newest[table_id].version < version:
                newest[table_id] = table
        return {i: table for i, table in newest.items() if self._flow.decide.captures(table)}

    def _last_of_each(self, rows: Sequence[ParkedRow]) -> list[ParkedRow]:
        """Return the rows to send: where the target holds tables, the last state of each key.

        Earlier states may hold values of unique keys that other rows have by now.
        """
        if not self._flow.sink.TRAITS.writes_tables:
            return list(rows)
        last = {row.parked_key: row.place for row in rows}
        return [r for r in rows if r.key == EVERY_KEY or last[r.parked_key] == r.place]

    def _without(self, plan: Plan, asked: PlanQuarantine, refused: Sequence[RefusedKey]) -> Plan:
        """Return a plan of rows that are sent again without those of refused keys."""
        self.forget()
        sent = set(asked.again)
        rows = [row for row in self.look() if row.place in sent]
        stays = _as_parked(rows, refused)
        mine = {row.place for row in rows if row.parked_key in stays}
        mine |= sent.difference(row.place for row in rows)  # dropped meanwhile
        if not mine:
            raise RowRejected(refused[0].cause)
        segments = tuple(
            replace(
                s,
                read={**s.read, "rows": [p.to_json() for p in places_in(s.read) if p not in mine]},
            )
            for s in plan.stretch.segments
        )
        left = replace(
            asked,
            again=tuple(p for p in asked.again if p not in mine),
            stays=(*asked.stays, *stays.values()),
        )
        stretch = replace(plan.stretch, segments=segments)
        return plan.with_(stretch=stretch, quarantine=left)


def _as_parked(
    rows: Sequence[ParkedRow], refused: Sequence[RefusedKey]
) -> dict[ParkedKey, RefusedKey]:
    """Return refusals by the keys under which rows are parked.

    The whole of a table waits also where its key was changed since: then the target names a key
    that no row is parked under, and all rows of the table stay.
    """
    whole = {row.table_id for row in rows if row.key == EVERY_KEY}
    stays: dict[ParkedKey, RefusedKey] = {}
    for one in refused:
        keys = [row.parked_key for row in rows if row.table_id == one.table_id]
        for key in keys if one.table_id in whole else [one.parked_key]:
            stays.setdefault(key, RefusedKey(*key, one.cause))
    return stays


def outdated(row: ParkedRow, now: TableSchema | None, decide: Decisions) -> str:
    """Return why a parked row cannot be sent again as its table is now; empty: it can."""
    if now is None or not decide.captures(now):
        return f"table {row.table} is not captured any more; drop the parked rows"
    if row.shape != shape_of(decide.seen_as(now)):
        return f"table {row.table} was altered since, and its parked rows do not fit; {_READ_AGAIN}"
    if not decide.makes_the_same_of(now, row.table):
        return (
            f"table {row.table} is {now.id} now, for which other rules of transform are; "
            f"{_READ_AGAIN}"
        )
    return ""


def _fitting(rows: Sequence[ParkedRow]) -> list[ParkedRow]:
    """Return the first rows, as many as one plan may send."""
    some: list[ParkedRow] = []
    size = 0
    for row in rows:
        size += row.size
        if some and (size > _AGAIN_BYTES or len(some) >= _AGAIN_ROWS):
            break
        some.append(row)
    return some


def _segments(rows: Sequence[ParkedRow], newest: Mapping[int, TableSchema]) -> tuple[Segment, ...]:
    groups: dict[tuple[int, int | None], list[ParkedRow]] = {}
    for row in rows:
        groups.setdefault((row.table_id, row.physical_id), []).append(row)
    segments = []
    for ordinal, ((table_id, physical_id), some) in enumerate(groups.items()):
        table = newest[table_id]
        segments.append(
            Segment(
                ordinal,
                {"kind": "parked", "rows": [row.place.to_json() for row in some]},
                (TableSlice(table.id, table_id, table.version, physical_id),),
                min(row.commit_ts for row in some),
                max(row.commit_ts for row in some),
                parked=True,
            )
        )
    return tuple(segments)
