"""A clean directory passes; each planted violation is found, and by its own rule alone."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from check_kit import (
    CANAL,
    CANAL_FILE,
    COLUMNS,
    CSV,
    DAY9,
    DAY10,
    HIRED,
    HOME,
    ID,
    LAST,
    NAME,
    ROW,
    SECOND,
    V1,
    V2,
    Content,
    Memory,
    Tree,
    check,
    clean,
    clean_canal,
    line,
    lines,
    message,
    schema_file,
    ts,
)

from rowferry.downstream.storage_check.check import check_storage
from rowferry.downstream.storage_check.expected import ExpectedLayout
from rowferry.downstream.storage_check.rules import MOST_SAMPLES, Rule

FIRST = f"{DAY9}/CDC000001.csv"
Plant = Callable[[Tree], None]


def put(path: str, content: bytes) -> Plant:
    return lambda tree: tree.update({path: content})


def drop(*parts: str) -> Plant:
    def plant(tree: Tree) -> None:
        for path in [p for p in tree if any(part in p for part in parts)]:
            del tree[path]

    return plant


def move(old: str, new: str) -> Plant:
    def plant(tree: Tree) -> None:
        for path in [p for p in tree if p.startswith(old)]:
            tree[new + path.removeprefix(old)] = tree.pop(path)

    return plant


def schema(*arguments: object, **other: object) -> Plant:
    """Put another schema file in the place of the first version's."""
    path, content = schema_file("employee", V1, *arguments, **other)  # type: ignore[arg-type]

    def plant(tree: Tree) -> None:
        drop(f"employee/meta/schema_{V1}_")(tree)
        tree[path] = content

    return plant


def column(**changes: object) -> Plant:
    return schema([ID, {k: v for k, v in (NAME | changes).items() if v is not None}, HIRED])


def rows(*texts: str) -> Plant:
    return put(f"{SECOND}/CDC000001.csv", lines(*texts))


