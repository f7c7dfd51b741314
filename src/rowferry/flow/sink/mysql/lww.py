"""Rows of which the newest wins: the statement that lets the downstream decide, row by row."""

from __future__ import annotations

from typing import Final

from rowferry.change.table import TableSchema
from rowferry.flow.encode.sql_rows.frame import ROW_END, quoted, quoted_table, written_columns
from rowferry.flow.sink.mysql.judged_rows import CONDITION
from rowferry.flow.sink.mysql.session import DownstreamFacts
from rowferry.flow.sink.mysql.statements import Around
from rowferry.mysql.feed_mark import SESSION_VARIABLE
from rowferry.mysql.flavour import Flavour

ORIGIN_TS: Final = "_tidb_origin_ts"
COMMIT_TS: Final = "_tidb_commit_ts"


def newest_wins(table: TableSchema) -> tuple[Around, None]:
    """An INSERT that changes a row only where that is not newer; REPLACE can not say the same.

    The row's own moment is `_tidb_origin_ts` where another cluster wrote it, else
    `_tidb_commit_ts`, which the downstream makes and nobody sends. It is judged once, in the first
    column that is not part of the primary key: later ones may be changed by then.
    """
    target = quoted_table(table.written_as)
    names = [n for n in written_columns(table) if n.lower() != COMMIT_TS]
    keys = {n.lower() for n in table.primary_key}
    origin = quoted(ORIGIN_TS)
    theirs = f"IFNULL({target}.{origin}, {target}.{quoted(COMMIT_TS)})"
    judged = f"({CONDITION} := ({theirs} <= VALUES({origin})))"
    parts: list[str] = []
    for name in (quoted(n) for n in names if n.lower() not in keys):
        condition = CONDITION if parts else judged
        parts.append(f"{name} = IF({condition}, VALUES({name}), {target}.{name})")
    columns = ",".join(quoted(n) for n in names)
    lead = f"INSERT INTO {target} ({columns}) VALUES ".encode()
    return Around(lead, ROW_END, f" ON DUPLICATE KEY UPDATE {', '.join(parts)}".encode()), None


def no_settings(facts: DownstreamFacts) -> tuple[bytes, ...]:
    """Return nothing: sessions for plain rows need no more than they have."""
    return ()


def session_settings(facts: DownstreamFacts) -> tuple[bytes, ...]:
    """Return what a session that writes such rows begins with: triggers look at it."""
    return () if facts.flavour is Flavour.TIDB else (f"SET {SESSION_VARIABLE} = 1".encode(),)
