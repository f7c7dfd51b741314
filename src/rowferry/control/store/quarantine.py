"""Parked rows of changefeeds in the meta database."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.quarantine import (
    EVERY_KEY,
    KEY_SHAPE,
    WAITS,
    DivertedRow,
    ParkedKey,
    ParkedRow,
    RefusedKey,
    RowPlace,
    cause_of,
    places_in,
)
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Claim
from rowferry.control.store import fence
from rowferry.control.store.rows import to_ms
from rowferry.control.store.tables import MetaTable, ParkedRowRow
from rowferry.errors import MetaDamaged, SecretsLocked
from rowferry.spec.sealing import SecretKeys

_ROWS, _FEEDS = (MetaTable.metadata.tables[name] for name in ("parked_rows", "changefeeds"))
# Until their plan is published, rows belong to it alone: it may be carried out or planned again.
_PUBLISHED = (
    select(_FEEDS.c.id)
    .where(_FEEDS.c.id == _ROWS.c.changefeed, _FEEDS.c.micro_batch >= _ROWS.c.micro_batch)
    .exists()
)
_WITHOUT_IMAGE = [c for c in _ROWS.c if c.name != "image"]
_AT_ONCE: Final = 100
_SEALED: Final = "sealed:"
DROPPED: Final = "quarantine dropped"  # what a line of history is about: it has keys
_LATER_DROPPED: Final = (
    "a later change of its key was dropped while it was to be sent in this one's place"
)
_BLIND: Final = {"synchronize_session": False}
# Rows of a table go with these, but which of them nobody can tell.
_REMOVE_SOME: Final = frozenset(
    {
        DdlKind.TRUNCATE_PARTITION,
        DdlKind.DROP_PARTITION,
        DdlKind.EXCHANGE_PARTITION,
    }
)


def park(
    session: Session,
    claim: Claim,
    micro_batch: int,
    rows: Sequence[DivertedRow],
    refused: Sequence[RefusedKey],
    keys: SecretKeys | None,
    now: float,
) -> None:
    """Write the rows of a pending plan; what an earlier run of it has written goes.

    Nobody sees them before the plan is published.
    """
    fence.locked_columns(session.connection(), claim)
    mine = and_(_ROWS.c.changefeed == claim.changefeed, _ROWS.c.micro_batch == micro_batch)
    session.execute(delete(_ROWS).where(mine))
    causes = {one.parked_key: one.cause for one in refused}
    for ordinal, row in enumerate(rows):
        key = ParkedKey(row.table_id, row.key)
        place = RowPlace(micro_batch, ordinal)
        values = {
            "changefeed": claim.changefeed,
            "micro_batch": micro_batch,
            "ordinal": ordinal,
            "table_id": row.table_id,
            "db_name": row.table.database,
            "table_name": row.table.table,
            "version": row.version,
            "physical_id": row.physical_id,
            "row_key": row.key,
            "op": row.op,
            "commit_ts": row.commit_ts,
            "shape": row.shape,
            "cause": cause_of(causes.pop(key, WAITS)),
            "size": len(row.image),
            "parked_at": to_ms(now),
            "wanted": 0,
            "image": _stored(row.image, claim.changefeed, place, keys),
        }
        session.execute(insert(_ROWS), values)


def publish(session: Session, changefeed: str, plan: Plan, now: float) -> None:
    """Forget what a plan has sent again, and what its schema changes have removed.

    Rows that it parked behind others which were dropped meanwhile are sent again by themselves.
    Rows in whose place it was to send a later one, which was dropped meanwhile, stay parked.
    """
    asked = plan.quarantine
    if asked is not None and asked.parked:
        _want_alone(session, changefeed, plan.micro_batch, asked.refused, now)
    if asked is not None and asked.is_of_retry:
        sent, unsent = _sent_again(session, changefeed, plan)
        _forget(session, changefeed, sent)
        for some in _chunks(unsent):
            values = {"wanted": 0, "cause": _LATER_DROPPED}
            session.execute(update(_ROWS).where(_at(changefeed, some)).values(**values))
        for one in asked.stays:
            _keep(session, changefeed, one)
        details = {"sent": len(sent), "keys refused again": len(asked.stays)}
        fence.note(session, changefeed, now, "quarantine sent again", details)
    for change in plan.stretch.schema_changes:
        _follow(session, changefeed, change, now)


def discard(session: Session, changefeed: str, micro_batch: int) -> None:
    """Forget what a discarded plan has parked: it comes again."""
    mine = and_(_ROWS.c.changefeed == changefeed, _ROWS.c.micro_batch == micro_batch)
    session.execute(delete(_ROWS).where(mine))


def forget_all(session: Session, changefeed: str) -> None:
    """Forget all parked rows of a changefeed."""
    session.execute(delete(_ROWS).where(_ROWS.c.changefeed == changefeed))


def rows_of(
    session: Session,
    changefeed: str,
    places: Collection[RowPlace] | None,
    keys: SecretKeys | None,
) -> tuple[ParkedRow, ...]:
    """Return parked rows in the order in which they were parked; those at `places` with images."""
    mine = and_(_ROWS.c.changefeed == changefeed, _PUBLISHED)
    order = (_ROWS.c.micro_batch, _ROWS.c.ordinal)
    if places is None:
        each = session.execute(select(*_WITHOUT_IMAGE).where(mine).order_by(*order))
        return tuple(_row(one._mapping, b"") for one in each)
    rows: list[ParkedRow] = []
    for some in _chunks(sorted(places)):
        wanted = tuple_(*order).in_([(p.micro_batch, p.ordinal) for p in some])
        for one in session.execute(select(_ROWS).where(mine, wanted).order_by(*order)):
            values = one._mapping
            place = RowPlace(values["micro_batch"], values["ordinal"])
            rows.append(_row(values, _opened(values["image"], changefeed, place, keys)))
    return tuple(rows)


def counts(session: Session, changefeed: str = "") -> dict[str, int]:
    """Return how many parked rows each changefeed has that has any; or only one of them."""
    each = _ROWS.c.changefeed
    wanted = select(each, func.count()).where(_PUBLISHED).group_by(each)
    if changefeed:
        wanted = wanted.where(each == changefeed)
    return {name: int(count) for name, count in session.execute(wanted)}


def want(session: Session, changefeed: str, wanted: Collection[ParkedKey], now: float) -> int:
    """Ask for rows of keys to be sent again; returns how many there are."""
    fence.locked(session, changefeed)
    places = [r.place for r in rows_of(session, changefeed, None, None) if r.parked_key in wanted]
    for some in _chunks(places):
        session.execute(update(_ROWS).where(_at(changefeed, some)).values(wanted=1))
    if places:
        details = {"rows": len(places), "keys": len(wanted)}
        fence.note(session, changefeed, now, "quarantine retry asked", details)
    return len(places)


def drop(session: Session, changefeed: str, places: Collection[RowPlace], now: float) -> int:
    """Forget rows for good, and note which; returns how many there were."""
    fence.locked(session, changefeed)
    gone = [r for r in rows_of(session, changefeed, None, None) if r.place in places]
    _forget(session, changefeed, [r.place for r in gone])
    for some in _chunks(gone):
        details = {"rows": [_named(row) for row in some]}
        fence.note(session, changefeed, now, DROPPED, details)
    return len(gone)


def reseal(session: Session, keys: SecretKeys) -> tuple[int, int]:
    """Encrypt all images with the first key; returns how many there are, and were written."""
    count = written = 0
    for row in session.scalars(select(ParkedRowRow).with_for_update()):
        count += 1
        place = RowPlace(row.micro_batch, row.ordinal)
        if _key_id(row.image) == keys.first:
            continue
        image = _opened(row.image, row.changefeed, place, keys)
        row.image = _stored(image, row.changefeed, place, keys)
        written += 1
    return count, written


# --- pieces --------------------------------------------------------------------------------------


def _sent_again(
    session: Session, changefeed: str, plan: Plan
) -> tuple[list[RowPlace], list[RowPlace]]:
    """Return the rows that a plan has sent again, or later ones for them; and those it has not.

    Not sent are rows of keys whose row that was to be sent is not there any more.
    """
    again = set(plan.quarantine.again) if plan.quarantine else set()
    rows = [r for r in rows_of(session, changefeed, None, None) if r.place in again]
    segments = [s for s in plan.stretch.segments if s.parked]
    places = {place for s in segments for place in places_in(s.read)}
    keys = {row.parked_key for row in rows if row.place in places}
    sent = [row.place for row in rows if row.parked_key in keys]
    return sent, [row.place for row in rows if row.parked_key not in keys]


def _want_alone(
    session: Session,
    changefeed: str,
    micro_batch: int,
    refused: Sequence[RefusedKey],
    now: float,
) -> None:
    """Ask for the rows of a plan that wait behind nobody: an operator has dropped who was there."""
    before = {one.parked_key for one in refused}
    places = []
    for row in rows_of(session, changefeed, None, None):
        if row.place.micro_batch < micro_batch:
            before.add(row.parked_key)
        elif not _waits(row.parked_key, before):
            places.append(row.place)
    for some in _chunks(places):
        session.execute(update(_ROWS).where(_at(changefeed, some)).values(wanted=1))
    if places:
        details = {"rows": len(places), "why": "what was before them was dropped"}
        fence.note(session, changefeed, now, "quarantine retry asked", details)


def _waits(key: ParkedKey, before: Collection[ParkedKey]) -> bool:
    """Return whether a row of a key comes after one of these."""
    if key.key == EVERY_KEY:
        return any(one.table_id == key.table_id for one in before)
    return key in before or ParkedKey(key.table_id, EVERY_KEY) in before


def _follow(session: Session, changefeed: str, change: SchemaChange, now: float) -> None:
    """Let parked rows follow a schema change that was published."""
    mine = _ROWS.c.changefeed == changefeed
    gone: list[ColumnElement[bool]] = []
    if change.dropped_table_id:
        gone.append(_ROWS.c.table_id == change.dropped_table_id)
    if change.kind is DdlKind.DROP_DATABASE:
        gone.append(_ROWS.c.db_name == change.table.database)
    if gone:
        those = and_(mine, or_(*gone))
        count = session.scalar(select(func.count()).select_from(_ROWS).where(those)) or 0
        if count:
            session.execute(delete(_ROWS).where(those))
            details = {"rows": count, "table": str(change.table), "why": change.kind.name}
            fence.note(session, changefeed, now, "quarantine cleared", details)
    if change.schema is None:
        return
    same = and_(mine, _ROWS.c.table_id == change.schema.table_id)
    if change.previous is not None:
        name = change.schema.id
        named = {"db_name": name.database, "table_name": name.table}
        session.execute(update(_ROWS).where(same).values(**named))
    if change.kind in _REMOVE_SOME:
        session.execute(
            update(_ROWS).where(same).values(shape=func.substr(_ROWS.c.shape, 1, KEY_SHAPE))
        )


def _keep(session: Session, changefeed: str, refusal: RefusedKey) -> None:
    """Note that the rows of a key were refused again."""
    rows = rows_of(session, changefeed, None, None)
    places = [r.place for r in rows if r.parked_key == refusal.parked_key]
    for some in _chunks(places):
        session.execute(update(_ROWS).where(_at(changefeed, some)).values(wanted=0))
    if places:
        first = _at(changefeed, places[:1])
        session.execute(update(_ROWS).where(first).values(cause=cause_of(refusal.cause)))


def _forget(session: Session, changefeed: str, places: Iterable[RowPlace]) -> None:
    for some in _chunks(sorted(places)):
        session.execute(delete(_ROWS).where(_at(changefeed, some)))


def _at(changefeed: str, places: Sequence[RowPlace]) -> ColumnElement[bool]:
    pairs = [(p.micro_batch, p.ordinal) for p in places]
    return and_(
        _ROWS.c.changefeed == changefeed, tuple_(_ROWS.c.micro_batch, _ROWS.c.ordinal).in_(pairs)
    )


def _row(values: Mapping[Any, Any], image: bytes) -> ParkedRow:
    return ParkedRow(
        place=RowPlace(values["micro_batch"], values["ordinal"]),
        table=TableId(values["db_name"], values["table_name"]),
        table_id=values["table_id"],
        version=values["version"],
        physical_id=values["physical_id"],
        key=values["row_key"],
        op=Op(values["op"]),
        commit_ts=values["commit_ts"],
        shape=values["shape"],
        cause=values["cause"],
        size=values["size"],
        parked_at=values["parked_at"] / 1000,
        wanted=bool(values["wanted"]),
        image=image,
    )


def _named(row: ParkedRow) -> dict[str, Any]:
    form = {"row": str(row.place), "table": str(row.table), "key": row.key}
    return form | {"op": row.op.name.lower(), "commit_ts": row.commit_ts}


def _stored(image: bytes, changefeed: str, place: RowPlace, keys: SecretKeys | None) -> str:
    if keys is None:
        return b64encode(image).decode()
    data = keys.seal_bytes(image, _bound(changefeed, place))
    return _SEALED + b64encode(data).decode()


def _opened(text: str, changefeed: str, place: RowPlace, keys: SecretKeys | None) -> bytes:
    try:
        if not text.startswith(_SEALED):
            return b64decode(text, validate=True)
        data = b64decode(text[len(_SEALED) :], validate=True)
    except ValueError:
        raise MetaDamaged(
            f"the meta database's parked row {place} of changefeed {changefeed} cannot be read"
        ) from None
    image = keys.open_bytes(data, _bound(changefeed, place)) if keys else None
    if image is None:
        raise SecretsLocked(
            f"parked row {place} of changefeed {changefeed} is encrypted with a key that is not "
            "here; give the server the file with all keys"
        )
    return image


def _key_id(text: str) -> str:
    if not text.startswith(_SEALED):
        return ""
    return b64decode(text[len(_SEALED) : len(_SEALED) + 12])[:8].decode("ascii", "replace")


def _bound(changefeed: str, place: RowPlace) -> bytes:
    return f"parked row {place} of {changefeed}".encode()


def _chunks(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[at : at + _AT_ONCE] for at in range(0, len(values), _AT_ONCE)]
