"""Published micro-batches: one row each for the last ones, one for many of the older ones.

The row is written with the progress that it belongs to. Every so many micro-batches the oldest
single rows become one, and the oldest of those go: what is kept of a changefeed is bounded, and so
is the work for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Row, bindparam, delete, insert, select
from sqlalchemy.orm import Session

from rowferry.change.plan import Plan
from rowferry.change.published import PublishedBatch
from rowferry.control.store.rows import read, to_ms, to_text
from rowferry.control.store.tables import MetaTable, PublishedBatchRow

SINGLE: Final = 1024  # micro-batches that have a row of their own
FOLD: Final = 64  # older ones that become one
FOLDED: Final = 1024  # rows of these
LONGEST: Final = 32 << 10  # characters of one; of a longer one only its bounds are kept

_ROWS = MetaTable.metadata.tables["published_batches"]
_ADD = insert(_ROWS)
_FEED: BindParameter[str] = bindparam("feed")
_OF_FEED = _ROWS.c.changefeed == _FEED
_OLD_SINGLES = (
    select(_ROWS)
    .where(_OF_FEED, _ROWS.c.single == 1)
    .order_by(_ROWS.c.micro_batch.desc())
    .offset(SINGLE)
)
_OLDEST_FOLDED = (
    select(_ROWS.c.micro_batch)
    .where(_OF_FEED, _ROWS.c.single == 0)
    .order_by(_ROWS.c.micro_batch.desc())
    .offset(FOLDED)
    .limit(1)
)


def add(connection: Connection, changefeed: str, plan: Plan, now: float) -> None:
    """Keep what is to be known of a plan that is published in this transaction."""
    batch = PublishedBatch.of(plan)
    if batch is not None:
        row = _row(changefeed, batch, to_ms(now), single=True)
        if len(str(row["batch"])) > LONGEST:
            row = _row(changefeed, batch.bare(), to_ms(now), single=True)
        connection.execute(_ADD, [row])
    if plan.micro_batch % FOLD == 0:
        _fold(connection, changefeed)


def _fold(connection: Connection, changefeed: str) -> None:
    feed = {"feed": changefeed}
    old = list(connection.execute(_OLD_SINGLES, feed))
    if len(old) >= FOLD:
        old = old[::-1][: len(old) // FOLD * FOLD]
        numbers = [row.micro_batch for row in old]
        gone = delete(_ROWS).where(
            _ROWS.c.changefeed == changefeed,
            _ROWS.c.single == 1,
            _ROWS.c.micro_batch.between(numbers[0], numbers[-1]),
        )
        connection.execute(gone)
        folded = [
            PublishedBatch.folded([_batch(row) for row in old[at : at + FOLD]])
            for at in range(0, len(old), FOLD)
        ]
        rows = [_row(changefeed, one, to_ms(one.published_at), single=False) for one in folded]
        connection.execute(_ADD, rows)
    oldest = connection.execute(_OLDEST_FOLDED, feed).scalar()
    if oldest is not None:
        gone = delete(_ROWS).where(
            _ROWS.c.changefeed == changefeed,
            _ROWS.c.single == 0,
            _ROWS.c.micro_batch <= oldest,
        )
        connection.execute(gone)


def batches_of(session: Session, changefeed: str) -> tuple[PublishedBatch, ...]:
    """Return what is kept, oldest first."""
    mine = select(_ROWS).where(_OF_FEED).order_by(_ROWS.c.micro_batch)
    return tuple(_batch(row) for row in session.execute(mine, {"feed": changefeed}))


def forget(session: Session, changefeed: str) -> None:
    """Delete all of a changefeed."""
    session.execute(delete(PublishedBatchRow).where(PublishedBatchRow.changefeed == changefeed))


def _row(changefeed: str, batch: PublishedBatch, at: int, single: bool) -> dict[str, object]:
    return {
        "changefeed": changefeed,
        "micro_batch": batch.micro_batch,
        "single": int(single),
        "at": at,
        "batch": to_text(batch.to_json()),
    }


def _batch(row: Row[Any]) -> PublishedBatch:
    what = f"published micro-batches of changefeed {row.changefeed}"
    return replace(read(row.batch, PublishedBatch.from_json, what), published_at=row.at / 1000)
