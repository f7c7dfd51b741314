"""The PostgreSQL sink: claims the downstream, hands rows to workers, makes schema changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from rowferry.change.event_counts import EventCounts
from rowferry.change.plan import Again, Output, Plan, Receipt, Stretch, TableSlice, Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SinkUnwritable
from rowferry.flow.dispatch.by_neighbours import ByNeighbours
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.defaults import LaneDefaults
from rowferry.flow.sink.delivered_tables import DeliveredTables
from rowferry.flow.sink.postgresql.definitions import Making, create_statements
from rowferry.flow.sink.postgresql.effects import is_sole_key
from rowferry.flow.sink.postgresql.keyless import KeylessLanes
from rowferry.flow.sink.postgresql.ledger import CopyLedger
from rowferry.flow.sink.postgresql.options import PostgresqlOptions, read_settings
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal
from rowferry.flow.sink.postgresql.schema_changes import TranslatedChanges
from rowferry.flow.sink.postgresql.session import PostgresqlSession, PostgresqlSessions, connect
from rowferry.flow.sink.postgresql.target_tables import check, require_there
from rowferry.flow.sink.postgresql.transactions import MergeTransactions
from rowferry.flow.sink.postgresql.windows import CopyWindows
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri_form import UriForm, UriPart

LOG = logging.getLogger(__name__)
_SEGMENT_BYTES: Final = 16 << 20
_LANES: Final = 16  # of a table whose keys can be divided
_KEPT: Final = 2  # connections of a process between tasks: a server has few in all


class PostgresqlSink(LaneDefaults):
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
        form=UriForm(
            "PostgreSQL",
            address=UriPart("Host and port", "db.example:5432"),
            path=UriPart("Database", "shop"),
        ),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (PostgresqlOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        self._settings = settings = read_settings(spec)
        self._ledger = CopyLedger(settings.options.meta_schema, spec.changefeed_id)
        self.counts = EventCounts()
        self._sessions = PostgresqlSessions(settings.login, self.counts)
        self._making = Making(settings.options.json_type, settings.zero_is_null)
        self._changes = TranslatedChanges(settings, self._ledger, self._making)
        self._delivered = DeliveredTables(settings.replaced_ddl)
        self._epoch = 0
        self._published = 0
        self._looked = False  # whether all that was delivered to was seen in this run
        self._judged: set[tuple[TableId, int, int]] = set()

    @property
    def dispatch(self) -> ByNeighbours:
        """All changes of a key go to one lane."""
        return ByNeighbours()

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

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Raise the fence: on return no transaction of an older epoch can end any more.

        Raises:
            Fenced: somebody with a higher epoch was here.
            SinkUnwritable: our own tables cannot be made or written.
            TargetLost: it lacks what this changefeed has noted there.
            TargetWentBack: it was restored, or is another server, and lacks what was delivered.
        """
        moment("open downstream (PostgreSQL)")
        session = connect(self._settings.login)
        try:
            self._ledger.claim(session, owner)
        finally:
            session.close()
        self._epoch, self._published = owner.epoch, owner.micro_batch
        self._delivered.resume(owner, state)
        self._looked, self._judged = False, set()

    def segment_bytes(self, table: TableId) -> int:
        """Return the size at which reading is fastest."""
        return _SEGMENT_BYTES

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give each slice its lanes; table versions that are met first are judged.

        Raises:
            TargetLost: a table is missing that was there.
            TargetUnfit: a table is missing downstream, or rows do not fit into it.
        """
        self._look()
        self._judge(tables.values())
        outputs = tuple(
            Output(
                segment.ordinal,
                place,
                _lanes_of(tables[one], segment.again is Again.SAME).to_json(),
            )
            for segment in stretch.segments
            for place, one in enumerate(segment.slices)
        )
        written = {table.written_as for table in tables.values()}
        return outputs, self._delivered.foresee(written, stretch.schema_changes)

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Apply packets; on return all of them are durable."""
        transactions = MergeTransactions(self._ledger, self._sessions)
        rows = self._settings.options.max_txn_row
        keyless = KeylessLanes(self._ledger, self._sessions, transactions, rows)
        windows = CopyWindows(transactions, keyless, rows, self._settings.options.worker_count)
        try:
            windows.deliver(packets)
        finally:
            self._sessions.close(keep=_KEPT)

    def has_rows_of(self, plan: Plan) -> bool:
        """Return whether the plan's schema changes were begun, before which all rows are there."""
        if not plan.stretch.schema_changes:
            return False
        with self._sessions.one() as session:
            try:
                return self._changes.are_begun(session, plan)
            except PostgresqlRefusal as err:
                raise err.as_error("looking for schema changes that were made") from err

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Make the schema changes in order, then note what is reached."""
        there = {*self._delivered.known, *(table.written_as for table in tables.values())}
        self._changes.run(plan, self._epoch, there)
        with self._sessions.one() as session:
            try:
                moment("publish progress downstream (PostgreSQL)")
                self._ledger.begin(session, self._epoch)
                done = [self._ledger.reached(plan.micro_batch, plan.stretch.watermark)]
                if plan.stretch.segments:
                    done.append(self._ledger.forget_delivered())
                session.run(*done, "COMMIT")
                moment("progress published downstream (PostgreSQL)")
            except PostgresqlRefusal as err:
                session.rollback()
                raise err.as_error("noting what is reached") from err
        self._delivered.publish(plan.sink_state)
        self._published = plan.micro_batch

    def discard(self, plan: Plan) -> bool:
        """Nothing can be taken back; the rows that were written will be written again."""
        moment("forget plan downstream (PostgreSQL)")
        try:
            with self._sessions.one() as session:
                session.run(self._ledger.forget_delivered())
        except PostgresqlRefusal as err:
            raise err.as_error("forgetting a discarded plan") from err
        return True

    def close(self) -> None:
        """Let connections go."""
        self._sessions.close()

    # --- pieces -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look once in a run whether all tables are there to which something was delivered."""
        if self._looked or not self._delivered.known:
            return
        with self._sessions.one() as session:
            try:
                # A plan that was given up may have dropped some; its changes come again.
                if not self._ledger.has_changes_after(session, self._published):
                    require_there(session, self._delivered.known)
                    self._looked = True
            except PostgresqlRefusal as err:
                raise err.as_error("the downstream's tables") from err

    def _judge(self, tables: Iterable[TableSchema]) -> None:
        # A table's partitions come as slices of their own.
        fresh = list({_version(t): t for t in tables if _version(t) not in self._judged}.values())
        if not fresh:
            return
        moment("judge downstream tables (PostgreSQL)")
        session = connect(self._settings.login)
        try:
            known = self._delivered.known if self._looked else ()
            missing = check(session, fresh, self._settings.options.create_tables, known)
            self._make(session, fresh, missing)
        finally:
            session.close()
        self._judged |= {_version(t) for t in fresh}
        for line in self.advice(fresh):
            LOG.warning("%s", line)

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
                self._ledger.begin(session, self._epoch)
                session.run(*made, self._ledger.note_definition(table), "COMMIT")
            except PostgresqlRefusal as err:
                session.rollback()
                raise err.as_error(f"making table {table.written_as}") from err


def _lanes_of(table: TableSchema, exact: bool) -> Topic:
    """Return a topic: rows that may stand in each other's way are in one of its partitions."""
    divided = bool(table.handle_key) and is_sole_key(table)
    return Topic(str(table.written_as), _LANES if divided else 1, 1 << 30, exact)


def _version(table: TableSchema) -> tuple[TableId, int, int]:
    return table.written_as, table.table_id, table.version
