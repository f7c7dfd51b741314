from __future__ import annotations

import re
from dataclasses import replace

import pytest
from binlog_event_kit import names, table_map

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import CorruptLog, EventUnknown, SourceUnsupported
from rowferry.flow.capture.binlog.decode.table_map import (
    MappedTable,
    column_types,
    infer_schema,
    mismatch,
    other_key,
    parse_table_map,
)
from rowferry.mysql.session import Flavour
from rowferry.testing.slow_binlog import packed

INT, VARCHAR, STRING, YEAR, GEOMETRY, VECTOR = 3, 15, 254, 13, 255, 242


def full_map() -> bytes:
    """id int unsigned, y year, n int, s varchar(5) utf8mb4, e enum, m set, b binary(9)."""
    codes = [
        (INT, b""),
        (YEAR, b""),
        (INT, b""),
        (VARCHAR, (20).to_bytes(2, "little")),
        (STRING, bytes([247, 1])),
        (STRING, bytes([248, 1])),
        (STRING, bytes([254, 9])),
    ]
    metadata = {
        1: b"\xc0",  # signs of id, y, n
        2: bytes([45, 1, 63]),  # utf8mb4, but the second string is binary
        4: names("id", "y", "n", "s", "e", "m", "b"),
        5: packed(2) + names("x", "y"),
        6: packed(2) + b"\x01\xe9\x01b",
        8: b"\0",
        11: bytes([8, 45]),  # latin1, utf8mb4
        12: b"\xfc",  # the last column is invisible
    }
    return table_map(codes, metadata, nullable=0b1111110)


def parsed() -> MappedTable:
    return parse_table_map(full_map(), Flavour.MYSQL)


def test_everything_is_read() -> None:
    found = parsed()
    assert (found.number, found.table, found.primary_key) == (77, TableId("db", "t"), (0,))
    assert found.has_metadata
    assert [c.name for c in found.columns] == ["id", "y", "n", "s", "e", "m", "b"]
    assert [c.unsigned for c in found.columns[:3]] == [True, True, False]
    assert [c.nullable for c in found.columns] == [False] + [True] * 6
    assert [c.code for c in found.columns] == [3, 13, 3, 15, 247, 248, 254]
    assert found.columns[4].elements == ("é", "b")
    assert found.columns[5].elements == ("x", "y")
    assert [c.collation for c in found.columns[3:]] == [45, 8, 45, 63]
    assert [c.visible for c in found.columns] == [True] * 6 + [False]


def test_types_are_as_a_ddl_would_write_them() -> None:
    assert [t.sql for t in column_types(parsed())] == [
        "int unsigned",
        "year",
        "int",
        "varchar(5)",
        "enum('é','b')",
        "set('x','y')",
        "binary(9)",
    ]
    assert [t.charset for t in column_types(parsed())][3:5] == ["utf8mb4", "latin1"]


def test_a_long_char_keeps_its_length() -> None:
    # CHAR(255) of utf8mb4 has 1020 bytes: two bits of the length are in the type byte, inverted.
    found = parse_table_map(
        table_map([(STRING, bytes([0xFE ^ 0x30, 0xFC]))], {2: b"\x2d", 4: names("c")}),
        Flavour.MYSQL,
    )
    assert (found.columns[0].code, found.columns[0].meta) == (254, 1020)
    assert column_types(found)[0] == SqlType("char", length=255)


def test_mariadb_counts_geometries_among_strings() -> None:
    codes = [(GEOMETRY, b"\x04"), (VARCHAR, (20).to_bytes(2, "little"))]
    metadata = {3: bytes([63, 45]), 4: names("g", "s")}
    maria = parse_table_map(table_map(codes, metadata), Flavour.MARIADB)
    assert [t.sql for t in column_types(maria)] == ["geometry", "varchar(5)"]
    mysql = parse_table_map(table_map(codes, {3: bytes([45]), 4: names("g", "s")}), Flavour.MYSQL)
    assert [t.sql for t in column_types(mysql)] == ["geometry", "varchar(5)"]


def test_vectors_know_their_dimensions() -> None:
    body = table_map([(VECTOR, b"\x04")], {4: names("v"), 13: packed(300)})
    assert column_types(parse_table_map(body, Flavour.MYSQL)) == (SqlType("vector", length=300),)


def test_a_key_with_prefixes_is_read() -> None:
    body = table_map([(INT, b""), (INT, b"")], {4: names("a", "b"), 9: bytes([1, 0, 0, 5])})
    assert parse_table_map(body, Flavour.MYSQL).primary_key == (1, 0)


def test_without_metadata_there_are_no_names() -> None:
    found = parse_table_map(table_map([(INT, b"")]), Flavour.MYSQL)
    assert not found.has_metadata
    assert found.columns[0].name == ""
    with pytest.raises(SourceUnsupported, match=r"db\.t.*binlog_row_metadata = FULL"):
        infer_schema(found, None)


