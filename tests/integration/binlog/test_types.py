"""Every type's values come out of the log as the server itself prints them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from binlog_file_kit import Logged, logged

from rowferry.change.chunk import Op, Rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableSchema
from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.decode.table_map import (
    MappedTable,
    infer_schema,
    mismatch,
    parse_table_map,
)
from rowferry.mysql.session import Flavour
from rowferry.testing.servers import MariaDb, MySql, Server


@dataclass(frozen=True)
class Case:
    """One column type, and values for it as SQL writes them."""

    definition: str
    values: tuple[str, ...]
    shown: str = "{}"  # the expression that prints the column
    read: Callable[[Any], Any] = lambda printed: printed  # from what is printed to the canonical


def number(printed: str) -> int:
    return int(printed)


def single(printed: str) -> float:
    return float(np.float32(float(printed)))


def raw(printed: str) -> bytes:
    return bytes.fromhex(printed)


def integers(name: str, bits: int) -> list[Case]:
    low, high, most = -(1 << bits - 1), (1 << bits - 1) - 1, (1 << bits) - 1
    return [
        Case(name, (str(low), str(high), "0", "-1", "1"), read=number),
        Case(f"{name} unsigned", (str(most), str(high + 1), "0", "1"), read=number),
    ]


def fractions(name: str, values: tuple[str, ...]) -> list[Case]:
    return [Case(f"{name}({digits}) null", values) for digits in range(7)]


MOMENTS = (
    "'2024-02-29 23:59:59.999999'",
    "'1970-01-01 00:00:01'",
    "'2038-01-19 03:14:07.000001'",
    "'2000-12-31 12:00:00.5'",
    "0",
)
NUMBERS: list[Case] = [
    *integers("tinyint", 8),
    *integers("smallint", 16),
    *integers("mediumint", 24),
    *integers("int", 32),
    *integers("bigint", 64),
    Case("int(8) zerofill", ("5", "0", "123456789"), read=number),
    Case("bool", ("true", "false"), read=number),
    Case("float", ("0", "-1.5", "3.4028234e38", "1.17549435e-38", "0.1"), "{}+0e0", single),
    Case("float unsigned", ("0.3", "16777217"), "{}+0e0", single),
    Case("double", ("0", "-1.7976931348623157e308", "2.2250738585072014e-308", "0.1"), read=float),
    Case("double(10,3)", ("1234.567", "-0.001"), "{}+0e0", float),
    Case("decimal(65,30)", ("0", f"-{'9' * 35}.{'9' * 30}", "0.000000000000000000000000000001")),
    Case("decimal(65,0)", ("9" * 65, "-" + "9" * 65, "0", "7")),
    Case("decimal(5,5)", ("0.99999", "-0.00001", "0")),
    Case("decimal(10,2) unsigned", ("99999999.99", "0.01", "10")),
    Case("decimal(1,0)", ("9", "-9", "0")),
    Case("decimal(18,9)", ("123456789.987654321", "-100000000.000000001")),
    Case("bit(1)", ("b'1'", "b'0'"), "{}+0", number),
    Case("bit(9)", ("b'111111111'", "0", "256"), "{}+0", number),
    Case("bit(64)", ("18446744073709551615", "1", "1<<63"), "{}+0", number),
    Case("year", ("1901", "2155", "0", "2024"), read=number),
]
TIMES: list[Case] = [
    Case(
        "date",
        ("'1000-01-01'", "'9999-12-31'", "0", "'2024-02-00'", "'2024-00-00'", "'0001-01-01'"),
    ),
    *fractions(
        "datetime", (*MOMENTS, "'9999-12-31 23:59:59'", "'0001-01-01 00:00:00'", "'2024-02-00'")
    ),
    *fractions("timestamp", MOMENTS),
    *fractions(
        "time",
        (
            "'838:59:59'",
            "'-838:59:59'",
            "0",
            "'-00:00:00.5'",
            "'-00:00:01.000001'",
            "'12:34:56.789012'",
        ),
    ),
]
LATIN = "'äöü€ÿ'"
TEXTS: list[Case] = [
    Case("char(10)", ("'x  '", "''", "' y'", "'😀é'")),
    Case("char(255)", ("repeat('é', 255)", "''", "'x'")),
    Case("varchar(10)", ("'x  '", "''", "'😀'")),
    Case("varchar(300)", ("repeat('ab', 150)", "repeat('ä', 300)", "''")),
    Case("tinytext", ("repeat('x', 255)", "''")),
    Case("text", ("repeat('é', 1000)", "''")),
    Case("mediumtext", ("repeat('é', 50000)", "''")),
    Case("longtext", ("repeat('é', 50000)", "'\\\\ \\' \\\" \\n \\0'")),
    Case("enum('a','b','é')", ("'a'", "'é'", "''"), "cast({} as unsigned)", number),
    Case("enum('x') charset latin1", ("'x'", "'nothing'"), "cast({} as unsigned)", number),
    Case(
        "set('a','b','c','d','e','f','g','h','i')",
        ("'a'", "'a,i'", "''"),
        "cast({} as unsigned)",
        number,
    ),
    Case(
        f"set({','.join(repr(f's{i}') for i in range(64))})",
        ("'s63'", "'s0,s63'"),
        "cast({} as unsigned)",
        number,
    ),
    Case(
        f"enum({','.join(repr(f'e{i}') for i in range(300))})",
        ("'e299'", "'e0'"),
        "cast({} as unsigned)",
        number,
    ),
]
BYTES: list[Case] = [
    Case("binary(8)", ("'ab\\0c\\0'", "''", "x'ff00ff'"), "hex({})", raw),
    Case("binary(255)", ("repeat('x', 255)", "'y'"), "hex({})", raw),
    Case("varbinary(8)", ("'ab\\0c\\0'", "''", "x'ff'"), "hex({})", raw),
    Case("varbinary(300)", ("repeat(x'ff00', 150)", "''"), "hex({})", raw),
    Case("tinyblob", ("x'00ff'", "''"), "hex({})", raw),
    Case("blob", ("repeat(x'ff00', 1000)", "''"), "hex({})", raw),
    Case("mediumblob", ("repeat(x'ff00', 40000)",), "hex({})", raw),
    Case("longblob", ("repeat(x'ff00', 40000)", "''"), "hex({})", raw),
    Case("geometry", ("ST_GeomFromText('POINT(1 -2)')",), "hex({})", raw),
    Case("polygon", ("ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))')",), "hex({})", raw),
]
DOCUMENTS = (
    "'null'",
    "'true'",
    "'false'",
    "'[]'",
    "'{}'",
    "'-32768'",
    "'[32767, 65535, 32768, -32769, 2147483647, 4294967295, -2147483648]'",
    "'[9223372036854775807, 18446744073709551615, -9223372036854775808]'",
    "'[0.0, -0.0, 1.5, 1e15, 1e16, 123456789012345.6, 1e-5, 1.234e-15, 1e300, -2.5e-300, 1e14]'",
    "'[0.1, 3.0, 100000000000000000000, 5e-324, 1.7976931348623157e308, 1e-14, 1e-16]'",
    '\'{"b": 1, "a": {"long key": [1, [2, {"x": null}]]}, "": ""}\'',
    "json_quote(concat(char(0, 1, 8, 9, 10, 11, 12, 13, 31, 127 using utf8mb4),"
    " '\"\\\\/é😀\u2028'))",
    "json_array(cast('12.340' as decimal(10,3)), cast('-0.5' as decimal(5,2)),"
    " cast('0' as decimal(65,30)), cast('-99999999999999999999' as decimal(30,0)))",
    "json_array(date'2024-02-29', time'-838:59:59', timestamp'2024-01-02 03:04:05.678901')",
    "json_array(cast('00:00:00.000001' as time(6)), cast('9999-12-31' as datetime(6)))",
    "json_array(x'00ff10', b'101', cast('x' as binary(5)), repeat(x'ab', 300))",
    "json_object('wide', repeat('x', 70000), 'n', 7, 'm', -70000, 'd', 1.5)",
    "json_array(repeat('y', 200), 70000, 4000000000, repeat('z', 70000), true)",
)
MYSQL_ONLY: list[Case] = [
    Case("json", DOCUMENTS, "cast({} as char)"),
    Case(
        "vector(3)",
        ("to_vector('[1, -2.5, 3e10]')", "to_vector('[0,0,0]')"),
        "hex({})",
        lambda printed: list(struct.unpack(f"<{len(printed) // 8}f", bytes.fromhex(printed))),
    ),
]
MARIADB_ONLY: list[Case] = [
    Case("json", ('\'{"b": 1,   "a": [1.50]}\'', "'\"é\"'")),
    Case("varchar(200) compressed", ("repeat('é', 150)", "''", "'x'")),
    Case("text compressed", ("repeat('é', 5000)", "''", "'x'")),
    Case("blob compressed", ("repeat(x'ff', 5000)", "''"), "hex({})", raw),
    Case(
        "inet6",
        ("'::'", "'::1'", "'2001:db8::1'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'1:0:2:3:4:5:6:7'")
        + ("'1:0:0:2:0:0:0:3'", "'1::'", "'::ffff:0:0'", "'1:2:3:4:5:6:0:0'", "'fe80::1:0:0:0:ff'"),
    ),
    Case(
        "uuid",
        ("'123e4567-e89b-12d3-a456-426614174000'", "'00000000-0000-0000-0000-000000000000'")
        + ("'0190163d-8694-739b-aea5-966c26f8ad91'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    ),
    Case("inet4", ("'0.0.0.0'", "'255.255.255.255'", "'1.2.3.0'")),
]


def cases(server: Server) -> list[Case]:
    own = MYSQL_ONLY if server.flavour is Flavour.MYSQL else MARIADB_ONLY
    return [*NUMBERS, *TIMES, *TEXTS, *BYTES, *own]


def schema_for(table: list[Case]) -> Callable[[MappedTable], TableSchema]:
    """Return how to give columns the types that the log does not tell."""

    def schema(mapped: MappedTable) -> TableSchema:
        found = infer_schema(mapped, None)
        columns = list(found.columns)
        for i, case in enumerate(table, 1):
            if case.definition in ("inet4", "inet6", "uuid"):
                columns[i] = replace(columns[i], type=SqlType(case.definition))
        told = replace(found, columns=tuple(columns))
        assert mismatch(mapped, told) == ""
        return told

    return schema


def fresh_database(server: Server, name: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {name}")
    server.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    server.execute(f"USE {name}")


def decoded(chunks: list[Rows], side: str) -> list[dict[str, Any]]:
    found = []
    for chunk in chunks:
        chunk.batch.validate(full=True)
        found += getattr(chunk, side).to_pylist()
    return found


def canonical(case: Case, value: Any) -> Any:
    """Bring a vector's text to its numbers; all else is canonical as it is."""
    if value is not None and case.definition.startswith("vector"):
        return [float(np.float32(part)) for part in value.strip("[]").split(",")]
    return value


