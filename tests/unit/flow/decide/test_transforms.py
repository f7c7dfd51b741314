from __future__ import annotations

import hmac
from dataclasses import replace
from typing import Any

import pytest
from decide_kit import KAFKA, chunk, decided, decisions, inserts, made

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import BadEventFilter, BadTransform, MaskLost
from rowferry.flow.decide.decisions import Decisions
from rowferry.mysql.ddl.statement import parse_create

SALT = "a salt of some length"
TABLE = made(
    "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(40), card BIGINT, note TEXT, "
    "photo BLOB, born DATE, price DECIMAL(10,2), mood ENUM('good','bad'), tags SET('a','b'), "
    "doc JSON, bits BIT(8), ratio DOUBLE, seen DATETIME(3), at TIME, y YEAR, "
    "code VARCHAR(10) NOT NULL, UNIQUE KEY u (code))"
)
ROW = {
    "id": 7,
    "email": "ada@example.org",
    "card": 4111111111111111,
    "note": "größer",
    "photo": b"\x00\xff\x01",
    "born": "1815-12-10",
    "price": "12.50",
    "mood": 2,
    "tags": 3,
    "doc": '{"a": 1}',
    "bits": 5,
    "ratio": 0.5,
    "seen": "2024-01-02 03:04:05.678",
    "at": "-12:00:01",
    "y": 2024,
    "code": "k1",
}


def mask(columns: str | list[str], action: str, matcher: str = "shop.*", **more: Any) -> Any:
    names = [columns] if isinstance(columns, str) else columns
    return {"matcher": [matcher], "columns": names, "action": action, **more}


def masking(*masks: Any, sink: str = KAFKA, **more: Any) -> Decisions:
    transform = {"salt": SALT, "masks": list(masks)}
    computed = more.pop("computed", None)
    if computed:
        transform["computed"] = computed
    return decisions({"transform": transform, **more}, sink, "mysql://h:1")


def digits(value: str | bytes) -> str:
    raw = value.encode() if isinstance(value, str) else value
    return hmac.new(SALT.encode(), raw, "sha256").hexdigest()


def one(found: Decisions, row: dict[str, Any] = ROW, table: TableSchema = TABLE) -> dict[str, Any]:
    ((_, _, after),) = decided(found, inserts(table, [row]))
    assert after is not None
    return after