ODD_SCHEMA = f"hr/employee/meta/schema_{V1}_1.json"
CSV_PLANTS: list[tuple[Rule, Plant]] = [
    (Rule.UNKNOWN_OBJECT, put("readme.txt", b"")),
    (Rule.UNKNOWN_OBJECT, put("hr/notes", b"")),
    (Rule.UNKNOWN_OBJECT, put("hr/employee/notes", b"")),
    (Rule.UNKNOWN_OBJECT, put(f"{DAY9}/part-0.csv", b"")),
    (Rule.UNKNOWN_OBJECT, put(f"{DAY9}/meta/x", b"")),
    (Rule.UNKNOWN_OBJECT, put(f"{DAY9}/more/CDC000001.csv", b"")),
    (Rule.PATH_NAME, put("%68r2/meta/x", b"")),
    (Rule.PATH_NAME, put("a%2fb/meta/x", b"")),
    (Rule.PATH_VERSION, move(f"hr/employee/{V2}", "hr/employee/v2")),
    (Rule.PATH_VERSION, move(f"hr/employee/{V2}", f"hr/employee/0{V2}")),
    (Rule.PATH_PARTITION, move(DAY10, f"hr/employee/{V1}/2023-05-10")),
    (Rule.PATH_DATE, move(SECOND, f"hr/employee/{V2}/13/2023-05")),
    (Rule.PATH_DATE, move(SECOND, f"hr/employee/{V2}/13")),
    (Rule.PATH_DATE, move(SECOND, f"hr/employee/{V2}/13/2023-02-30")),
    (Rule.FILE_NAME, put(f"{DAY9}/CDC00003.csv", b"")),
    (Rule.FILE_NAME, put(f"{DAY9}/CDC000000.csv", b"")),
    (Rule.FILE_NAME, put(f"{DAY9}/CDC000003.json", b"")),
    (Rule.METADATA, drop("metadata")),
    (Rule.METADATA, put("metadata", b'{"checkpoint-ts":"1"}')),
    (Rule.METADATA, put("metadata", b"{")),
    (Rule.INDEX_MISSING, drop(f"{DAY10}/meta")),
    (Rule.INDEX_CONTENT, put(f"{DAY9}/meta/CDC.index", b"2")),
    (Rule.INDEX_CONTENT, put(f"{DAY9}/meta/CDC.index", b"CDC0000002.csv\n")),
    (Rule.INDEX_BEHIND_DATA, put(f"{DAY9}/meta/CDC.index", b"CDC000001.csv\n")),
    (Rule.GAP_IN_NUMBERS, drop(FIRST)),
    (Rule.GAP_IN_NUMBERS, put(f"{DAY9}/meta/CDC.index", b"CDC000003.csv\n")),
    (Rule.SCHEMA_NAME, put(ODD_SCHEMA, b"{}")),
    (Rule.SCHEMA_FORM, schema(Version=2)),
    (Rule.SCHEMA_FORM, schema(TableColumnsTotal="3")),
    (Rule.SCHEMA_FORM, schema(More=1)),
    (Rule.SCHEMA_PLACE, schema(TableVersion=V1 + 1)),
    (Rule.SCHEMA_CHECKSUM, schema(TableColumns=[ID, NAME | {"ColumnPrecision": "21"}, HIRED])),
    (Rule.SCHEMA_TOTAL, schema(TableColumnsTotal=4)),
    (Rule.SCHEMA_TYPE, schema(COLUMNS, "ALTER", 99)),
    (Rule.SCHEMA_TYPE, schema(COLUMNS, "", 5)),
    (Rule.ROW_FIT, rows(line("X", V2, 1))),
    (Rule.ROW_FIT, rows(line("I", V2, 1), line("I", V2, 1).replace(",\\N\r", "\r"))),
    (Rule.ROW_FIT, rows(line("I", V2, 1).rstrip())),
    (Rule.ROW_FIT, rows(line("I", V2, 1, "Smith"))),
    (Rule.ROW_FIT, rows(line("I", V2, 1, '"Sm"th"'))),
    (Rule.ROW_FIT, rows(line("I", V2, 1, f'"{"ß" * 21}"'))),
    (Rule.ROW_FIT, rows(line("I", V2, 1 << 31))),
    (Rule.ROW_FIT, rows(line("I", V2, 1).replace(",1,", ",\\N,"))),
    (Rule.ROW_FIT, rows(line("I", V2, 1).replace(",1,", ',"1",'))),
    (Rule.ROW_FIT, rows(line("I", V2, 1, hired='"2014-06-04 01:02:03.123"'))),
    (Rule.ROW_FIT, rows(line("I", V2, 1).replace(str(V2), "soon"))),
    (Rule.ROW_FIT, put(f"{SECOND}/CDC000001.csv", lines(line("I", V2, 1)).replace(b"S", b"\xff"))),
    (Rule.ROW_NAMES, rows(line("I", V2, 1).replace("employee", "boss"))),
    (Rule.ROW_NAMES, rows(line("I", V2, 1).replace('"hr"', '"HR"'))),
    (Rule.ROW_ORDER, rows(line("I", V2 + 2, 1), line("I", V2 + 1, 1))),
    (Rule.ROW_ORDER, put(f"{DAY9}/CDC000002.csv", lines(line("D", V1, 1)))),
    (Rule.ROW_VERSION, put(FIRST, lines(line("D", ts("2023-05-09T09:00:00"), 1)))),
    (Rule.WRONG_DATE, move(DAY10, f"{HOME}/2023-05-08")),
    (Rule.ROWS_ABOVE_CHECKPOINT, put("metadata", b'{"checkpoint-ts":%d}' % V1)),
]


def named(plants: list[tuple[Rule, Plant]]) -> list[str]:
    return [f"{rule.code}-{n}" for n, (rule, _) in enumerate(plants)]


def test_a_clean_directory_passes() -> None:
    findings = check(clean(), CSV)
    assert findings.violations == []
    assert (findings.files, findings.rows, findings.unchecked) == (4, 6, [])
    assert findings.bytes == sum(len(d) for p, d in clean().items() if p.endswith(".csv"))


def test_settings_that_nobody_told_may_be_any() -> None:
    assert not check(clean(), ExpectedLayout(carries_commit_ts=True)).counts
    months = clean()
    move(DAY9, f"{HOME}/2023")(months)
    drop(DAY10, SECOND)(months)
    assert not check(months, ExpectedLayout(carries_commit_ts=True)).counts


@pytest.mark.parametrize(("rule", "plant"), CSV_PLANTS, ids=named(CSV_PLANTS))
def test_a_planted_violation_is_found_by_its_rule(rule: Rule, plant: Plant) -> None:
    tree = clean()
    plant(tree)
    findings = check(tree, CSV)
    expected = {rule}
    if rule is Rule.PATH_NAME:  # what lies below such a name is no schema file either
        expected.add(Rule.SCHEMA_NAME)
    assert set(findings.counts) == expected, findings.violations
    assert bool(findings.failed) is rule.fails