def test_every_type_is_as_the_server_prints_it(source_server: Server) -> None:
    server, table = source_server, cases(source_server)
    fresh_database(server, "types")
    columns = ", ".join(f"c{i} {case.definition}" for i, case in enumerate(table))
    server.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
    names = ", ".join(f"c{i}" for i in range(len(table)))
    rows = max(len(case.values) for case in table)
    with logged(server) as log:
        server.execute("INSERT INTO t (id) VALUES (0)")
        for row in range(rows):
            values = ", ".join(case.values[row % len(case.values)] for case in table)
            server.execute(f"INSERT INTO t (id, {names}) VALUES ({row + 1}, {values})")
        server.execute("UPDATE t SET id = id + 1000")
        server.execute("DELETE FROM t")
    chunks = log.rows(schema_for(table))
    shown = ", ".join(case.shown.format(f"c{i}") for i, case in enumerate(table))
    # The rows are gone: print them from a second copy of the inserts.
    printed = [[None] * len(table)]
    server.execute("INSERT INTO t (id) VALUES (0)")
    for row in range(rows):
        values = ", ".join(case.values[row % len(case.values)] for case in table)
        server.execute(f"INSERT INTO t (id, {names}) VALUES ({row + 1}, {values})")
    printed = [list(r) for r in server.execute(f"SELECT {shown} FROM t ORDER BY id")]

    after, before = decoded(chunks, "after"), decoded(chunks, "before")
    ops = [op for chunk in chunks for op in chunk.op.tolist()]
    count = rows + 1
    assert ops == [Op.INSERT] * count + [Op.UPDATE] * count + [Op.DELETE] * count
    assert before[:count] == [None] * count
    assert after[2 * count :] == [None] * count
    images = {"insert": after[:count], "update": after[count : 2 * count]}
    images |= {"before": before[count : 2 * count], "delete": before[2 * count :]}
    wrong = []
    for what, found in images.items():
        for row in range(count):
            for i, case in enumerate(table):
                text = printed[row][i]
                wanted = None if text is None else case.read(text)
                value = canonical(case, found[row][f"c{i}"])
                if value != wanted:
                    wrong.append((what, row, case.definition, str(value)[:90], str(wanted)[:90]))
    assert wrong == []