@pytest.mark.parametrize(
    ("column", "action", "more", "value", "sql"),
    [
        ("email", "null", {}, None, "varchar(40)"),
        ("email", "constant", {"value": "x"}, "x", "varchar(40)"),
        ("email", "constant", {"value": ""}, "", "varchar(40)"),
        ("card", "constant", {"value": -1}, -1, "bigint"),
        ("born", "constant", {"value": "1900-1-1"}, "1900-01-01", "date"),
        ("price", "constant", {"value": 1.005}, "1.01", "decimal(10,2)"),
        ("mood", "constant", {"value": "good"}, 1, "enum('good','bad')"),
        ("tags", "constant", {"value": "b"}, 2, "set('a','b')"),
        ("doc", "constant", {"value": '{"bb":1,"a":[1, 2]}'}, '{"a": [1, 2], "bb": 1}', "json"),
        ("bits", "constant", {"value": 255}, 255, "bit(8)"),
        ("ratio", "constant", {"value": 0}, 0.0, "double"),
        ("photo", "constant", {"value": "x"}, b"x", "blob"),
        ("at", "constant", {"value": "1:2:3"}, "01:02:03", "time"),
        ("y", "constant", {"value": 1999}, 1999, "year"),
        ("seen", "constant", {"value": "2000-01-01"}, "2000-01-01 00:00:00.000", "datetime(3)"),
        ("email", "hash", {}, digits("ada@example.org"), "char(64)"),
        ("card", "hash", {}, digits("4111111111111111"), "char(64)"),
        ("photo", "hash", {}, digits(b"\x00\xff\x01"), "char(64)"),
        ("mood", "hash", {}, digits("bad"), "char(64)"),
        ("tags", "hash", {}, digits("a,b"), "char(64)"),
        ("price", "hash", {}, digits("12.50"), "char(64)"),
        ("doc", "hash", {}, digits('{"a": 1}'), "char(64)"),
        ("bits", "hash", {}, digits("5"), "char(64)"),
        ("born", "hash", {}, digits("1815-12-10"), "char(64)"),
        ("id", "hash", {}, digits("7"), "char(64)"),
        ("code", "hash", {}, digits("k1"), "char(64)"),
        ("note", "truncate", {"length": 3}, "grö", "text"),
        ("photo", "truncate", {"length": 1}, b"\x00", "blob"),
        ("email", "truncate", {"length": 0}, "", "varchar(40)"),
        ("note", "keep-last", {"length": 2}, "****er", "text"),
        ("note", "keep-last", {"length": 6}, "******", "text"),
        ("note", "keep-last", {"length": 0}, "******", "text"),
        ("card", "keep-last", {"length": 4}, "************1111", "varchar(20)"),
        ("price", "keep-last", {"length": 1}, "****0", "varchar(67)"),
        (
            "email",
            "regex",
            {"pattern": "^[^@]+", "replacement": "who"},
            "who@example.org",
            "varchar(40)",
        ),
        ("email", "regex", {"pattern": "(.)@", "replacement": r"\1\1"}, None, "varchar(40)"),
        ("email", "expression", {"expression": "upper(left(email, 1))"}, "A", "varchar(40)"),
        ("born", "expression", {"expression": "year(born)", "type": "int"}, 1815, "int"),
        ("price", "expression", {"expression": "price * 2"}, "25.00", "decimal(10,2)"),
        ("card", "expression", {"expression": "card div 10"}, 411111111111111, "bigint"),
        ("email", "expression", {"expression": "NULL"}, None, "varchar(40)"),
        ("email", "expression", {"expression": "'a'", "type": "char(1)"}, "a", "char(1)"),
    ],
)
def test_actions(column: str, action: str, more: Any, value: Any, sql: str) -> None:
    found = masking(mask(column, action, **more))
    if action == "regex" and value is None:
        value = "adaaexample.org"
    after = one(found)
    assert after == {**ROW, column: value}
    seen = found.seen_as(TABLE)
    assert seen.column(column).type.sql == sql
    (part,) = found.rows(inserts(TABLE, [ROW]))
    assert part.after.type == seen.image and part.table is seen
    nulls = one(found, {"id": 7, "code": "k1"})
    if column not in ("id", "code") and action != "constant" and value not in ("a",):
        assert nulls[column] is None


def test_long_results_are_cut_as_the_column_takes_them() -> None:
    found = masking(mask("email", "regex", pattern=".", replacement="xx"))
    assert one(found, {**ROW, "email": "y" * 30})["email"] == "x" * 40


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (mask("ratio", "hash"), "servers do not agree"),
        (mask("card", "truncate", length=1), "character and binary columns only"),
        (mask("born", "keep-last", length=1), "character columns only"),
        (mask("photo", "regex", pattern="a"), "character columns only"),
        (mask("email", "regex", pattern="(a"), r"the pattern '\(a' cannot be used"),
        (mask("email", "regex", pattern="a", replacement="\\7"), "replacement .* cannot be used"),
        (mask("card", "constant", value="x"), "'x' is not a value of bigint"),
        (mask("born", "constant", value="x"), "'x' is not a date"),
        (mask("mood", "constant", value="odd"), "'odd' is not a value of enum"),
        (mask("email", "constant", value="x" * 41), "is not a value of varchar"),
        (mask("id", "null"), "part of a primary or unique key"),
        (mask("code", "truncate", length=2), "part of a primary or unique key"),
        (mask("nothing", "null"), "fits no column of any captured table"),
        (mask("email", "null", "elsewhere.*"), "fits no column of any captured table"),
        (mask("email", "expression", expression="nope"), "no column 'nope'"),
        (mask("email", "expression", expression="doc"), "cannot be used as text"),
        (mask("card", "expression", expression="email"), "not a number"),
        (mask("card", "expression", expression="1", type="json"), "cannot be made by an expr"),
        (mask("card", "expression", expression="1", type="int, x int"), "is not a type"),
    ],
)
def test_what_does_not_fit_is_refused_at_creation(rule: Any, words: str) -> None:
    with pytest.raises(BadTransform, match=words):
        masking(rule).check_tables([TABLE])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"matcher": ["a.b"], "columns": ["c"]}, "has no action"),
        ({"matcher": ["a.b"], "action": "null"}, "is for no column"),
        ({"columns": ["c"], "action": "null"}, "is for no table"),
        (mask("c", "nil"), "not one of the allowed words"),
        (mask("c", "truncate"), "needs a length"),
        (mask("c", "truncate", length=-1), "whole number"),
        (mask("c", "null", length=1), "has no meaning with action = null"),
        (mask("[", "null"), "failed to parse character class"),
    ],
)
def test_what_cannot_be_read_is_refused(rule: Any, words: str) -> None:
    with pytest.raises(BadTransform, match=words):
        masking(rule)


