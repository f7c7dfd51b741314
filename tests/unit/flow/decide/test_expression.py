from __future__ import annotations

import pyarrow as pa
import pytest

from rowferry.errors import BadEventFilter
from rowferry.flow.decide.expression import Expression
from rowferry.flow.decide.expression_values import ImageColumns
from rowferry.mysql.ddl.statement import parse_create

TABLE = parse_create(
    "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(10,2), "
    "big DECIMAL(65,30), made DATE, doc JSON, kind ENUM('a','b'), raw BLOB, x DOUBLE, ti TIME)",
    "shop",
)
ROWS = pa.array(
    [
        {"id": 1, "name": "Rose", "price": "1.50", "made": "2024-02-29", "doc": "{}", "kind": 1},
        {"id": 2, "name": None, "price": "-3.00", "made": "0000-00-00", "raw": b"\xff", "x": 1.0},
        {"id": 9223372036854775807, "name": "rose ", "kind": 0, "ti": "-01:00:00"},
    ],
    TABLE.image,
)


def true_rows(text: str) -> list[bool]:
    found: list[bool] = Expression(text, "key").fit(TABLE)(ImageColumns(ROWS)).tolist()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price > 1", [True, False, False]),
        ("name = 'ROSE'", [True, False, True]),
        ("name IS NULL OR id = 1", [True, True, False]),
        ("kind = ''", [False, False, True]),
        ("made = '0000-00-00'", [False, True, False]),
        ("raw = x'ff'", [False, True, False]),
        ("raw LIKE '%'", [False, True, False]),
        ("ti < '00:00:00'", [False, False, True]),
        ("doc IS NOT NULL", [True, False, False]),
        ("x", [False, True, False]),
        ("id", [True, False, False]),  # exactly 1, not merely true
        ("id - 1", [False, True, False]),
        ("name", [False, False, False]),
        ("1", [True, True, True]),
        ("NULL", [False, False, False]),
        ("`t`.`id` IN (2)", [False, True, False]),
        ("x * 3e-1 = 0.3", [False, True, False]),  # a DECIMAL beside a DOUBLE loses nothing
        ("id & 1 = 1 AND id >> 1 = 0", [True, False, False]),
        ("~id & 3 = 1 | 0", [False, True, False]),
        ("id << (62 ^ 1) = 0 AND 3 ^ 1 * 2 = 4", [False, True, False]),
        ("greatest(id, price) = 2 or least(price, 0) = 0", [True, True, False]),
        ("hour(ti) = 1 AND sign(id)", [False, False, True]),
        ("name BETWEEN 0 AND 'x'", [True, False, True]),  # texts beside a number are numbers
        ("ceil(99999999.99 + price * 0) = 100000000", [True, True, False]),
        ("id > 1e15 AND x IS NULL", [False, False, True]),  # more digits than a DOUBLE has
        ("~~id = 1 AND ! !id", [True, False, False]),
        ("(id = 7 OR id IS NULL) OR id = 2", [False, True, False]),
    ],
)
def test_true_rows(text: str, expected: list[bool]) -> None:
    assert true_rows(text) == expected


def test_years_of_two_digits() -> None:
    table = parse_create("CREATE TABLE t (y YEAR)", "shop")
    rows = ImageColumns(pa.array([{"y": 2012}, {"y": 1999}, {"y": 0}], table.image))

    def said(text: str) -> list[bool]:
        return Expression(text, "key").fit(table)(rows).tolist()

    assert said("y = 12 OR y = '99'") == [True, True, False]
    assert said("y > 98 AND y < 100 + 1950") == [True, True, False]
    assert said("y = 0 OR y > 1e9") == [False, False, True]


def test_only_wanted_rows() -> None:
    found = Expression("id > 1", "key").fit(TABLE)(ImageColumns(ROWS, pa.array([2, 0])))
    assert found.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "words", "at"),
    [
        ("", "the expression is empty", 1),
        ("price >", "expected a value", 8),
        ("price > 1 price", "'price' does not fit here", 11),
        ("now() > made", "now() is not the same on every replay", 1),
        ("id = rand()", "rand() is not the same on every replay", 6),
        ("id = sha1(name)", "the function sha1() is not supported (known: abs,", 6),
        ("id := 1", "the operator := is not supported", 4),
        ("doc -> '$.a' = 1", "the operator -> is not supported", 5),
        ("id IN (SELECT 1)", "subqueries are not supported", 8),
        ("(id, price) = (1, 2)", "rows of several values are not supported", 4),
        ("left(name) = 'a'", "left() takes 2 arguments, not 1", 1),
        ("name LIKE 'a' ESCAPE 'ab'", "ESCAPE needs one character", 22),
        ("select = 1", "'select' is unexpected", 1),
        ("x < 1e400", "the number is too large", 5),
        ("id <> -1" + "0" * 5000, "the number is too large", 8),
        ("raw = x'4'", "x'…' needs an even number of digits", 7),
        ("x = !!id", "MySQL takes !! for one NOT, MariaDB for two; write NOT", 5),
        ("x = . 5", "'.' is unexpected", 5),
        ("id = 1 ~ 2", "'~' does not fit here", 8),
    ],
)
def test_refused_as_written(text: str, words: str, at: int) -> None:
    with pytest.raises(BadEventFilter) as caught:
        Expression(text, "filter.event-filters[0].ignore-insert-value-expr")
    said = caught.value.words
    assert said.startswith("filter.event-filters[0].ignore-insert-value-expr: ")
    assert words in said and f"at character {at} of {text!r}" in said