def test_nulls_are_nulls_in_every_type(source_server: Server) -> None:
    server, table = source_server, cases(source_server)
    fresh_database(server, "nulls")
    columns = ", ".join(f"c{i} {case.definition}" for i, case in enumerate(table))
    server.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
    with logged(server) as log:
        server.execute("INSERT INTO t (id) VALUES (1), (2)")
    for row in decoded(log.rows(schema_for(table)), "after"):
        assert [v for k, v in row.items() if k != "id"] == [None] * len(table)


CHARSETS = {
    "latin1": "äöü€ÿ",
    "latin2": "ąćęłńóśźż",
    "latin5": "ğışĞİŞ",
    "latin7": "āčēģīķļņšūž",
    "cp850": "äöüßÄ",
    "cp852": "ąćęłńó",
    "cp866": "Привет",
    "cp1250": "žščřĎ",
    "cp1251": "Привет, мир",
    "cp1256": "مرحبا",
    "cp1257": "ąčęėįšųūž",
    "koi8r": "Привет",
    "koi8u": "Привіт",
    "greek": "Γειά",
    "hebrew": "שלום",
    "armscii8": "Բարեւ",
    "geostd8": "გამარჯობა",
    "keybcs2": "žluťoučký",
    "macce": "žluťoučký",
    "macroman": "éàüΩ",
    "dec8": "äöüß",
    "hp8": "äöüß",
    "swe7": "ÅÄÖåäö",
    "tis620": "สวัสดี",
    "ascii": "plain",
    "big5": "中文測試",
    "gbk": "中文测试",
    "gb2312": "中文测试",
    "sjis": "日本語ｱｲｳ",
    "cp932": "日本語①髙",
    "ujis": "日本語ｱ",
    "eucjpms": "日本語①髙",
    "euckr": "한국어 똠방각하",
    "utf8mb3": "žω中",
    "utf8mb4": "žω中😀",
    "ucs2": "žω中",
    "utf16": "žω中😀",
    "utf16le": "žω中😀",
    "utf32": "žω中😀",
}