def test_the_salt_is_needed_long_and_always_the_same() -> None:
    rule = mask("email", "hash")
    with pytest.raises(BadTransform, match="needs transform.salt"):
        decisions({"transform": {"masks": [rule]}}, KAFKA).check_tables([TABLE])
    first = masking(rule)
    check = first.salt_check()
    assert len(check) == 16 and SALT not in check
    again = {"salt": SALT, "salt-check": check, "masks": [rule]}
    decisions({"transform": again}, KAFKA).check_salt()
    other = decisions({"transform": {**again, "salt": SALT + "!"}}, KAFKA)
    with pytest.raises(BadTransform, match="not the one with which the changefeed was created"):
        other.check_salt()
    with pytest.raises(BadTransform, match="not the one"):
        [*other.rows(inserts(TABLE, [ROW]))]
    short = decisions({"transform": {"salt": "literal:x", "masks": [rule]}}, KAFKA)
    with pytest.raises(BadTransform, match="less than 16 bytes"):
        short.check_salt()


def test_both_images_and_all_kinds_of_changes_are_masked_alike() -> None:
    found = masking(mask(["id", "email"], "hash"), mask("note", "null"))
    row = {"id": 1, "email": "a", "note": "n", "code": "c"}
    changes = chunk(
        TABLE,
        (Op.INSERT, None, row),
        (Op.UPDATE, row, {**row, "email": "b"}),
        (Op.UPDATE, row, {**row, "id": 2}),
        (Op.DELETE, row, None),
    )
    shown = [
        (op, b and (b["id"], b["email"], b["note"]), a and (a["id"], a["email"], a["note"]))
        for op, b, a in decided(found, changes)
    ]
    key, first, second = digits("1"), digits("a"), digits("b")
    assert shown == [
        (Op.INSERT, None, (key, first, None)),
        (Op.UPDATE, (key, first, None), (key, second, None)),
        (Op.DELETE, (key, first, None), None),
        (Op.INSERT, None, (digits("2"), first, None)),
        (Op.DELETE, (key, first, None), None),
    ]


def test_computed_columns_come_last_and_selectors_see_them() -> None:
    computed = [
        {"matcher": ["shop.*"], "column": "domain", "type": "varchar(9)", "expression": "note"},
        {"matcher": ["shop.*"], "column": "dear", "type": "tinyint", "expression": "price > 10"},
        {"matcher": ["shop.*"], "column": "day", "type": "date", "expression": "date(seen)"},
        {"matcher": ["shop.*"], "column": "until", "type": "datetime", "expression": "seen"},
        {"matcher": ["shop.*"], "column": "much", "type": "decimal(5,1)", "expression": "price/3"},
        {"matcher": ["shop.*"], "column": "half", "type": "float", "expression": "ratio"},
    ]
    found = masking(mask("note", "null"), computed=computed)
    after = one(found)
    assert list(after)[-6:] == ["domain", "dear", "day", "until", "much", "half"]
    assert list(after.values())[-6:] == [
        "größer",
        1,
        "2024-01-02",
        "2024-01-02 03:04:05",
        "4.2",
        0.5,
    ]
    assert "shop.t.domain is computed from note before they are masked" in found.check_tables(
        [TABLE]
    )
    rule = {"matcher": ["shop.*"], "columns": ["id", "dear"]}
    few = masking(computed=computed)
    narrow = decisions(
        {
            "transform": {"computed": computed},
            "sink": {"column-selectors": [rule]},
        },
        KAFKA,
    )
    assert one(narrow) == {"id": 7, "dear": 1}
    assert few.seen_as(TABLE).column("dear").type.sql == "tinyint"
    with pytest.raises(BadTransform, match="has a column 'NOTE' already"):
        masking(computed=[{**computed[0], "column": "NOTE"}]).check_tables([TABLE])
    with pytest.raises(BadTransform, match="needs a type"):
        masking(computed=[{**computed[0], "type": ""}])


