"""Recorded plans that did not end: by which settings they were made, and taking them back.

The settings may be others by now. A plan that is carried out again goes by its own, so that its
tables have the names and columns of its first try, also where they are not captured any more.
"""

from __future__ import annotations

from dataclasses import replace

from rowferry.change.plan import Plan
from rowferry.control.feed.known_versions import KnownVersions
from rowferry.control.feed.lease import Claim
from rowferry.control.store.contract import MetaStore
from rowferry.flow.assemble import Flow, decisions_of, secret_tables
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.sink.contract import KeepsChanges
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.consistent import ConsistentOptions
from rowferry.spec.secret_places import with_secrets
from rowferry.spec.uri import Uri

CONSISTENT = ConsistentOptions.TABLE.section


def discard(store: MetaStore, claim: Claim, flow: Flow, pending: Plan, why: str) -> None:
    """Take a recorded, unfinished plan back; what readers have seen of it is kept in mind."""
    position = None
    if flow.sink.discard(pending):
        known = store.state(claim.changefeed).position
        position = flow.capture.after_discard(known, pending.stretch)
    store.discard(claim, pending.micro_batch, why, position)


def has_made_changes(store: MetaStore, changefeed: str, flow: Flow, pending: Plan) -> bool:
    """Return whether the first schema change of a recorded, unfinished plan was made and stays so.

    Such a plan must not be taken back where it can still be carried out. It needs no tasks any
    more, and one in its place would leave its rows out: what it has parked of them would be lost.
    """
    if not pending.stretch.schema_changes or not isinstance(flow.sink, KeepsChanges):
        return False
    versions = KnownVersions()
    versions.restore(store.state(changefeed).versions)
    decide = decisions_then(store.spec(changefeed, pending.spec_version), flow)
    return flow.sink.has_changes_of(seen_by_readers(pending, decide, versions))


def decisions_then(spec: ChangefeedSpec, flow: Flow) -> Decisions:
    """Return what decided by older settings of a flow's changefeed.

    Masks never change, and their salt is that of now: the older reference to it need not lead
    anywhere any more.
    """
    return decisions_of(spec).with_masks_of(flow.decide)


def seen_by_readers(plan: Plan, decide: Decisions, versions: KnownVersions) -> Plan:
    """Return a plan with its schema changes as readers of the sink see them."""
    changes = versions.changes_seen(decide, plan.stretch)
    return plan.with_(stretch=replace(plan.stretch, schema_changes=changes))


def ways_of(spec: ChangefeedSpec) -> tuple[Uri, Uri, list[tuple[str, str]]]:
    """Return where the tasks of a plan read and write, and all secrets by which they may.

    Other options of the sink stay those of the plan: a repeat must be the same in all its bytes.
    """
    secrets: list[tuple[str, str]] = []

    def note(secret: str, place: str) -> str:
        if not place.startswith(f"{CONSISTENT}."):  # the redo log is that of now
            secrets.append((place, secret))
        return secret

    with_secrets(spec, secret_tables(spec), note)
    return spec.source, replace(spec.sink, parameters=()), sorted(secrets)
