"""Active-active on servers that are not TiDB: triggers that do what TiDB does by itself.

They stamp each local write with the moment at which it was made and forget which cluster wrote the
row before. The low bits of a stamp are the cluster's number, and a stamp is always above that of
the row's last write, whoever made it: what wins here wins everywhere, however clocks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId
from rowferry.errors import TargetUnfit
from rowferry.flow.encode.sql_rows.frame import quoted, quoted_table
from rowferry.flow.sink.mysql.session import Session
from rowferry.moment import moment
from rowferry.mysql.feed_mark import SESSION_VARIABLE
from rowferry.mysql.stamps import cure, naming, stamping_clusters, triggers_question
from rowferry.spec.active_active import CLUSTER_INDEX_BITS

_LOW_BITS: Final = (1 << CLUSTER_INDEX_BITS) - 1
_NOW: Final = (
    f"(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000) << {PHYSICAL_SHIFT}"
)
_EVENTS: Final = ("INSERT", "UPDATE", "DELETE")
_MOST_CHARACTERS: Final = 64  # of a name


def triggers(table: TableId, key: Sequence[str], cluster_index: int) -> list[str]:
    """Return the statements that make a table ready, in their order; `key` is its primary key.

    Running them again replaces the triggers. The last one stamps rows that were there before.
    """
    statements = []
    for event, body in zip(_EVENTS, _bodies(key, cluster_index), strict=True):
        name = f"{quoted(table.database)}.{quoted(_name(table, event))}"
        statements.append(f"DROP TRIGGER IF EXISTS {name}")
        statements.append(
            f"CREATE TRIGGER {name} BEFORE {event} ON {quoted_table(table)} FOR EACH ROW BEGIN "
            # Clients leave comments out, so that the number stands in a text.
            f"IF {SESSION_VARIABLE} IS NULL AND '{naming(cluster_index)}' <> '' "
            f"THEN {body}; END IF; END"
        )
    statements.append(
        f"UPDATE {quoted_table(table)} SET _tidb_origin_ts = NULL "
        "WHERE _tidb_origin_ts IS NULL AND _tidb_commit_ts IS NULL"
    )
    return statements


def _bodies(key: Sequence[str], cluster_index: int) -> tuple[str, str, str]:
    own = f"({_NOW}) | {cluster_index}"
    last = "IFNULL(IFNULL(OLD._tidb_origin_ts, OLD._tidb_commit_ts), 0)"
    above = f"GREATEST({_NOW}, ({last} | {_LOW_BITS}) + 1) | {cluster_index}"
    # A row that is gone without a trace would come back with the next late write from elsewhere.
    # So would one whose key changes in case only: to changefeeds it is another one.
    old, new = ([f"CAST({row}.{quoted(c)} AS BINARY)" for c in key] for row in ("OLD", "NEW"))
    moved = " OR ".join(f"NOT {a} <=> {b}" for a, b in zip(old, new, strict=True))
    kept = _refused(
        moved, "mark the row as deleted and insert another, instead of changing its key"
    )
    # The zero date means the same as NULL.
    gone = _refused(
        "OLD._tidb_softdelete_time IS NULL OR OLD._tidb_softdelete_time = 0",
        "set _tidb_softdelete_time instead of deleting the row",
    )
    return (
        f"SET NEW._tidb_origin_ts = NULL, NEW._tidb_commit_ts = {own}",
        f"{kept}; SET NEW._tidb_origin_ts = NULL, NEW._tidb_commit_ts = {above}",
        gone,
    )


def _refused(condition: str, words: str) -> str:
    return (
        f"IF {condition} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'rowferry: {words}'; "
        "END IF"
    )


def _name(table: TableId, event: str) -> str:
    name = f"rowferry_{event.lower()}_{table.table}"
    if len(name) <= _MOST_CHARACTERS:
        return name
    # Long names that begin alike are those of different tables.
    return f"{name[: _MOST_CHARACTERS - 9]}_{crc32(table.table.encode()):08x}"


def check_triggers(session: Session, tables: Sequence[TableId], cluster_index: int) -> None:
    """Refuse a downstream whose tables do not stamp local writes, or as the source does.

    Raises:
        TargetUnfit: triggers are missing, or have the source's own number.
        Refused, SinkUnavailable: as `Session.ask`.
    """
    moment("list triggers")
    there = session.ask(*triggers_question(tables))
    for table in tables:
        clusters = stamping_clusters(there, table)
        if not clusters:
            raise TargetUnfit(
                f"table {table} of the downstream has no triggers for active-active; "
                f"{cure(table, '<n>')}"
            )
        if cluster_index in clusters:
            raise TargetUnfit(
                f"the triggers of table {table} of the downstream have the cluster-index "
                f"{cluster_index}, as the source's cluster has; give each cluster its own"
            )