def test_every_cut_is_an_error_or_a_shorter_list_of_metadata() -> None:
    whole = full_map()
    for size in range(len(whole)):
        try:
            found = parse_table_map(whole[:size], Flavour.MYSQL)
        except CorruptLog as err:
            assert "TABLE_MAP_EVENT" in err.words
        else:
            assert len(found.columns) == 7


def test_any_damaged_byte_is_no_crash() -> None:
    whole = full_map()
    for place in range(len(whole)):
        for value in (0, 1, 0x7F, 0xFB, 0xFF):
            damaged = whole[:place] + bytes([value]) + whole[place + 1 :]
            try:
                parse_table_map(damaged, Flavour.MYSQL)
            except (CorruptLog, EventUnknown) as err:
                assert "TABLE_MAP_EVENT" in err.words


@pytest.mark.parametrize(
    "code",
    [(252, b"\x05"), (246, b"\x42\x02"), (246, b"\x05\x06"), (18, b"\x07"), (16, b"\x00\x00")],
)
def test_impossible_metadata_is_refused(code: tuple[int, bytes]) -> None:
    with pytest.raises(CorruptLog, match="does not fit column type"):
        parse_table_map(table_map([code]), Flavour.MYSQL)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(EventUnknown, match=r"db\.t: column type 200"):
        parse_table_map(table_map([(200, b"")]), Flavour.MYSQL)


# --- versions ------------------------------------------------------------------------------------


def test_an_inferred_version_fits_its_table_map() -> None:
    found = infer_schema(parsed(), None)
    assert found.inferred
    assert mismatch(parsed(), found) == ""
    assert found.primary_key == ("id",)
    assert found.column("b").invisible


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("n", SqlType("int", unsigned=True), "'n' is int in the log, not int unsigned"),
        ("n", SqlType("bigint"), "'n' is int in the log, not bigint"),
        ("s", SqlType("varchar", length=6), r"'s' is varchar\(5\) in the log"),
        ("s", SqlType("varchar", length=5, charset="latin1"), "'s' is"),
        ("s", SqlType("char", length=5), "'s' is"),
        ("e", SqlType("enum", elements=("b", "é"), charset="latin1"), "'e' is enum"),
        ("b", SqlType("binary", length=8), "'b' is"),
        ("b", SqlType("char", length=9), "'b' is"),
    ],
)
def test_a_difference_is_named(name: str, kind: SqlType, words: str) -> None:
    schema = infer_schema(parsed(), None)
    columns = tuple(replace(c, type=kind) if c.name == name else c for c in schema.columns)
    assert re.search(words, mismatch(parsed(), replace(schema, columns=columns)))


def test_names_and_numbers_of_columns_are_compared() -> None:
    schema = infer_schema(parsed(), None)
    columns = (*schema.columns[:6], replace(schema.columns[6], name="other"))
    assert mismatch(parsed(), replace(schema, columns=columns)) == (
        "the log has column 'b' in the place of 'other'"
    )
    assert mismatch(parsed(), replace(schema, columns=columns[:6])) == (
        "the log has 7 columns, the version 6"
    )


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ((STRING, bytes([254, 16])), SqlType("inet6")),
        ((STRING, bytes([254, 16])), SqlType("uuid")),
        ((STRING, bytes([254, 16])), SqlType("binary", length=16)),
        ((VARCHAR, (12).to_bytes(2, "little")), SqlType("vector", length=3)),
    ],
)
def test_types_that_the_log_does_not_tell_fit(code: tuple[int, bytes], known: SqlType) -> None:
    found = parse_table_map(table_map([code], {2: b"\x3f", 4: names("c")}), Flavour.MARIADB)
    schema = TableSchema(TableId("db", "t"), 1, 1, (Column(1, "c", known),))
    assert mismatch(found, schema) == ""


def test_utf8_is_utf8mb3() -> None:
    body = table_map([(VARCHAR, (15).to_bytes(2, "little"))], {2: b"\x21", 4: names("c")})
    known = SqlType("varchar", length=5, charset="utf8")
    schema = TableSchema(TableId("db", "t"), 1, 1, (Column(1, "c", known),))
    assert mismatch(parse_table_map(body, Flavour.MYSQL), schema) == ""


def test_widths_and_zerofill_are_no_difference() -> None:
    body = table_map([(INT, b"")], {1: b"\x80", 4: names("c")})
    known = SqlType("int", unsigned=True, zerofill=True, length=8)
    schema = TableSchema(TableId("db", "t"), 1, 1, (Column(1, "c", known),))
    assert mismatch(parse_table_map(body, Flavour.MYSQL), schema) == ""