def test_an_error_does_not_tell_the_value() -> None:
    big = {**ROW, "card": 4111222233334444}
    narrow = masking(mask("card", "expression", expression="card", type="int"))
    with pytest.raises(BadTransform, match="cannot be made into int") as told:
        one(narrow, big)
    assert "4111222233334444" not in str(told.value) and told.value.__cause__ is None
    rule = {"matcher": ["shop.*"], "ignore-insert-value-expr": "card * 99999999 > 1"}
    filtered = masking(mask("card", "null"), filter={"event-filters": [rule]})
    with pytest.raises(BadEventFilter, match="not shown because some are masked") as told_:
        one(filtered, big)
    assert "4111222233334444" not in str(told_.value)
    with pytest.raises(BadEventFilter, match="not shown because some are masked"):
        filtered.matching(inserts(TABLE, [big]), "card * 99999999 > 1")
    with pytest.raises(BadEventFilter, match="there is no column 'nothing'"):
        filtered.matching(inserts(TABLE, [big]), "nothing > 1")


def test_filters_see_values_as_the_source_has_them() -> None:
    rule = {"matcher": ["shop.*"], "ignore-insert-value-expr": "email = 'ada@example.org'"}
    found = masking(mask("email", "hash"), filter={"event-filters": [rule]})
    assert decided(found, inserts(TABLE, [ROW])) == []


def test_a_generated_column_does_not_tell_what_is_masked() -> None:
    table = made(
        "CREATE TABLE g (id INT PRIMARY KEY, email TEXT, low TEXT AS (lower(`Email`)) STORED, "
        "n INT AS (id + 1) STORED)"
    )
    with pytest.raises(BadTransform, match="shop.g.low is generated from email"):
        masking(mask("email", "null")).check_tables([table])
    both = masking(mask(["email", "low"], "null"))
    both.check_tables([table])
    assert both.seen_as(table).column("low").generated == ""
    assert both.seen_as(table).column("n").generated == "stored"


def test_a_default_does_not_tell_what_is_masked() -> None:
    table = made(
        "CREATE TABLE g (id INT PRIMARY KEY, user TEXT, uuid CHAR(36) DEFAULT (uuid()), "
        "shown VARCHAR(99) DEFAULT (concat(`User`, 'x')), who VARCHAR(99) DEFAULT (user()))"
    )
    with pytest.raises(BadTransform, match="shop.g.shown has a default that is made from user"):
        masking(mask("user", "null")).check_tables([table])
    masking(mask(["user", "shown"], "null")).check_tables([table])  # user() is no column
    masking(mask("uuid", "null")).check_tables([table])


def test_columns_that_are_never_masked() -> None:
    table = made("CREATE TABLE s (id INT PRIMARY KEY, _tidb_softdelete_time TIMESTAMP(6) NULL)")
    with pytest.raises(BadTransform, match="leave it out with '!_tidb_softdelete_time'"):
        masking(mask(["*", "!id"], "null")).check_tables([table])
    parted = made("CREATE TABLE p (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 2")
    with pytest.raises(BadTransform, match="by which the table is partitioned"):
        masking(mask("id", "hash")).check_tables([parted])
    source = decisions({"transform": {"salt": SALT, "masks": [mask("id", "hash")]}}, KAFKA)
    with pytest.raises(BadTransform, match="this source stores keys of rows"):
        source.check_tables([TABLE])


# --- schema changes ------------------------------------------------------------------------------


def version(sql: str, number: int = 2, name: str = "t") -> TableSchema:
    found = made(f"CREATE TABLE {name} ({sql})")
    return replace(found, version=number, table_id=9)


OLD = version("id INT PRIMARY KEY, email VARCHAR(40), v INT", 1)


def renamed(table: TableSchema, old: str, new: str) -> TableSchema:
    columns = tuple(replace(c, name=new) if c.name == old else c for c in table.columns)
    return replace(table, columns=columns, version=table.version + 1)


