"""A small storage directory, written by hand as the layout is published, and kept in memory."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rowferry.downstream.storage_check.check import check_storage
from rowferry.downstream.storage_check.expected import ExpectedLayout
from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.downstream.storage_check.rules import StorageFindings

Tree = dict[str, bytes]


def ts(text: str) -> int:
    return round(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000) << 18


V1 = ts("2023-05-09T10:00:00")
V2 = ts("2023-05-11T10:00:00")
LAST = ts("2023-05-12T00:00:00")
CSV = ExpectedLayout(carries_commit_ts=True, date_separator="day", partitions=True, digits=6)
CANAL = ExpectedLayout(FileKind.CANAL_JSON, carries_commit_ts=True)


@dataclass(frozen=True)
class Entry:
    name: str
    is_directory: bool


@dataclass(frozen=True)
class Content:
    data: bytes


class Memory:
    """Objects by path."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def entries(self, directory: str) -> Iterator[Entry]:
        start = f"{directory}/" if directory else ""
        below = [p.removeprefix(start) for p in self._tree if p.startswith(start)]
        for name in dict.fromkeys(p.split("/")[0] for p in below):
            yield Entry(name, any(p.startswith(f"{name}/") for p in below))

    def get(self, path: str) -> Content | None:
        found = self._tree.get(path)
        return Content(found) if found is not None else None


def check(tree: Tree, expected: ExpectedLayout) -> StorageFindings:
    return check_storage(Memory(tree), expected)


ID = {
    "ColumnName": "Id",
    "ColumnType": "INT",
    "ColumnPrecision": "11",
    "ColumnNullable": "false",
    "ColumnIsPk": "true",
}
NAME = {
    "ColumnName": "LastName",
    "ColumnType": "VARCHAR",
    "ColumnPrecision": "20",
    "ColumnLength": "20",
}
HIRED = {"ColumnName": "Hired", "ColumnType": "DATETIME", "ColumnScale": "3"}
COLUMNS = [ID, NAME, HIRED]


def schema_file(
    table: str,
    version: int,
    columns: list[dict[str, Any]] | None = COLUMNS,
    query: str = "",
    kind: int = 0,
    database: str = "hr",
    **other: Any,
) -> tuple[str, bytes]:
    """Return path and content; `other` changes the content after the name was made of it."""
    form = {
        "Table": table,
        "Schema": database,
        "Version": 1,
        "TableVersion": version,
        "Query": query,
        "Type": kind,
        "TableColumns": columns,
        "TableColumnsTotal": len(columns or ()),
    }
    hashed = [{k: v for k, v in c.items() if k != "ColumnLength"} for c in columns or ()]
    hashed.sort(key=lambda c: c.get("ColumnName", ""))
    covered = {"Table": table, "Schema": database, "Version": 0}
    covered |= {"TableColumns": hashed, "TableColumnsTotal": len(hashed)}
    text = json.dumps(covered, indent=4, ensure_ascii=False)
    home = f"{database}/{table}/meta" if table else f"{database}/meta"
    path = f"{home}/schema_{version}_{zlib.crc32(text.encode()):010d}.json"
    return path, json.dumps(form | other, indent=4, ensure_ascii=False).encode()


def line(op: str, at: int, number: int, name: str = '"Smith"', hired: str = "\\N") -> str:
    return f'"{op}","employee","hr",{at},{number},{name},{hired}\r\n'


def lines(*texts: str) -> bytes:
    return "".join(texts).encode()


HOME = f"hr/employee/{V1}/13"
DAY9, DAY10 = f"{HOME}/2023-05-09", f"{HOME}/2023-05-10"
SECOND = f"hr/employee/{V2}/13/2023-05-11"


def clean() -> Tree:
    """Two versions, two days, three files, a database's DDL, all in csv."""
    noon, evening = ts("2023-05-09T12:00:00"), ts("2023-05-09T23:59:59")
    tree = dict(
        [
            schema_file("", V1 - 5, None, "CREATE DATABASE `hr`", 1),
            schema_file("employee", V1),
            schema_file("employee", V2, COLUMNS, "ALTER TABLE employee COMMENT 'x'", 17),
        ]
    )
    tree["metadata"] = b'{"checkpoint-ts":%d}' % LAST
    tree["rowferry.owner"] = b"{}"
    tree[f"{DAY9}/CDC000001.csv"] = lines(
        line("I", V1, 1),
        line("I", V1, 2, '"O ""x"", y"', '"2014-06-04 01:02:03.123000"'),
        line("U", noon, 1, "\\N"),
    )
    tree[f"{DAY9}/CDC000002.csv"] = lines(line("D", noon, 1), line("U", evening, 2))
    tree[f"{DAY9}/meta/CDC.index"] = b"CDC000002.csv\n"
    tree[f"{DAY10}/CDC000001.csv"] = lines(line("I", ts("2023-05-10T00:00:00"), 3))
    tree[f"{DAY10}/meta/CDC.index"] = b"CDC000001.csv\n"
    tree[f"{SECOND}/CDC000001.csv"] = b""  # all of its rows were dropped
    tree[f"{SECOND}/meta/CDC.index"] = b"CDC000001.csv\n"
    return tree


def message(kind: str, at: int, row: dict[str, str | None], **other: Any) -> bytes:
    form = {
        "id": 0,
        "database": "hr",
        "table": "employee",
        "pkNames": ["Id"],
        "isDdl": False,
        "type": kind,
        "es": at >> 18,
        "ts": at >> 18,
        "sql": "",
        "sqlType": dict.fromkeys(row, 12),
        "mysqlType": dict.fromkeys(row, "x"),
        "old": None,
        "data": [row],
        "_tidb": {"commitTs": at},
    }
    return json.dumps(form | other).encode() + b"\r\n"


CANAL_FILE = f"hr/employee/{V1}/CDC000001.json"
ROW: dict[str, str | None] = {"Id": "1", "LastName": "ß", "Hired": "2014-06-04 01:02:03.123"}


def clean_canal() -> Tree:
    """One version without partitions and dates, in canal-json."""
    tree = dict([schema_file("employee", V1)])
    tree["metadata"] = b'{"checkpoint-ts":%d}' % LAST
    tree[CANAL_FILE] = message("INSERT", V1, ROW) + message(
        "UPDATE", V1 + 1, ROW | {"LastName": None}, old=[{"LastName": "ß"}]
    )
    tree[f"hr/employee/{V1}/meta/CDC.index"] = b"CDC000001.json\n"
    return tree