def test_facts_of_surviving_columns_are_kept() -> None:
    previous = TableSchema(
        TableId("db", "t"),
        12,
        5,
        (
            Column(1, "ID", SqlType("int", unsigned=True, length=10), False, auto_increment=True),
            Column(2, "gone", SqlType("int")),
            Column(3, "s", SqlType("varchar", length=4), default="x", comment="words"),
        ),
        (
            Index(1, "PRIMARY", ("ID",), unique=True, primary=True),
            Index(2, "g", ("gone",), unique=True),
            Index(3, "s", ("s",)),
        ),
        comment="kept",
        dropped_column_id=7,
    )
    found = infer_schema(parsed(), previous)
    assert (found.table_id, found.comment, found.inferred) == (12, "kept", True)
    assert [c.id for c in found.columns] == [1, 8, 9, 3, 10, 11, 12]
    assert found.dropped_column_id == 7
    first, text = found.columns[0], found.column("s")
    assert (first.name, first.type.length, first.auto_increment) == ("id", 10, True)
    assert (text.type.length, text.default, text.comment) == (5, "x", "words")
    assert [i.name for i in found.indexes] == ["PRIMARY", "s"]
    assert found.primary_key == ("ID",)


def test_dropped_ids_are_not_used_again() -> None:
    columns = (Column(1, "id", SqlType("int", unsigned=True)), Column(9, "gone", SqlType("int")))
    found = infer_schema(parsed(), TableSchema(TableId("db", "t"), 1, 1, columns))
    assert found.dropped_column_id == 9
    assert [c.id for c in found.columns][:2] == [1, 10]


def test_a_promoted_unique_key_stays_unique() -> None:
    columns = (Column(1, "id", SqlType("int", unsigned=True)),)
    index = Index(4, "u", ("id",), unique=True)
    found = infer_schema(parsed(), TableSchema(TableId("db", "t"), 1, 1, columns, (index,)))
    assert found.indexes == (index,)


# --- keys ----------------------------------------------------------------------------------------


def keyed(*indexes: Index, key: bytes = b"\0") -> tuple[MappedTable, TableSchema]:
    """Return (a int NOT NULL, b int NOT NULL, c int) whose key in the log has these places."""
    metadata = {1: b"\0", 4: names("a", "b", "c")}
    body = table_map([(INT, b"")] * 3, {**metadata, 8: key} if key else metadata, nullable=0b100)
    columns = tuple(Column(i, n, SqlType("int"), n == "c") for i, n in enumerate("abc", 1))
    return parse_table_map(body, Flavour.MYSQL), TableSchema(
        TableId("db", "t"), 1, 1, columns, indexes
    )


PRIMARY = Index(1, "PRIMARY", ("a",), unique=True, primary=True)
UNIQUE = Index(2, "u", ("b",), unique=True)
LOOSE = Index(3, "v", ("c",), unique=True)


@pytest.mark.parametrize(
    ("indexes", "key", "words"),
    [
        ((PRIMARY, UNIQUE), b"\0", ""),
        ((PRIMARY,), b"\0\1", "its key is (a, b) in the log, not (a)"),
        ((PRIMARY, UNIQUE), b"\1", "its key is (b) in the log, not (a)"),
        ((PRIMARY,), b"", "its key is () in the log, not (a)"),
        ((UNIQUE,), b"\1", ""),
        ((UNIQUE, LOOSE), b"\0", "its key is (a) in the log, not (b)"),
        ((UNIQUE,), b"", "its key is () in the log, not (b)"),
        ((LOOSE,), b"", ""),
        ((), b"", ""),
        ((), b"\0", "its key is (a) in the log, not ()"),
        ((replace(PRIMARY, columns=("b", "A")),), b"\0\1", ""),
    ],
)
def test_another_key_is_named(indexes: tuple[Index, ...], key: bytes, words: str) -> None:
    mapped, schema = keyed(*indexes, key=key)
    assert other_key(mapped, schema) == words
    assert mismatch(mapped, schema) == ""


@pytest.mark.parametrize("key", [b"\0", b"\1", b"\0\1"])
@pytest.mark.parametrize("indexes", [(), (PRIMARY,), (UNIQUE,), (PRIMARY, UNIQUE, LOOSE)])
def test_an_inferred_version_has_the_key_of_the_log(indexes: tuple[Index, ...], key: bytes) -> None:
    mapped, schema = keyed(*indexes, key=key)
    found = infer_schema(mapped, schema)
    assert other_key(mapped, found) == ""
    assert set(found.handle_key) == {"abc"[place] for place in key}
    assert (LOOSE in found.indexes) == (LOOSE in indexes)


def test_a_primary_key_that_the_log_does_not_name_is_gone() -> None:
    mapped, schema = keyed(PRIMARY, UNIQUE, key=b"")
    assert infer_schema(mapped, schema).indexes == (UNIQUE,)