def test_a_mask_is_never_lost() -> None:
    wide = masking(mask("email", "hash", "*.*"))
    new = renamed(OLD, "email", "mail")
    with pytest.raises(MaskLost, match=r"column email of shop.t is masked, and is shop.t.mail now"):
        wide.follow(OLD, new)
    masking(mask(["email", "mail"], "hash", "*.*")).follow(OLD, new)
    # A rule that names the table needs a column that it can mask, whatever came before.
    narrow = masking(mask("email", "hash", "shop.t"))
    for judge in (narrow.seen_as, lambda t: [*narrow.rows(inserts(t, [{"id": 1}]))]):
        with pytest.raises(MaskLost, match="fit no column of table shop.t"):
            judge(new)
    moved = replace(OLD, id=OLD.id._replace(table="u"), version=2)
    with pytest.raises(MaskLost, match=r"is masked, and is shop.u.email now"):
        narrow.follow(OLD, moved)
    wide.follow(OLD, moved)
    # Gone, and another came: nobody can say that it is not the same.
    columns = (*OLD.columns[:1], replace(OLD.columns[1], id=17, name="post"), OLD.columns[2])
    with pytest.raises(MaskLost, match="lost email, which is masked, and got post"):
        wide.follow(OLD, replace(OLD, columns=columns, version=2))
    wide.follow(OLD, replace(OLD, columns=(OLD.columns[0], OLD.columns[2]), version=2))
    again = replace(new, table_id=10)  # its snapshot began anew: ids are others
    with pytest.raises(MaskLost, match="lost email, which is masked, and got mail"):
        wide.follow(OLD, again)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("INT", "BIGINT UNSIGNED", True),
        ("INT", "DECIMAL(12,0)", True),
        ("DECIMAL(9,2)", "DECIMAL(19,2)", True),
        ("VARCHAR(40)", "TEXT", True),
        ("CHAR(4)", "VARCHAR(9)", True),
        ("VARBINARY(4)", "BLOB", True),
        ("ENUM('a','b')", "ENUM('a','b','c')", True),
        ("DECIMAL(9,1)", "DECIMAL(9,2)", False),
        ("DATETIME", "DATETIME(3)", False),
        ("DATETIME", "TIMESTAMP", False),
        ("DATE", "DATETIME", False),
        ("BINARY(4)", "BINARY(8)", False),
        ("VARCHAR(9)", "CHAR(9)", False),
        ("ENUM('a','b')", "ENUM('b','a')", False),
    ],
)
def test_rows_keep_the_hashes_that_readers_have(old: str, new: str, kept: bool) -> None:
    hashed = masking(mask("k", "hash", "*.*"))
    versions = [
        version(f"k {kind} NOT NULL PRIMARY KEY, v INT", number)
        for number, kind in enumerate((old, new), 1)
    ]
    if kept:
        hashed.follow(*versions)
        return
    with pytest.raises(BadTransform, match=r"the type of shop.t.k changed from .* as it was made"):
        hashed.follow(*versions)
    # Another table of that name: its rows are others, too.
    hashed.follow(versions[0], replace(versions[1], table_id=10))


def test_what_a_statement_converts_is_not_outdated() -> None:
    old = version("id INT PRIMARY KEY, v VARCHAR(9), w DECIMAL(9,1)", 1)
    new = version("id INT PRIMARY KEY, v CHAR(9), w DECIMAL(9,2)")
    masking(mask("v", "truncate", "*.*", length=3)).follow(old, new)
    masking(mask(["v", "w"], "null", "*.*")).follow(old, new)
    rule = {"matcher": ["shop.*"], "column": "x", "type": "tinyint", "expression": "w > 1"}
    with pytest.raises(BadTransform, match="readers have x as it was made"):
        masking(computed=[rule]).follow(old, new)
    with pytest.raises(BadTransform, match="readers have w as it was made"):
        masking(mask("w", "keep-last", "*.*", length=2)).follow(old, new)


def seen(found: Decisions, kind: DdlKind, query: str, new: TableSchema) -> SchemaChange:
    return found.change_seen_as(SchemaChange(2, kind, query, new.id, new), OLD)


