"""The MySQL/TiDB sink: claims the downstream, hands rows to workers, runs schema changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from rowferry.change.plan import (
    Again,
    Output,
    Plan,
    Segment,
    Stretch,
    TableSlice,
    Topic,
)
from rowferry.change.quarantine import RefusedRows
from rowferry.change.table import TableId, TableSchema
from rowferry.columnar.row_keys import has_exact_key
from rowferry.errors import SinkUnwritable
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.mysql.apply import Windows
from rowferry.flow.sink.mysql.emulation import check_triggers
from rowferry.flow.sink.mysql.held_rows import held_rows
from rowferry.flow.sink.mysql.lanes import Lanes, last_of_shared
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.lww import newest_wins, no_settings, session_settings
from rowferry.flow.sink.mysql.options import PLACE_KEYS, MysqlOptions, SharedOptions, read_settings
from rowferry.flow.sink.mysql.progress_table import ProgressTable
from rowferry.flow.sink.mysql.schema_changes import SchemaChanges
from rowferry.flow.sink.mysql.session import Session, Sessions, StatementRefused, connect
from rowferry.flow.sink.mysql.statements import (
    Limits,
    Put,
    replacing,
    upserting,
    upserting_on_tidb,
)
from rowferry.flow.sink.mysql.sync_point import SyncPoints
from rowferry.flow.sink.mysql.target_tables import (
    check,
    create_statements,
    folds_names,
    known_collations,
    require_there,
)
from rowferry.flow.sink.mysql.tidb_tables import check_active_active, check_knows_mode
from rowferry.flow.sink.mysql.transactions import Transactions
from rowferry.flow.sink.sql.sink import KEPT, SEGMENT_BYTES, SqlSink, lanes_of
from rowferry.flow.sink.sql.windows import is_sole_key
from rowferry.moment import moment
from rowferry.mysql.flavour import Flavour
from rowferry.spec.active_active import read_active_active
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sync_point import read_sync_point
from rowferry.spec.uri_form import HOST, UriForm

_HELD_SEGMENT_BYTES: Final = 8 << 20
_WORKERS: Final = {
    Flavour.MYSQL: 16,
    Flavour.MARIADB: 16,
    Flavour.TIDB: 64,
}


class MySqlSink(SqlSink[Session]):
    """Writes rows into tables of the same names (or routed ones) in a second database.

    Rows are visible as soon as they are written; a replay writes them again, with the same result.
    """

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        movable=True,
        kind="mysql",
        section="sink.mysql-config",
        protocol="none",
        default_protocol="sql-rows",
        atomicity=("none", "table", "global"),
        writes_tables=True,
        keeps_newest=True,
        keeps_sync_points=True,
        names_refused_rows=True,
        keeps_redo=True,
        place_keys=PLACE_KEYS,
        vector_call_schemes=("mysql", "mysql+ssl"),
        form=UriForm("MySQL, MariaDB or TiDB", address=HOST, path=None),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (SharedOptions.TABLE, MysqlOptions.TABLE)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        self._settings = read_settings(spec)
        super().__init__(self._settings.replaced_ddl)
        self.whole_transactions = self._settings.shared.transaction_atomicity != "none"
        self._mode = mode = read_active_active(spec)
        self._ledger: Ledger = Ledger(
            self._settings.options.meta_database, spec.changefeed_id, mode.bdr_mode
        )
        settings = session_settings if mode.enabled else no_settings
        self.refused = RefusedRows()
        self._sessions: Sessions = Sessions(self._settings.login, settings, self.counts)
        self._changes = SchemaChanges(self._settings, self._ledger, mode.bdr_mode, mode.enabled)
        self._how: Put = replacing if self._settings.shared.safe_mode else upserting
        self._sync_points = SyncPoints(spec.changefeed_id, read_sync_point(spec), self._ledger)
        self._progress: ProgressTable | None = None
        if mode.enabled:
            self._how = newest_wins
            interval_s = mode.progress_interval.total_seconds()
            self._progress = ProgressTable(
                spec.changefeed_id, mode.cluster_id, interval_s, for_purge=mode.purge_progress
            )

    def session_of_its_own(self) -> Session:
        """Open a connection that no pool keeps."""
        return connect(self._settings.login)

    def probe(self, owner: Owner) -> None:
        """Ask whether the downstream can be written.

        Raises:
            SinkUnwritable: it is read-only, does not know the time zone, or refuses the login.
            SinkUnavailable: it does not answer.
        """
        moment("probe downstream")
        session = connect(self._settings.login)
        try:
            self._check_mode(session)
            self._refuse_read_only(session)
            if self._settings.time_zone:
                self._try_zone(session)
        finally:
            session.close()

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Compare the captured tables with those downstream.

        Raises:
            TargetUnfit: one is missing, or rows do not fit into it.
            SinkUnwritable: a privilege is missing.
        """
        moment("check downstream tables")
        session = connect(self._settings.login)
        try:
            self._check_mode(session)
            missing = check(session, tables, self._settings.options.create_tables)
            self._check_stamping(session, tables, missing)
        finally:
            session.close()

    def sees(self, mark: str) -> bool:
        """Return whether a session of the downstream holds a lock of this name."""
        moment("look for mark downstream")
        session = connect(self._settings.login)
        try:
            # TiDB is no source of ours, and not all of its versions know the function.
            if session.facts.flavour is Flavour.TIDB:
                return False
            return session.ask("SELECT IS_USED_LOCK(%s)", (mark,))[0][0] is not None
        except StatementRefused as err:
            raise err.as_error("asking which server it is") from err
        finally:
            session.close()

    def folds_names(self) -> bool:
        """Return whether the downstream takes names of tables that differ in case for one."""
        moment("ask how names compare downstream")
        session = connect(self._settings.login)
        try:
            return folds_names(session)
        except StatementRefused as err:
            raise err.as_error("asking how names compare") from err
        finally:
            session.close()

    def advice(self, tables: Sequence[TableSchema]) -> list[str]:
        """Say which tables may get rows twice."""
        keyless = sorted(str(t.written_as) for t in tables if not t.handle_key)
        if not keyless or self._settings.options.exactly_once:
            return []
        return [
            f"{', '.join(keyless)}: without a key, so that a replay after a failure may write rows "
            "twice; add a key, or set exactly-once = true in sink.mysql-config"
        ]

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Raise the fence, as every sink into a database; know what the progress tables hold."""
        super().open(owner, state)
        if self._progress is not None:
            self._progress.resume(state)

    def segment_bytes(self, table: TableId) -> int:
        """Return the size at which reading is fastest; with atomicity, what a lane can hold."""
        return _HELD_SEGMENT_BYTES if self.whole_transactions else SEGMENT_BYTES

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
        topics: list[tuple[int, int, Topic]] = []
        together: dict[str, dict[int, Segment]] = {}  # by lane
        for segment in stretch.segments:
            exact = segment.again is Again.SAME
            for place, one in enumerate(segment.slices):
                topic = self._lanes_of(tables[one], exact)
                topics.append((segment.ordinal, place, topic))
                together.setdefault(topic.name, {})[segment.ordinal] = segment
        ends: dict[str, dict[int, int]] = {}
        if self.whole_transactions:
            ends = {n: last_of_shared(list(parts.values())) for n, parts in together.items()}
        outputs = tuple(
            Output(
                ordinal,
                place,
                replace(topic, last_segment=ends.get(topic.name, {}).get(ordinal)).to_json(),
            )
            for ordinal, place, topic in topics
        )
        written = {table.written_as for table in tables.values()}
        state = self._delivered.foresee(written, stretch.schema_changes)
        if self._progress is not None:
            state = self._progress.foresee(stretch) | (state or self._delivered.state())
        return outputs, state

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Apply packets; on return all of them are durable."""
        first = next(packets, None)
        if first is None:
            return

        def all_of_them() -> Iterator[Packet]:
            yield first
            yield from packets

        with self._sessions.one() as session:
            facts = session.facts
            try:
                since = self._ledger.published(session)
            except StatementRefused as err:
                raise err.as_error("what is published") from err
        how = self._how
        if facts.flavour is Flavour.TIDB and how is upserting:
            how = upserting_on_tidb
        workers = self._settings.options.worker_count or _WORKERS[facts.flavour]
        limits = Limits(self._settings.options.max_txn_row, facts.statement_bytes // 2)
        way: Lanes | Windows
        if self._settings.in_lanes:
            way = Lanes(self._settings, self._ledger, self._sessions, limits, workers, how, since)
        else:
            transactions = Transactions(
                self._settings, self._ledger, self._sessions, self.refused, since
            )
            way = Windows(transactions, limits, workers, how)
        try:
            way.deliver(all_of_them())
        finally:
            self._sessions.close(keep=KEPT)

    def held_rows(
        self, table: TableSchema, part: Mapping[str, Any], columns: Sequence[str]
    ) -> Iterator[pa.StructArray]:
        """Yield columns of the rows that the downstream has in a key range."""
        return held_rows(self._settings.login, table, part, columns)

    def leave(self) -> None:
        """Take the changefeed out of the progress tables, by which others wait for it."""
        if self._progress is None:
            return
        with self._sessions.one() as session:
            try:
                self._progress.leave(session)
            except StatementRefused as err:
                raise err.as_error("the progress tables") from err

    # --- pieces -----------------------------------------------------------------------------------

    def _lanes_of(self, table: TableSchema, exact: bool) -> Topic:
        """Return a topic: rows that may stand in each other's way are in one of its partitions."""
        if self._settings.shared.transaction_atomicity == "global":
            return Topic("*", 1, 1 << 30, exact)
        divided = (
            self._settings.shared.transaction_atomicity == "none"
            and bool(table.handle_key)
            and is_sole_key(table)
            and has_exact_key(table)
        )
        return lanes_of(table, divided, exact)

    def _check_mode(self, session: Session) -> None:
        """Refuse a downstream that cannot do what the mode, or what sync points need."""
        try:
            self._sync_points.check(session)
            if not self._mode.enabled:
                return
            if session.facts.flavour is Flavour.TIDB:
                check_knows_mode(session)
            elif not self._mode.emulated:
                raise SinkUnwritable(
                    f"{self._settings.login} is {session.facts.flavour.label}, not TiDB, which "
                    "enable-active-active needs; use TiDB, or set active-active-emulation = true"
                )
        except StatementRefused as err:
            raise err.as_error("asking what it can do") from err

    def _check_stamping(
        self, session: Session, tables: Sequence[TableSchema], missing: Sequence[TableSchema] = ()
    ) -> None:
        """Refuse tables in which local writes do not say when they were made; some come later."""
        if not self._mode.enabled:
            return
        try:
            if session.facts.flavour is Flavour.TIDB:
                check_active_active(session, [t.written_as for t in tables if t not in missing])
            else:
                names = [t.written_as for t in tables]
                check_triggers(session, names, self._mode.cluster_index)
        except StatementRefused as err:
            raise err.as_error("the downstream's active-active tables") from err

    def _require_there(self, session: Session, known: Collection[TableId]) -> None:
        require_there(session, known)

    def forget_above(self, session: Session, micro_batch: int, changes: int) -> None:
        """Forget lanes above a micro-batch, and schema changes above another; commit."""
        lanes = self._ledger.forget_delivered(above=micro_batch)
        begun = self._ledger.forget_begun(micro_batch + 1)
        session.run(lanes, begun, self._ledger.forget_changes(changes), b"COMMIT")

    def _forget_plan(self, plan: Plan) -> None:
        notes = []
        if self._settings.options.exactly_once:
            notes.append(self._ledger.forget_delivered())
        if plan.stretch.schema_changes:
            notes.append(self._ledger.forget_begun(plan.micro_batch))
        if not notes:
            return
        moment("forget plan downstream")
        try:
            # Whoever was replaced must not take the notes of the one who writes now.
            with self._sessions.one() as session:
                self._ledger.begin(session, self._owner.epoch)
                session.run(*notes, b"COMMIT")
        except StatementRefused as err:
            raise err.as_error("forgetting a discarded plan") from err

    def note_reached(self, session: Session, plan: Plan) -> None:
        """Note what is reached, forget how far lanes were before this micro-batch, and commit.

        What they noted of this one stays: it comes again if the process ends before the meta
        database has it.
        """
        epoch = self._owner.epoch
        done = [self._ledger.reached(plan.micro_batch, plan.stretch.watermark, epoch)]
        if self._settings.options.exactly_once and plan.stretch.segments:
            done.append(self._ledger.forget_delivered(below=plan.micro_batch))
        session.run(*done, b"COMMIT")

    def _after_reached(self, session: Session, plan: Plan) -> None:
        if self._progress is not None:
            self._progress.publish(session, plan)
        self._sync_points.publish(session, plan.stretch.watermark, self._owner.epoch)

    def _fit(
        self, session: Session, fresh: Sequence[TableSchema], known: Collection[TableId]
    ) -> None:
        missing = check(session, fresh, self._settings.options.create_tables, known)
        self._make(session, missing)
        self._check_stamping(session, fresh)

    def _make(self, session: Session, tables: Sequence[TableSchema]) -> None:
        collations = known_collations(session) if tables else frozenset()
        hides = self._mode.enabled and session.facts.flavour is Flavour.TIDB
        for table in tables:
            moment("create downstream table")
            try:
                session.set_mode("")
                for statement in create_statements(table, collations, hides):
                    session.run(statement.encode())
            except StatementRefused as err:
                raise err.as_error(f"making table {table.written_as}") from err

    def _refuse_read_only(self, session: Session) -> None:
        try:
            shut = session.ask("SELECT @@GLOBAL.read_only")[0][0]
            if str(shut) not in ("0", "OFF"):
                grants = " ".join(str(r[0]).upper() for r in session.ask("SHOW GRANTS"))
                barred = session.ask("SHOW GLOBAL VARIABLES LIKE 'super_read_only'")
                above = any(w in grants for w in ("ALL PRIVILEGES ON *.*", "READ ONLY ADMIN"))
                above |= "CONNECTION_ADMIN" in grants or "SUPER" in grants
                if not above or (barred and str(barred[0][1]) == "ON"):
                    raise SinkUnwritable(
                        f"{self._settings.login} is read-only; make it writable, or name the "
                        "primary server in the sink URI"
                    )
        except StatementRefused as err:
            raise err.as_error("asking whether it is read-only") from err

    def _try_zone(self, session: Session) -> None:
        zone = self._settings.time_zone
        try:
            session.ask("SET time_zone = %s", (zone,))
        except StatementRefused as err:
            raise SinkUnwritable(
                f"{self._settings.login} does not know the time zone {zone!r} "
                f"({err.server_text}); load "
                "its time zone tables, give an offset such as +08:00, or leave time-zone out"
            ) from err
