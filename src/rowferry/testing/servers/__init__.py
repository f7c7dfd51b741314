"""Real MySQL and MariaDB servers for tests and benchmarks, fetched, started and stopped here.

In: a folder and settings. Out: a server that answers on 127.0.0.1, with an administrator's login.
Nothing is installed on the machine; programs are kept in a cache folder that later runs use.
"""

from rowferry.testing.servers.flavours import (
    MariaDb,
    MariaDb11,
    MySql,
    ensure_mariadb,
    ensure_mysql,
)
from rowferry.testing.servers.replication import promote, replicate, wait_for
from rowferry.testing.servers.server import Row, Server
from rowferry.testing.servers.sysbench import sysbench_table

__all__ = [
    "MariaDb",
    "MariaDb11",
    "MySql",
    "Row",
    "Server",
    "ensure_mariadb",
    "ensure_mysql",
    "promote",
    "replicate",
    "sysbench_table",
    "wait_for",
]
