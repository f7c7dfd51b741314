"""The sink's own tables downstream: the fence, how far keyless tables are, definitions, DDLs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import Fenced, RowferryError, TargetLost, TargetWentBack
from rowferry.flow.sink.contract import RESTORE, Owner
from rowferry.flow.sink.postgresql.names import literal, quoted
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal
from rowferry.flow.sink.postgresql.session import PostgresqlSession
from rowferry.moment import moment

FENCE: Final = "rowferry_fence"
DELIVERED: Final = "rowferry_delivered"
DEFINITIONS: Final = "rowferry_tables"
SCHEMA_CHANGES: Final = "rowferry_schema_changes"
_TABLES: Final = {
    FENCE: "changefeed text PRIMARY KEY, epoch bigint NOT NULL, micro_batch bigint NOT NULL, "
    "commit_ts bigint NOT NULL",
    DELIVERED: "changefeed text, lane text, micro_batch bigint NOT NULL, segment bigint NOT NULL, "
    "packet bigint NOT NULL, packet_rows bigint NOT NULL, PRIMARY KEY (changefeed, lane)",
    DEFINITIONS: "changefeed text, table_schema text, table_name text, definition json NOT NULL, "
    "PRIMARY KEY (changefeed, table_schema, table_name)",
    SCHEMA_CHANGES: "changefeed text, micro_batch bigint, ordinal integer, commit_ts bigint NOT "
    "NULL, statement text NOT NULL, PRIMARY KEY (changefeed, micro_batch, ordinal)",
}


@dataclass(frozen=True, slots=True)
class CopiedPlace:
    """How far a lane has come inside a micro-batch."""

    micro_batch: int
    segment: int
    packet: int
    rows: int  # of the packet


class CopyLedger:
    """What a changefeed writes down in the downstream, and how."""

    def __init__(self, schema: str, changefeed: str) -> None:
        self._schema, self._changefeed = schema, changefeed
        self._feed = literal(changefeed)

    def name(self, table: str) -> str:
        """Return one of the tables as SQL writes it."""
        return f"{quoted(self._schema)}.{table}"

    def claim(self, session: PostgresqlSession, owner: Owner) -> None:
        """Make the tables where they are missing, and let nobody of an older epoch write any more.

        Raises:
            Fenced: somebody with a higher epoch has claimed it.
            SinkUnwritable: a privilege is missing.
            TargetLost: a table, or the changefeed's row, was there and is gone.
            TargetWentBack: what is noted is less than what was delivered.
        """
        moment("claim downstream (PostgreSQL)")
        try:
            self._make(session, owner)
            # It waits for transactions that have read the row; no epoch goes down.
            rows = session.ask(
                f"INSERT INTO {self.name(FENCE)} AS f VALUES ({self._feed}, {owner.epoch}, 0, 0) "
                "ON CONFLICT (changefeed) DO UPDATE SET epoch = GREATEST(f.epoch, EXCLUDED.epoch) "
                "RETURNING epoch, commit_ts, micro_batch"
            )
        except PostgresqlRefusal as err:
            raise err.as_error(f"the sink's own tables in schema {self._schema}") from err
        self.check(rows, owner.epoch)
        self._check_reached(session, owner, int(rows[0][1]), int(rows[0][2]))

    def _check_reached(
        self, session: PostgresqlSession, owner: Owner, reached: int, number: int
    ) -> None:
        """Refuse a downstream that has noted less than it has confirmed."""
        if not owner.continues or (reached >= owner.delivered and number >= owner.micro_batch):
            return
        until = f"up to commit-ts {owner.delivered} and micro-batch {owner.micro_batch}"
        if not reached and not number:
            raise TargetLost(
                f"{session.place}: {self._schema}.{FENCE} knows nothing of changefeed "
                f"{self._changefeed!r}, which has delivered {until}: it was emptied, or another "
                f"server took its place; {RESTORE}"
            )
        raise TargetWentBack(
            f"{session.place} has the changes of changefeed {self._changefeed!r} up to commit-ts "
            f"{reached} and micro-batch {number} only, but they were delivered {until}: it was "
            "restored, or another server took its place"
        )

    def _make(self, session: PostgresqlSession, owner: Owner) -> None:
        moment("look for ledger (PostgreSQL)")
        there = session.ask(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s",
            (self._schema,),
        )
        missing = sorted(_TABLES.keys() - {str(row[0]) for row in there})
        if not missing:
            return
        if owner.continues:
            raise TargetLost(
                f"{session.place}: {self._schema}.{missing[0]}, in which changefeed "
                f"{self._changefeed!r} notes what it has delivered, is gone; {RESTORE}"
            )
        known = session.ask("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,))
        # Two that make the same at once would meet in the catalog, whatever IF NOT EXISTS says.
        session.run("BEGIN", "SELECT pg_advisory_xact_lock(7309741)")
        if not known:
            session.run(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")
        for table in missing:
            session.run(f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({_TABLES[table]})")
        session.run("COMMIT")

    # --- the fence --------------------------------------------------------------------------------

    def begin(self, session: PostgresqlSession, epoch: int) -> None:
        """Begin a transaction that ends before anybody else can claim the changefeed.

        Raises:
            Fenced: somebody has claimed it.
            PostgresqlRefusal, SinkUnavailable: as `PostgresqlSession.run`.
        """
        moment("begin downstream (PostgreSQL)")
        rows = session.begin(
            f"SELECT epoch FROM {self.name(FENCE)} WHERE changefeed = {self._feed} FOR SHARE"
        )
        try:
            self.check(rows, epoch)
        except RowferryError:
            session.rollback()
            raise

    def check(self, rows: list[tuple[Any, ...]], epoch: int) -> None:
        """Raise Fenced unless the fence's row has our epoch, TargetLost where there is none."""
        if not rows:
            raise TargetLost(
                f"the row of changefeed {self._changefeed!r} in {self._schema}.{FENCE} is gone; "
                f"{RESTORE}"
            )
        held = int(rows[0][0])
        if held != epoch:
            raise Fenced(
                f"changefeed {self._changefeed!r} belongs to epoch {held} in "
                f"{self._schema}.{FENCE}, not to our epoch {epoch}; remove its row there only if "
                "no other process runs it"
            )

    def reached(self, micro_batch: int, commit_ts: int | None) -> str:
        """Return the statement that notes what is published."""
        mark = "" if commit_ts is None else f", commit_ts = GREATEST(commit_ts, {commit_ts})"
        return (
            f"UPDATE {self.name(FENCE)} SET micro_batch = {micro_batch}{mark} "
            f"WHERE changefeed = {self._feed}"
        )

    # --- lanes of keyless tables ------------------------------------------------------------------

    def delivered(self, session: PostgresqlSession, micro_batch: int) -> dict[str, CopiedPlace]:
        """Return how far each lane has come in a micro-batch."""
        moment("read what lanes delivered (PostgreSQL)")
        lanes = session.ask(
            f"SELECT lane, segment, packet, packet_rows FROM {self.name(DELIVERED)} "
            "WHERE changefeed = %s AND micro_batch = %s",
            (self._changefeed, micro_batch),
        )
        return {
            str(lane): CopiedPlace(micro_batch, int(segment), int(packet), int(rows))
            for lane, segment, packet, rows in lanes
        }

    def note_delivered(self, lane: str, place: CopiedPlace) -> str:
        """Return the statement that notes how far a lane has come."""
        values = f"{place.micro_batch}, {place.segment}, {place.packet}, {place.rows}"
        return (
            f"INSERT INTO {self.name(DELIVERED)} VALUES ({self._feed}, {literal(lane)}, {values}) "
            "ON CONFLICT (changefeed, lane) DO UPDATE SET micro_batch = EXCLUDED.micro_batch, "
            "segment = EXCLUDED.segment, packet = EXCLUDED.packet, "
            "packet_rows = EXCLUDED.packet_rows"
        )

    def forget_delivered(self) -> str:
        """Return the statement that removes what a published or discarded micro-batch noted."""
        return f"DELETE FROM {self.name(DELIVERED)} WHERE changefeed = {self._feed}"

    # --- definitions ------------------------------------------------------------------------------

    def definition(self, session: PostgresqlSession, table: TableId) -> TableSchema | None:
        """Return the source's definition that a table downstream follows; None: not noted."""
        moment("read noted definition (PostgreSQL)")
        rows = session.ask(
            f"SELECT definition::text FROM {self.name(DEFINITIONS)} WHERE changefeed = %s AND "
            "table_schema = %s AND table_name = %s",
            (self._changefeed, *table),
        )
        return TableSchema.from_json(json.loads(rows[0][0])) if rows else None

    def defined_in(self, session: PostgresqlSession, database: str) -> list[TableId]:
        """Return the tables of a schema that the changefeed has written."""
        moment("list noted definitions (PostgreSQL)")
        rows = session.ask(
            f"SELECT table_name FROM {self.name(DEFINITIONS)} WHERE changefeed = %s AND "
            "table_schema = %s ORDER BY 1",
            (self._changefeed, database),
        )
        return [TableId(database, str(row[0])) for row in rows]

    def note_definition(self, table: TableSchema) -> str:
        """Return the statement that notes which definition a table downstream follows."""
        form = json.dumps(table.to_json(), separators=(",", ":"))
        database, name = map(literal, table.written_as)
        return (
            f"INSERT INTO {self.name(DEFINITIONS)} VALUES ({self._feed}, {database}, {name}, "
            f"{literal(form)}) ON CONFLICT (changefeed, table_schema, table_name) DO UPDATE SET "
            "definition = EXCLUDED.definition"
        )

    def forget_definition(self, table: TableId) -> str:
        """Return the statement that removes the note of a table that is gone."""
        return (
            f"DELETE FROM {self.name(DEFINITIONS)} WHERE changefeed = {self._feed} AND "
            f"table_schema = {literal(table.database)} AND table_name = {literal(table.table)}"
        )

    # --- schema changes ---------------------------------------------------------------------------

    def is_made(
        self,
        session: PostgresqlSession,
        micro_batch: int,
        ordinal: int,
        commit_ts: int | None = None,
    ) -> bool:
        """Return whether a schema change of a micro-batch was made, and has this commit-ts."""
        moment("look for made ddl (PostgreSQL)")
        rows = session.ask(
            f"SELECT commit_ts FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = %s AND "
            "micro_batch = %s AND ordinal = %s",
            (self._changefeed, micro_batch, ordinal),
        )
        return bool(rows) and (commit_ts is None or int(rows[0][0]) == commit_ts)

    def has_changes_after(self, session: PostgresqlSession, micro_batch: int) -> bool:
        """Return whether schema changes were made of a micro-batch that comes after this one."""
        moment("look for notes of ddl (PostgreSQL)")
        return bool(
            session.ask(
                f"SELECT 1 FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = %s AND "
                "micro_batch > %s LIMIT 1",
                (self._changefeed, micro_batch),
            )
        )

    def note_schema_change(
        self, micro_batch: int, ordinal: int, commit_ts: int, statement: str
    ) -> str:
        """Return the statement that notes that a schema change is made."""
        return (
            f"INSERT INTO {self.name(SCHEMA_CHANGES)} VALUES ({self._feed}, {micro_batch}, "
            f"{ordinal}, {commit_ts}, {literal(statement)}) ON CONFLICT (changefeed, micro_batch, "
            "ordinal) DO UPDATE SET commit_ts = EXCLUDED.commit_ts, statement = EXCLUDED.statement"
        )
