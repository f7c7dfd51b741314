"""Every type's values arrive in their image, in keys too, and old rows are found by them."""

from __future__ import annotations

import pytest
from postgresql_kit import Scene

from rowferry.errors import RowRejected
from rowferry.mysql.session import Flavour

NINES = "9" * 35 + "." + "9" * 30
# Type at the source: its image, then pairs of a value there and its text here.
COLUMNS: dict[str, tuple[str, tuple[str, str], tuple[str, str]]] = {
    "tinyint": ("smallint", ("-128", "-128"), ("127", "127")),
    "tinyint unsigned": ("smallint", ("255", "255"), ("0", "0")),
    "smallint": ("smallint", ("-32768", "-32768"), ("1", "1")),
    "smallint unsigned": ("integer", ("65535", "65535"), ("0", "0")),
    "mediumint": ("integer", ("-8388608", "-8388608"), ("0", "0")),
    "mediumint unsigned": ("integer", ("16777215", "16777215"), ("0", "0")),
    "int": ("integer", ("-2147483648", "-2147483648"), ("0", "0")),
    "int unsigned": ("bigint", ("4294967295", "4294967295"), ("0", "0")),
    "bigint": ("bigint", ("-9223372036854775808", "-9223372036854775808"), ("0", "0")),
    "bigint unsigned": ("numeric(20,0)", ("18446744073709551615",) * 2, ("0", "0")),
    "float": ("real", ("0.1", "0.1"), ("3.4028234e38", "3.4028235e+38")),
    "double": (
        "double precision",
        ("0.1", "0.1"),
        ("-1.7976931348623157e308", "-1.7976931348623157e+308"),
    ),
    "decimal(65,30)": ("numeric(65,30)", (f"-{NINES}",) * 2, ("0.5", "0.5" + "0" * 29)),
    "bit(1)": ("bit(1)", ("1", "1"), ("0", "0")),
    "bit(64)": ("bit(64)", ("18446744073709551615", "1" * 64), ("5", "0" * 61 + "101")),
    "year": ("smallint", ("2155", "2155"), ("1901", "1901")),
    "date": ("date", ("'9999-12-31'", "9999-12-31"), ("'1000-01-01'", "1000-01-01")),
    "datetime(6)": (
        "timestamp(6) without time zone",
        ("'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
        ("'2024-02-29 00:00:00'", "2024-02-29 00:00:00"),
    ),
    "timestamp(3) null": (
        "timestamp(3) with time zone",
        ("'2038-01-19 03:14:07.999'", "2038-01-19 03:14:07.999+00"),
        ("'1970-01-01 00:00:01'", "1970-01-01 00:00:01+00"),
    ),
    "time(6)": (
        "interval(6)",
        ("'-838:59:59'", "-838:59:59"),
        ("'-00:00:00.000001'", "-00:00:00.000001"),
    ),
    "char(10)": ("character varying(10)", ("'😀é '", "😀é"), ("''", "")),
    "varchar(30)": (
        "character varying(30)",
        ("'it\\'s \\\\ \\t\\r\\n \\\\N \"so\"'", 'it\'s \\ \t\r\n \\N "so"'),
        ("'x  '", "x  "),
    ),
    "varchar(9) charset latin1": ("character varying(9)", ("'äöü€'", "äöü€"), ("''", "")),
    "longtext": ("text", ("repeat('😀', 3000)", "😀" * 3000), ("'\\\\.\\n\\\\.'", "\\.\n\\.")),
    "binary(6)": ("bytea", ("x'0a00ff'", "\\x0a00ff000000"), ("x''", "\\x000000000000")),
    "varbinary(20)": ("bytea", ("x'00275c22ff00'", "\\x00275c22ff00"), ("x''", "\\x")),
    "longblob": ("bytea", ("repeat(x'00ff27', 2000)", "\\x" + "00ff27" * 2000), ("x''", "\\x")),
    "enum('a','it''s','é')": ("text", ("'it\\'s'", "it's"), ("'é'", "é")),
    "set('a','b','c')": ("text", ("'a,c'", "a,c"), ("''", "")),
    "geometry": (
        "bytea",
        (
            "ST_GeomFromText('POINT(1 2)')",
            "\\x00000000" + "0101000000" + "000000000000f03f" + "0000000000000040",
        ),
        ("NULL", ""),
    ),
}
MORE = {
    Flavour.MYSQL: {
        "json": (
            "jsonb",
            (
                '\'{"b": [1, 1.5, "ß\\\\n"], "a": 12345678901234567890}\'',
                '{"a": 12345678901234567890, "b": [1, 1.5, "ß\\n"]}',
            ),
            ("'null'", "null"),
        ),
        "vector(3)": ("text", ("string_to_vector('[1,2.5,-3]')", "[1,2.5,-3]"), ("NULL", "")),
    },
    Flavour.MARIADB: {
        "uuid": (
            "uuid",
            ("'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
            ("NULL", ""),
        ),
        "inet6": ("text", ("'2001:db8::1'", "2001:db8::1"), ("NULL", "")),
    },
}
KEYED = {
    "k_text": ("k varchar(10)", "('a', 1), ('B', 1)"),
    "k_float": ("k float", "(0.1, 1), (2.5, 1)"),
    "k_bytes": ("k binary(4)", "(x'0a', 1), (x'ff', 1)"),
    "k_moment": ("k timestamp(1)", "('2024-01-01 00:00:00.5', 1), ('2024-01-02', 1)"),
    "k_amount": ("k decimal(30,2)", "(12345678901234567890.12, 1), (-0.01, 1)"),
    "k_bits": ("k bit(20)", "(5, 1), (0, 1)"),
    "k_whole": ("k bigint unsigned", "(18446744073709551615, 1), (7, 1)"),
}


def _plain(sql: str) -> str:
    return sql.strip("'")


def test_every_type_has_its_image_with_and_without_a_key(each_kind: Scene) -> None:
    columns = COLUMNS | MORE[each_kind.source.flavour]
    names = [f"c{i}" for i in range(len(columns))]
    shape = ", ".join(f"{n} {kind}" for n, kind in zip(names, columns, strict=True))
    each_kind.sql(
        f"CREATE TABLE wide (id int PRIMARY KEY, {shape})",
        f"CREATE TABLE bare ({shape}, n int)",
        *(f"CREATE TABLE {n} ({kind} PRIMARY KEY, n int)" for n, (kind, _) in KEYED.items()),
        "CREATE TABLE k_both (a char(1), b int, n int, PRIMARY KEY (b, a))",
    )
    rows = [", ".join(pairs[place][0] for pairs in columns.values()) for place in (1, 2)]
    nulls = ", ".join(["NULL"] * len(columns))
    each_kind.sql(
        "SET time_zone = '+00:00'",
        f"INSERT INTO wide VALUES (1, {rows[0]}), (2, {rows[1]})",
        *(f"INSERT INTO {name} VALUES {values}" for name, (_, values) in KEYED.items()),
        "INSERT INTO k_both VALUES ('a', 1, 1), ('b', 2, 1)",
    )
    feed = each_kind.feed(config="force-replicate = true")
    feed.catch_up()
    types = each_kind.pg(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 1 AND "
        "attrelid = '$.wide'::regclass ORDER BY attnum"
    )
    assert types == [(n, image) for n, (image, *_) in zip(names, columns.values(), strict=True)]
    texts = ", ".join(f"COALESCE({n}::text, '')" for n in names)
    for number in (1, 2):
        ((*here,),) = each_kind.pg(f"SELECT {texts} FROM $.wide WHERE id = {number}")
        for kind, text, pair in zip(columns, here, columns.values(), strict=True):
            assert text == pair[number][1], kind
    # A whole table of its own for rows without a key, and changes that find old rows.
    each_kind.sql(
        "SET time_zone = '+00:00'",
        f"INSERT INTO bare VALUES ({rows[0]}, 1), ({rows[0]}, 1), ({rows[1]}, 1), ({nulls}, 1), "
        f"({nulls}, 1)",
        "DELETE FROM wide WHERE id = 2",
        *(f"UPDATE {name} SET n = 2" for name in (*KEYED, "k_both")),
        *(f"DELETE FROM {name} LIMIT 1" for name in (*KEYED, "k_both")),
    )
    feed.catch_up()
    each_kind.sql("UPDATE bare SET n = 2 LIMIT 1", "DELETE FROM bare WHERE c0 IS NULL LIMIT 1")
    feed.catch_up()
    assert each_kind.pg("SELECT count(*) FROM $.wide") == [(1,)]
    for name in (*KEYED, "k_both"):
        assert each_kind.pg(f"SELECT n FROM $.{name}") == [(2,)], name
    counted = "SELECT c0, n, count(*) FROM $.bare GROUP BY 1, 2 ORDER BY 1, 2"
    assert each_kind.pg(counted) == [(-128, 1, 1), (-128, 2, 1), (127, 1, 1), (None, 1, 1)]
    assert feed.faults == []


def test_what_postgresql_cannot_hold_is_refused_by_name(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, note varchar(20), day date, doc json)",
        "INSERT INTO t VALUES (1, 'plain', '2024-01-01', '{}')",
    )
    feed = scene.feed()
    feed.catch_up()
    scene.sql("INSERT INTO t (id, note) VALUES (2, 'fine'), (3, 'a\\0b'), (4, 'fine')")
    with pytest.raises(RowRejected, match=r"t, row id = 3: .* NUL character"):
        feed.catch_up()
    assert scene.pg("SELECT id FROM $.t") == [(1,)]
    scene.sql("DELETE FROM t WHERE id = 3")
    with pytest.raises(RowRejected):  # the log still has the row
        feed.catch_up()


def test_zero_dates_are_refused_or_become_null(scene: Scene) -> None:
    scene.sql(
        "SET sql_mode = ''",
        "CREATE TABLE t (id int PRIMARY KEY, day date NOT NULL, at datetime(2), "
        "stamp timestamp NULL)",
        "INSERT INTO t VALUES (1, '2024-02-29', '2024-02-29 01:02:03.45', '2024-02-29')",
    )
    feed = scene.feed()
    feed.catch_up()
    scene.sql(
        "SET sql_mode = ''",
        "INSERT INTO t VALUES (2, 0, '2024-00-10', 0), (3, '2023-01-01', NULL, NULL)",
    )
    with pytest.raises(RowRejected, match=r"row id = 2: .*zero-dates = null"):
        feed.catch_up()
    scene.pg("ALTER TABLE $.t ALTER day DROP NOT NULL")
    feed.update("create-tables=true&zero-dates=null")
    feed.catch_up()
    assert scene.pg("SELECT id, day::text, at::text, stamp::text FROM $.t ORDER BY id") == [
        (1, "2024-02-29", "2024-02-29 01:02:03.45", "2024-02-29 00:00:00+00"),
        (2, None, None, None),
        (3, "2023-01-01", None, None),
    ]
