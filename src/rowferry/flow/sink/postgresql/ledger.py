"""The sink's own tables downstream: the fence, how far keyless tables are, definitions, DDLs."""

from __future__ import annotations

import json
from typing import Any, Final

from rowferry.change.own_tables import DELIVERED, FENCE, SCHEMA_CHANGES
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.postgresql.names import literal, quoted
from rowferry.flow.sink.postgresql.session import PostgresqlSession
from rowferry.flow.sink.sql.ledger import LaneNote, SqlLedger
from rowferry.moment import moment

DEFINITIONS: Final = "rowferry_tables"
_BEGUN: Final = -1  # instead of a schema change's ordinal: those of the micro-batch are begun
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


class CopyLedger(SqlLedger[PostgresqlSession]):
    """What a changefeed writes down in a PostgreSQL database, and how."""

    def __init__(self, schema: str, changefeed: str) -> None:
        super().__init__(schema, changefeed, literal(changefeed))

    def name(self, table: str) -> str:
        """Return one of the tables as SQL writes it."""
        return f"{quoted(self._space)}.{table}"

    def raise_fence(self, session: PostgresqlSession, epoch: int) -> list[tuple[Any, ...]]:
        """Let nobody of an older epoch write; return what the fence says."""
        # It waits for transactions that have read the row.
        return session.ask(
            f"INSERT INTO {self.name(FENCE)} AS f VALUES ({self._feed}, {epoch}, 0, 0) "
            "ON CONFLICT (changefeed) DO UPDATE SET epoch = GREATEST(f.epoch, EXCLUDED.epoch) "
            "RETURNING epoch, commit_ts, micro_batch"
        )

    def _make(self, session: PostgresqlSession, owner: Owner) -> None:
        moment("look for ledger (PostgreSQL)")
        there = session.ask(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s",
            (self._space,),
        )
        missing = sorted(_TABLES.keys() - {str(row[0]) for row in there})
        if not missing:
            return
        self._refuse_gone(session, owner, missing)
        known = session.ask("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._space,))
        # Two that make the same at once would meet in the catalog, whatever IF NOT EXISTS says.
        session.run("BEGIN", "SELECT pg_advisory_xact_lock(7309741)")
        if not known:
            session.run(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._space)}")
        for table in missing:
            session.run(f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({_TABLES[table]})")
        session.run("COMMIT")

    # --- the fence --------------------------------------------------------------------------------

    def begin(
        self, session: PostgresqlSession, epoch: int, *, since: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Begin a transaction that ends before anybody else can claim the changefeed.

        Returns what the fence says, as `raise_fence` does. `since` is the micro-batch that was
        `published` when the task began; None: it may be another one now.

        Raises:
            Fenced: somebody has claimed it.
            PostgresqlRefusal: as `PostgresqlSession.run`.
            SinkUnavailable: another micro-batch was published meanwhile, and as
                `PostgresqlSession.run`.
        """
        moment("begin downstream (PostgreSQL)")
        rows = session.begin(
            f"SELECT epoch, commit_ts, micro_batch FROM {self.name(FENCE)} "
            f"WHERE changefeed = {self._feed} FOR SHARE"
        )
        self.judge_fence(session, rows, epoch, since)
        return rows

    def reached(self, micro_batch: int, commit_ts: int | None) -> str:
        """Return the statement that notes what is published."""
        return self._reached(micro_batch, commit_ts)

    # --- lanes of keyless tables ------------------------------------------------------------------

    def note_delivered(self, note: LaneNote) -> str:
        """Return the statement that notes how far a lane has come.

        It changes no row where the lane was moved by somebody else.
        """
        lane, place, since = literal(note.lane), note.place, note.since
        values = f"{place.micro_batch}, {place.segment}, {place.packet}, {place.rows}"
        if since is None:
            return (
                f"INSERT INTO {self.name(DELIVERED)} VALUES ({self._feed}, {lane}, {values}) "
                "ON CONFLICT (changefeed, lane) DO NOTHING"
            )
        return (
            f"UPDATE {self.name(DELIVERED)} SET (micro_batch, segment, packet, packet_rows) = "
            f"({values}) WHERE changefeed = {self._feed} AND lane = {lane} AND (micro_batch, "
            f"segment, packet, packet_rows) = ({since.micro_batch}, {since.segment}, "
            f"{since.packet}, {since.rows})"
        )

    def forget_delivered(self, below: int | None = None, above: int | None = None) -> str:
        """Return the statement that removes what lanes noted, of some micro-batches or of all."""
        return self._forget_delivered(below, above)

    def forget_changes(self, above: int) -> str:
        """Return the statement that removes the notes of schema changes behind a micro-batch."""
        return self._forget_changes(above)

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

    def defined_of(self, session: PostgresqlSession, database: str) -> list[TableId]:
        """Return the tables that follow one of a source's database, in whatever schema."""
        moment("list noted definitions (PostgreSQL)")
        rows = session.ask(
            f"SELECT table_schema, table_name FROM {self.name(DEFINITIONS)} WHERE changefeed = %s "
            "AND definition->>'database' = %s ORDER BY 1, 2",
            (self._changefeed, database),
        )
        return [TableId(str(schema), str(name)) for schema, name in rows]

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

    def are_begun(self, session: PostgresqlSession, micro_batch: int, commit_ts: int) -> bool:
        """Return whether those of a micro-batch were begun, the first of which has a commit-ts."""
        # Earlier versions have noted only what was made.
        return any(
            self.is_made(session, micro_batch, ordinal, commit_ts) for ordinal in (_BEGUN, 0)
        )

    def is_made(
        self, session: PostgresqlSession, micro_batch: int, ordinal: int, commit_ts: int
    ) -> bool:
        """Return whether a schema change of a micro-batch was made, and has this commit-ts."""
        moment("look for made ddl (PostgreSQL)")
        rows = session.ask(
            f"SELECT commit_ts FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = %s AND "
            "micro_batch = %s AND ordinal = %s",
            (self._changefeed, micro_batch, ordinal),
        )
        return bool(rows) and int(rows[0][0]) == commit_ts

    def note_begun(self, micro_batch: int, commit_ts: int) -> str:
        """Return the statement that notes that all rows before schema changes are there."""
        return self.note_schema_change(micro_batch, _BEGUN, commit_ts, "")

    def forget_begun(self, micro_batch: int) -> str:
        """Return the statement that removes what `note_begun` has noted."""
        return (
            f"DELETE FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = {self._feed} AND "
            f"micro_batch = {micro_batch} AND ordinal = {_BEGUN}"
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
