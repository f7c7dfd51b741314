"""sysbench's tables."""

from __future__ import annotations

import re

from rowferry.testing.servers import MariaDb, MySql, Server, sysbench_table


def test_tables_are_as_sysbench_makes_them(source_server: Server) -> None:
    names = sysbench_table(source_server, tables=2, rows=250, database="sb_small")
    assert names == ["sb_small.sbtest1", "sb_small.sbtest2"]
    for name in names:
        found = source_server.execute(f"SELECT id, k, c, pad FROM {name} ORDER BY id")
        assert [int(str(row[0])) for row in found] == list(range(1, 251))
        assert {1 <= int(str(row[1])) <= 250 for row in found} == {True}
        assert len({row[1] for row in found}) > 100
        assert all(re.fullmatch(r"(\d{11}-){9}\d{11}", str(row[2])) for row in found)
        assert all(re.fullmatch(r"(\d{11}-){4}\d{11}", str(row[3])) for row in found)
        columns = source_server.execute(
            "SELECT column_name, data_type, character_maximum_length, column_key, extra "
            "FROM information_schema.columns WHERE CONCAT(table_schema, '.', table_name) = %s "
            "ORDER BY ordinal_position",
            name,
        )
        assert columns == [
            ("id", "int", None, "PRI", "auto_increment"),
            ("k", "int", None, "MUL", ""),
            ("c", "char", "120", "", ""),
            ("pad", "char", "60", "", ""),
        ]


def test_rows_beyond_one_step(source_server: Server) -> None:
    (name,) = sysbench_table(source_server, tables=1, rows=100_001, database="sb_steps")
    found = source_server.execute(f"SELECT COUNT(*), MIN(id), MAX(id) FROM {name}")
    assert found == [("100001", "1", "100001")]


def test_rows_are_equal_everywhere(mysql_server: MySql, mariadb_server: MariaDb) -> None:
    found = []
    for server in (mysql_server, mariadb_server):
        (name,) = sysbench_table(server, tables=1, rows=50, database="sb_equal")
        found.append(server.execute(f"SELECT * FROM {name} ORDER BY id"))
    assert found[0] == found[1]
