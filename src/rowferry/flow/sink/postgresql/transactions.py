"""Transactions behind the fence: tried again where they meet others, worded where refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from rowferry.change.quarantine import EVERY_KEY, RefusedKey, RefusedRows, cause_of
from rowferry.columnar.row_keys import has_exact_key, key_texts
from rowferry.errors import RowferryError
from rowferry.flow.encode.copy_rows.reader import read_lines
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.postgresql.effects import KeyEffect
from rowferry.flow.sink.postgresql.ledger import CopyLedger
from rowferry.flow.sink.postgresql.merging import carry_out, prepare
from rowferry.flow.sink.postgresql.refusals import DUPLICATE, OVERTAKEN, PostgresqlRefusal
from rowferry.flow.sink.postgresql.session import PostgresqlSession, PostgresqlSessions
from rowferry.flow.sink.sql.ledger import LaneNote
from rowferry.flow.sink.sql.session import Tries
from rowferry.moment import moment


class MergeTransactions:
    """Applies effects, each call as one transaction. For use from several threads."""

    def __init__(
        self,
        ledger: CopyLedger,
        sessions: PostgresqlSessions,
        refused: RefusedRows | None = None,
        since: int | None = None,
    ) -> None:
        """Apply through `sessions`; rows that are refused are noted in `refused`, if there is one.

        Then a transaction with such a row leaves nothing, and `apply` returns all the same: the
        plan is carried out again without the row. `since` is the micro-batch that was published
        when the task began, as `CopyLedger.begin` has it.
        """
        self._ledger, self._sessions, self._refused = ledger, sessions, refused
        self._since = since

    def apply(
        self,
        effects: Sequence[KeyEffect],
        epoch: int,
        stop: threading.Event,
        note: LaneNote | None = None,
    ) -> None:
        """Apply effects in their order, and `note` after them, in one transaction.

        On return: all of it is durable. On raise: nothing of it is there, unless only the answer to
        COMMIT was lost. `stop` ends the waiting between tries.

        Raises:
            Fenced: the changefeed belongs to somebody else.
            RowRejected: the downstream refuses a row or the table; the text names it.
            TargetLost: a table is gone.
            SinkUnwritable: a privilege is missing.
            SinkUnavailable: it does not answer, locks cannot be had, or another task has done it.
        """
        tries, mended = Tries(self._sessions.counts), False
        while True:
            tries.begin()
            refusal = self._attempt(effects, epoch, note)
            if refusal is None:
                return
            if refusal.state == DUPLICATE and not all(e.replacing for e in effects):
                effects = [e.as_replacing() for e in effects]
                continue
            if tries.goes_on(refusal, stop):
                continue
            if self._refused is not None and self._refused.is_open and refusal.is_about_row:
                rows = self._refused_rows(effects)
                if rows:
                    for one in rows:
                        self._refused.add(one)
                    return
                if rows is not None and not mended:  # somebody has corrected the downstream
                    mended = True
                    continue
            raise self._worded(effects, refusal)

    def _attempt(
        self, effects: Sequence[KeyEffect], epoch: int, note: LaneNote | None
    ) -> PostgresqlRefusal | None:
        with self._sessions.one() as session:
            try:
                prepare(session, effects)
                moment("apply rows (PostgreSQL)")
                self._ledger.begin(session, epoch, since=self._since)
            except PostgresqlRefusal as err:
                return err
            try:
                for effect in effects:
                    carry_out(session, effect)
                if note is not None and not session.changed(self._ledger.note_delivered(note)):
                    session.rollback()
                    self._ledger.check_noted(session, note)
                    words = "the note of another task was taken back"
                    return PostgresqlRefusal(OVERTAKEN, words, session.place)
                session.run("COMMIT")
                moment("rows applied (PostgreSQL)")
            except PostgresqlRefusal as err:
                session.rollback()
                return err
        return None

    def _refused_rows(self, effects: Sequence[KeyEffect]) -> list[RefusedKey] | None:
        """Return all rows that are refused, found by trying; nothing of that stays.

        Empty: none is, any more. None: one of them has no key, so that later changes of it would
        not be known.

        Raises:
            RowferryError: something else is refused than a row.
        """
        moment("look for refused rows (PostgreSQL)")
        keys: list[RefusedKey] = []
        with self._sessions.one() as session:
            prepare(session, effects)
            for effect in effects:
                # What stands in a row's way is no reason to park it: others may go before it.
                for row, again in _culprits(session, effect.as_replacing()):
                    if not again.is_about_row:  # e.g. another transaction has locked it now
                        raise again.as_error(f"table {effect.table.written_as}")
                    key = refused_key(row)
                    if key is None:
                        return None
                    words = again.as_error(row.named()).words
                    keys.append(RefusedKey(effect.table.table_id, key, cause_of(words)))
        return keys

    def _worded(self, effects: Sequence[KeyEffect], refusal: PostgresqlRefusal) -> RowferryError:
        """Return an error that names the row, found by trying; nothing of that stays."""
        moment("look for refused row (PostgreSQL)")
        about = f"table {effects[0].table.written_as}" if len(effects) == 1 else "applying rows"
        if not refusal.is_about_row:
            return refusal.as_error(about)
        with self._sessions.one() as session:
            prepare(session, effects)
            for effect in effects:
                again = _attempt_alone(session, effect)
                if again is not None and again.is_about_row:
                    row, words = _culprit(session, effect, again)
                    return words.as_error(row.named())
        return refusal.as_error(about)


def _culprits(
    session: PostgresqlSession, effect: KeyEffect
) -> Iterator[tuple[KeyEffect, PostgresqlRefusal]]:
    """Yield the rows of an effect that are refused alone, and why."""
    again = _attempt_alone(session, effect)
    if again is None:
        return
    if len(effect) == 1 or not again.is_about_row:
        yield effect, again
        return
    middle = len(effect) // 2
    yield from _culprits(session, effect.part(0, middle))
    yield from _culprits(session, effect.part(middle, len(effect)))


def _culprit(
    session: PostgresqlSession, effect: KeyEffect, refusal: PostgresqlRefusal
) -> tuple[KeyEffect, PostgresqlRefusal]:
    """Return the row of an effect that is refused alone; half by half."""
    while len(effect) > 1:
        middle = len(effect) // 2
        first, second = effect.part(0, middle), effect.part(middle, len(effect))
        again = _attempt_alone(session, first)
        if again is not None:
            effect, refusal = first, again
            continue
        again = _attempt_alone(session, second)
        if again is None:  # only both together are refused
            break
        effect, refusal = second, again
    return effect, refusal


def _attempt_alone(session: PostgresqlSession, effect: KeyEffect) -> PostgresqlRefusal | None:
    """Carry an effect out and take it back; return how it is refused."""
    moment("try refused rows (PostgreSQL)")
    try:
        session.run("BEGIN")
        carry_out(session, effect)
    except PostgresqlRefusal as err:
        session.rollback()
        return err
    session.rollback()
    return None


def refused_key(row: KeyEffect) -> str | None:
    """Return the key of an effect of one row; None: later changes of it would not be known."""
    table = row.table
    if not table.handle_key or not table.table_id:
        return None
    if not has_exact_key(table):
        return EVERY_KEY
    name = (row.gone if len(row.gone) else row.keys).slice(0, 1)
    deleted = RowFrame.of_deleted(table, name)
    key: str | None = key_texts(read_lines(deleted))[0].as_py()
    return key
