"""Triggers that stamp local writes, for active-active tables of MySQL and MariaDB: who has them.

Their text names the number of the cluster that they stamp for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rowferry.change.table import TableId

_INDEX: Final = re.compile(r"rowferry cluster-index (\d+)")
_STAMPED: Final = frozenset({"INSERT", "UPDATE"})


def naming(cluster_index: int) -> str:
    """Return the text by which a trigger names its cluster."""
    return f"rowferry cluster-index {cluster_index}"


def triggers_question(tables: Iterable[TableId]) -> tuple[str, tuple[str, ...]]:
    """Return the statement that asks for the triggers of these tables' databases, and its values.

    A user without the privilege TRIGGER sees none.
    """
    databases = tuple(sorted({t.database for t in tables})) or ("",)
    return (
        "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, EVENT_MANIPULATION, ACTION_STATEMENT "
        "FROM information_schema.TRIGGERS "
        f"WHERE EVENT_OBJECT_SCHEMA IN ({','.join(['%s'] * len(databases))})"
    ), databases


def stamping_clusters(rows: Iterable[Sequence[Any]], table: TableId) -> frozenset[int]:
    """Return the numbers in the triggers of a table, given the answer; none: not all are there."""
    by_event: dict[str, int] = {}
    for database, name, event, statement in rows:
        if (str(database).lower(), str(name).lower()) == (
            table.database.lower(),
            table.table.lower(),
        ):
            if index := _INDEX.search(str(statement)):
                by_event[str(event)] = int(index[1])
    return frozenset(by_event.values()) if by_event.keys() >= _STAMPED else frozenset()


def cure(table: TableId, cluster_index: int | str) -> str:
    """Return what to do about a table whose writes nobody stamps."""
    command = f"rowferry active-active prepare {table} --key <column> --cluster-index"
    return (
        f"run there what `{command} {cluster_index}` prints, or, if they are there, grant the user "
        "TRIGGER, without which they are not seen"
    )
