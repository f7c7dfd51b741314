"""Tables of a TiDB that trade names by `rowferry consume`: once, whatever is repeated."""

from __future__ import annotations

from contextlib import closing

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.downstream.consume.apply import Applier
from rowferry.downstream.consume.arrival import ArrivedStatement, Where
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.downstream.consume.exchanges import NOTES
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import ExchangedBefore, SinkUnavailable
from rowferry.spec.uri import Uri
from rowferry.testing.servers import TiDb

SWAP = "RENAME TABLE a TO x, b TO a, x TO b"


@pytest.mark.parametrize("answered", [True, False])
def test_names_are_traded_once(
    tidb_server: TiDb, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"exchanged_{answered}".lower()
    tidb_server.script(
        f"CREATE DATABASE {name}", f"USE {name}",
        "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
    )  # fmt: skip
    change = SchemaChange(100, DdlKind.NONE, SWAP, TableId(name, "x"))
    whole = MySqlTarget.change_schema

    def change_schema(this: MySqlTarget, database: str, query: str) -> None:
        whole(this, database, query)
        if not answered:
            raise SinkUnavailable("the answer was lost")

    def run() -> None:
        target = MySqlTarget(Uri.parse(tidb_server.uri, "--apply"))
        with closing(Applier(target, ConsumeFindings())) as applier:
            applier.take([ArrivedStatement(change, Where("t[0]", 1))])

    with monkeypatch.context() as patch:
        patch.setattr(MySqlTarget, "change_schema", change_schema)
        if answered:
            run()
        else:
            with pytest.raises(SinkUnavailable):
                run()
    with pytest.raises(ExchangedBefore, match="--from 100" if answered else "is not known"):
        run()
    assert tidb_server.execute(f"SELECT id FROM {name}.b") == [("1",)]
    notes = tidb_server.execute(f"SELECT state FROM {NOTES} WHERE statement = '{SWAP}'")
    assert str(notes[-1][0]) == ("done" if answered else "begun")
    tidb_server.script(f"DROP DATABASE {name}", f"DROP TABLE {NOTES}")
