from __future__ import annotations

from typing import Any

import pytest
from decide_kit import KAFKA, chunk, decided, decisions, made

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.errors import BadColumnSelector, BadFilterRule
from rowferry.flow.decide.decisions import Decisions

TABLE = made(
    "CREATE TABLE t (Id INT PRIMARY KEY, code INT NOT NULL, secret TEXT, v INT, w INT, "
    "UNIQUE KEY u (code), KEY k (v, secret), UNIQUE KEY pair (v, w))"
)


def selecting(*columns: str, sink: str = KAFKA, **more: Any) -> Decisions:
    rule = {"matcher": ["shop.*"], "columns": list(columns)}
    return decisions({"sink": {"column-selectors": [rule], **more}}, sink)


def test_rows_lose_their_columns_and_keep_their_nulls() -> None:
    row = {"Id": 1, "code": 2, "secret": "s", "v": 3, "w": 4}
    changes = chunk(
        TABLE,
        (Op.INSERT, None, row),
        (Op.UPDATE, row, {**row, "secret": "t"}),
        (Op.DELETE, row, None),
    )
    seen = {"Id": 1, "v": 3}
    assert decided(selecting("ID", "v"), changes) == [
        (Op.INSERT, None, seen),
        (Op.UPDATE, seen, seen),
        (Op.DELETE, seen, None),
    ]


def test_key_is_compared_before_it_is_left_out() -> None:
    row = {"Id": 1, "code": 2}
    moved = chunk(TABLE, (Op.UPDATE, row, {**row, "code": 3}))
    assert [op for op, _, _ in decided(selecting("id"), moved)] == [Op.DELETE, Op.INSERT]


def test_table_as_seen() -> None:
    found = selecting("*", "!secret")
    seen = found.seen_as(TABLE)
    assert [c.name for c in seen.columns] == ["Id", "code", "v", "w"]
    assert {i.name for i in seen.indexes} == {"PRIMARY", "u", "pair"}
    assert (seen.id, seen.version) == (TABLE.id, TABLE.version)
    assert found.seen_as(TABLE) is seen
    (part,) = found.rows(chunk(TABLE, (Op.INSERT, None, {"Id": 1})))
    assert part.table is seen and part.after.type == seen.image
    change = SchemaChange(1, DdlKind.ADD_COLUMN, "…", TABLE.id, TABLE)
    assert found.change_seen_as(change).schema is seen


def test_a_table_that_no_rule_fits_is_whole() -> None:
    other = made("CREATE TABLE t (id INT PRIMARY KEY, secret TEXT)", "elsewhere")
    assert selecting("Id").seen_as(other) is other
    assert selecting("*").seen_as(TABLE) is TABLE


@pytest.mark.parametrize("sink", ["mysql://h:1", "tidb+ssl://h:1"])
def test_a_sink_that_takes_whole_rows_gets_no_row_of_such_a_table(sink: str) -> None:
    found = selecting("*", "!secret", sink=sink)
    words = "column-selectors leave out secret of table shop.t, and a .* sink takes whole rows"
    with pytest.raises(BadColumnSelector, match=words):
        found.check_tables([TABLE])
    with pytest.raises(BadColumnSelector, match=words):
        decided(found, chunk(TABLE, (Op.INSERT, None, {"Id": 1, "secret": "s"})))
    assert selecting("*", sink=sink).check_tables([TABLE]) == []
    other = made("CREATE TABLE t (id INT PRIMARY KEY, secret TEXT)", "elsewhere")
    assert found.check_tables([other]) == []


def test_a_unique_index_is_enough() -> None:
    assert [c.name for c in selecting("v", "w").seen_as(TABLE).columns] == ["v", "w"]


@pytest.mark.parametrize("columns", [["v"], ["secret"], [], ["!*"]])
def test_table_without_a_key(columns: list[str]) -> None:
    with pytest.raises(BadColumnSelector) as caught:
        selecting(*columns).check_tables([TABLE])
    assert "sink.column-selectors[0].columns: no primary key columns" in str(caught.value)
    assert "table: shop.t" in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "lost"),
    [
        ({"partition": "columns", "columns": ["secret", "v"]}, "secret"),
        ({"partition": "[v, `secret`]"}, "secret"),
        ({"partition": "index-value", "index": "u"}, "code"),
        ({"partition": "index-value", "index": "pair"}, ""),
        ({"partition": "pk"}, ""),
        ({"partition": "table"}, ""),
    ],
)
def test_columns_that_dispatch_needs(rule: dict[str, Any], lost: str) -> None:
    rules = [{"matcher": ["*.*"], **rule}]
    if not lost:
        assert selecting("id", "v", "w", dispatchers=rules).check_tables([TABLE]) == []
        return
    with pytest.raises(BadColumnSelector, match=rf"leaves out {lost} of table shop\.t"):
        selecting("id", "v", "w", dispatchers=rules).check_tables([TABLE])
    # Where there are no topics, nothing is found by it.
    storage = selecting("id", "v", sink="file:///o?protocol=csv", dispatchers=rules)
    assert storage.check_tables([TABLE]) == []


def test_columns_in_a_list_are_read_as_dispatch_reads_them() -> None:
    table = made("CREATE TABLE t (id INT PRIMARY KEY, `a,b` INT, `a` INT, `x``y` INT)")
    rules = [{"matcher": ["*.*"], "partition": "[`a,b`, `x``y`]"}]
    with pytest.raises(BadColumnSelector, match="leaves out a,b, x`y of table"):
        selecting("id", "a", dispatchers=rules).check_tables([table])
    assert selecting("id", "!a", "`a,b`", "`x``y`", dispatchers=rules).check_tables([table]) == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a.b", "unexpected special character '.' (rule 'a.b')"),
        ("/(/", "invalid pattern"),
        ("a b", "unexpected special character ' '"),
    ],
)
def test_bad_pattern(pattern: str, words: str) -> None:
    with pytest.raises(BadColumnSelector) as caught:
        selecting(pattern)
    assert "sink.column-selectors[0].columns: " in str(caught.value)
    assert words in str(caught.value)


def test_bad_matcher() -> None:
    with pytest.raises(BadFilterRule, match=r"sink\.column-selectors\[0\]\.matcher: "):
        decisions({"sink": {"column-selectors": [{"matcher": ["a"], "columns": ["*"]}]}})
