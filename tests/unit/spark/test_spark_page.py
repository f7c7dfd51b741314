"""The page about Spark says what is: options and types are those of the code."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from page_examples import ROOT, table_rows
from rowferry.change.sqltype import Kind
from rowferry.change.typed_columns import column_type
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.type import read_type
from rowferry.spark.table_request import RequestOptions
from rowferry.spark.versions import spark_schema
from rowferry.spec.option import shown

PAGE = (ROOT / "docs" / "spark.md").read_text()


def test_the_options_are_on_the_page() -> None:
    text = PAGE.replace("\\|", "/")
    rows = table_rows(text, "option|allowed|default|meaning")
    assert rows == [
        [
            f"`{o.key}`",
            o.shape.words.replace("|", "/"),
            f"`{shown(o.default)}`" if o.default else "none",
            o.doc,
        ]
        for o in RequestOptions.TABLE.options
    ]


TYPES = [
    (name, plain, native or plain)
    for names, plain, native in table_rows(PAGE, "column|Spark|with `temporal = native`")
    for name in re.findall(r"`([^`]+)`", names)
]


@pytest.mark.parametrize(("name", "plain", "native"), TYPES)
def test_types_are_those_of_the_page(name: str, plain: str, native: str) -> None:
    kind, _ = read_type(TokenCursor(name), "utf8mb4")
    for found, wanted in ((column_type(kind, False), plain), (column_type(kind, True), native)):
        (field,) = spark_schema(pa.schema([("a", found)])).fields
        assert field.dataType.simpleString() == wanted


def test_every_kind_is_on_the_page() -> None:
    named = {read_type(TokenCursor(name), "utf8mb4")[0].kind for name, _, _ in TYPES}
    assert named == set(Kind) - {Kind.NUMERIC}  # no type of the servers that are read