def test_every_charset_becomes_utf8(source_server: Server) -> None:
    server = source_server
    fresh_database(server, "charsets")
    known = {str(row[0]) for row in server.execute("SHOW CHARACTER SET")} - {"binary"}
    texts = dict(CHARSETS, **({"gb18030": "中文㐀😀ḿ"} if "gb18030" in known else {}))
    assert known - {"utf8"} == set(texts)
    names = sorted(texts)
    columns = ", ".join(f"c_{n} char(12) charset {n}, t_{n} text charset {n}" for n in names)
    enums = ", ".join(f"e_{n} enum('{texts[n]}','b') charset {n}" for n in names)
    server.execute(f"CREATE TABLE t ({columns}, {enums})")
    with logged(server) as log:
        values = ", ".join(f"'{texts[n]}', '{texts[n]}'" for n in names)
        server.execute(f"INSERT INTO t VALUES ({values}, {', '.join('1' for _ in names)})")
        columns = ", ".join(f"c_{n} = 'a ', t_{n} = ''" for n in names)
        server.execute(f"UPDATE t SET {columns}")
    (chunk,) = log.rows()
    first, second = chunk.after.to_pylist()
    for name in names:
        assert (name, first[f"c_{name}"], first[f"t_{name}"]) == (name, texts[name], texts[name])
        assert (name, second[f"c_{name}"], second[f"t_{name}"]) == (name, "a", "")
        assert chunk.table.column(f"e_{name}").type.elements == (texts[name], "b"), name
        assert chunk.table.column(f"e_{name}").type.charset == name