COLUMN_PLANTS: list[Plant] = [
    column(ColumnType="STRING"),
    column(ColumnType="VARCHAR UNSIGNED"),
    column(ColumnLength=None),
    column(ColumnLength=20),
    column(ColumnScale="2"),
    column(ColumnNullable="no"),
    column(ColumnName="id"),
    column(ColumnName=""),
    column(ColumnElems=[1]),
    column(Comment="x"),
    schema([ID, NAME, HIRED | {"ColumnScale": "7"}]),
    schema([{k: v for k, v in ID.items() if k != "ColumnPrecision"}, NAME, HIRED]),
]


@pytest.mark.parametrize("plant", COLUMN_PLANTS)
def test_columns_are_described_as_their_types_need(plant: Plant) -> None:
    tree = clean()
    plant(tree)
    assert set(check(tree, CSV).counts) == {Rule.SCHEMA_COLUMN}


def test_a_version_without_its_schema_file() -> None:
    tree = clean()
    drop(f"employee/meta/schema_{V2}_")(tree)
    assert set(check(tree, CSV).counts) == {Rule.SCHEMA_MISSING}
    twice = clean() | dict([schema_file("employee", V2, [ID])])
    assert set(check(twice, CSV).counts) == {Rule.SCHEMA_MISSING}


def test_a_feed_that_publishes_while_its_files_are_checked() -> None:
    """An index is read behind the list of names, and may name a file that was not there then."""

    class Growing(Memory):
        def get(self, path: str) -> Content | None:
            if path == f"{DAY9}/meta/CDC.index":
                for number in (3, 4):
                    tree[f"{DAY9}/CDC00000{number}.csv"] = b""
                tree[path] = b"CDC000004.csv\n"
            return super().get(path)

    tree = clean()
    findings = check_storage(Growing(tree), CSV)
    assert findings.violations == []
    assert findings.files == 4
    drop(FIRST)(tree)
    assert set(check(tree, CSV).counts) == {Rule.GAP_IN_NUMBERS}


def test_an_index_of_a_number_that_no_memory_holds() -> None:
    tree = clean()
    tree[f"{DAY9}/meta/CDC.index"] = b"CDC99999999999999999999.csv\n"
    findings = check(tree, CSV)
    assert set(findings.counts) == {Rule.GAP_IN_NUMBERS}
    assert findings.violations[0].words.startswith("no file has number 3, 4, 5, 6, 7; the index")


def test_rows_above_the_next_version() -> None:
    tree = clean()
    late = ts("2023-05-11T11:00:00")
    tree[f"{HOME}/2023-05-11/CDC000001.csv"] = lines(line("I", late, 5))
    tree[f"{HOME}/2023-05-11/meta/CDC.index"] = b"CDC000001.csv\n"
    assert set(check(tree, CSV).counts) == {Rule.ROW_VERSION}


def test_partition_directories_that_may_not_be() -> None:
    findings = check(clean(), replace(CSV, partitions=False))
    assert set(findings.counts) == {Rule.PATH_PARTITION}


def test_other_digits_and_separators_than_told() -> None:
    assert set(check(clean(), replace(CSV, digits=20)).counts) == {Rule.FILE_NAME}
    assert set(check(clean(), replace(CSV, date_separator="none")).counts) == {Rule.PATH_DATE}
    assert set(check(clean(), replace(CSV, date_separator="month")).counts) == {Rule.PATH_DATE}


def test_dates_are_those_of_the_time_zone() -> None:
    findings = check(clean(), replace(CSV, zone=ZoneInfo("Asia/Tokyo")))
    assert set(findings.counts) == {Rule.WRONG_DATE}
    assert findings.violations[0].words.startswith("row 2: commit-ts")


def test_a_transaction_in_two_files() -> None:
    """The update of noon and the delete of noon have one commit-ts and two files."""
    findings = check(clean(), replace(CSV, whole_transactions=True))
    assert set(findings.counts) == {Rule.SPLIT_TRANSACTION}
    snapshot = clean()
    for number in (1, 2):
        snapshot[f"{DAY9}/CDC00000{number}.csv"] = lines(line("I", V1, number))
    assert not check(snapshot, replace(CSV, whole_transactions=True)).counts


