"""Tables that are made from what rows tell, in a database whose collation takes texts for one."""

from __future__ import annotations

from rowferry.change.chunk import Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.consume.apply import Applier
from rowferry.downstream.consume.arrival import ArrivedRow, Where
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MariaDb, MySql

NAME = "text_keys"


def test_keys_that_the_source_tells_apart_are_rows_of_their_own(
    source_server: MySql | MariaDb,
) -> None:
    columns = (
        Column(1, "k", SqlType("varchar", length=9), nullable=False),
        Column(2, "n", SqlType("int"), nullable=False),
    )
    key = Index(1, "PRIMARY", ("k", "n"), True, True)
    table = TableSchema(TableId(NAME, "t"), 0, 0, columns, (key,))
    images = [{"k": text, "n": 1} for text in ("a", "A", "a ", "ä", "b")]
    rows = [ArrivedRow(table, Op.INSERT, 1, None, image, Where("f")) for image in images]
    source_server.script(f"DROP DATABASE IF EXISTS {NAME}")
    applier = Applier(MySqlTarget(Uri.parse(source_server.uri, "--apply")), ConsumeFindings())
    try:
        applier.take(rows)
        applier.take(rows)
        applier.take([ArrivedRow(table, Op.DELETE, 2, images[0], None, Where("f"))])
    finally:
        applier.close()
    left = source_server.execute(f"SELECT HEX(k) FROM {NAME}.t ORDER BY HEX(k)")
    assert left == [("41",), ("6120",), ("62",), ("C3A4",)]
