"""The PostgreSQL sink: claims the downstream, hands rows to workers, makes schema changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from rowferry.change.plan import Again, Output, Plan, Stretch, TableSlice
from rowferry.change.quarantine import RefusedRows
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SinkUnwritable
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.postgresql.definitions import Making, create_statements
from rowferry.flow.sink.postgresql.keyless import KeylessLanes
from rowferry.flow.sink.postgresql.ledger import CopyLedger
from rowferry.flow.sink.postgresql.options import PostgresqlOptions, read_settings
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal
from rowferry.flow.sink.postgresql.schema_changes import TranslatedChanges
from rowferry.flow.sink.postgresql.session import PostgresqlSession, PostgresqlSessions, connect
from rowferry.flow.sink.postgresql.target_tables import check, require_there
from rowferry.flow.sink.postgresql.transactions import MergeTransactions
from rowferry.flow.sink.postgresql.windows import CopyWindows
from rowferry.flow.sink.sql.sink import KEPT, SqlSink, lanes_of
from rowferry.flow.sink.sql.windows import is_sole_key
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri_form import UriForm, UriPart


class PostgresqlSink(SqlSink[PostgresqlSession]):
    """Writes rows into tables of the same names (or routed ones) of a PostgreSQL database.

    The schema of a table is called like the source's database. Rows are visible as soon as they
    are written; a replay writes them again, with the same result. Rows of tables without a key are
    written once.
    """

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        movable=True,
        kind="postgresql",
        section="sink.postgresql-config",
        protocol="none",
        default_protocol="copy-rows",
        writes_tables=True,
        names_refused_rows=True,
        keeps_redo=True,
        form=UriForm(
            "PostgreSQL",
            address=UriPart("Host and port", "db.example:5432"),
            path=UriPart("Database", "shop"),
        ),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (PostgresqlOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        self._settings = settings = read_settings(spec)
        super().__init__(settings.replaced_ddl)
        self.refused = RefusedRows()
        self._ledger: CopyLedger = CopyLedger(settings.options.meta_schema, spec.changefeed_id)
        self._sessions: PostgresqlSessions = PostgresqlSessions(settings.login, self.counts)
        self._making = Making(settings.options.json_type, settings.zero_is_null)
        self._changes = TranslatedChanges(settings, self._ledger, self._making)

    def session_of_its_own(self) -> PostgresqlSession:
        """Open a connection that no pool keeps."""
        return connect(self._settings.login)

    def probe(self, owner: Owner) -> None:
        """Ask whether the downstream can be written.

        Raises:
            SinkUnwritable: it is a standby, refuses the login, or allows no temporary tables.
            SinkUnavailable: it does not answer.
        """
        moment("probe downstream (PostgreSQL)")
        session = connect(self._settings.login)
        try:
            standby, temporary = session.ask(
                "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')"
                "::boolean, has_database_privilege(current_database(), 'TEMP')"
            )[0]
        except PostgresqlRefusal as err:
            raise err.as_error("asking what it can do") from err
        finally:
            session.close()
        if standby:
            raise SinkUnwritable(
                f"{self._settings.login} is read-only; make it writable, or name the primary "
                "server in the sink URI"
            )
        if not temporary:
            raise SinkUnwritable(
                f"{self._settings.login} may not make temporary tables, through which rows go; "
                f"run GRANT TEMPORARY ON DATABASE … TO {self._settings.login.user}"
            )

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Compare the captured tables with those downstream.

        Raises:
            TargetUnfit: one is missing, or rows do not fit into it.
            SinkUnwritable: a privilege is missing.
        """
        moment("check downstream tables (PostgreSQL)")
        session = connect(self._settings.login)
        try:
            check(session, tables, self._settings.options.create_tables)
        finally:
            session.close()

    def advice(self, tables: Sequence[TableSchema]) -> list[str]:
        """Say which tables lack something here."""
        keyless = sorted(str(t.written_as) for t in tables if not t.handle_key)
        virtual = sorted(
            f"{t.written_as}.{c.name}" for t in tables for c in t.columns if c not in t.visible
        )
        lines = []
        if keyless:
            lines.append(
                f"{', '.join(keyless)}: without a key, so that each change of a row reads the "
                "whole table, and a snapshot that is interrupted may write rows twice; add a key"
            )
        if virtual:
            lines.append(
                f"{', '.join(virtual)}: virtual generated columns are not in the log, and not "
                "here; make generated columns of PostgreSQL in their place if they are needed"
            )
        return lines

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give each slice its lanes; table versions that are met first are judged.

        Raises:
            TargetLost: a table is missing that was there.
            TargetUnfit: a table is missing downstream, or rows do not fit into it.
        """
        self._forget_notes()
        self._look()
        self._judge(stretch, tables.values())
        outputs = tuple(
            Output(
                segment.ordinal,
                place,
                lanes_of(
                    tables[one], _is_divided(tables[one]), segment.again is Again.SAME
                ).to_json(),
            )
            for segment in stretch.segments
            for place, one in enumerate(segment.slices)
        )
        written = {table.written_as for table in tables.values()}
        return outputs, self._delivered.foresee(written, stretch.schema_changes)

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Apply packets; on return all of them are durable."""
        first = next(packets, None)
        if first is None:
            return
        with self._sessions.one() as session:
            try:
                since = self._ledger.published(session)
            except PostgresqlRefusal as err:
                raise err.as_error("what is published") from err
        transactions = MergeTransactions(self._ledger, self._sessions, self.refused, since)
        rows = self._settings.options.max_txn_row
        keyless = KeylessLanes(self._ledger, self._sessions, transactions, rows)
        windows = CopyWindows(transactions, keyless, rows, self._settings.options.worker_count)
        try:
            windows.deliver(chain((first,), packets))
        finally:
            self._sessions.close(keep=KEPT)

    # --- pieces -----------------------------------------------------------------------------------

    def _require_there(self, session: PostgresqlSession, known: Collection[TableId]) -> None:
        require_there(session, known)

    def forget_above(self, session: PostgresqlSession, micro_batch: int, changes: int) -> None:
        """Forget lanes above a micro-batch, and schema changes above another; commit."""
        lanes = self._ledger.forget_delivered(above=micro_batch)
        begun = self._ledger.forget_begun(micro_batch + 1)
        session.run(lanes, begun, self._ledger.forget_changes(changes), "COMMIT")

    def _forget_plan(self, plan: Plan) -> None:
        moment("forget plan downstream (PostgreSQL)")
        notes = [self._ledger.forget_delivered()]
        if plan.stretch.schema_changes:
            notes.append(self._ledger.forget_begun(plan.micro_batch))
        try:
            # Whoever was replaced must not take the notes of the one who writes now.
            with self._sessions.one() as session:
                self._ledger.begin(session, self._owner.epoch)
                session.run(*notes, "COMMIT")
        except PostgresqlRefusal as err:
            raise err.as_error("forgetting a discarded plan") from err

    def note_reached(self, session: PostgresqlSession, plan: Plan) -> None:
        """Note what is reached, forget how far lanes were before this micro-batch, and commit.

        What they noted of this one stays: it comes again if the process ends before the meta
        database has it.
        """
        done = [self._ledger.reached(plan.micro_batch, plan.stretch.watermark)]
        if plan.stretch.segments:
            done.append(self._ledger.forget_delivered(below=plan.micro_batch))
        session.run(*done, "COMMIT")

    def _fit(
        self,
        session: PostgresqlSession,
        fresh: Sequence[TableSchema],
        known: Collection[TableId],
    ) -> None:
        missing = check(session, fresh, self._settings.options.create_tables, known)
        self._make(session, fresh, missing)

    def _make(
        self,
        session: PostgresqlSession,
        fresh: Sequence[TableSchema],
        missing: Sequence[TableSchema],
    ) -> None:
        """Make missing tables, and note which definition each table follows."""
        for table in fresh:
            moment("create downstream table (PostgreSQL)")
            made = create_statements(table, self._making) if table in missing else []
            try:
                self._ledger.begin(session, self._owner.epoch)
                session.run(*made, self._ledger.note_definition(table), "COMMIT")
            except PostgresqlRefusal as err:
                session.rollback()
                raise err.as_error(f"making table {table.written_as}") from err


def _is_divided(table: TableSchema) -> bool:
    """Return whether rows of different keys cannot stand in each other's way."""
    return bool(table.handle_key) and is_sole_key(table)
