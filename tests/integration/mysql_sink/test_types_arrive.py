"""Every type's values arrive as they were, in keys too, and old rows are found by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from mysql_sink_kit import Scene, scene_of

from rowferry.errors import RowRejected, TargetUnfit
from rowferry.mysql.session import Flavour
from rowferry.testing.servers import MariaDb, MySql

NINES = "9" * 35 + "." + "9" * 30
COLUMNS: dict[str, tuple[str, ...]] = {
    "tinyint": ("-128", "127"),
    "tinyint unsigned": ("255", "0"),
    "mediumint": ("-8388608", "8388607"),
    "int unsigned": ("4294967295", "0"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "bigint unsigned": ("18446744073709551615", "0"),
    "float": ("0.1", "3.4028234e38"),
    "double": ("0.1", "-1.7976931348623157e308"),
    "float unsigned": ("-0e0", "0"),
    "double precision": ("-0e0", "-5e-324"),
    "decimal(65,30)": (f"-{NINES}", "0.000000000000000000000000000001"),
    "decimal(65,0)": ("9" * 65, "-1"),
    "bit(1)": ("1", "0"),
    "bit(64)": ("18446744073709551615", "1"),
    "year": ("2155", "0"),
    "date": ("'2024-02-00'", "0"),
    "datetime(6)": ("'9999-12-31 23:59:59.999999'", "0"),
    "timestamp(3) null": ("'2038-01-19 03:14:07.999'", "0"),
    "time(6)": ("'-838:59:59'", "'-00:00:00.000001'"),
    "char(10)": ("'😀é '", "''"),
    "varchar(30)": ("'it\\'s \\\\ \"so\" \\0'", "'x  '"),
    "varchar(30) charset latin1": ("'äöü€'", "''"),
    "longtext": ("repeat('😀', 30000)", "'\\\\\\''"),
    "binary(6)": ("x'0a00ff0000'", "x''"),
    "varbinary(20)": ("x'00275c22ff00'", "x''"),
    "longblob": ("repeat(x'00ff27', 20000)", "x''"),
    "enum('a','it''s','é')": ("'it\\'s'", "'é'"),
    "set('a','b','c')": ("'a,c'", "''"),
    "json": ('\'{"a": [1, "ß\\\\n"]}\'', "'null'"),
    "geometry": ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1 1)')"),
}
MORE = {
    Flavour.MYSQL: {"vector(3)": ("string_to_vector('[1,2.5,-3]')", "NULL")},
    Flavour.MARIADB: {
        "uuid": ("'123e4567-e89b-12d3-a456-426655440000'", "NULL"),
        "inet6": ("'2001:db8::1'", "'::'"),
        "inet4": ("'192.0.2.1'", "NULL"),
    },
}
KEYS: dict[str, tuple[str, ...]] = {
    "k_text": ("'a'", "'é'"),
    "k_float": ("0.1", "2.5"),
    "k_bytes": ("x'0a000000'", "x'ff'"),
    "k_moment": ("'2024-01-01 00:00:00.5'", "0"),
    "k_amount": ("12345678901234567890.12", "-0.01"),
    "k_bits": ("5", "0"),
    "k_choice": ("'y'", "'x'"),
    "k_both": ("'a', 1", "'b', 2"),
}
KEYED = {
    "k_text": "k varchar(10)",
    "k_float": "k float",
    "k_bytes": "k binary(4)",
    "k_moment": "k timestamp(1)",
    "k_amount": "k decimal(30,2)",
    "k_bits": "k bit(20)",
    "k_choice": "k enum('x','y')",
}


def test_every_type_arrives_with_and_without_a_key(same_kind: Scene) -> None:
    columns = COLUMNS | MORE[same_kind.source.flavour]
    names = [f"c{i}" for i in range(len(columns))]
    shape = ", ".join(f"{n} {kind}" for n, kind in zip(names, columns, strict=True))
    same_kind.both(
        "SET sql_mode = ''",
        f"CREATE TABLE wide (id int PRIMARY KEY, {shape})",
        f"CREATE TABLE bare ({shape}, n int)",
        *(f"CREATE TABLE {name} ({kind} PRIMARY KEY, n int)" for name, kind in KEYED.items()),
        "CREATE TABLE k_both (a char(1), b int, n int, PRIMARY KEY (b, a))",
    )
    rows = [", ".join(values[place] for values in columns.values()) for place in range(2)]
    nulls = ", ".join(["NULL"] * len(columns))
    feed = same_kind.feed(config="force-replicate = true")
    same_kind.sql(f"INSERT INTO wide VALUES (1, {rows[0]})")
    for name, values in KEYS.items():
        same_kind.sql(f"INSERT INTO {name} VALUES ({values[0]}, 1), ({values[1]}, 1)")
    feed.catch_up()
    assert [n for n in feed.notices if ".bare: without a key" in n and "exactly-once" in n]
    tables = ("wide", "bare", *KEYS)
    assert same_kind.assert_same(*tables) == 1 + 2 * len(KEYS)
    same_kind.sql(
        f"INSERT INTO wide VALUES (0, {rows[1]}), (-1, {nulls})",
        f"INSERT INTO bare VALUES ({rows[0]}, 1), ({rows[1]}, 1), ({nulls}, 1), ({nulls}, 1)",
        f"UPDATE wide SET {names[0]} = 3 WHERE id = 1",
    )
    for name in KEYS:
        same_kind.sql(f"UPDATE {name} SET n = 2", f"DELETE FROM {name} LIMIT 1")
    feed.catch_up()
    assert same_kind.assert_same(*tables) == 3 + 4 + len(KEYS)
    same_kind.sql("UPDATE bare SET n = n + 1 LIMIT 3", "DELETE FROM wide WHERE id = 0")
    same_kind.sql("DELETE FROM bare LIMIT 1")
    feed.catch_up()
    assert same_kind.assert_same(*tables) == 2 + 3 + len(KEYS)
    assert feed.faults == []


def test_the_error_value_of_an_enum_is_never_taken_for_an_element(same_kind: Scene) -> None:
    """Both are shown as an empty text; the one that is no element cannot be written."""
    same_kind.both("CREATE TABLE t (id int PRIMARY KEY, e enum('it''s', '', '0'))")
    feed = same_kind.feed()
    same_kind.sql("SET sql_mode = ''", "INSERT INTO t VALUES (1, 1), (2, 2), (3, '0'), (4, NULL)")
    feed.catch_up()
    assert same_kind.assert_same("t") == 4
    same_kind.sql("SET sql_mode = ''", "INSERT INTO t VALUES (5, 'x'), (6, 1), (7, NULL)")
    with pytest.raises(RowRejected, match="row id = 5: Data truncated for column 'e'"):
        feed.catch_up()
    assert len(same_kind.rows("t")[1]) == 4


DOCUMENTS = (
    "JSON_OBJECT('bb', 1, 'a', CAST(1.50 AS DECIMAL(5,2)))",
    "JSON_OBJECT('a', 1e0, 'b', '\\\\ \\' */ ß')",
    "JSON_ARRAY(1e20, NULL, TRUE, 18446744073709551615)",
    "'null'",
    "NULL",
)


def without_a_key(scene: Scene) -> None:
    """Delete rows one by one that only their document tells apart."""
    scene.both("CREATE TABLE bare (j json, f float)")
    feed = scene.feed(config="force-replicate = true")
    rows = ", ".join(f"({document}, 0.1)" for document in DOCUMENTS)
    scene.sql(f"INSERT INTO bare VALUES {rows}")
    feed.catch_up()
    for left in range(len(DOCUMENTS) - 1, -1, -1):
        scene.sql("UPDATE bare SET f = 0.7 LIMIT 1", "DELETE FROM bare LIMIT 1")
        feed.catch_up()
        assert [len(rows) for rows in scene.rows("bare")] == [left, left]


def test_documents_are_found_without_a_key(scene: Scene) -> None:
    without_a_key(scene)


def test_documents_are_found_without_a_key_by_their_own_kind(same_kind: Scene) -> None:
    without_a_key(same_kind)


def test_a_text_that_is_a_document_downstream_needs_a_key(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path
) -> None:
    """MariaDB keeps a document as it was written, and MySQL does not."""
    with scene_of(mariadb_server, mysql_server, tmp_path, "text_document") as scene:
        scene.both("CREATE TABLE bare (j json)")
        feed = scene.feed(config="force-replicate = true")
        scene.sql("""INSERT INTO bare VALUES ('{"b":1,"a":2}')""")
        with pytest.raises(TargetUnfit, match="column 'j' as json"):
            feed.catch_up()
        scene.at_target("ALTER TABLE bare MODIFY j longtext")
        feed.catch_up()
        assert scene.assert_same("bare") == 1
        scene.sql("DELETE FROM bare")
        feed.catch_up()
        assert scene.assert_same("bare") == 0


def test_zeros_of_both_signs_are_one_key(same_kind: Scene) -> None:
    same_kind.both("CREATE TABLE t (id double PRIMARY KEY, n int)")
    feed = same_kind.feed()
    same_kind.sql(
        "INSERT INTO t VALUES (0, 1), (1, 1)", "UPDATE t SET id = -0e0 WHERE id = 0",
        "DELETE FROM t WHERE id = 0",
    )  # fmt: skip
    feed.catch_up()
    assert same_kind.assert_same("t") == 1


@pytest.mark.parametrize("told", [False, True], ids=["by itself", "told otherwise"])
@pytest.mark.parametrize("of", [Flavour.MYSQL, Flavour.MARIADB], ids=lambda f: f.value)
def test_seconds_lose_digits_as_at_the_source(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path, of: Flavour, told: bool
) -> None:
    servers = mysql_server, mariadb_server
    source, target = servers if of is Flavour.MYSQL else servers[::-1]
    other = {Flavour.MYSQL: "TIME_TRUNCATE_FRACTIONAL", Flavour.MARIADB: "TIME_ROUND_FRACTIONAL"}
    with scene_of(source, target, tmp_path, f"seconds_{of.value}_{told}") as scene:
        scene.both("CREATE TABLE t (id int PRIMARY KEY, a time(6), b datetime(6))")
        scene.sql("INSERT INTO t VALUES (1, '10:00:00.5', '1999-12-31 23:59:59.987654')")
        feed = scene.feed()
        feed.catch_up()
        scene.sql(
            f"SET sql_mode = '{other[of] if told else ''}'",
            "ALTER TABLE t MODIFY a time, MODIFY b datetime(3)",
        )
        feed.catch_up()
        assert scene.assert_same("t") == 1


def test_an_id_of_zero_stays_where_a_column_begins_to_count(same_kind: Scene) -> None:
    same_kind.both("CREATE TABLE t (id int PRIMARY KEY)")
    same_kind.sql("INSERT INTO t VALUES (0), (7)")
    feed = same_kind.feed()
    feed.catch_up()
    same_kind.sql(
        "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'", "ALTER TABLE t MODIFY id int AUTO_INCREMENT"
    )
    feed.catch_up()
    assert same_kind.assert_same("t") == 2
