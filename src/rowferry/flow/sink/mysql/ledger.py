"""The sink's own tables downstream: the fence, how far lanes have come, which DDLs were run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rowferry.change.own_tables import DELIVERED, FENCE, MARK, SCHEMA_CHANGES
from rowferry.flow.encode.sql_rows.frame import quoted
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.mysql.session import Session, StatementRefused
from rowferry.flow.sink.sql.ledger import LaneNote, SqlLedger
from rowferry.moment import moment

_NAME: Final = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
_TABLES: Final = {
    FENCE: f"changefeed {_NAME}, slot INT NOT NULL, epoch BIGINT UNSIGNED NOT NULL, "
    "micro_batch BIGINT UNSIGNED NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, "
    "PRIMARY KEY (changefeed, slot)",
    DELIVERED: f"changefeed {_NAME}, lane {_NAME}, micro_batch BIGINT UNSIGNED NOT NULL, "
    "segment BIGINT NOT NULL, packet BIGINT NOT NULL, packet_rows BIGINT NOT NULL, "
    "PRIMARY KEY (changefeed, lane)",
    SCHEMA_CHANGES: f"changefeed {_NAME}, micro_batch BIGINT UNSIGNED NOT NULL, "
    "ordinal INT NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, digest CHAR(64) NOT NULL, "
    "state VARCHAR(16) NOT NULL, before_digest CHAR(64) NOT NULL, "
    "statement LONGTEXT CHARACTER SET utf8mb4 NOT NULL, "
    "PRIMARY KEY (changefeed, micro_batch, ordinal)",
}


# What is noted of a schema change.
BEGUN, DONE, REFUSED = "begun", "done", "refused"
_MARKS: Final = "slot INT NOT NULL PRIMARY KEY, transactions BIGINT UNSIGNED NOT NULL"
_MARK_SLOTS: Final = 1024  # so that transactions side by side seldom meet


class Ledger(SqlLedger[Session]):
    """What a changefeed writes down in a MySQL, MariaDB or TiDB, and how."""

    def __init__(self, database: str, changefeed: str, marks: bool = False) -> None:
        """Name the tables; with `marks`, every transaction says that a changefeed wrote it."""
        super().__init__(database, changefeed, _literal(changefeed))
        self._tables = {**_TABLES, MARK: _MARKS} if marks else _TABLES
        self._marks = marks

    def name(self, table: str) -> str:
        """Return one of the tables as SQL writes it."""
        return f"{quoted(self._space)}.{table}"

    def raise_fence(self, session: Session, epoch: int) -> list[tuple[Any, ...]]:
        """Let nobody of an older epoch write; return what the fence says."""
        slots = range(session.facts.fence_slots)
        rows = ",".join(f"({self._feed},{slot},{epoch},0,0)" for slot in slots)
        # No row is made or changed where one of a higher epoch is there.
        session.run(
            f"INSERT INTO {self.name(FENCE)} VALUES {rows} ON DUPLICATE KEY UPDATE "
            f"epoch = GREATEST(epoch, VALUES(epoch))".encode()
        )
        return session.ask(
            "SELECT MAX(epoch), MAX(commit_ts), MAX(micro_batch) "
            f"FROM {self.name(FENCE)} WHERE changefeed = %s",
            (self._changefeed,),
        )

    def _make(self, session: Session, owner: Owner) -> None:
        moment("look for ledger")
        there = session.ask(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s",
            (self._space,),
        )
        missing = self._tables.keys() - {str(row[0]).lower() for row in there}
        if not missing:
            return
        self._refuse_gone(session, owner, missing & _TABLES.keys())
        known = session.ask(
            "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (self._space,)
        )
        if not known:
            session.run(f"CREATE DATABASE IF NOT EXISTS {quoted(self._space)}".encode())
        for table in sorted(missing):
            session.run(
                f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({self._tables[table]})".encode()
            )

    # --- the fence --------------------------------------------------------------------------------

    def begin(
        self, session: Session, epoch: int, slot: int = 0, *, since: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Begin a transaction that ends before anybody else can claim the changefeed.

        Returns what the fence says, as `raise_fence` does. `since` is the micro-batch that was
        `published` when the task began; None: it may be another one now.

        Raises:
            Fenced: somebody has claimed it.
            Refused: as `Session.run`.
            SinkUnavailable: another micro-batch was published meanwhile, and as `Session.run`.
        """
        moment("begin downstream")
        facts = session.facts
        rows = session.begin(f"{self._fence(slot % facts.fence_slots)} {facts.lock}".encode())
        self.judge_fence(session, rows, epoch, since)
        if self._marks:
            session.run(*self._mark())
        return rows

    def within(
        self,
        session: Session,
        epoch: int,
        slot: int,
        texts: Sequence[bytes],
        joined: bool,
        note: LaneNote | None = None,
        since: int | None = None,
    ) -> None:
        """Run statements as a transaction that begins as `begin` says; where `joined`, in one go.

        Its last statement is `note`, if there is one.

        Raises:
            Fenced: somebody has claimed the changefeed; nothing was written.
            Refused: the server refuses one of them; nothing of it stays.
            SinkUnavailable: another task has done what this one does, and nothing of it stays; and
                as `Session.run`.
        """
        texts = (*texts, *self.note_delivered(note), b"COMMIT")
        moment("apply rows")
        try:
            if joined and session.facts.judges_fence:
                session.run(b"BEGIN", self._judgement(epoch, since), *self._mark(), *texts)
            else:
                self.begin(session, epoch, slot, since=since)
                session.run(*texts, joined=joined)
            moment("rows applied")
        except StatementRefused:
            session.rollback()
            # Whatever it was, the fence explains it better.
            self.check(session.ask(self._fence(0)), epoch, since)
            if note is not None:
                self.check_noted(session, note)
            raise

    def _judgement(self, epoch: int, since: int | None) -> bytes:
        """Return a statement that reads the fence under a lock and fails where it is another's."""
        # 0: see `check`.
        same = "" if since is None else f" AND MAX(micro_batch) IN (0, {since})"
        judged = f"IF(MAX(epoch) <=> {epoch}{same}, {epoch}, EXP(1000 + (MAX(epoch) IS NULL)))"
        row = self._fence(0, judged)
        return f"SET @rowferry_epoch = ({row} LOCK IN SHARE MODE)".encode()

    def _fence(self, slot: int, wanted: str = "epoch, commit_ts, micro_batch") -> str:
        return (
            f"SELECT {wanted} FROM {self.name(FENCE)} WHERE changefeed = {self._feed} "
            f"AND slot = {slot}"
        )

    def _mark(self) -> tuple[bytes, ...]:
        """Return the statement that marks a transaction as a changefeed's, where that is asked."""
        if not self._marks:
            return ()
        return (
            f"INSERT INTO {self.name(MARK)} VALUES (CONNECTION_ID() % {_MARK_SLOTS}, 1) "
            "ON DUPLICATE KEY UPDATE transactions = transactions + 1".encode(),
        )

    def reached(self, micro_batch: int, commit_ts: int | None, epoch: int) -> bytes:
        """Return the statement that notes what is published."""
        return f"{self._reached(micro_batch, commit_ts)} AND epoch = {epoch}".encode()

    # --- lanes ------------------------------------------------------------------------------------

    def note_delivered(self, note: LaneNote | None) -> tuple[bytes, ...]:
        """Return the statements that note how far a lane has come.

        One of them fails where the lane was moved by somebody else. It waits for who is about to
        do so: then it sees what was committed, or, in an optimistic transaction of TiDB, COMMIT
        fails. None: there is nothing to note.
        """
        if note is None:
            return ()
        lane, place, since = _literal(note.lane), note.place, note.since
        values = f"{place.micro_batch}, {place.segment}, {place.packet}, {place.rows}"
        if since is None:
            insert = f"INSERT INTO {self.name(DELIVERED)} VALUES ({self._feed}, {lane}, {values})"
            return (insert.encode(),)
        update = (
            f"UPDATE {self.name(DELIVERED)} SET micro_batch = {place.micro_batch}, segment = "
            f"{place.segment}, packet = {place.packet}, packet_rows = {place.rows} WHERE "
            f"changefeed = {self._feed} AND lane = {lane} AND micro_batch = {since.micro_batch} "
            f"AND segment = {since.segment} AND packet = {since.packet} AND packet_rows = "
            f"{since.rows}"
        )
        # A row that is changed at all counts once, whether found or changed ones are counted.
        return update.encode(), b"SET @rowferry_lane = EXP(1000 * (ROW_COUNT() <> 1))"

    def forget_delivered(self, below: int | None = None, above: int | None = None) -> bytes:
        """Return the statement that removes what lanes noted, of some micro-batches or of all."""
        return self._forget_delivered(below, above).encode()

    def forget_changes(self, above: int) -> bytes:
        """Return the statement that removes the notes of schema changes behind a micro-batch."""
        return self._forget_changes(above).encode()

    def forget_begun(self, micro_batch: int) -> bytes:
        """Return the statement that removes the notes of schema changes that were not run."""
        return (
            f"DELETE FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = {self._feed} "
            f"AND micro_batch = {micro_batch} AND state <> '{DONE}'"
        ).encode()

    # --- schema changes ---------------------------------------------------------------------------

    def schema_change(
        self,
        session: Session,
        place: tuple[int, int],
        commit_ts: int,
        digest: str | None = None,
    ) -> tuple[str, str] | None:
        """Return state and the digest of what was there before; None: it was not begun.

        `place` is its micro-batch and its ordinal there. What has another commit-ts was another
        one: of a plan that was given up, or of a changefeed that had this name before. With
        `digest`, so was another statement, e.g. one in whose place the operator has set this one.
        """
        moment("read note of ddl")
        same = "" if digest is None else " AND digest = %s"
        rows = session.ask(
            f"SELECT state, before_digest FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = %s "
            f"AND micro_batch = %s AND ordinal = %s AND commit_ts = %s{same}",
            (self._changefeed, *place, commit_ts, *([] if digest is None else [digest])),
        )
        return (str(rows[0][0]), str(rows[0][1])) if rows else None

    def note_schema_change(
        self,
        session: Session,
        micro_batch: int,
        ordinal: int,
        commit_ts: int,
        state: str,
        digests: tuple[str, str],
        statement: str,
    ) -> None:
        """Note that a schema change is begun or done."""
        moment("note ddl")
        session.ask(
            f"REPLACE INTO {self.name(SCHEMA_CHANGES)} (changefeed, micro_batch, ordinal, "
            "commit_ts, digest, state, before_digest, statement) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                self._changefeed,
                micro_batch,
                ordinal,
                commit_ts,
                digests[0],
                state,
                digests[1],
                statement,
            ),
        )


def _literal(words: str) -> str:
    """Return a text as SQL writes it, whatever a session takes backslashes for."""
    plain = words.replace("'", "''")
    return f"'{plain}'" if "\\" not in plain else f"x'{words.encode().hex()}'"
