"""Schema changes downstream: each run once, in order, also where a run is repeated."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.position import physical_ms
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import SchemaChangeRefused, Verdict
from rowferry.flow.encode.sql_rows.frame import quoted, quoted_table
from rowferry.flow.sink.mysql.ledger import BEGUN, DONE, REFUSED, Ledger
from rowferry.flow.sink.mysql.options import MysqlOptions, MySqlSettings
from rowferry.flow.sink.mysql.other_dialects import statement_of
from rowferry.flow.sink.mysql.session import Session, StatementRefused, connect
from rowferry.flow.sink.mysql.target_tables import (
    folded,
    folds_names,
    gone_tables,
    known_collations,
    read_tables,
    recollate,
)
from rowferry.flow.sink.mysql.tidb_tables import as_active_active
from rowferry.moment import moment
from rowferry.mysql.ddl.exchange import renamed_tables, traded_tables
from rowferry.mysql.ddl.partly_done import Ask, cut_off, partly_done
from rowferry.mysql.ddl.session_modes import cuts_seconds, mode_for_seconds, without_seconds
from rowferry.mysql.feed_mark import MARK_SQL_MODE
from rowferry.mysql.flavour import Flavour
from rowferry.mysql.refusals import GONE

LOG = logging.getLogger(__name__)

# Where nothing was delivered and no table is, they have nothing to take.
_EMPTYING: Final = frozenset({DdlKind.TRUNCATE_TABLE, DdlKind.DROP_TABLE})
_DATABASES: Final = frozenset(
    {DdlKind.CREATE_DATABASE, DdlKind.DROP_DATABASE, DdlKind.DATABASE_CHARSET}
)
_SECONDS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+")  # rows move it, too
_NO_ANSWER: Final = "error "
_SHOWN: Final = 300  # characters of a statement in an error
_YEAR_S: Final = 31536000  # servers take no longer time
# Functions of defaults that give each row another value, or each session.
_BY_CHANCE: Final = re.compile(
    r"\b(uuid\w*|sys_guid|rand|random_bytes|nextval|next\s+value|sysdate|connection_id|"
    r"last_insert_id|(current_|session_|system_)?(user|role))\b",
    re.IGNORECASE,
)
_FILLED_ALONE: Final = (
    "it numbers rows, or fills them by chance, and they would get other values here than at the "
    "source; empty the table here first, and have it read again (resnapshot) once the changefeed "
    "has gone on"
)


class SchemaChanges:
    """Runs the schema changes of plans, on the driver."""

    def __init__(
        self,
        settings: MySqlSettings,
        ledger: Ledger,
        marks: bool = False,
        active_active: bool = False,
    ) -> None:
        """Make none yet.

        Args:
            settings: of the sink.
            ledger: where they are noted.
            marks: the log shows that a changefeed ran them.
            active_active: tables that are made on TiDB are such ones.
        """
        self._settings, self._ledger = settings, ledger
        self._active_active = active_active
        self._mode = MARK_SQL_MODE if marks else ""

    def run(self, plan: Plan, epoch: int, there: Collection[TableId] = ()) -> None:
        """Run a plan's schema changes in order; those that were run before are left out.

        While one runs, the fence is held: nobody else can claim the changefeed. `there` are tables
        that the downstream must have by what was delivered.

        Raises:
            TargetLost: a table is gone that must be there.
            SchemaChangeRefused: the downstream refuses one.
            Fenced, SinkUnavailable: as everywhere.
        """
        changes = plan.stretch.schema_changes
        if not changes:
            return
        moment("connect for ddl")
        guard = connect(self._settings.login, for_rows=True)
        try:
            notes = connect(self._settings.login)
            try:
                # Both are silent for as long as a statement takes.
                quiet_s = min(round(self._settings.options.ddl_timeout.total_seconds()), _YEAR_S)
                guard.run(f"SET wait_timeout = {quiet_s}".encode())
                # The table of notes may be in another character set than statements are.
                notes.set_mode("", f"wait_timeout = {quiet_s}")
                for ordinal, change in enumerate(changes):
                    try:
                        place = plan.micro_batch, ordinal
                        self._run_one(guard, notes, place, change, epoch, there)
                    except StatementRefused as err:
                        raise err.as_error("noting a schema change") from err
            finally:
                notes.close()
        finally:
            guard.close()

    def is_begun(self, session: Session, micro_batch: int, first: SchemaChange) -> bool:
        """Return whether the first schema change of a micro-batch was begun, refused or run.

        Whoever was refused it, or got no answer, may have made it by hand, or have it made: the
        rows before it, which were all written, may have no place any more.

        Raises:
            Refused, SinkUnavailable: as `Session.run`.
        """
        # By whatever statement: another one may have been set in its place since.
        return self._ledger.schema_change(session, (micro_batch, 0), first.commit_ts) is not None

    def _statement(self, session: Session, change: SchemaChange) -> str:
        replaced = self._settings.replaced_ddl.get(change.commit_ts)
        if replaced is not None:
            return replaced
        return statement_of(change, lambda: known_collations(session))

    def _run_one(
        self,
        guard: Session,
        notes: Session,
        place: tuple[int, int],
        change: SchemaChange,
        epoch: int,
        there: Collection[TableId],
    ) -> None:
        moment("begin ddl downstream")
        self._ledger.begin(guard, epoch)
        statement = self._statement(notes, change)
        digest = _digest(statement)
        known = self._ledger.schema_change(notes, place, change.commit_ts, digest)

        def note(state: str, before: str) -> None:
            self._ledger.note_schema_change(
                notes,
                *place,
                change.commit_ts,
                state,
                (digest, before),
                statement,
            )

        if known is None or known[0] != DONE:
            before = _digest(_definition(notes, change))
            # What was refused has done nothing: if the definition is another one, a cure did that.
            begun = known is not None and known[0] == BEGUN
            took_effect = begun and known is not None and known[1] != before
            if begun and statement and not took_effect and _hides_effect(notes, change, statement):
                raise self._refused(
                    change, statement, "it was interrupted, and whether it took effect is unknown"
                )
            left = statement
            if took_effect:
                if known is not None and _was_gone(known[1]):
                    self._complete(change)
                left = cut_off(statement, _home(change), _asking(notes))
            else:
                if why := self._why_not(notes, change, statement, there):
                    note(REFUSED, before)
                    raise self._refused(change, statement, why)
                if statement == change.query and _takes_others_along(notes, change, there):
                    left = ""
                note(BEGUN, before)
            if left:
                try:
                    self._execute(change, left)
                except StatementRefused as err:
                    name = _former(change)
                    gone = _is_gone(notes, name)
                    # A server goes on with the statement of a process that was killed: that one
                    # may have ended while this one waited behind it for the table.
                    ended = begun and _digest(_definition(notes, change)) != before
                    passes = gone and name not in there and change.kind in _EMPTYING
                    if not ended and not passes:
                        note(REFUSED, before)
                        if gone and name in there:
                            raise gone_tables(notes, [name]) from err
                        raise self._refused(change, statement, err.server_text) from err
            note(DONE, before)
        guard.rollback()

    def _why_not(
        self, notes: Session, change: SchemaChange, statement: str, there: Collection[TableId]
    ) -> str:
        """Return why a statement must not be run here; "": it may. Raises as `Session.ask`."""
        if statement and statement == change.query and _fills_rows_alone(notes, change):
            return _FILLED_ALONE
        if statement and change.commit_ts not in self._settings.replaced_ddl:
            other = _same_to_server(notes, change, there)
            if other is not None:
                return (
                    f"it does not tell cases apart (lower_case_table_names), and {other}, to which "
                    f"this changefeed delivers, would get the rows of {change.written_as}, too"
                )
        return ""

    def _complete(self, change: SchemaChange) -> None:
        """Do what follows a CREATE TABLE, where an earlier try came no further than that.

        Raises:
            RowferryError: the downstream says no, or does not answer.
        """
        made = change.schema
        if change.kind is not DdlKind.CREATE_TABLE or made is None:
            return
        moment("complete table downstream")
        session = connect(
            self._settings.login, read_s=self._settings.options.ddl_timeout.total_seconds()
        )
        try:
            self._prepare(session, change)
            for more in recollate(session, made):
                session.run(more.encode())
        except StatementRefused as err:
            raise err.as_error(f"making table {change.written_as}") from err
        finally:
            session.close()

    def _execute(self, change: SchemaChange, statement: str) -> None:
        """Run a statement, unless its wish is fulfilled already.

        Raises:
            Refused: the downstream says no.
            SinkUnavailable: as everywhere.
        """
        moment("run ddl downstream")
        session = connect(
            self._settings.login, read_s=self._settings.options.ddl_timeout.total_seconds()
        )
        try:
            if self._active_active and change.kind is DdlKind.CREATE_TABLE:
                if session.facts.flavour is Flavour.TIDB:
                    statement = as_active_active(statement)
            try:
                self._prepare(session, change)
                made = change.schema if change.kind is DdlKind.CREATE_TABLE else None
                fresh = made is not None and _is_gone(session, change.written_as)
                _run(session, change, statement)
                if made is not None and fresh:
                    for more in recollate(session, made):
                        session.run(more.encode())
                moment("ddl done downstream")
            except StatementRefused as err:
                error = err.as_error("a schema change")
                if error.verdict is Verdict.RETRY:
                    raise error from err
                raise
        finally:
            session.close()

    def _prepare(self, session: Session, change: SchemaChange) -> None:
        """Give a session what the statement needs: as lenient as the source may be."""
        now = physical_ms(change.commit_ts) / 1000
        modes = [self._mode or without_seconds(change.sql_mode)]
        if change.schema is not None and _has_seconds(change.schema):
            if session.facts.flavour is not Flavour.TIDB:
                modes.append(mode_for_seconds(change.sql_mode, session.facts.flavour))
            elif cuts_seconds(change.sql_mode) and _takes_digits(session, change):
                why = "it takes digits of a second away, which TiDB rounds and the source cut off"
                raise self._refused(change, change.query, why)
        mode = ",".join(filter(None, modes))
        session.set_mode(mode, "foreign_key_checks = 0", f"timestamp = {now:.3f}")
        statements = []
        if self._settings.time_zone:
            zone = self._settings.time_zone.replace("'", "")
            statements.append(f"SET time_zone = '{zone}'")
        if change.kind is DdlKind.CREATE_TABLE and self._settings.options.create_tables:
            statements.append(f"CREATE DATABASE IF NOT EXISTS {quoted(_home(change))}")
        if change.kind not in _DATABASES:
            statements.append(f"USE {quoted(_home(change))}")
        if statements:
            session.run(*(one.encode() for one in statements), joined=False)

    def _refused(self, change: SchemaChange, statement: str, why: str) -> SchemaChangeRefused:
        at = change.commit_ts
        text = " ".join(statement.split())
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        path = MysqlOptions.path
        skip, other = path(MysqlOptions.skip_ddl), path(MysqlOptions.replace_ddl)
        return SchemaChangeRefused(
            f"{self._settings.login}: {why}; the DDL of commit-ts {at} was: {shown}; make it "
            f'possible and resume, or set {skip} = ["{at}"] to go on without it, or {other} = '
            f'["{at} <statement>"] to run another one'
        )


def _run(session: Session, change: SchemaChange, statement: str) -> None:
    """Run a statement; where a part of it is done already, the rest.

    Raises:
        Refused: the downstream says no.
        SinkUnavailable: as `Session.run`.
    """
    left = statement
    while left:
        try:
            session.run(left.encode())
            return
        except StatementRefused as err:
            rest = partly_done(left, _home(change), err.number, _asking(session))
            if rest is None:
                raise
            left = rest


def _asking(session: Session) -> Ask:
    def ask(sql: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
        moment("list parts of table downstream")
        return session.ask(sql, values)

    return ask


def _has_seconds(table: TableSchema) -> bool:
    """Return whether rows have times, of which a change may take digits away."""
    return any(column.type.kind in _SECONDS for column in table.columns)


def _takes_digits(session: Session, change: SchemaChange) -> bool:
    """Return whether a column gets fewer digits of a second than it has downstream."""
    if change.schema is None or change.kind is DdlKind.CREATE_TABLE:
        return False
    moment("look at digits of seconds downstream")
    there = session.ask(
        "SELECT column_name, datetime_precision FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s AND datetime_precision > 0",
        _former(change),
    )
    digits = {str(name).lower(): int(precision) for name, precision in there}
    return any(
        column.type.kind in _SECONDS
        and (column.type.scale or 0) < digits.get(column.name.lower(), 0)
        for column in change.schema.columns
    )


def _home(change: SchemaChange) -> str:
    """Return the database in which names without one are looked up."""
    return _former(change).database


def _former(change: SchemaChange) -> TableId:
    """Return the name that a table has before the change."""
    return change.previous_target or change.previous or change.written_as


def _definition(session: Session, change: SchemaChange) -> str:
    """Return what a schema change may alter, as text: a statement that took effect changes it."""
    old = change.previous_target or change.previous
    names = [name for name in (old, change.written_as) if name is not None]
    return "\n".join(_show(session, name) for name in dict.fromkeys(names))


def _hides_effect(session: Session, change: SchemaChange, statement: str) -> bool:
    """Return whether definitions may be as they were before although a statement was run.

    A partition and a table exchange their rows, and tables that are made alike trade their names:
    run again, the statement would take that back.
    """
    traded = {one.folded: one for one in traded_tables(statement, _home(change))}
    former = _former(change)
    if change.kind is DdlKind.EXCHANGE_PARTITION or not traded:
        return bool(traded) or change.kind is DdlKind.EXCHANGE_PARTITION
    mine = _columns(session, former)
    others = [one for name, one in traded.items() if name != former.folded]
    if former.folded not in traded:
        renamed = renamed_tables(statement, _home(change))
        return former.folded not in {old.folded for old, _ in renamed}
    return any(_columns(session, other) == mine for other in others)


def _columns(session: Session, table: TableId) -> list[tuple[Any, ...]]:
    """Return the columns of a table; no rename of tables changes them."""
    moment("look at columns downstream")
    return session.ask(
        "SELECT COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        tuple(table),
    )


def _same_to_server(
    session: Session, change: SchemaChange, there: Collection[TableId]
) -> TableId | None:
    """Return which of some tables a server takes for the one that is to be made; None: none."""
    name = change.written_as
    if change.kind is not DdlKind.CREATE_TABLE:
        return None
    others = sorted(t for t in there if t != name and folded(t) == folded(name))
    if not others or not folds_names(session):
        return None
    return next((t for t in others if not _is_gone(session, t)), None)


def _takes_others_along(session: Session, change: SchemaChange, there: Collection[TableId]) -> bool:
    """Return whether a database would be dropped with tables that are not the source database's.

    Its own were dropped one by one before. Whose tables stand beside them is not known where
    routing gave the name, nor to routing that the server may take two names for one.
    """
    if change.kind is not DdlKind.DROP_DATABASE:
        return False
    moment("list tables of database downstream")
    name = change.written_as.database
    rows = session.ask(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND "
        "TABLE_TYPE NOT LIKE '%%VIEW%%'",
        (name,),
    )
    tables = {folded(TableId(name, str(row[0]))) for row in rows}
    if change.target is None:
        tables &= (
            {folded(t) for t in there if t.database != name} if folds_names(session) else set()
        )
    if tables:
        LOG.warning("database %s is not dropped: it has tables of others", name)
    return bool(tables)


def _fills_rows_alone(session: Session, change: SchemaChange) -> bool:
    """Return whether a change gives rows that are there values which only its server knows.

    Numbers go by the order of the primary key, which is the same everywhere unless it holds texts
    and collations differ; without one, by the order in which rows lie there.
    """
    filled = [c for c in (change.schema.columns if change.schema else ()) if _is_filled_alone(c)]
    name = _former(change)
    there = read_tables(session, [name]).get(name) if filled else None
    if there is None:
        return False
    key = [there.columns.get(column) for column in there.keys.get("PRIMARY", ())]
    in_order = bool(key) and all(part is not None and not part.collation for part in key)
    fresh = [c for c in filled if c.name.lower() not in there.columns]
    if all(c.auto_increment and in_order for c in fresh):
        return False
    return bool(session.ask(f"SELECT 1 FROM {quoted_table(name)} LIMIT 1"))


def _is_filled_alone(column: Column) -> bool:
    by_chance = bool(_BY_CHANCE.search(column.expression)) and not column.generated
    return column.auto_increment or by_chance


def _is_gone(session: Session, name: TableId) -> bool:
    return _show(session, name) in _gone_words()


def _was_gone(digest: str) -> bool:
    """Return whether the digest of what was there before says that there was nothing."""
    return digest in {_digest(words) for words in _gone_words()}


def _gone_words() -> set[str]:
    return {f"{_NO_ANSWER}{number}" for number in GONE}


def _show(session: Session, name: TableId) -> str:
    moment("look at definition downstream")
    what = f"TABLE {quoted_table(name)}" if name.table else f"DATABASE {quoted(name.database)}"
    try:
        rows = session.ask(f"SHOW CREATE {what}")
    except StatementRefused as err:
        return f"{_NO_ANSWER}{err.number}"
    return _COUNTER.sub("", str(rows[0][1]))


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()
