"""Statements of the MySQL sink: what many changes amount to, and how multi-row ones read.

Ours are kept in `mysql/`; published ones join them where they are at hand. Those have `?` where we
write values, and single UPDATEs where we write upserts: what counts there is the rows that result.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from change_file import rows_of, spec_of
from outside import cases

from codec_kit import codec_for
from rowferry.change.plan import Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.encode.sql_rows.codec import SqlRows
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.mysql.statements import (
    Limits,
    NetEffect,
    SqlStatement,
    insert_around,
    net_effect,
    replace_around,
    upsert_around,
    upserting,
)
from rowferry.mysql.ddl.statement import parse_create

State = dict[int, str]
_ROW = re.compile(r"\((\d+),'((?:[^']|'')*)'\)")


def vectors(area: str) -> list[Any]:
    kept = Path(__file__).parent / "mysql" / f"{area}.json"
    rows = {r["id"]: r for r in json.loads(kept.read_text("utf-8"))}
    rows |= {r["id"]: r for r in cases(area)}
    return [pytest.param(r["input"], r["expected"], id=i) for i, r in sorted(rows.items())]


def frame_of(table: TableSchema, changes: list[dict[str, Any]]) -> RowFrame:
    codec = codec_for(SqlRows, spec_of("tidb://root@h/"))
    encoded = codec.encode_rows(rows_of(table, changes), 0)
    sent = codec.batch(encoded, Topic("t", 1, 1))
    assert sent.keys is not None
    return RowFrame.from_message(sent.keys[0].as_py(), sent.values[0].as_py())


@pytest.mark.parametrize(("given", "expected"), vectors("mysql-batch"))
def test_what_changes_of_one_batch_amount_to(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    table = replace(parse_create(given["ddl"].rstrip(";")), id=TableId("test", "t"))
    first: State = {}
    seen: set[int] = set()
    for change in given["rows"]:
        key, name = change.get("pre") or change["row"]
        if "pre" in change and key not in seen:
            first[key] = name
        seen.add(key)
    changes = [
        {"op": c["op"], "commit_ts": 1, "before": c.get("pre"), "after": c.get("row")}
        for c in given["rows"]
    ]
    effect = net_effect([frame_of(table, changes)], Limits(256, 1 << 20), how=upserting)
    assert ours(effect, dict(first)) == theirs(expected["statements"], dict(first))


def ours(effect: NetEffect, state: State) -> State:
    for statement in effect.deletes:
        for key in re.findall(r"\d+", statement.sql.decode().partition(" IN ")[2]):
            state.pop(int(key), None)
    for statement in effect.upserts:
        for key, name in _ROW.findall(statement.sql.decode()):
            state[int(key)] = name.replace("''", "'")
    return state


def theirs(statements: list[dict[str, Any]], state: State) -> State:
    for one in statements:
        args = one["args"]
        if one["sql"].startswith("DELETE"):
            for key in args:
                state.pop(key, None)
        else:  # an update has its key again at the end
            state |= dict(zip(args[0::2], args[1::2], strict=False))
    return state


@pytest.mark.parametrize(("given", "expected"), vectors("mysql-sql"))
def test_statements_of_many_rows(given: dict[str, Any], expected: dict[str, Any]) -> None:
    if expected["sql"].startswith(("DELETE", "UPDATE")):
        return  # these have forms of our own
    builders = {
        "multi-insert": insert_around,
        "multi-insert-on-dup": upsert_around,
        "multi-replace": replace_around,
    }
    table = replace(parse_create(given["ddl"]), id=TableId("db", "tb"))
    made = frame_of(table, [{"op": "insert", "commit_ts": 1, "after": r} for r in given["rows"]])
    replaces = expected["sql"].startswith("REPLACE")
    around = builders["multi-replace" if replaces else given["kind"]](table)
    sql = SqlStatement(table, made.rows, made.keys, around).sql.decode()
    values = re.search(r"VALUES (\(.*?\))( ON|$)", sql)
    assert values
    assert [int(v) for v in re.findall(r"\d+", values[1])] == expected["args"]
    assert sql.replace(values[1], re.sub(r"\d+", "?", values[1])) == expected["sql"]
