"""Key ranges as SQL, and cutting an integer key by arithmetic, against a table of numbers."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput
from rowferry.mysql import key_ranges as chunks
from rowferry.mysql import session
from rowferry.mysql.key_ranges import Chunk, condition, next_chunks
from rowferry.mysql.session import Login

LOGIN = Login("h", 1, "u", "")


def table(*types: SqlType, keyed: bool = True) -> TableSchema:
    columns = tuple(Column(i + 1, "abcd"[i], t, nullable=False) for i, t in enumerate(types))
    key = Index(1, "PRIMARY", tuple(c.name for c in columns), unique=True, primary=True)
    return TableSchema(TableId("d`b", "t"), 1, 1, columns, (key,) if keyed else ())


INT = SqlType("int")


def test_a_chunk_survives_json() -> None:
    for chunk in (Chunk(None, None, 0), Chunk(("1", "x''"), ("2", "x'00'"), 5)):
        assert Chunk.from_json(json.loads(json.dumps(chunk.to_json()))) == chunk


def test_a_range_of_one_column() -> None:
    one = table(INT)
    assert condition(one, None, None) == ""
    assert condition(one, ("1",), None) == " WHERE `a` > 1"
    assert condition(one, ("1",), ("5",)) == " WHERE `a` > 1 AND `a` <= 5"


def test_a_range_of_three_columns_compares_whole_keys() -> None:
    three = table(INT, INT, INT)
    keys = [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    for lower in keys:
        for upper in keys:
            text = condition(three, tuple(map(str, lower)), tuple(map(str, upper)))
            test = text.removeprefix(" WHERE ").replace("`", "").replace(" = ", " == ")
            test = test.replace("OR", "or").replace("AND", "and")
            found = [k for k in keys if eval(test, dict(zip("abc", k, strict=True)))]
            assert found == [k for k in keys if lower < k <= upper]


def test_names_are_quoted_and_sets_are_compared_as_numbers() -> None:
    assert chunks.keyed_table(table(INT)) == "`d``b`.`t` FORCE INDEX (`PRIMARY`)"
    sets = table(SqlType("set", elements=("x",)))
    assert condition(sets, ("1",), None) == " WHERE CAST(`a` AS UNSIGNED) > 1"


def test_a_table_without_a_key_is_refused() -> None:
    with pytest.raises(BadInput, match="no usable key"):
        chunks.keyed_table(table(INT, keyed=False))


def test_a_bound_of_another_key_is_refused() -> None:
    with pytest.raises(BadInput, match="a key of 2 columns cannot end at 1 values"):
        condition(table(INT, INT), ("1",), None)


class Numbers:
    """Answers the statements of a cut like a server whose table holds these keys."""

    def __init__(self, keys: list[int], error: float) -> None:
        self.keys = sorted(set(keys))
        self.error = error  # how far estimates are off
        self.statements = 0

    def rows(self, _connection: Any, _login: Any, sql: str, _values: Any = ()) -> list[Any]:
        self.statements += 1
        if sql.startswith("SET"):
            return []
        if sql.startswith("SELECT MAX"):
            return [(str(self.keys[-1]) if self.keys else None,)]
        if sql.startswith("SELECT MIN"):
            bound = re.search(r"> (-?\d+)$", sql)
            place = bisect_right(self.keys, int(bound[1])) if bound else 0
            return [(str(self.keys[place]) if place < len(self.keys) else None,)]
        found = re.search(r">= (-?\d+) AND `a` <= (-?\d+)$", sql)
        assert found is not None
        assert sql.startswith("EXPLAIN FORMAT=TRADITIONAL SELECT `a` FROM `d``b`.`t` USE INDEX")
        count = bisect_right(self.keys, int(found[2])) - bisect_left(self.keys, int(found[1]))
        return [(None,) * 9 + (str(int(count * self.error)), "100.00", None)]

    def between(self, chunk: Chunk) -> list[int]:
        low = -(2**70) if chunk.lower is None else int(chunk.lower[0])
        high = 2**70 if chunk.upper is None else int(chunk.upper[0])
        return [k for k in self.keys if low < k <= high]


def cut(numbers: Numbers, wish: int, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Chunk]:
    monkeypatch.setattr(session, "rows", numbers.rows)
    monkeypatch.setattr(session, "rows_of_table", numbers.rows)
    connection: Any = None
    found: list[Chunk] = []
    while not found or found[-1].upper is not None:
        after = found[-1].upper if found else None
        more = next_chunks(connection, LOGIN, table(SqlType("bigint")), after, wish, count)
        assert 1 <= len(more) <= count
        found += more
    return found


CLUSTERS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1), st.integers(1, 300), st.sampled_from([1, 7, 10**6])
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(CLUSTERS, st.integers(1, 90), st.integers(1, 9), st.sampled_from([0.5, 1.0, 2.0]))
def test_integer_chunks_cover_every_key_once(
    clusters: list[tuple[int, int, int]], wish: int, count: int, error: float
) -> None:
    keys = [start + i * step for start, size, step in clusters for i in range(size)]
    numbers = Numbers([k for k in keys if k < 2**63], error)
    with pytest.MonkeyPatch.context() as patch:
        found = cut(numbers, wish, count, patch)
    assert found[0].lower is None
    assert all(a.upper == b.lower for a, b in zip(found, found[1:], strict=False))
    assert [k for chunk in found for k in numbers.between(chunk)] == numbers.keys
    # A width is right within a factor of two by estimates of half the rows, rounded down; and the
    # two rows at its ends come on top.
    assert max((len(numbers.between(c)) for c in found), default=0) <= 4 * wish + 1 + 2
    assert len(found) <= 6 * (len(numbers.keys) // wish + len(clusters) + 1)


def test_an_even_table_of_any_size_needs_few_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    class Even(Numbers):
        def rows(self, _connection: Any, _login: Any, sql: str, _values: Any = ()) -> list[Any]:
            self.statements += 1
            if found := re.search(r">= (\d+) AND `a` <= (\d+)$", sql):
                return [(None,) * 8 + (str((int(found[2]) - int(found[1]) + 1) // 4), "")]
            if sql.startswith("SELECT MAX"):
                return [(str(4 * 10**9),)]
            bound = re.search(r"> (\d+)$", sql)
            return [(str(int(bound[1]) + 1 if bound else 1),)] if "MIN" in sql else []

    numbers = Even([], 1.0)
    found = cut(numbers, 1_000_000, 100, monkeypatch)
    assert len(found) == 1000
    assert numbers.statements < 2 * 1000 + 50
    assert {c.rows for c in found[:-1]} == {1_000_000}


def test_an_empty_table_is_one_open_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut(Numbers([], 1.0), 10, 5, monkeypatch) == [Chunk(None, None, 0)]