def test_wide_codes_of_gb18030(mysql_server: MySql) -> None:
    """All code points of the first plane, as the server converts them."""
    fresh_database(mysql_server, "gb18030")
    mysql_server.execute("CREATE TABLE t (id int, c text charset gb18030)")
    spans = [range(a, min(a + 500, 0x10000)) for a in range(0x80, 0x10000, 500)]
    texts = ["".join(chr(c) for c in span if not 0xD800 <= c < 0xE000) for span in spans]
    with logged(mysql_server) as log:
        for i, text in enumerate(texts):
            mysql_server.execute("INSERT INTO t VALUES (%s, %s)", i, text)
    wanted = [row[0] for row in mysql_server.execute("SELECT c FROM t ORDER BY id")]
    found = [row["c"] for row in decoded(log.rows(), "after")]
    assert found == wanted


def test_bytes_that_are_no_text_become_question_marks(source_server: Server) -> None:
    """Bytes without a meaning can be stored in some sets; the server prints them so."""
    server = source_server
    fresh_database(server, "damaged")
    server.execute(
        "CREATE TABLE t (a varchar(9) charset greek, b char(9) charset cp1256, "
        "c text charset sjis, d varchar(9) charset tis620)"
    )
    with logged(server) as log:
        server.execute(
            "INSERT INTO t VALUES (_greek x'41ff42', _cp1256 x'8ac7', _sjis x'8540', '')"
        )
        server.execute("INSERT INTO t VALUES ('', '', '', _tis620 x'a1db')")
    wanted = server.execute("SELECT a, b, c, d FROM t")
    assert wanted[0][0] == "A?B"
    assert [tuple(row.values()) for row in decoded(log.rows(), "after")] == wanted


def test_hidden_and_computed_columns_are_columns(source_server: Server) -> None:
    server = source_server
    fresh_database(server, "computed")
    server.execute(
        "CREATE TABLE t (a int, v int AS (a + 1) VIRTUAL, s int AS (a * 2) STORED, "
        "h int INVISIBLE DEFAULT 7)"
    )
    with logged(server) as log:
        server.execute("INSERT INTO t (a) VALUES (5), (NULL)")
    assert decoded(log.rows(), "after") == [
        {"a": 5, "v": 6, "s": 10, "h": 7},
        {"a": None, "v": None, "s": None, "h": 7},
    ]


def test_old_time_formats(mariadb_server: MariaDb) -> None:
    server = mariadb_server
    fresh_database(server, "old_times")
    server.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        server.execute("CREATE TABLE t (d datetime, t time, s timestamp NULL)")
    finally:
        server.execute("SET GLOBAL mysql56_temporal_format = ON")
    with logged(server) as log:
        server.execute(
            "INSERT INTO t VALUES ('2024-02-29 23:59:58', '-838:59:59', '2024-02-29 23:59:58'), "
            "(0, '00:00:01', 0), ('9999-12-31 00:00:00', '12:34:56', '1970-01-01 00:00:01')"
        )
    codes = {c.code for c in _mapped(log).columns}
    assert codes == {7, 11, 12}
    found = decoded(log.rows(), "after")
    wanted = server.execute("SELECT d, t, s FROM t")
    assert [tuple(row.values()) for row in found] == wanted


def _mapped(log: Logged) -> MappedTable:
    return next(parse_table_map(body, log.flavour) for code, body in log.events if code == 19)


