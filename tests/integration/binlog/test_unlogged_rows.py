"""Rows of sysbench's tables that the log does not have; the server writes nothing else."""

from __future__ import annotations

import re

from rowferry.testing.servers import MySql, Server, sysbench_table


def test_rows_can_stay_out_of_the_log(source_server: Server) -> None:
    name = "gtid_executed" if isinstance(source_server, MySql) else "gtid_binlog_pos"

    def written() -> int:
        ((found,),) = source_server.execute(f"SELECT @@GLOBAL.{name}")
        return int(re.findall(r"\d+", str(found))[-1])

    source_server.execute("CREATE DATABASE sb_quiet")
    before = written()
    sysbench_table(source_server, tables=2, rows=10, database="sb_quiet", logged=False)
    # CREATE DATABASE IF NOT EXISTS and two CREATE TABLE are there; the rows are not.
    assert written() == before + 3
