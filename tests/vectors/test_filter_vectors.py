"""TiDB's table filter and TiCDC's changefeed filter, against published expectations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from outside import cases

from rowferry.change.table import TableId
from rowferry.errors import BadFilterRule
from rowferry.flow.assemble import decisions_of
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def vectors(area: str) -> list[Any]:
    kept = Path(__file__).parent / "filter" / f"{area}.json"
    rows = {r["id"]: r for r in json.loads(kept.read_text("utf-8"))}
    rows |= {r["id"]: r for r in cases(area)}
    assert rows
    return [pytest.param(r["input"], r["expected"], id=i) for i, r in sorted(rows.items())]


@pytest.mark.parametrize("case", ["case_sensitive", "case_insensitive"])
@pytest.mark.parametrize(("given", "expected"), vectors("table-filter"))
def test_table(given: dict[str, Any], expected: dict[str, Any], case: str) -> None:
    rules = TableFilter(given["rules"], case == "case_sensitive")
    assert [rules.matches_table(*table) for table in given["tables"]] == expected[case]


@pytest.mark.parametrize("case", ["case_sensitive", "case_insensitive"])
@pytest.mark.parametrize(("given", "expected"), vectors("table-filter-schema"))
def test_database(given: dict[str, Any], expected: dict[str, Any], case: str) -> None:
    rules = TableFilter(given["rules"], case == "case_sensitive")
    assert [rules.matches_database(name) for name in given["schemas"]] == expected[case]


@pytest.mark.parametrize(("given", "expected"), vectors("table-filter-error"))
def test_error(given: dict[str, Any], expected: dict[str, Any]) -> None:
    with pytest.raises(BadFilterRule) as caught:
        TableFilter([given["rule"]])
    assert expected["error_contains"] in str(caught.value)
    assert "at <cmdline>:1: " in str(caught.value)


@pytest.mark.parametrize(("given", "expected"), vectors("changefeed-filter"))
def test_changefeed(given: dict[str, Any], expected: dict[str, Any]) -> None:
    config = {
        "case-sensitive": given["case_sensitive"],
        "filter": {"rules": given["rules"]},
    }
    spec = ChangefeedSpec(
        "f", Uri.parse("range://h", "source"), Uri.parse("blackhole://", "sink"), config
    )
    table = TableId(given["schema"], given["table"])
    assert decisions_of(spec).keeps_table(table) is expected["accepted"]
