"""What MODIFY COLUMN makes of values: servers, the product's rebuild and the test kit agree.

Where the servers do not agree (MariaDB makes 2 of the text 2.6, and MySQL 3), nothing is asked.
"""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.downstream.rebuild import convert as product
from rowferry.mysql.ddl.statement import parse_create
from rowferry.testing import evolve as kit
from rowferry.testing.servers import Server

DATABASE = "converted_values"
HALVES = ["2.500", "-2.500", "3.500", "0.5", "-0.5", "2.345", "-2.345", "2.355", "0.004", "7"]
CASES: list[tuple[str, str, list[Any]]] = [
    ("decimal(9,3)", "int", HALVES),
    ("decimal(9,3)", "decimal(9,2)", HALVES),
    ("decimal(9,3)", "decimal(9,0)", HALVES),
    ("decimal(9,3)", "varchar(20)", HALVES),
    ("varchar(20)", "decimal(9,2)", HALVES),
    ("varchar(20)", "int", ["3.4999", "12", "-7"]),
    ("double", "int", [2.5, 3.5, -2.5, -3.5, 0.5, 1e9]),
    ("double", "decimal(20,2)", [0.125, 0.375, -0.125, 1e15, 2.345]),
    ("int", "decimal(9,2)", [0, -1, 7]),
    ("int", "varchar(20)", [0, -1, 7]),
    ("decimal(65,30)", "decimal(65,29)", [f"{'9' * 34}.{'9' * 30}", f"-0.{'0' * 29}5"]),
]


def canonical(value: Any, kind: Any) -> Any:
    if value is None or kind.name in ("varchar", "decimal"):
        return value
    return float(value) if kind.name == "double" else int(value)


@pytest.mark.parametrize(("old", "new", "values"), CASES, ids=lambda c: str(c)[:20])
def test_values(source_server: Server, old: str, new: str, values: list[Any]) -> None:
    source_server.script(
        f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
        f"DROP TABLE IF EXISTS {DATABASE}.t",
        f"CREATE TABLE {DATABASE}.t (id int PRIMARY KEY, c {old})",
    )
    place, ask = f"{DATABASE}.t", f"SELECT c FROM {DATABASE}.t ORDER BY id"
    for key, value in enumerate(values):
        source_server.execute(f"INSERT INTO {place} VALUES (%s, %s)", key, value)
    before, after = (
        parse_create(f"CREATE TABLE {place} (c {t})").columns[0].type for t in (old, new)
    )
    held = [canonical(row[0], before) for row in source_server.execute(ask)]
    source_server.execute(f"ALTER TABLE {place} MODIFY c {new}")
    wanted = [canonical(row[0], after) for row in source_server.execute(ask)]
    assert [kit.convert_value(v, before, after) for v in held] == wanted
    assert [product.convert_value(v, before, after) for v in held] == wanted
