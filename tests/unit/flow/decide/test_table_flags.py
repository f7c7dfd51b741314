"""Where flags come from, and which tables and settings the active-active mode refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from decide_kit import decisions, made

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadFilterRule, BadOption, OptionsConflict, TableNotActiveActive
from rowferry.flow.assemble import sink_traits
from rowferry.mysql.ddl.statement import create_sql, parse_create
from rowferry.spec.active_active import read_active_active
from rowferry.spec.build import build_spec

HIDDEN = (
    "_tidb_origin_ts BIGINT UNSIGNED, _tidb_softdelete_time TIMESTAMP(6) NULL, "
    "_tidb_commit_ts BIGINT UNSIGNED"
)
MYSQL = "mysql://u:p@h/"
MODE: dict[str, Any] = {"enable-active-active": True, "bdr-mode": True}
BOTH = "/*T![softdelete] SOFTDELETE RETENTION 7 DAY */ /*T![active_active] ACTIVE_ACTIVE='ON' */"


def table(end: str = "", columns: str = HIDDEN, key: str = "id INT PRIMARY KEY") -> TableSchema:
    return made(f"CREATE TABLE t ({key}, {columns}) {end}")


def flags(found: TableSchema) -> tuple[bool, bool]:
    return found.is_active_active_table, found.is_soft_delete_table


@pytest.mark.parametrize(
    ("end", "config", "wanted"),
    [
        ("", {}, (False, False)),
        ("COMMENT='rowferry:active-active'", {}, (True, False)),
        ("COMMENT='orders; rowferry:soft-delete'", {}, (False, True)),
        ("", {"active-active-tables": ["shop.*"]}, (True, False)),
        ("", {"soft-delete-tables": ["*.*", "!other.*"]}, (False, True)),
        ("", {"soft-delete-tables": ["other.t"]}, (False, False)),
        (BOTH, {}, (True, True)),
        ("/*T![active_active] ACTIVE_ACTIVE='OFF' */", {}, (False, False)),
        (f'COMMENT="{BOTH}"', {}, (False, False)),
        (f"/* that isn't */ {BOTH}", {}, (True, True)),
        (f"-- that isn't\n{BOTH}", {}, (True, True)),
        (f"# {BOTH}\n", {}, (False, False)),
        (f"/* /*T![active_active] */ COMMENT='--' {BOTH} --\n", {}, (True, True)),
    ],
)
def test_flags(end: str, config: dict[str, Any], wanted: tuple[bool, bool]) -> None:
    assert flags(decisions(config).seen_as(table(end))) == wanted


def test_flags_are_part_of_a_definition() -> None:
    found = table(BOTH)
    assert flags(TableSchema.from_json(found.to_json())) == (True, True)
    assert parse_create(create_sql(found)) == replace(found, id=TableId("shop", "t"))
    assert "is_soft_delete_table" not in table().to_json()


def test_a_list_with_a_syntax_error() -> None:
    with pytest.raises(BadFilterRule, match=r"soft-delete-tables: .*a\.b\.c"):
        decisions({"soft-delete-tables": ["a.b.c"]})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (table(), r"shop\.t is not an active-active table"),
        (
            table(BOTH, HIDDEN.replace("_tidb_origin_ts", "o")),
            r"shop\.t has no column _tidb_origin_ts",
        ),
        (
            table(BOTH, HIDDEN.replace("_tidb_softdelete_time", "s")),
            r"shop\.t has no column _tidb_softdelete_time",
        ),
        (
            table(BOTH, HIDDEN.replace("_tidb_commit_ts", "c")),
            r"shop\.t has no column _tidb_commit_ts",
        ),
        (
            table(BOTH, HIDDEN.replace("TIMESTAMP(6) NULL", "BIGINT")),
            r"_tidb_softdelete_time as bigint",
        ),
        (table(BOTH, HIDDEN.replace(" UNSIGNED", "")), r"_tidb_origin_ts as bigint"),
        (table(BOTH, key="id INT NOT NULL UNIQUE"), r"shop\.t has no primary key"),
    ],
)
def test_tables_that_the_mode_refuses(found: TableSchema, words: str) -> None:
    decide = decisions(MODE, MYSQL)
    good = replace(table(BOTH), id=TableId("shop", "good"))
    assert decide.check_tables([good]) == []
    assert decide.seen_as(good).is_active_active_table
    with pytest.raises(TableNotActiveActive, match=words):
        decide.check_tables([good, found])
    # The same for a table that comes later, and for one that a DDL changes.
    with pytest.raises(TableNotActiveActive, match=words):
        decide.seen_as(found)
    change = SchemaChange(5, DdlKind.DROP_COLUMN, "ALTER TABLE t …", found.id, found)
    with pytest.raises(TableNotActiveActive, match=words):
        decide.change_seen_as(change)


def test_a_soft_delete_table_needs_its_column_without_the_mode_too() -> None:
    bare = made("CREATE TABLE t (id INT PRIMARY KEY) COMMENT='rowferry:soft-delete'")
    with pytest.raises(
        TableNotActiveActive, match=r"no column _tidb_softdelete_time, which a soft"
    ):
        decisions().seen_as(bare)


def test_a_table_that_is_not_captured_is_not_judged() -> None:
    decide = decisions({**MODE, "filter": {"rules": ["*.*", "!shop.t"]}}, MYSQL)
    assert decide.seen_as(table()) == table()


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "sink", "words"),
    [
        ({"enable-active-active": True}, MYSQL, "requires bdr-mode to be true"),
        (MODE, "file:///out?protocol=csv", "MySQL or TiDB sink only, not with file://"),
        (MODE, "kafka://h:1/t?protocol=canal-json", "not with kafka://"),
        ({**MODE, "consistent": {"level": "eventual"}}, MYSQL, "incompatible with redo log"),
    ],
)
def test_settings_that_the_mode_refuses(config: dict[str, Any], sink: str, words: str) -> None:
    with pytest.raises(OptionsConflict, match=words):
        build_spec("range://h:1", sink, config, sinks=sink_traits)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("active-active-progress-interval", "0s"),
        ("enable-active-active", "perhaps"),
        ("cluster-index", 16),
    ],
)
def test_values_that_cannot_be_used(key: str, value: Any) -> None:
    with pytest.raises(BadOption, match=key):
        build_spec("range://h:1", MYSQL, {key: value}, sinks=sink_traits)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("toml", "enable-active-active = true\nbdr-mode = true\n"),
        ("yaml", "enable-active-active: true\nbdr-mode: true\n"),
        ("json", '{"enable-active-active": true, "bdr-mode": true}'),
    ],
)
def test_all_kinds_of_files(tmp_path: Path, suffix: str, content: str) -> None:
    file = tmp_path / f"feed.{suffix}"
    file.write_text(content)
    found = read_active_active(build_spec("range://h:1", MYSQL, file, sinks=sink_traits)[0])
    assert found.enabled and found.bdr_mode and not found.emulated
    assert found.progress_interval.total_seconds() == 1800
    assert not read_active_active(build_spec("range://h:1", MYSQL, sinks=sink_traits)[0]).enabled
