"""How an effect is carried out: lines go into staging tables, and are merged from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rowferry.change.table import Index, TableSchema
from rowferry.flow.sink.postgresql.effects import KeyEffect, lines_of
from rowferry.flow.sink.postgresql.names import names_of, quoted, quoted_table
from rowferry.flow.sink.postgresql.session import PostgresqlSession
from rowferry.moment import moment


def prepare(session: PostgresqlSession, effects: Iterable[KeyEffect]) -> None:
    """Make the staging tables that effects need; not inside a transaction.

    Raises:
        PostgresqlRefusal, SinkUnavailable: as `PostgresqlSession.run`.
    """
    moment("prepare staging tables (PostgreSQL)")
    for effect in effects:
        _row_stage(session, effect.table)
        if len(effect.gone) and effect.table.handle_key:
            _key_stage(session, effect.table)
        elif len(effect.gone):
            _gone_stage(session, effect.table)


def carry_out(session: PostgresqlSession, effect: KeyEffect) -> None:
    """Carry an effect out inside a transaction, once the staging tables are there.

    Raises:
        PostgresqlRefusal, SinkUnavailable: as `PostgresqlSession.run`.
    """
    moment("carry out rows (PostgreSQL)")
    table = effect.table
    if len(effect.gone) and table.handle_key:
        stage, _ = _key_stage(session, table)
        session.copy(f"COPY pg_temp.{stage} FROM STDIN", lines_of(effect.gone))
        session.run(by_index(delete_statement(table, stage)))
    elif len(effect.gone):
        stage, computed = _gone_stage(session, table)
        session.copy(f"COPY pg_temp.{stage} FROM STDIN", lines_of(effect.gone))
        session.run(keyless_delete(table, stage, computed))
    if len(effect.stays):
        stage, computed = _row_stage(session, table)
        session.copy(f"COPY pg_temp.{stage} FROM STDIN", lines_of(effect.stays))
        if effect.replacing:
            session.run(*(by_index(s) for s in displacing(table, stage)))
        session.run(insert_statement(table, stage, computed))


def by_index(statement: str) -> str:
    """Return a statement that finds rows by their index, whatever is known of the staging table."""
    off = ("hashjoin", "mergejoin", "seqscan")
    on = "".join(f"; SET LOCAL enable_{how} = on" for how in off)
    return "".join(f"SET LOCAL enable_{how} = off; " for how in off) + statement + on


def delete_statement(table: TableSchema, stage: str) -> str:
    """Return the DELETE of the rows whose keys are in a staging table."""
    same = " AND ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in table.handle_key)
    return f"DELETE FROM {quoted_table(table.written_as)} t USING pg_temp.{stage} s WHERE {same}"


def keyless_delete(table: TableSchema, stage: str, computed: frozenset[str]) -> str:
    """Return the DELETE of as many rows as are in a staging table, and equal them in all columns.

    Rows are compared by their texts: these have NULLs, and types that cannot be compared. What the
    server itself computes may be another value than the source has, and tells no rows apart.
    """
    columns = [c.name for c in table.visible if c.name not in computed]
    name = quoted_table(table.written_as)
    here, there = (
        f"ROW({', '.join(f'{alias}.{quoted(c)}' for c in columns)})::text" for alias in "ts"
    )
    return (
        f"DELETE FROM {name} WHERE (tableoid, ctid) IN (SELECT f.place, f.row_place FROM "
        f"(SELECT t.tableoid AS place, t.ctid AS row_place, {here} AS words, row_number() OVER "
        f"(PARTITION BY {here}) AS number FROM {name} t WHERE {here} IN "
        f"(SELECT {there} FROM pg_temp.{stage} s)) f JOIN (SELECT {there} AS words, count(*) AS "
        f"most FROM pg_temp.{stage} s GROUP BY 1) w ON w.words = f.words AND f.number <= w.most)"
    )


def insert_statement(table: TableSchema, stage: str, computed: frozenset[str]) -> str:
    """Return the INSERT of a staging table's rows, which also changes rows that are there."""
    columns = [c.name for c in table.visible if c.name not in computed]
    listed = names_of(columns)
    statement = (
        f"INSERT INTO {quoted_table(table.written_as)} ({listed}) OVERRIDING SYSTEM VALUE "
        f"SELECT {listed} FROM pg_temp.{stage}"
    )
    if not table.handle_key:
        return statement
    key = {c.lower() for c in table.handle_key}
    others = [quoted(c) for c in columns if c.lower() not in key]
    pairs = ", ".join(f"{c} = EXCLUDED.{c}" for c in others)
    does = f"UPDATE SET {pairs}" if pairs else "NOTHING"
    return f"{statement} ON CONFLICT ({names_of(table.handle_key)}) DO {does}"


def displacing(table: TableSchema, stage: str) -> list[str]:
    """Return DELETEs of rows that stand in the way by a unique key beside the handle key.

    A replay may meet rows of later changes that have its values there; they come again.
    """
    return [
        f"DELETE FROM {quoted_table(table.written_as)} t USING pg_temp.{stage} s WHERE "
        f"{_equal(index.columns)}{_another(table)}"
        for index in _others(table)
    ]


def _others(table: TableSchema) -> list[Index]:
    """Return the unique keys beside the handle key whose columns are all here."""
    handle = {c.lower() for c in table.handle_key}
    visible = {c.name.lower() for c in table.visible}
    unique = [(i, {c.lower() for c in i.columns}) for i in table.indexes if i.primary or i.unique]
    return [i for i, columns in unique if columns and columns != handle and columns <= visible]


def _equal(columns: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in columns)


def _another(table: TableSchema) -> str:
    return f" AND NOT ({_equal(table.handle_key)})" if table.handle_key else ""


def _row_stage(session: PostgresqlSession, table: TableSchema) -> tuple[str, frozenset[str]]:
    listed = names_of([c.name for c in table.visible])
    return session.stage((*_version(table), "rows"), listed, quoted_table(table.written_as))


def _gone_stage(session: PostgresqlSession, table: TableSchema) -> tuple[str, frozenset[str]]:
    listed = names_of([c.name for c in table.visible])
    return session.stage((*_version(table), "gone"), listed, quoted_table(table.written_as))


def _key_stage(session: PostgresqlSession, table: TableSchema) -> tuple[str, frozenset[str]]:
    listed = names_of(table.handle_key)
    return session.stage((*_version(table), "keys"), listed, quoted_table(table.written_as))


def _version(table: TableSchema) -> tuple[object, ...]:
    return table.written_as, table.table_id, table.version, tuple(c.name for c in table.visible)