@pytest.mark.parametrize(
    ("text", "words", "at"),
    [
        ("id = 1 AND colour = 2", "there is no column 'colour' (it has: id, name,", 12),
        ("doc = '{}'", "JSON and VECTOR columns can only be tested with IS NULL", 1),
        ("made > 'yesterday'", "'yesterday' is not a date", 1),
        ("made > name", "text cannot be compared with a date", 1),
        ("ti = 'noon'", "'noon' is not a time", 1),
        ("concat(x) = '1'", "a DOUBLE cannot be used as text", 1),
        ("name LIKE kind", "LIKE needs a pattern in quotes", 1),
        ("name REGEXP '('", "the pattern '(' cannot be used", 1),
        ("left(name, id) = 'a'", "the length must be a whole number, written out", 1),
        ("year(id) = 1", "the function needs a DATE or a DATETIME, not a whole number", 1),
        ("name COLLATE klingon = 'a'", "the collation klingon is not known", 1),
    ],
)
def test_refused_for_a_table(text: str, words: str, at: int) -> None:
    with pytest.raises(BadEventFilter) as caught:
        Expression(text, "key").fit(TABLE)
    said = caught.value.words
    assert words in said and f"at character {at} of" in said and "shop.t" in said


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("varchar(9)", "a = 'ROSE'", [True, True]),
        ("varchar(9) COLLATE utf8mb4_bin", "a = 'ROSE'", [False, True]),
        ("varchar(9) COLLATE utf8mb4_general_ci", "a = 'ROSE'", [True, True]),
        ("varchar(9) CHARACTER SET latin1 COLLATE latin1_general_cs", "a = 'rose'", [False, False]),
        ("varchar(9) COLLATE utf8mb4_ja_0900_as_cs_ks", "a IN ('Rose')", [True, False]),
        ("enum('Rose', 'ROSE') BINARY", "a LIKE 'R%E'", [False, True]),
        ("varchar(9) BINARY", "lower(a) = 'rose'", [True, True]),
        ("varchar(9) BINARY", "a COLLATE utf8mb4_general_ci = 'rose'", [True, True]),
    ],
)
def test_texts_compare_as_the_column_says(column: str, text: str, expected: list[bool]) -> None:
    table = parse_create(f"CREATE TABLE t (a {column})", "shop")
    values = [1, 2] if column.startswith("enum") else ["Rose", "ROSE"]
    rows = pa.array([{"a": v} for v in values], table.image)
    assert Expression(text, "key").fit(table)(ImageColumns(rows)).tolist() == expected


def test_refused_as_a_whole() -> None:
    with pytest.raises(BadEventFilter, match="neither true nor false"):
        Expression("made", "key").fit(TABLE)
    with pytest.raises(BadEventFilter, match="more than 76 digits"):
        Expression("big * big > 0", "key").fit(TABLE)
    with pytest.raises(BadEventFilter, match="nested too deeply"):
        Expression("(" * 5000 + "1" + ")" * 5000, "key")


@pytest.mark.parametrize(
    "text",
    [
        " + ".join(["id"] * 500) + " > 0",
        "NOT " * 500 + "id",
        "- " * 500 + "id = 1",
        "id " + "BETWEEN 0 AND 1 " * 500,
        "coalesce(" * 75 + "id" + ")" * 75,
    ],
)
def test_nested_too_deeply_to_run(text: str) -> None:
    with pytest.raises(BadEventFilter, match="nested too deeply"):
        Expression(text, "key")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" OR ".join(f"id = {number}" for number in range(2, 3000)), [False, True]),
        (" AND ".join(f"id <> {number}" for number in range(2, 3000)), [True, False]),
        (" + ".join(["id"] * 90) + " = 90 OR id = 2", [True, True]),
        ("(" * 45 + "id = 2" + ")" * 45, [False, True]),
    ],
)
def test_long_expressions(text: str, expected: list[bool]) -> None:
    rows = ImageColumns(ROWS, pa.array([0, 1]))
    assert Expression(text, "key").fit(TABLE)(rows).tolist() == expected


def test_a_number_that_grows_too_large() -> None:
    with pytest.raises(BadEventFilter, match="overflow"):
        true_rows("id + 1 > 0")


def test_a_column_that_the_images_lack() -> None:
    fitted = Expression("price > 1", "key").fit(TABLE)
    partial = pa.array([{"id": 1}], pa.struct([("id", pa.int64())]))
    with pytest.raises(BadEventFilter, match="the row images lack the column 'price'"):
        fitted(ImageColumns(partial))
