"""Repair statements: what goes comes first, and what was not compared stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rowferry.change.table import TableSchema
from rowferry.downstream.verify.comparison import A, B, compare_tables
from rowferry.downstream.verify.repair import Repair, RepairFile
from rowferry.downstream.verify.work import compare, groups_of, joined, measure, pick
from rowferry.errors import BadOption
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.session import Flavour


def rows(table: TableSchema, *values: tuple[Any, ...]) -> pa.Table:
    fields = pa.schema([pa.field(c.name, c.type.arrow) for c in table.columns])
    columns = list(zip(*values, strict=True))
    return pa.table(dict(zip(fields.names, map(list, columns), strict=True)), schema=fields)


def repaired(
    path: Path, a: str, b: str, ours: Any, theirs: Any, flavour: Flavour = Flavour.MYSQL
) -> list[str]:
    schemas = [parse_create(f"CREATE TABLE {text}") for text in (a, b)]
    comparison = compare_tables(
        schemas[A], schemas[B], (schemas[A].handle_key, schemas[B].handle_key)
    )
    tables = rows(schemas[A], *ours), rows(schemas[B], *theirs)
    sums = [measure(comparison, side, 1, [tables[side]]) for side in (A, B)]
    groups = groups_of(sums[A], sums[B], 100)
    sides = [
        joined(comparison, s, [f for _, f in pick(comparison, s, groups, [tables[s]])])
        for s in (A, B)
    ]
    repair = Repair(comparison, flavour)
    repair.add(compare(comparison, sides[A], sides[B]))
    file = RepairFile(path)
    file.add(repair)
    file.close()
    return path.read_text().splitlines()[3:]


def test_statements_of_a_table_with_a_key(tmp_path: Path) -> None:
    ours = [(1, "it's"), (2, "b\\"), (3, None)]
    found = repaired(
        tmp_path / "whole.sql",
        "d.t (id int primary key, v varchar(9))",
        "e.u (V varchar(20), id int primary key)",
        ours,
        [("it's", 1), ("x", 2), ("y", 9)],
    )
    assert found == [
        "DELETE FROM `e`.`u` WHERE `id` IN (9);",
        "REPLACE INTO `e`.`u` (`id`,`V`) VALUES (3,NULL);",
        "REPLACE INTO `e`.`u` (`id`,`V`) VALUES (2,CONVERT(_utf8mb4 x'625c' USING utf8mb4));",
    ]
    found = repaired(
        tmp_path / "part.sql",
        "d.t (id int primary key, v varchar(9))",
        "d.t (id int primary key, v varchar(9), own int)",
        ours,
        [(1, "it's", 5), (2, "b\\", 5)],
    )
    upsert = "ON DUPLICATE KEY UPDATE `v`=VALUES(`v`)"
    assert found == [f"INSERT INTO `d`.`t` (`id`,`v`) VALUES (3,NULL) {upsert};"]


def test_statements_of_a_table_without_a_key(tmp_path: Path) -> None:
    path = tmp_path / "repair.sql"
    found = repaired(path, "d.t (v int)", "d.t (v int)", [(1,), (1,)], [(1,), (2,), (2,)])
    gone = "DELETE FROM `d`.`t` WHERE (`v`<=>2) LIMIT 1;"
    assert found == [gone, gone, "INSERT INTO `d`.`t` (`v`) VALUES (1);"]
    with pytest.raises(BadOption, match="is there already"):
        RepairFile(path)
    with pytest.raises(BadOption, match="cannot be written"):
        RepairFile(tmp_path / "none" / "repair.sql")


def test_vectors_are_written_as_the_target_reads_them(tmp_path: Path) -> None:
    shape = "d.t (id int primary key, v vector(2))"
    for flavour, words in ((Flavour.MYSQL, "STRING_TO_VECTOR('[1,2]')"), (Flavour.TIDB, "'[1,2]'")):
        path = tmp_path / f"{flavour.value}.sql"
        (found,) = repaired(path, shape, shape, [(1, "[1,2]")], [(1, "[3,4]")], flavour)
        assert f"(1,{words})" in found.replace(", ", ",")
