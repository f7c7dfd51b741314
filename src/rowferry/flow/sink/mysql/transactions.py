"""Transactions behind the fence: tried again where they meet others, worded where refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import count

import pyarrow as pa

from rowferry.change.quarantine import EVERY_KEY, RefusedKey, RefusedRows, cause_of
from rowferry.change.table import TableSchema
from rowferry.columnar.row_keys import has_exact_key, key_texts
from rowferry.errors import RowferryError
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.encode.sql_rows.reader import read_frame
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.options import MySqlSettings
from rowferry.flow.sink.mysql.session import Session, Sessions, StatementRefused
from rowferry.flow.sink.mysql.statements import SqlStatement
from rowferry.flow.sink.sql.ledger import LaneNote
from rowferry.flow.sink.sql.session import Tries
from rowferry.moment import moment
from rowferry.mysql.refusals import DUPLICATE


class Transactions:
    """Applies statements, each call as one transaction. For use from several threads."""

    def __init__(
        self,
        settings: MySqlSettings,
        ledger: Ledger,
        sessions: Sessions,
        refused: RefusedRows | None = None,
        since: int | None = None,
    ) -> None:
        """Apply through `sessions`; rows that are refused are noted in `refused`, if there is one.

        Then a transaction with such a row leaves nothing, and `apply` returns all the same: the
        plan is carried out again without the row. `since` is the micro-batch that was published
        when the task began, as `Ledger.begin` has it.
        """
        self._ledger, self._sessions, self._refused = ledger, sessions, refused
        self._since = since
        self._joined = settings.options.multi_stmt_enable
        self._slots = count()

    def apply(
        self,
        statements: Sequence[SqlStatement],
        epoch: int,
        stop: threading.Event,
        note: LaneNote | None = None,
    ) -> None:
        """Apply statements in their order, and `note` after them, in one transaction.

        On return: all of it is durable. On raise: nothing of it is there, unless only the answer
        to COMMIT was lost. `stop` ends the waiting between tries.

        Raises:
            Fenced: the changefeed belongs to somebody else.
            RowRejected: the downstream refuses a row or the table; the text names it.
            SinkUnwritable: a privilege is missing.
            SinkUnavailable: it does not answer, locks cannot be had, or another task has done it.
        """
        tries, mended = Tries(self._sessions.counts), False
        while True:
            tries.begin()
            refusal = self._attempt(statements, epoch, note)
            if refusal is None:
                return
            if refusal.number == DUPLICATE and any(s.replaced for s in statements):
                # A replay may meet rows of later changes that have its values in other unique
                # keys; they will be written again.
                statements = [s.replacing() for s in statements]
                continue
            if tries.goes_on(refusal, stop):
                continue
            if self._refused is not None and self._refused.is_open and refusal.is_about_row:
                rows = self._refused_rows(statements)
                if rows:
                    for one in rows:
                        self._refused.add(one)
                    return
                if rows is not None and not mended:  # somebody has corrected the downstream
                    mended = True
                    continue
            raise self._worded(statements, refusal)

    def _attempt(
        self, statements: Sequence[SqlStatement], epoch: int, note: LaneNote | None
    ) -> StatementRefused | None:
        with self._sessions.one() as session:
            texts, slot = [s.sql for s in statements], next(self._slots)
            try:
                self._ledger.within(session, epoch, slot, texts, self._joined, note, self._since)
            except StatementRefused as err:
                return err
        return None

    def _refused_rows(self, statements: Sequence[SqlStatement]) -> list[RefusedKey] | None:
        """Return all rows that are refused, found by trying; nothing of that stays.

        Empty: none is, any more. None: one of them has no key, so that later changes of it would
        not be known.

        Raises:
            RowferryError: something else is refused than a row.
        """
        moment("look for refused rows")
        keys: list[RefusedKey] = []
        with self._sessions.one() as session:
            session.run(b"BEGIN")
            for statement in statements:
                for place, again in _culprits(session, statement, 0):
                    table = statement.table
                    if not again.is_about_row:  # e.g. another transaction has locked it now
                        session.rollback()
                        raise again.as_error(f"table {table.written_as}")
                    if not table.handle_key or not table.table_id:
                        session.rollback()
                        return None
                    words = again.as_error(statement.named(place)).words
                    key = refused_key(table, statement.keys.slice(place, 1))
                    keys.append(RefusedKey(table.table_id, key, cause_of(words)))
            session.rollback()
        return keys

    def _worded(
        self, statements: Sequence[SqlStatement], refusal: StatementRefused
    ) -> RowferryError:
        """Return an error that names the row, found by trying; nothing of that stays."""
        moment("look for refused row")
        error = refusal.as_error("applying rows")
        with self._sessions.one() as session:
            session.run(b"BEGIN")
            for statement in statements:
                again = attempt(session, statement)
                if again is None:
                    continue
                if again.is_conflict:  # the transaction may be over, and what follows would stay
                    break
                place = again.row
                if place is None and not again.is_about_table:
                    place = _culprit(session, statement)
                if place is not None and place < len(statement):
                    error = again.as_error(statement.named(place))
                else:
                    error = again.as_error(f"table {statement.table.written_as}")
                break
            session.rollback()
        return error


def attempt(session: Session, statement: SqlStatement) -> StatementRefused | None:
    """Run a statement; return how it is refused."""
    moment("try refused statement")
    try:
        session.run(statement.sql)
    except StatementRefused as err:
        return err
    return None


def _culprits(
    session: Session, statement: SqlStatement, first: int
) -> Iterator[tuple[int, StatementRefused]]:
    """Yield the rows of a statement that are refused alone, and why; `first`: its first row."""
    again = attempt(session, statement)
    if again is not None and again.number == DUPLICATE and statement.replaced is not None:
        again = attempt(session, statement.replacing())
    if again is None:
        return
    if len(statement) == 1 or not again.is_about_row:
        yield first, again
        return
    middle = len(statement) // 2
    yield from _culprits(session, statement.part(0, middle), first)
    yield from _culprits(session, statement.part(middle, len(statement)), first + middle)


def _culprit(session: Session, statement: SqlStatement) -> int | None:
    """Return the row of a statement that is refused alone; None: none, or it met others."""
    for place in range(len(statement)):
        refusal = attempt(session, statement.single(place))
        if refusal is not None:
            return None if refusal.is_conflict else place
    return None


def refused_key(table: TableSchema, name: pa.LargeBinaryArray) -> str:
    """Return the key of the row that a WHERE clause's text names."""
    if not has_exact_key(table):
        return EVERY_KEY
    deleted = RowFrame.of_deleted(table, name)
    key: str = key_texts(read_frame(deleted))[0].as_py()
    return key
