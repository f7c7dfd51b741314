"""The sink's own tables downstream: the fence, how far lanes have come, which DDLs were run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rowferry.errors import Fenced, RowferryError, TargetLost, TargetWentBack
from rowferry.flow.encode.sql_rows.frame import quoted
from rowferry.flow.sink.contract import RESTORE, Owner
from rowferry.flow.sink.mysql.session import Session, StatementRefused
from rowferry.moment import moment
from rowferry.mysql.feed_mark import MARK_TABLE

FENCE: Final = "rowferry_fence"
DELIVERED: Final = "rowferry_delivered"
SCHEMA_CHANGES: Final = "rowferry_schema_changes"
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
    "state VARCHAR(16) NOT NULL, before_digest CHAR(64) NOT NULL, statement LONGTEXT NOT NULL, "
    "PRIMARY KEY (changefeed, micro_batch, ordinal)",
}


_MARKS: Final = "slot INT NOT NULL PRIMARY KEY, transactions BIGINT UNSIGNED NOT NULL"
_MARK_SLOTS: Final = 1024  # so that transactions side by side seldom meet


@dataclass(frozen=True, slots=True)
class LanePlace:
    """How far a lane has come inside a micro-batch."""

    micro_batch: int
    segment: int
    packet: int
    rows: int  # of the packet


class Ledger:
    """What a changefeed writes down in the downstream, and how."""

    def __init__(self, database: str, changefeed: str, marks: bool = False) -> None:
        """Name the tables; with `marks`, every transaction says that a changefeed wrote it."""
        self._database, self._changefeed = database, changefeed
        self._tables = {**_TABLES, MARK_TABLE: _MARKS} if marks else _TABLES
        self._marks = marks
        self._feed = _literal(changefeed)

    def name(self, table: str) -> str:
        """Return one of the tables as SQL writes it."""
        return f"{quoted(self._database)}.{table}"

    def claim(self, session: Session, owner: Owner) -> None:
        """Make the tables where they are missing, and let nobody of an older epoch write any more.

        Raises:
            Fenced: somebody with a higher epoch has claimed it.
            SinkUnwritable: a privilege is missing.
            TargetLost: a table, or the changefeed's row, was there and is gone.
            TargetWentBack: what is noted is less than what was delivered.
        """
        epoch = owner.epoch
        moment("claim downstream")
        try:
            self._make(session, owner)
            slots = range(session.facts.fence_slots)
            rows = ",".join(f"({self._feed},{slot},{epoch},0,0)" for slot in slots)
            # No row is made or changed where one of a higher epoch is there.
            session.run(
                f"INSERT INTO {self.name(FENCE)} VALUES {rows} ON DUPLICATE KEY UPDATE "
                f"epoch = GREATEST(epoch, VALUES(epoch))".encode()
            )
            fence_rows = session.ask(
                "SELECT MAX(epoch), MAX(commit_ts), MAX(micro_batch) "
                f"FROM {self.name(FENCE)} WHERE changefeed = %s",
                (self._changefeed,),
            )
        except StatementRefused as err:
            about = f"the sink's own tables in {self._database}"
            raise err.as_error(about) from err
        self.check(fence_rows, epoch)
        self._check_reached(session, owner, int(fence_rows[0][1]), int(fence_rows[0][2]))

    def _check_reached(self, session: Session, owner: Owner, reached: int, number: int) -> None:
        """Refuse a downstream that has noted less than it has confirmed."""
        if not owner.continues or (reached >= owner.delivered and number >= owner.micro_batch):
            return
        if not reached and not number:
            raise TargetLost(
                f"{session.place}: {self._database}.{FENCE} knows nothing of changefeed "
                f"{self._changefeed!r}, which has delivered {_until(owner)}: it was emptied, or "
                f"another server took its place; {RESTORE}"
            )
        raise TargetWentBack(
            f"{session.place} has the changes of changefeed {self._changefeed!r} up to commit-ts "
            f"{reached} and micro-batch {number} only, but they were delivered {_until(owner)}: it "
            "was restored, or another server took its place"
        )

    def _make(self, session: Session, owner: Owner) -> None:
        moment("look for ledger")
        there = session.ask(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s",
            (self._database,),
        )
        missing = self._tables.keys() - {str(row[0]).lower() for row in there}
        if not missing:
            return
        if owner.continues and (gone := sorted(missing & _TABLES.keys())):
            raise TargetLost(
                f"{session.place}: {self._database}.{gone[0]}, in which changefeed "
                f"{self._changefeed!r} notes what it has delivered, is gone; {RESTORE}"
            )
        known = session.ask(
            "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (self._database,)
        )
        if not known:
            session.run(f"CREATE DATABASE IF NOT EXISTS {quoted(self._database)}".encode())
        for table in sorted(missing):
            session.run(
                f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({self._tables[table]})".encode()
            )

    # --- the fence --------------------------------------------------------------------------------

    def begin(self, session: Session, epoch: int, slot: int = 0) -> None:
        """Begin a transaction that ends before anybody else can claim the changefeed.

        Raises:
            Fenced: somebody has claimed it.
            Refused, SinkUnavailable: as `Session.run`.
        """
        moment("begin downstream")
        facts = session.facts
        rows = session.begin(f"{self._fence(slot % facts.fence_slots)} {facts.lock}".encode())
        try:
            self.check(rows, epoch)
        except RowferryError:
            session.rollback()
            raise
        if self._marks:
            session.run(*self._mark())

    def within(
        self, session: Session, epoch: int, slot: int, texts: Sequence[bytes], joined: bool
    ) -> None:
        """Run statements in a transaction that begins as `begin` says; where `joined`, in one go.

        Raises:
            Fenced: somebody has claimed the changefeed; nothing was written.
            Refused: the server refuses one of them; nothing of it stays.
            SinkUnavailable: as `Session.run`.
        """
        moment("apply rows")
        try:
            if joined and session.facts.judges_fence:
                session.run(b"BEGIN", self._judgement(epoch), *self._mark(), *texts)
            else:
                self.begin(session, epoch, slot)
                session.run(*texts, joined=joined)
            moment("rows applied")
        except StatementRefused:
            session.rollback()
            # Whatever it was, the fence explains it better.
            self.check(session.ask(self._fence(0)), epoch)
            raise

    def _judgement(self, epoch: int) -> bytes:
        """Return a statement that reads the fence under a lock and fails where it is another's."""
        judged = f"IF(MAX(epoch) <=> {epoch}, {epoch}, EXP(1000 + (MAX(epoch) IS NULL)))"
        row = self._fence(0, judged)
        return f"SET @rowferry_epoch = ({row} LOCK IN SHARE MODE)".encode()

    def _fence(self, slot: int, wanted: str = "epoch") -> str:
        return (
            f"SELECT {wanted} FROM {self.name(FENCE)} WHERE changefeed = {self._feed} "
            f"AND slot = {slot}"
        )

    def _mark(self) -> tuple[bytes, ...]:
        """Return the statement that marks a transaction as a changefeed's, where that is asked."""
        if not self._marks:
            return ()
        return (
            f"INSERT INTO {self.name(MARK_TABLE)} VALUES (CONNECTION_ID() % {_MARK_SLOTS}, 1) "
            "ON DUPLICATE KEY UPDATE transactions = transactions + 1".encode(),
        )

    def check(self, rows: list[tuple[Any, ...]], epoch: int) -> None:
        """Raise Fenced unless the fence's row has our epoch, TargetLost where there is none."""
        if not rows or rows[0][0] is None:
            raise TargetLost(
                f"the row of changefeed {self._changefeed!r} in {self._database}.{FENCE} is gone; "
                f"{RESTORE}"
            )
        held = int(rows[0][0])
        if held != epoch:
            raise Fenced(
                f"changefeed {self._changefeed!r} belongs to epoch {held} in "
                f"{self._database}.{FENCE}, not to our epoch {epoch}; remove its rows there only "
                "if no other process runs it"
            )

    def reached(self, micro_batch: int, commit_ts: int | None, epoch: int) -> bytes:
        """Return the statement that notes what is published."""
        mark = "" if commit_ts is None else f", commit_ts = GREATEST(commit_ts, {commit_ts})"
        return (
            f"UPDATE {self.name(FENCE)} SET micro_batch = {micro_batch}{mark} "
            f"WHERE changefeed = {self._feed} AND epoch = {epoch}"
        ).encode()

    # --- lanes ------------------------------------------------------------------------------------

    def delivered(self, session: Session, micro_batch: int) -> dict[str, LanePlace]:
        """Return how far each lane has come in a micro-batch."""
        moment("read what lanes delivered")
        lanes = session.ask(
            f"SELECT lane, segment, packet, packet_rows FROM {self.name(DELIVERED)} "
            "WHERE changefeed = %s AND micro_batch = %s",
            (self._changefeed, micro_batch),
        )
        return {
            str(lane): LanePlace(micro_batch, int(segment), int(packet), int(rows))
            for lane, segment, packet, rows in lanes
        }

    def note_delivered(self, lane: str, place: LanePlace) -> bytes:
        """Return the statement that notes how far a lane has come."""
        values = f"{place.micro_batch}, {place.segment}, {place.packet}, {place.rows}"
        return (
            f"REPLACE INTO {self.name(DELIVERED)} VALUES ({self._feed}, {_literal(lane)}, {values})"
        ).encode()

    def forget_delivered(self) -> bytes:
        """Return the statement that removes what a published or discarded micro-batch noted."""
        return (f"DELETE FROM {self.name(DELIVERED)} WHERE changefeed = {self._feed}").encode()

    # --- schema changes ---------------------------------------------------------------------------

    def has_changes_after(self, session: Session, micro_batch: int) -> bool:
        """Return whether schema changes were begun of a micro-batch that comes after this one."""
        moment("look for notes of ddl")
        return bool(
            session.ask(
                f"SELECT 1 FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = %s AND "
                "micro_batch > %s LIMIT 1",
                (self._changefeed, micro_batch),
            )
        )

    def has_begun(self, session: Session, micro_batch: int, commit_ts: int, digest: str) -> bool:
        """Return whether the first schema change of a micro-batch was begun, and is this one."""
        moment("look for begun ddl")
        return bool(
            session.ask(
                f"SELECT 1 FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = %s AND "
                "micro_batch = %s AND ordinal = 0 AND commit_ts = %s AND digest = %s",
                (self._changefeed, micro_batch, commit_ts, digest),
            )
        )

    def schema_change(
        self, session: Session, micro_batch: int, ordinal: int
    ) -> tuple[str, str, str] | None:
        """Return digest, state and the digest of what was there before it; None: not begun."""
        moment("read note of ddl")
        rows = session.ask(
            f"SELECT digest, state, before_digest FROM {self.name(SCHEMA_CHANGES)} "
            "WHERE changefeed = %s AND micro_batch = %s AND ordinal = %s",
            (self._changefeed, micro_batch, ordinal),
        )
        return (str(rows[0][0]), str(rows[0][1]), str(rows[0][2])) if rows else None

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


def _until(owner: Owner) -> str:
    return f"up to commit-ts {owner.delivered} and micro-batch {owner.micro_batch}"


def _literal(words: str) -> str:
    """Return a text as SQL writes it, whatever a session takes backslashes for."""
    plain = words.replace("'", "''")
    return f"'{plain}'" if "\\" not in plain else f"x'{words.encode().hex()}'"
