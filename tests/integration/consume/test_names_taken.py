"""Names that tables should get downstream, and that others have there."""

from __future__ import annotations

import pytest

from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import RowRejected
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MariaDb, MySql


@pytest.mark.parametrize("statement", ["RENAME TABLE a TO b", "ALTER TABLE a RENAME TO b"])
def test_a_rename_onto_another_table_is_refused_and_a_repeated_one_left_out(
    source_server: MySql | MariaDb, statement: str
) -> None:
    """Taken for done, it would leave the rows of the one table under the other's name."""
    name = "names_taken"
    make = "CREATE TABLE {} (id INT PRIMARY KEY)"
    source_server.script(
        f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}", f"USE {name}",
        make.format("a"), make.format("b"), "INSERT INTO a VALUES (1)",
    )  # fmt: skip
    target = MySqlTarget(Uri.parse(source_server.uri, "--apply"))
    try:
        with pytest.raises(RowRejected, match="already exists"):
            target.change_schema(name, statement)
        source_server.script(f"DROP TABLE {name}.b")
        for _ in range(2):
            target.change_schema(name, statement)
        assert source_server.execute(f"SELECT id FROM {name}.b") == [("1",)]
        target.change_schema(name, make.format("b"))  # it was made before
    finally:
        target.close()


@pytest.mark.parametrize("done", ["", "RENAME TABLE a TO b", "RENAME TABLE a TO b, c TO d"])
def test_of_several_renames_the_rest_is_carried_out(
    source_server: MySql | MariaDb, done: str
) -> None:
    name, tables = "names_taken", "SELECT table_name FROM information_schema.tables WHERE "
    source_server.script(
        f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}", f"USE {name}",
        "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE c (id INT PRIMARY KEY)",
        *([done] if done else []),
    )  # fmt: skip
    target = MySqlTarget(Uri.parse(source_server.uri, "--apply"))
    tables += f"table_schema = '{name}' ORDER BY 1"
    try:
        target.change_schema(name, "RENAME TABLE a TO b, c TO d")
        assert source_server.execute(tables) == [("b",), ("d",)]
        source_server.script(f"DROP TABLE {name}.b")
        target.change_schema(name, "DROP TABLE b, d")
        assert source_server.execute(tables) == []
        target.change_schema(name, "DROP TABLE b, d")
    finally:
        target.close()
