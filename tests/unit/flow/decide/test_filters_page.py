"""What docs/filters.md says is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from decide_kit import decisions, made

from page_examples import ROOT, all_blocks, table_rows
from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.errors import BadEventFilter
from rowferry.flow.decide.event_filter import EVENTS
from rowferry.flow.decide.expression import Expression
from rowferry.flow.decide.expression_syntax import FUNCTIONS
from rowferry.flow.decide.expression_values import ImageColumns
from rowferry.spec.config_file import read_config

PAGE = (ROOT / "docs" / "filters.md").read_text()
ROWS = table_rows(PAGE, "expression|row|result")
TABLE = made(
    "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), n INT, price DECIMAL(9,2), "
    "colour ENUM('red','blue'), day DATE)"
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_expressions(row: list[str]) -> None:
    expression, image, result = (cell.strip("`") for cell in row)
    images = ImageColumns(pa.array([json.loads(image)], TABLE.image))
    assert Expression(expression, "key").fit(TABLE)(images)[0] == (result == "true")
    unknown = Expression(f"({expression}) IS NULL", "key").fit(TABLE)(images)[0]
    assert unknown == (result == "NULL")


def test_lists_are_whole() -> None:
    assert len(ROWS) > 10
    listed = re.search(r"The functions are (.*?)\. Whatever", PAGE, re.DOTALL)
    assert listed and set(re.findall(r"`(\w+)`", listed[1])) == set(FUNCTIONS)
    events = re.search(r"`ignore-event` lists(.*?)\n- `ignore-sql`", PAGE, re.DOTALL)
    assert events and set(re.findall(r"`([^`]+)`", events[1])) == set(EVENTS)


def test_how_deep() -> None:
    found = re.search(
        r"at most (\d+) parentheses or calls .*?, and at most (\d+) op", PAGE, re.DOTALL
    )
    assert found
    nested, operators = map(int, found.groups())
    for most, made_of in (
        (nested, lambda n: "(" * n + "n" + ")" * n),
        (nested, lambda n: "abs(" * n + "n" + ")" * n),
        (operators, lambda n: "n" + " + n" * n),
        (operators, lambda n: "NOT " * n + "n"),
    ):
        Expression(made_of(most), "key").fit(TABLE)
        with pytest.raises(BadEventFilter, match="too deeply"):
            Expression(made_of(most + 1), "key")


def test_names(tmp_path: Path) -> None:
    block = next(b for b in all_blocks("toml") if b.page == "filters.md" and "target" in b.text)
    file = tmp_path / "f.toml"
    file.write_text(block.text)
    found = decisions(read_config(file))
    shop = SchemaChange(1, DdlKind.CREATE_DATABASE, "CREATE DATABASE shop", TableId("shop", ""))
    assert found.change_seen_as(shop).query == "CREATE DATABASE `archive`"
    assert found.seen_as(TABLE).written_as == ("archive", "shop_t")
