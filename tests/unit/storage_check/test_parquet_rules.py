"""Parquet files: a clean directory passes; what is planted is found, and by its own rule alone."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from check_kit import CSV, DAY9, DAY10, LAST, V1, Tree, check, schema_file, ts

from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.downstream.storage_check.rules import Rule
from rowferry.errors import OptionsConflict

PARQUET = replace(CSV, kind=FileKind.PARQUET)
NOON = ts("2023-05-09T12:00:00")
FORMS: list[dict[str, Any]] = [
    {"ColumnName": "id", "ColumnType": "INT", "ColumnPrecision": "11", "ColumnNullable": "false",
     "ColumnIsPk": "true"},
    {"ColumnName": "n", "ColumnType": "DECIMAL", "ColumnPrecision": "12", "ColumnScale": "3"},
    {"ColumnName": "at", "ColumnType": "DATETIME", "ColumnScale": "3"},
    {"ColumnName": "e", "ColumnType": "ENUM", "ColumnElems": ["x", "y"]},
]  # fmt: skip
TYPES = [
    pa.field("id", pa.int64()),
    pa.field("n", pa.decimal128(12, 3)),
    pa.field("at", pa.timestamp("us")),
    pa.field("e", pa.string()),
]
OWN = [pa.field("_op", pa.string()), *(pa.field(n, pa.int64()) for n in ("_commit_ts", "_seq"))]
FIRST, NEXT = f"{DAY9}/CDC000001.parquet", f"{DAY10}/CDC000001.parquet"
ROW = {"id": 1, "n": None, "at": None, "e": "x"}
Row = tuple[str, int, Any, Any]


def file(*rows: Row, types: list[pa.Field] = TYPES, own: list[pa.Field] = OWN) -> bytes:
    """A flat file of (op, commit-ts, id, e)."""
    made = [
        {"_op": op, "_commit_ts": at, "_seq": n, "id": key, "n": None, "at": None, "e": e}
        for n, (op, at, key, e) in enumerate(rows)
    ]
    return stored(pa.Table.from_pylist(made, pa.schema([*own, *types])))


def images(*rows: tuple[str, dict[str, Any] | None, dict[str, Any] | None]) -> bytes:
    """A file with two images of each row."""
    both = [pa.field(name, pa.struct(TYPES)) for name in ("_before", "_after")]
    made = [
        {"_op": op, "_commit_ts": NOON, "_seq": n, "_before": before, "_after": after}
        for n, (op, before, after) in enumerate(rows)
    ]
    return stored(pa.Table.from_pylist(made, pa.schema([*OWN, *both])))


def stored(table: pa.Table) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, store_schema=False)
    return target.getvalue()


def clean() -> Tree:
    tree = dict([schema_file("employee", V1, FORMS)])
    tree["metadata"] = b'{"checkpoint-ts":%d}' % LAST
    tree[FIRST] = file(("insert", V1, 1, "x"), ("insert", V1, 2, ""), ("update", NOON, 1, None))
    tree[f"{DAY9}/CDC000002.parquet"] = file(("delete", NOON, 1, "y"))
    tree[f"{DAY9}/meta/CDC.index"] = b"CDC000002.parquet\n"
    tree[NEXT] = file()
    tree[f"{DAY10}/meta/CDC.index"] = b"CDC000001.parquet\n"
    return tree


def test_a_clean_directory_passes() -> None:
    findings = check(clean(), PARQUET)
    assert (findings.violations, findings.rows, findings.unchecked) == ([], 4, [])


def test_images_pass() -> None:
    tree = clean()
    tree[FIRST] = images(("insert", None, ROW), ("update", ROW, ROW), ("delete", ROW, None))
    assert not check(tree, PARQUET).counts


Plant = Callable[[], dict[str, bytes]]
PLANTED: list[tuple[Rule, str, Plant]] = [
    (Rule.ROW_ORDER, "row 2: commit-ts", lambda: {
        FIRST: file(("insert", NOON, 1, "x"), ("insert", V1, 2, "x"))}),
    (Rule.ROW_VERSION, "is below version", lambda: {FIRST: file(("insert", V1 - 1, 1, "x"))}),
    (Rule.WRONG_DATE, "is not of 2023-05-10", lambda: {NEXT: file(("insert", NOON, 3, "x"))}),
    (Rule.ROWS_ABOVE_CHECKPOINT, "is above", lambda: {
        "metadata": b'{"checkpoint-ts":%d}' % (NOON - 1)}),
    (Rule.ROW_FIT, "row 2: _op is none of", lambda: {
        FIRST: file(("insert", V1, 1, "x"), ("upsert", V1, 2, "x"))}),
    (Rule.ROW_FIT, "row 1: _commit_ts is no", lambda: {FIRST: file(("insert", -1, 1, "x"))}),
    (Rule.ROW_FIT, "'id': NULL in a NOT NULL", lambda: {FIRST: file(("insert", V1, None, "x"))}),
    (Rule.ROW_FIT, "out of the range of INT", lambda: {FIRST: file(("insert", V1, 2**31, "x"))}),
    (Rule.ROW_FIT, "'e': no element", lambda: {FIRST: file(("insert", V1, 1, "z"))}),
    (Rule.ROW_FIT, "the columns are id, n, at; the schema", lambda: {
        FIRST: file(("insert", V1, 1, "x"), types=TYPES[:3])}),
    (Rule.ROW_FIT, r"column 'n' is decimal128\(11, 3\); DECIMAL is", lambda: {
        FIRST: file(("insert", V1, 1, "x"),
                    types=[TYPES[0], pa.field("n", pa.decimal128(11, 3)), *TYPES[2:]])}),
    (Rule.ROW_FIT, "the first columns are _op string, _commit_ts int64, id", lambda: {
        FIRST: file(("insert", V1, 1, "x"), own=OWN[:2])}),
    (Rule.ROW_FIT, "not a whole parquet file", lambda: {FIRST: clean()[FIRST][:-9]}),
    (Rule.ROW_FIT, "not a whole parquet file", lambda: {FIRST: b""}),
    (Rule.ROW_FIT, "row 1: _before is there in all but inserts", lambda: {
        FIRST: images(("insert", ROW, ROW))}),
    (Rule.ROW_FIT, "row 1: _after is there in all but deletes", lambda: {
        FIRST: images(("update", ROW, None))}),
    (Rule.ROW_FIT, "row 1: column 'id': NULL", lambda: {
        FIRST: images(("delete", ROW | {"id": None}, None))}),
    (Rule.GAP_IN_NUMBERS, "no file has number 2", lambda: {
        f"{DAY9}/meta/CDC.index": b"CDC000003.parquet\n",
        f"{DAY9}/CDC000003.parquet": clean()[NEXT], f"{DAY9}/CDC000002.parquet": b"gone"}),
    (Rule.FILE_NAME, "not CDC", lambda: {f"{DAY9}/CDC000003.csv": b""}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "words", "plant"), PLANTED)
def test_what_is_planted_is_found(rule: Rule, words: str, plant: Plant) -> None:
    tree = {path: data for path, data in (clean() | plant()).items() if data != b"gone"}
    findings = check(tree, PARQUET)
    assert set(findings.counts) == {rule}
    assert re.search(words, findings.violations[0].words)


def test_a_transaction_in_two_files() -> None:
    tree = clean()
    assert not check(tree, PARQUET).counts
    findings = check(tree, replace(PARQUET, whole_transactions=True))
    assert set(findings.counts) == {Rule.SPLIT_TRANSACTION}


def test_files_of_other_protocols_are_refused() -> None:
    with pytest.raises(OptionsConflict, match="protocol json: .* known: csv, canal-json, parquet"):
        FileKind.of("json")