def test_compressed_row_events(mariadb_server: MariaDb) -> None:
    server = mariadb_server
    fresh_database(server, "packed")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, c varchar(1000))")
    server.execute("SET GLOBAL log_bin_compress = ON")
    try:
        with logged(server) as log:
            server.execute("INSERT INTO t VALUES (1, repeat('x', 900)), (2, NULL)")
            server.execute("INSERT INTO t VALUES (3, 'short')")
            server.execute("UPDATE t SET c = repeat('y', 999)")
            server.execute("DELETE FROM t")
    finally:
        server.execute("SET GLOBAL log_bin_compress = OFF")
    assert {166, 167, 168, 23} <= log.codes()
    chunks = log.rows()
    after, before = decoded(chunks, "after"), decoded(chunks, "before")
    assert [r["c"] for r in after[:3]] == ["x" * 900, None, "short"]
    assert [r["c"] for r in after[3:6]] == ["y" * 999] * 3
    assert [r["c"] for r in before[3:6]] == ["x" * 900, None, "short"]
    assert [r["id"] for r in before[6:]] == [1, 2, 3]


@pytest.mark.parametrize("wrap", ["ON", "OFF"])
def test_compressed_columns(mariadb_server: MariaDb, wrap: str) -> None:
    server = mariadb_server
    fresh_database(server, "squeezed")
    server.execute("CREATE TABLE t (a text COMPRESSED charset latin1, b varbinary(999) COMPRESSED)")
    server.execute(f"SET SESSION column_compression_zlib_wrap = {wrap}")
    with logged(server) as log:
        server.execute("INSERT INTO t VALUES (repeat('é', 300), repeat(x'00ff', 300)), ('', 'b')")
    assert decoded(log.rows(), "after") == [
        {"a": "é" * 300, "b": b"\x00\xff" * 300},
        {"a": "", "b": b"b"},
    ]


def test_compressed_transactions(mysql_server: MySql) -> None:
    server = mysql_server
    fresh_database(server, "payload")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, c varchar(1000))")
    server.execute("SET SESSION binlog_transaction_compression = ON")
    try:
        with logged(server) as log:
            server.execute("INSERT INTO t VALUES (1, repeat('x', 900)), (2, NULL)")
            server.execute("UPDATE t SET c = 'z'")
    finally:
        server.execute("SET SESSION binlog_transaction_compression = OFF")
    assert 40 in log.codes()
    assert 30 not in log.codes()
    found = decoded(log.rows(), "after")
    assert [r["c"] for r in found] == ["x" * 900, None, "z", "z"]


def test_changes_inside_documents(mysql_server: MySql) -> None:
    server = mysql_server
    fresh_database(server, "partial_json")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, j json, n int, k json)")
    changes = [
        "json_set(j, '$.a', 5)",
        "json_set(j, '$.b[1].deep', json_array(1, 2))",
        "json_replace(j, '$.\"odd key\"', 1.25)",
        "json_remove(j, '$.a')",
        "json_array_append(j, '$.b', 'end')",
        "json_array_insert(j, '$.b[0]', 'first')",
        "json_set(json_remove(j, '$.b[0]'), '$.\"new \\\\\"key\"', date'2024-01-02', '$.z', true)",
    ]
    server.execute("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'")
    try:
        with logged(server) as log:
            server.execute(
                "INSERT INTO t VALUES (1, json_object('a', 1, 'b', json_array(0,"
                " json_object('deep', 'x'), repeat('p', 500)), 'odd key', 'v', 'pad',"
                " repeat('q', 70000)), 0, '[1, 2]'), (2, json_object('a', 2, 'b',"
                " json_array(0, json_object('deep', 'x')), 'odd key', 0), 0, NULL)"
            )
            wanted = [server.execute("SELECT cast(j AS char) FROM t ORDER BY id")]
            for change in changes:
                server.execute(f"UPDATE t SET j = {change}, n = n + 1, k = json_set(k, '$[0]', n)")
                wanted.append(server.execute("SELECT cast(j AS char) FROM t ORDER BY id"))
            documents = server.execute("SELECT cast(k AS char) FROM t ORDER BY id")
    finally:
        server.execute("SET SESSION binlog_row_value_options = ''")
    assert 39 in log.codes()
    chunks = log.rows()
    found = [row["j"] for row in decoded(chunks, "after")]
    assert found == [row[0] for step in wanted for row in step]
    assert [row["k"] for row in decoded(chunks, "after")][-2:] == [row[0] for row in documents]
    befores = [row["j"] for row in decoded(chunks, "before")[2:]]
    assert befores == found[:-2]