def test_without_commit_ts_it_is_said_what_was_not_checked() -> None:
    tree = clean()
    for path in [p for p in tree if p.endswith(".csv")]:
        fields = [row.split(b",") for row in tree[path].splitlines(keepends=True)]
        tree[path] = b"".join(b",".join(f[:3] + f[4:]) for f in fields)
    findings = check(tree, replace(CSV, carries_commit_ts=False))
    assert not findings.counts
    assert len(findings.unchecked) == 1


def test_compressed_files() -> None:
    tree = clean()
    for path in [p for p in tree if p.endswith(".csv")]:
        tree[f"{path}.gz"] = gzip.compress(tree.pop(path))
    for path in [p for p in tree if p.endswith("CDC.index")]:
        tree[path] = tree[path].rstrip() + b".gz\n"
    assert not check(tree, CSV).counts
    tree[f"{FIRST}.gz"] = b"nothing"
    assert set(check(tree, CSV).counts) == {Rule.ROW_FIT}


def test_escaped_names() -> None:
    tree: Tree = {"metadata": b'{"checkpoint-ts":1}'}
    for name, segment in (("a/b%", "a%2Fb%25"), ("meta", "%6D%65%74%61"), ("..", "%2E%2E")):
        path, content = schema_file(name, V1)
        tree[f"hr/{segment}/meta/{path.split('/')[-1]}"] = content
    path, content = schema_file("", V1, None, "CREATE DATABASE x", 1, database="metadata")
    tree[f"%6D%65%74%61%64%61%74%61/meta/{path.split('/')[-1]}"] = content
    assert not check(tree, CSV).counts


def test_a_database_whose_name_begins_as_the_writers_own_files() -> None:
    tree: Tree = {"metadata": b'{"checkpoint-ts":1}', "rowferry.tmp/1": b"", "rowferry.lock": b""}
    path, content = schema_file("", V1, None, "CREATE DATABASE x", 1, database="rowferry.own")
    tree[path] = content
    assert not check(tree, CSV).counts
    tree["rowferry.own/t/v1/CDC000001.csv"] = tree["rowferry.new"] = b""
    assert set(check(tree, CSV).counts) == {Rule.PATH_VERSION, Rule.UNKNOWN_OBJECT}


def test_only_the_first_violations_are_kept() -> None:
    tree = clean()
    for number in range(MOST_SAMPLES + 5):
        tree[f"junk{number}"] = b""
    findings = check(tree, CSV)
    assert findings.failed == MOST_SAMPLES + 5
    assert len(findings.violations) == MOST_SAMPLES


# --- canal-json ----------------------------------------------------------------------------------


def canal(*messages: bytes) -> Plant:
    return put(CANAL_FILE, b"".join(messages))


CANAL_PLANTS: list[tuple[Rule, Plant]] = [
    (Rule.ROW_FIT, canal(b"{\r\n")),
    (Rule.ROW_FIT, canal(b"[]\r\n")),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW).rstrip())),
    (Rule.ROW_FIT, canal(message("QUERY", V1, ROW))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW, isDdl=True))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW, es=1))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW, data=[ROW, ROW]))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW, old=[ROW]))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW, _tidb=None))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW, pkNames=None))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW | {"Other": "1"}))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW | {"Id": None}))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW | {"Id": "one"}))),
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW | {"Id": 1}))),  # type: ignore[dict-item]
    (Rule.ROW_FIT, canal(message("INSERT", V1, ROW | {"Hired": "2014-06-04 01:02:03"}))),
    (Rule.ROW_NAMES, canal(message("INSERT", V1, ROW, table="boss"))),
    (Rule.ROW_ORDER, canal(message("INSERT", V1 + 1, ROW), message("DELETE", V1, ROW))),
    (Rule.ROWS_ABOVE_CHECKPOINT, canal(message("INSERT", LAST + 1, ROW))),
]


def test_a_clean_canal_directory_passes() -> None:
    findings = check(clean_canal(), CANAL)
    assert findings.violations == [] and findings.rows == 2


@pytest.mark.parametrize(("rule", "plant"), CANAL_PLANTS, ids=named(CANAL_PLANTS))
def test_a_planted_violation_in_canal_json_is_found(rule: Rule, plant: Plant) -> None:
    tree = clean_canal()
    plant(tree)
    findings = check(tree, CANAL)
    assert set(findings.counts) == {rule}, findings.violations


def test_every_rule_is_planted() -> None:
    elsewhere = {Rule.SCHEMA_COLUMN, Rule.SCHEMA_MISSING, Rule.SPLIT_TRANSACTION}
    assert {rule for rule, _ in CSV_PLANTS} | elsewhere == set(Rule)
