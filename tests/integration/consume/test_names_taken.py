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
        target.change_schema(name, statement)
        assert source_server.execute(f"SELECT id FROM {name}.b") == [("1",)]
        target.change_schema(name, make.format("b"))  # it was made before
    finally:
        target.close()
