"""Schema changes downstream: each is one transaction with its note, so that none is made twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.table import MYSQL, TableId, TableSchema
from rowferry.errors import BadStatement, SchemaChangeRefused, TargetUnfit, Verdict
from rowferry.flow.sink.postgresql.definitions import (
    Making,
    Untranslatable,
    alter_statements,
    create_statements,
    index_renames,
    rename_statements,
    schema_statement,
)
from rowferry.flow.sink.postgresql.ledger import CopyLedger
from rowferry.flow.sink.postgresql.names import check_names, quoted, quoted_table
from rowferry.flow.sink.postgresql.options import PostgresqlOptions, PostgresqlSettings
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal
from rowferry.flow.sink.postgresql.session import PostgresqlSession, connect
from rowferry.flow.sink.postgresql.target_tables import (
    DownstreamTable,
    gone_tables,
    misfit,
    read_index_names,
    read_names,
    read_tables,
)
from rowferry.moment import moment
from rowferry.mysql.ddl.statement import plan_ddl

# They take rows away that the log does not name.
_ROWS_GO: Final = frozenset(
    {DdlKind.DROP_PARTITION, DdlKind.TRUNCATE_PARTITION, DdlKind.EXCHANGE_PARTITION}
)
_NOTHING: Final = frozenset({DdlKind.DATABASE_CHARSET, DdlKind.CREATE_VIEW, DdlKind.DROP_VIEW})
_SHOWN: Final = 300  # characters of a statement in an error


class TranslatedChanges:
    """Makes the schema changes of plans, on the driver."""

    def __init__(self, settings: PostgresqlSettings, ledger: CopyLedger, making: Making) -> None:
        self._settings, self._ledger, self._making = settings, ledger, making

    def run(self, plan: Plan, epoch: int, there: Collection[TableId] = ()) -> None:
        """Make a plan's schema changes in order; those that were made before are left out.

        Each is one transaction behind the fence. `there` are tables that the downstream must have
        by what was delivered.

        Raises:
            TargetLost: a table is gone that must be there.
            SchemaChangeRefused: one cannot be translated, or the downstream refuses it.
            Fenced, SinkUnavailable: as everywhere.
        """
        changes = plan.stretch.schema_changes
        if not changes:
            return
        moment("connect for ddl (PostgreSQL)")
        options = self._settings.options
        session = connect(self._settings.login, read_s=options.ddl_timeout.total_seconds())
        try:
            self._note_begun(session, plan, epoch)
            for ordinal, change in enumerate(changes):
                self._run_one(session, (plan.micro_batch, ordinal), change, epoch, there)
        finally:
            session.close()

    def is_begun(self, session: PostgresqlSession, micro_batch: int, first: SchemaChange) -> bool:
        """Return whether the first schema change of a micro-batch was begun, refused or made.

        Whoever was refused it may have made it by hand: the rows before it, which were all written,
        may have no place any more.

        Raises:
            PostgresqlRefusal, SinkUnavailable: as `PostgresqlSession.run`.
        """
        return self._ledger.are_begun(session, micro_batch, first.commit_ts)

    def _note_begun(self, session: PostgresqlSession, plan: Plan, epoch: int) -> None:
        moment("note begun ddl (PostgreSQL)")
        first = plan.stretch.schema_changes[0]
        try:
            self._ledger.begin(session, epoch)
            note = self._ledger.note_begun(plan.micro_batch, first.commit_ts)
            session.run(note, "COMMIT")
        except PostgresqlRefusal as err:
            session.rollback()
            raise err.as_error("noting a schema change") from err

    def _run_one(
        self,
        session: PostgresqlSession,
        place: tuple[int, int],
        change: SchemaChange,
        epoch: int,
        there: Collection[TableId],
    ) -> None:
        moment("begin ddl downstream (PostgreSQL)")
        statements: list[str] = []
        try:
            self._ledger.begin(session, epoch)
            if self._ledger.is_made(session, *place, change.commit_ts):
                session.rollback()
                return
            statements = self._statements(session, change, there)
            moment("run ddl downstream (PostgreSQL)")
            session.run(*statements)
            self._check(session, change)
            session.run(*self._notes(session, change))
            note = self._ledger.note_schema_change(*place, change.commit_ts, "; ".join(statements))
            session.run(note, "COMMIT")
            moment("ddl done downstream (PostgreSQL)")
        except PostgresqlRefusal as err:
            session.rollback()
            error = err.as_error("a schema change")
            if error.verdict is Verdict.RETRY:
                raise error from err
            raise self._refused(change, err.server_text) from err
        except Untranslatable as err:
            session.rollback()
            raise self._refused(change, str(err)) from err

    # --- what to run ------------------------------------------------------------------------------

    def _statements(
        self, session: PostgresqlSession, change: SchemaChange, there: Collection[TableId]
    ) -> list[str]:
        """Return the statements that make a change of what is there now.

        Raises:
            Untranslatable: there are none.
            TargetLost, TargetUnfit: what is there is not what must be.
        """
        replaced = self._settings.replaced_ddl.get(change.commit_ts)
        if replaced is not None:
            return [replaced] if replaced else []
        name, former = change.written_as, former_name(change)
        if change.kind in _NOTHING:
            return []
        if change.kind in _ROWS_GO:
            raise Untranslatable("it takes rows away that the log does not name")
        if change.kind is DdlKind.CREATE_DATABASE:
            return [schema_statement(name.database)]
        if change.kind is DdlKind.DROP_DATABASE:
            tables = self._ledger.defined_of(session, change.table.database)
            drops = [f"DROP TABLE IF EXISTS {quoted_table(t)}" for t in tables]
            if read_names(session, [name.database]) - set(tables):
                return drops  # others are in the schema, too
            return [*drops, f"DROP SCHEMA IF EXISTS {quoted(name.database)}"]
        here = read_tables(session, list({name, former}))
        if former in there and former not in here and name not in here:
            raise gone_tables(session, [former])
        if change.kind is DdlKind.DROP_TABLE:
            return [f"DROP TABLE {quoted_table(name)}"] if name in here else []
        if change.kind is DdlKind.TRUNCATE_TABLE:
            return [f"TRUNCATE TABLE {quoted_table(name)}"] if name in here else []
        schema = change.schema
        if schema is None:
            raise Untranslatable("the source does not tell what the table is after it")
        check_names(schema)
        if former not in here and name in here:
            # It was renamed in a run that was given up, or is there already.
            old = self._ledger.definition(session, name)
            return self._altered(schema, old, here[name], change, read_index_names(session, name))
        if former not in here:
            return self._made(schema, change)
        if change.kind is DdlKind.CREATE_TABLE:
            if words := misfit(schema, here[name]):
                raise TargetUnfit(words)
            return []
        if former != name and name in here:
            raise Untranslatable(f"{name} is a table already, to which {former} cannot be renamed")
        old = self._ledger.definition(session, former)
        indexes = read_index_names(session, former)
        moved = index_renames(old or schema, former, name, indexes)
        renames = rename_statements(former, name, moved) if former != name else []
        after = {moved.get(index, index) for index in indexes}
        return [*renames, *self._altered(schema, old, here[former], change, after)]

    def _check(self, session: PostgresqlSession, change: SchemaChange) -> None:
        """Refuse a table into which its rows do not fit after a change.

        Raises:
            Untranslatable: what is there was not what the source had before the change.
        """
        if change.schema is None or change.commit_ts in self._settings.replaced_ddl:
            return
        now = read_tables(session, [change.written_as]).get(change.written_as)
        if now is not None and (words := misfit(change.schema, now)):
            raise Untranslatable(words)

    def _made(self, schema: TableSchema, change: SchemaChange) -> list[str]:
        if change.kind is not DdlKind.CREATE_TABLE and not self._settings.options.create_tables:
            raise Untranslatable(
                f"the downstream has no table {former_name(change)}, and create-tables is off"
            )
        statements = create_statements(schema, self._making)
        return statements if self._settings.options.create_tables else statements[1:]

    def _altered(
        self,
        new: TableSchema,
        old: TableSchema | None,
        target: DownstreamTable,
        change: SchemaChange,
        indexes: Collection[str],
    ) -> list[str]:
        if old is None:  # no row of it was delivered yet
            return [] if not misfit(new, target) else self._filled_up(new, target)
        old = replace(old, id=new.id, target=new.target)
        return alter_statements(old, new, same_columns(old, new, change), self._making, indexes)

    def _filled_up(self, new: TableSchema, target: DownstreamTable) -> list[str]:
        """Return statements for a table of which only the downstream knows what it was."""
        now = {c.name for c in new.visible}
        gone, fresh = sorted(target.columns.keys() - now), sorted(now - target.columns.keys())
        if gone and fresh:
            raise Untranslatable(_maybe_renamed(gone, fresh))
        kept = [c for c in new.columns if c.name in target.columns]
        lost = [replace(new.columns[0], id=0, name=name) for name in gone]
        old = replace(new, columns=(*kept, *lost), comment="")
        same = {c.name: c.name for c in kept}
        return alter_statements(old, new, same, self._making)

    def _notes(self, session: PostgresqlSession, change: SchemaChange) -> list[str]:
        """Return the statements that note what tables are after a change."""
        if change.kind is DdlKind.DROP_DATABASE:
            tables = self._ledger.defined_of(session, change.table.database)
            return [self._ledger.forget_definition(t) for t in tables]
        former = former_name(change)
        if not former.table or change.kind in _NOTHING:
            return []
        if change.schema is None:
            return [self._ledger.forget_definition(change.written_as)]
        left = [] if former == change.written_as else [self._ledger.forget_definition(former)]
        return [*left, self._ledger.note_definition(change.schema)]

    def _refused(self, change: SchemaChange, why: str) -> SchemaChangeRefused:
        at = change.commit_ts
        text = " ".join(change.query.split())
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        path = PostgresqlOptions.path
        skip, other = path(PostgresqlOptions.skip_ddl), path(PostgresqlOptions.replace_ddl)
        return SchemaChangeRefused(
            f"{self._settings.login}: table {change.table}: {why}; the DDL of commit-ts {at} was: "
            f'{shown}; change the table here by hand and set {skip} = ["{at}"], or set {other} = '
            f'["{at} <PostgreSQL statement>"], and resume'
        )


def former_name(change: SchemaChange) -> TableId:
    """Return the name that a table has before the change."""
    return change.previous_target or change.previous or change.written_as


def same_columns(old: TableSchema, new: TableSchema, change: SchemaChange) -> Mapping[str, str]:
    """Return the name that each column of the new definition had in the old one.

    The statement tells which columns were renamed, where it can be read. Where it cannot, columns
    are the same by their names; if some went and others came, that might have been a rename.

    Raises:
        Untranslatable: it might have been.
    """
    after = _after_statement(old, new, change)
    if after is not None:
        before = {c.id: c.name for c in old.columns}
        return {c.name: before[c.id] for c in after.columns if c.id in before}
    was, now = ({c.name for c in t.visible} for t in (old, new))
    if was - now and now - was:
        raise Untranslatable(_maybe_renamed(sorted(was - now), sorted(now - was)))
    return {name: name for name in now & was}


def _maybe_renamed(gone: list[str], fresh: list[str]) -> str:
    what = f"whether {', '.join(fresh)} is a new column or {', '.join(gone)} by another name"
    return f"{what} is not known"


def _after_statement(
    old: TableSchema, new: TableSchema, change: SchemaChange
) -> TableSchema | None:
    """Return the old definition after the statement; None: it cannot be read, or says otherwise."""
    if change.dialect != MYSQL:
        return None
    former = former_name(change)
    plain = replace(old, id=former, target=None)
    try:
        planned = plan_ddl(change.query, former.database, {former: plain}, lambda: 0)
    except (BadStatement, RecursionError):
        return None
    planned_schema = next((c.schema for c in planned if c.schema is not None), None)
    if planned_schema is None:
        return old if [c.name for c in old.columns] == [c.name for c in new.columns] else None
    names = [[c.name for c in t.columns] for t in (planned_schema, new)]
    return planned_schema if sorted(names[0]) == sorted(names[1]) else None