def test_partial_images(source_server: Server) -> None:
    server = source_server
    fresh_database(server, "partial")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(20), c int)")
    server.execute("SET SESSION binlog_row_image = 'MINIMAL'")
    try:
        with logged(server) as log:
            server.execute("INSERT INTO t VALUES (1, 2, 'x', NULL), (2, 3, 'y', 4)")
            server.execute("UPDATE t SET b = 'new' WHERE id = 1")
            server.execute("DELETE FROM t WHERE id = 2")
    finally:
        server.execute("SET SESSION binlog_row_image = 'FULL'")
    with pytest.raises(CorruptLog, match=r"partial\.t.*lacks columns; SET GLOBAL binlog_row_image"):
        log.rows()
    chunks = log.rows(allow_partial=True)
    assert [(c.op.tolist(), c.before.to_pylist(), c.after.to_pylist()) for c in chunks] == [
        (
            [0, 0],
            [None, None],
            [{"id": 1, "a": 2, "b": "x", "c": None}, {"id": 2, "a": 3, "b": "y", "c": 4}],
        ),
        ([1, 2], [{"id": 1}, {"id": 2}], [{"id": 1, "b": "new"}, None]),
    ]


def test_rows_of_partitions(mysql_server: MySql) -> None:
    server = mysql_server
    fresh_database(server, "partitions")
    server.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id) "
        "(PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN MAXVALUE)"
    )
    with logged(server) as log:
        server.execute("INSERT INTO t VALUES (1), (20), (2), (21)")
        server.execute("UPDATE t SET id = 30 WHERE id = 1")
    found = {}
    for chunk in log.rows(by_partition=True):
        pairs = zip(chunk.before.to_pylist(), chunk.after.to_pylist(), strict=True)
        found.setdefault(chunk.physical_id, []).extend(pairs)
    assert found == {
        0: [(None, {"id": 1}), (None, {"id": 2})],
        1: [(None, {"id": 20}), (None, {"id": 21}), ({"id": 1}, {"id": 30})],
    }


def test_metadata_can_be_missing(source_server: Server) -> None:
    server = source_server
    fresh_database(server, "minimal")
    server.execute("CREATE TABLE t (id int unsigned PRIMARY KEY, c varchar(20) charset latin1)")
    with logged(server) as log:
        server.execute("INSERT INTO t VALUES (4294967295, 'é')")
    full = infer_schema(_mapped(log), None)
    server.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        with logged(server) as log:
            server.execute("INSERT INTO t VALUES (4294967294, 'ö')")
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
    mapped = _mapped(log)
    assert not mapped.has_metadata
    assert mismatch(mapped, full) == ""
    assert decoded(log.rows(lambda _: full), "after") == [{"id": 4294967294, "c": "ö"}]


def test_types_are_told_as_the_server_has_them(source_server: Server) -> None:
    """What TABLE_MAP tells of the types equals the server's own words, where it tells them."""
    server = source_server
    fresh_database(server, "told")
    table = [c for c in cases(server) if "compressed" not in c.definition]
    columns = ", ".join(f"c{i} {case.definition}" for i, case in enumerate(table))
    server.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
    with logged(server) as log:
        server.execute("INSERT INTO t (id) VALUES (1)")
    schema = schema_for(table)(_mapped(log))
    words = {
        str(name): str(text)
        for name, text in server.execute(
            "SELECT column_name, column_type FROM information_schema.columns "
            "WHERE table_schema = 'told'"
        )
    }
    for column in schema.columns:
        said = words[column.name].split("(")[0].split(" ")[0]
        same = {"point": "geometry", "polygon": "geometry", "linestring": "geometry"}
        expected = same.get(said, said)
        assert (column.name, column.type.name) == (column.name, expected)
        assert column.type.unsigned == ("unsigned" in words[column.name]), words[column.name]
    assert pa.types.is_struct(schema.image)
    assert {c.type.kind for c in schema.columns} >= set(Kind) - {
        Kind.JSON,
        Kind.VECTOR,
        Kind.NUMERIC,
    }
