"""Writes changefeeds that exist in the form that `apply` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operations import Operations
from rowferry.control.store.contract import FeedRecord
from rowferry.errors import BadInput, BadOption, NoSuchChangefeed
from rowferry.flow.assemble import secret_tables
from rowferry.spec.declared import Declaration, DeclaredFeed, check_owner
from rowferry.spec.secret_places import with_secrets
from rowferry.spec.secret_reference import SecretReference, read_reference
from rowferry.spec.secrets import HIDDEN
from rowferry.spec.uri import Uri

_EVERY: Final = tuple(FeedState)


@dataclass(frozen=True, slots=True)
class Exported:
    """Changefeeds as a file declares them.

    Attributes:
        hidden: settings whose secret is no reference: `***` stands there.
        left_out: changefeeds that no file can declare: those of subscribers.
    """

    declaration: Declaration
    hidden: tuple[str, ...]
    left_out: tuple[str, ...]


def export_declared(
    operations: Operations, changefeeds: Sequence[str] = (), owner: str = "", name: str = ""
) -> Exported:
    """Return changefeeds as a file declares them: those of an owner, those named, or all.

    `name` stands as the owner in it; empty: the one that all of them have.

    Raises:
        NoSuchChangefeed: one that is named is not there.
        BadOption: they have several owners, or none, and no name is given.
    """
    known = {feed.id: feed for feed in operations.feeds(_EVERY)}
    for one in changefeeds:
        if one not in known:
            raise NoSuchChangefeed(f"there is no changefeed {one!r}")
    chosen = [
        feed
        for feed in known.values()
        if (not changefeeds or feed.id in changefeeds)
        and (not owner or feed.spec.managed_by == owner)
    ]
    declared = [feed for feed in chosen if not feed.subscriber]
    hidden: list[str] = []
    feeds = tuple(_declared(feed, hidden) for feed in declared)
    return Exported(
        Declaration(_owner(declared, owner, name), feeds),
        tuple(hidden),
        tuple(feed.id for feed in chosen if feed.subscriber),
    )


def _owner(feeds: Sequence[FeedRecord], owner: str, name: str) -> str:
    if name:
        return check_owner(name)
    if owner:
        return check_owner(owner)
    managers = {feed.spec.managed_by for feed in feeds}
    if len(managers) == 1 and "" not in managers:
        return managers.pop()
    owners = ", ".join(sorted(one or "(none)" for one in managers)) or "(none)"
    raise BadOption(
        f"a file has one owner, and these changefeeds have: {owners}; choose those of one with "
        "--owner NAME, or name the owner of the new file with --as NAME"
    )


def _declared(feed: FeedRecord, hidden: list[str]) -> DeclaredFeed:
    references: set[str] = set()

    def judged(secret: str, place: str) -> str:
        if _is_reference(secret):
            references.add(secret)
            return secret
        hidden.append(f"{feed.id}: {place}")
        return HIDDEN

    spec = feed.spec
    shown = with_secrets(spec, secret_tables(spec), judged)
    return DeclaredFeed(
        feed.id,
        source=_text(shown.source, references),
        sink=_text(shown.sink, references),
        config=shown.config,
        target_ts=spec.target_ts,
        paused=True if feed.state is FeedState.STOPPED else None,
    )


def _is_reference(secret: str) -> bool:
    try:
        return isinstance(read_reference(secret, ""), SecretReference)
    except BadInput:
        return False


def _text(uri: Uri, references: set[str]) -> str:
    """Return a URI as a person would write it: `env:NAME` has a colon, `***` has stars."""
    text = uri.reveal()
    for reference in references:
        text = text.replace(quote(reference, safe=""), quote(reference, safe=":"))
    return text.replace(quote(HIDDEN, safe=""), HIDDEN)
