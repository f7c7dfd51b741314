"""Parked rows as operators see them: listed, shown, sent again, dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rowferry.change.quarantine import EVERY_KEY, ParkedKey, ParkedRow, RowPlace
from rowferry.control.feed.quarantining import outdated
from rowferry.control.operator.actor import Role, current_actor
from rowferry.control.store.contract import FeedRecord, MetaStore, Note
from rowferry.control.store.quarantine import DROPPED
from rowferry.errors import BadQuarantine
from rowferry.flow.assemble import decisions_of, sink_traits
from rowferry.flow.parking import shown_images
from rowferry.spec.secrets import HIDDEN

_CAUSE_HIDDEN: Final = "refused by the sink; its words may repeat values, see them as operator"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parked rows are meant: exactly one of a row, a table (or a key of it), or all.

    Attributes:
        row: the id of one, as lists show it.
        table: db.table at the source.
        key: of the table, as lists show it; empty: all keys.
        every: all rows of the changefeed.
    """

    row: str = ""
    table: str = ""
    key: str = ""
    every: bool = False

    def check(self) -> None:
        """Raise BadQuarantine unless the choice is clear."""
        if [bool(self.row), bool(self.table), self.every].count(True) != 1:
            raise BadQuarantine("say which rows: one row by its id, a table, or all of them")
        if self.key and not self.table:
            raise BadQuarantine("a key needs its table")


@dataclass(frozen=True, slots=True)
class ParkedValues:
    """A parked row with the values that it holds; None: there was no row before, or is none."""

    row: ParkedRow
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def show(store: MetaStore, changefeed: str, row: str) -> ParkedValues:
    """Return one parked row with its values."""
    known = store.parked(changefeed, [_place(changefeed, row)])
    if not known:
        raise _no_such(changefeed, f"row {row}")
    before, after = shown_images(known[0].image)
    return ParkedValues(known[0], before, after)


def retry(store: MetaStore, feed: FeedRecord, choice: Choice) -> int:
    """Ask the owner to send rows again, with all that waits behind them; returns how many."""
    rows = _chosen(store, feed.id, choice)
    keys = {row.parked_key for row in rows}
    by_age = sorted(store.state(feed.id).versions, key=lambda table: table.version)
    newest = {table.table_id: table for table in by_age}
    decide = decisions_of(feed.spec)
    last_only = sink_traits(feed.spec.sink.scheme).writes_tables
    last = {row.parked_key: row.place for row in store.parked(feed.id)}
    refused: dict[ParkedKey, str] = {}
    for row in store.parked(feed.id):
        if row.parked_key not in keys:
            continue
        if last_only and row.key != EVERY_KEY and last[row.parked_key] != row.place:
            continue  # only its last state is sent
        words = outdated(row, newest.get(row.table_id), decide)
        if words:
            refused.setdefault(row.parked_key, f"row {row.place}: {words}")
    if keys <= set(refused):
        raise BadQuarantine(next(iter(refused.values())))
    return store.want_parked(feed.id, keys)


def drop(store: MetaStore, changefeed: str, choice: Choice) -> int:
    """Forget rows for good; returns how many."""
    return store.drop_parked(changefeed, {r.place for r in _chosen(store, changefeed, choice)})


def shown_history(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return lines of a history as answers show them: viewers see no keys of rows."""
    if _shows_values():
        return tuple(notes)
    return tuple(_without_keys(note) if note.what == DROPPED else note for note in notes)


def _without_keys(note: Note) -> Note:
    rows = [{**row, "key": HIDDEN} for row in note.details["rows"]]
    return replace(note, details={**note.details, "rows": rows})


def _shows_values() -> bool:
    """Return whether whoever asks now may see values of rows."""
    actor = current_actor.get()
    return actor is None or actor.role >= Role.OPERATOR


def forms(rows: Sequence[ParkedRow]) -> list[dict[str, Any]]:
    """Return parked rows as answers show them; times in milliseconds.

    Viewers see no value of a row: neither its key, nor what the sink said of it.
    """
    shows = _shows_values()
    return [
        {
            "row": str(one.place),
            "table": str(one.table),
            "key": one.key if shows else HIDDEN,
            "op": one.op.name.lower(),
            "commit_ts": one.commit_ts,
            "micro_batch": one.place.micro_batch,
            "table_version": one.version,
            "bytes": one.size,
            "parked_at": round(one.parked_at * 1000),
            "state": "sending" if one.wanted else "parked",
            "cause": one.cause if shows else _CAUSE_HIDDEN,
        }
        for one in rows
    ]


def values_form(parked: ParkedValues) -> dict[str, Any]:
    """Return a parked row with its values; binary ones in hexadecimal."""
    images = {"before": parked.before, "after": parked.after}
    shown = {
        name: image and {column: _plain(value) for column, value in image.items()}
        for name, image in images.items()
    }
    return {**forms([parked.row])[0], **shown}


def _plain(value: Any) -> Any:
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def _chosen(store: MetaStore, changefeed: str, choice: Choice) -> list[ParkedRow]:
    choice.check()
    rows = store.parked(changefeed)
    if choice.row:
        place = _place(changefeed, choice.row)
        chosen, what = [row for row in rows if row.place == place], f"row {choice.row}"
    else:
        name = choice.table.replace("`", "")
        chosen = [row for row in rows if choice.every or str(row.table) == name]
        what = f"row of table {name}" if name else "row"
        if choice.key:
            chosen = [row for row in chosen if row.key == choice.key]
            what += f" with the key {choice.key}"
    if not chosen:
        raise _no_such(changefeed, what)
    return chosen


def _place(changefeed: str, text: str) -> RowPlace:
    micro_batch, _, ordinal = text.partition("-")
    if not (micro_batch.isdecimal() and ordinal.isdecimal() and len(text) < 40):
        raise _no_such(changefeed, f"row {text[:40]}")
    return RowPlace(int(micro_batch), int(ordinal))


def _no_such(changefeed: str, what: str) -> BadQuarantine:
    return BadQuarantine(
        f"changefeed {changefeed} has no parked {what}; they are listed by: rowferry changefeed "
        f"quarantine list -c {changefeed}"
    )
