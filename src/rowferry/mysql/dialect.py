"""The dialect of MySQL, MariaDB and TiDB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rowferry.change.dialect import fold
from rowferry.change.table import MYSQL, TableId
from rowferry.mysql.ddl.rename import rename_tables

SYSTEM_DATABASES: Final = frozenset(
    {
        "dm_heartbeat",
        "information_schema",
        "inspection_schema",
        "lightning_task_info",
        "metrics_schema",
        "mysql",
        "performance_schema",
        "sys",
        "tidb_cdc",
        "workload_schema",
    }
)


class MySqlDialect:
    """What sources of these servers say about words; see `SourceDialect`."""

    name = MYSQL

    def is_system_database(self, name: str) -> bool:
        """Return whether a database is one of the server's own, or of its tools."""
        return fold(name) in SYSTEM_DATABASES

    def rename_tables(
        self, query: str, database: str, new_name: Callable[[TableId], TableId]
    ) -> str:
        """Return a DDL with the tables and databases that it names under new names.

        Raises:
            BadStatement: the text is not one statement.
        """
        return rename_tables(query, database, new_name)


MYSQL_DIALECT: Final = MySqlDialect()
