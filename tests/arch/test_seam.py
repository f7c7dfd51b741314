"""Where no database is known, none is; and only a source looks into what is its own."""

from __future__ import annotations

import pytest
from source_tree import KNOW_MYSQL, knowing_mysql, looking_inside, read_sources


def test_neutral_packages_know_no_database() -> None:
    assert knowing_mysql(read_sources()) == []


def test_only_a_source_looks_into_its_positions() -> None:
    assert looking_inside(read_sources()) == []


@pytest.mark.parametrize(
    "path",
    [
        "rowferry/change/x.py",
        "rowferry/control/feed/loop.py",
        "rowferry/flow/decide/table_route.py",
        "rowferry/flow/dispatch/x.py",
        "rowferry/spark/job.py",
    ],
)
def test_a_planted_import_is_found(path: str) -> None:
    planted = {**read_sources(), path: "from rowferry.mysql.ddl.statement import parse_type"}
    (line,) = knowing_mysql(planted)
    assert line.startswith(f"{path}:1: ")


def test_a_reason_that_is_not_needed_any_more_is_found() -> None:
    planted = {**read_sources(), "rowferry/flow/decide/row_policy.py": ""}
    assert knowing_mysql(planted) == [
        "flow.decide.row_policy does not import mysql.stamps any more"
    ]
    assert all(why for _, why in KNOW_MYSQL.values())


@pytest.mark.parametrize(
    "text",
    [
        "def f(state):\n    return state.position['log']",
        "def f(position):\n    return position.get('lsn')",
        "def f(hold):\n    return hold.place['file']",
        "def f(segment, position):\n    return segment.read['offset']",
    ],
)
def test_a_planted_look_is_found(text: str) -> None:
    path = "rowferry/control/feed/x.py"
    (line,) = looking_inside({**read_sources(), path: text})
    assert line.startswith(f"{path}:2: looks into ")


@pytest.mark.parametrize(
    "text",
    [
        "def f(stretch, store):\n    store.keep(stretch.position)",
        "def f(place, them):\n    return them[place]",
    ],
)
def test_handing_on_is_no_look(text: str) -> None:
    assert looking_inside({**read_sources(), "rowferry/control/feed/x.py": text}) == []