def test_statements_follow_the_types() -> None:
    found = masking(
        mask(["email", "phone"], "hash"),
        computed=[{"matcher": ["shop.*"], "column": "w", "type": "bigint", "expression": "v + 1"}],
    )
    created = seen(found, DdlKind.CREATE_TABLE, "CREATE TABLE t (…)", OLD)
    assert "`email` char(64) CHARACTER SET ascii COLLATE ascii_bin" in created.query
    assert "`w` bigint" in created.query
    assert parse_create(created.query).columns[1].type == found.seen_as(OLD).columns[1].type
    plain = "ALTER TABLE t ADD COLUMN x INT DEFAULT 3"
    new = version("id INT PRIMARY KEY, email VARCHAR(40), v INT, x INT DEFAULT 3")
    assert seen(found, DdlKind.ADD_COLUMN, plain, new).query == plain
    wider = version("id INT PRIMARY KEY, email TEXT NOT NULL, v INT")
    text = "ALTER TABLE t MODIFY email TEXT NOT NULL"
    assert seen(found, DdlKind.MODIFY_COLUMN, text, wider).query == (
        "ALTER TABLE `shop`.`t` CHANGE COLUMN `email` `email` char(64) CHARACTER SET ascii "
        "COLLATE ascii_bin NOT NULL"
    )
    same = version("id INT PRIMARY KEY, email VARCHAR(99), v INT")
    assert seen(found, DdlKind.MODIFY_COLUMN, "ALTER TABLE t MODIFY email …", same).query == ""
    more = version("id INT PRIMARY KEY, email VARCHAR(40), phone TEXT, v INT, KEY k (v)")
    more = replace(
        more,
        columns=(*OLD.columns[:2], replace(more.columns[2], id=4, default="1"), OLD.columns[2]),
    )
    query = "ALTER TABLE t ADD COLUMN phone TEXT DEFAULT '1' AFTER email, ADD KEY k (v)"
    assert seen(found, DdlKind.MULTI_SCHEMA_CHANGE, query, more).query == (
        "ALTER TABLE `shop`.`t` ADD COLUMN `phone` char(64) CHARACTER SET ascii COLLATE ascii_bin "
        f"DEFAULT '{digits('1')}' AFTER `email`, ADD KEY `k` (`v`)"
    )
    with pytest.raises(BadTransform, match="what they were before is not known"):
        found.change_seen_as(SchemaChange(2, DdlKind.MODIFY_COLUMN, text, wider.id, wider))


def test_a_key_is_made_anew_over_a_column_that_comes_back() -> None:
    """Else the server lets it go on over the new column, and refuses all for a second one."""
    found = masking(mask("email", "hash", "shop.t"))
    old = version("id INT PRIMARY KEY, email VARCHAR(40), KEY e (email), KEY i (id)")
    same = version("id INT PRIMARY KEY, email VARCHAR(60), KEY e (email), KEY i (id)")
    new = replace(same, columns=(same.columns[0], replace(same.columns[1], id=9)))
    query = "ALTER TABLE t DROP COLUMN email, ADD COLUMN email VARCHAR(60)"
    change = SchemaChange(2, DdlKind.MULTI_SCHEMA_CHANGE, query, new.id, new)
    assert found.change_seen_as(change, old).query == (
        "ALTER TABLE `shop`.`t` DROP COLUMN `email`, ADD COLUMN `email` char(64) CHARACTER SET "
        "ascii COLLATE ascii_bin AFTER `id`, DROP INDEX `e`, ADD KEY `e` (`email`)"
    )


def test_a_copy_of_a_masked_table_is_written_out() -> None:
    found = masking(mask("email", "hash", "shop.t"))
    copy = version("id INT PRIMARY KEY, email VARCHAR(40), v INT", name="u")
    query = seen(found, DdlKind.CREATE_TABLE, "CREATE TABLE u LIKE t", copy).query
    assert "`email` varchar(40)" in query and "LIKE" not in query


def test_what_plans_may_hold() -> None:
    assert not decisions({}).hides_rows
    found = masking(mask("id", "hash"))
    assert found.hides_rows and found.hides_key(TABLE)
    assert not masking(mask("email", "hash")).hides_key(TABLE)
