"""Snapshot reads on real servers: key ranges of any key, every type, views and their places."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from binlog_file_kit import Logged, logged

from rowferry.change.chunk import Op
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SnapshotGone, SnapshotOutdated, SourceUnavailable, SourceUnsupported
from rowferry.flow.capture.binlog.client.gtid import GtidSet
from rowferry.moment import watched
from rowferry.mysql import range_read as chunk_read
from rowferry.mysql import session
from rowferry.mysql import snapshot_position as positions
from rowferry.mysql.catalog import read_table
from rowferry.mysql.key_ranges import Chunk, estimate_rows, next_chunks, row_bytes
from rowferry.mysql.session import Flavour
from rowferry.testing.servers import MySql, Server

DATABASE = "snapshot_read"


class Source:
    """A database of the test's own, with statements run as the product runs them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.login = server.login
        self.flavour = server.flavour
        self.connection = session.connect(self.login)
        self.run(f"DROP DATABASE IF EXISTS {DATABASE}")
        self.run(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        self.run(f"USE {DATABASE}")

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return session.rows(self.connection, self.login, sql, values)

    def schema(self, name: str = "t") -> TableSchema:
        facts = session.facts(self.connection, self.login)
        found = read_table(self.connection, self.login, facts, TableId(DATABASE, name), 1)
        assert found is not None
        return found

    def chunks(self, schema: TableSchema, wish: int, count: int = 3) -> list[Chunk]:
        found: list[Chunk] = []
        while not found or found[-1].upper is not None:
            after = found[-1].upper if found else None
            found += next_chunks(self.connection, self.login, schema, after, wish, count)
        return [Chunk.from_json(c.to_json()) for c in found]

    def read(self, schema: TableSchema, chunk: Chunk | None = None) -> list[dict[str, Any]]:
        found = chunk_read.read_chunk(self.login, schema, chunk, 77, 5, self.flavour)
        return [image for rows in found for image in rows.after.to_pylist()]

    def low(self) -> dict[str, Any]:
        return chunk_read.low_position(self.connection, self.login, self.flavour)

    def high(self) -> dict[str, Any]:
        return chunk_read.high_position(self.connection, self.login, self.flavour)

    def exact(self, schema: TableSchema, lock: bool = False) -> tuple[dict[str, Any], list[Any]]:
        place, found = chunk_read.read_exact(self.login, schema, 77, 5, self.flavour, lock)
        return place, [image for rows in found for image in rows.after.to_pylist()]

    def transactions(self, place: dict[str, Any]) -> int:
        """Return how many transactions lie before a place, of all that this server made."""
        if self.flavour is Flavour.MARIADB:
            return int(place["gtid"].rsplit("-", 1)[1])
        return len(_numbers(str(GtidSet.parse(place["gtid"]))))


def _numbers(text: str) -> set[tuple[str, int]]:
    found = set()
    for part in text.split(","):
        uuid, *intervals = part.split(":")
        for interval in intervals:
            first, _, last = interval.partition("-")
            found |= {(uuid, n) for n in range(int(first), int(last or first) + 1)}
    return found


@pytest.fixture
def source(source_server: Server) -> Iterator[Source]:
    yield from opened(source_server)


@pytest.fixture
def mysql(mysql_server: MySql) -> Iterator[Source]:
    yield from opened(mysql_server)


def opened(server: Server) -> Iterator[Source]:
    found = Source(server)
    with closing(found.connection):
        yield found
        found.run("ROLLBACK")
        found.run(f"DROP DATABASE IF EXISTS {DATABASE}")


@contextmanager
def writing(source: Source, write: Callable[[Source, int], None]) -> Iterator[None]:
    """Call `write` again and again on a connection of its own."""
    stop = threading.Event()
    failed: list[BaseException] = []
    other = Source.__new__(Source)
    other.login, other.flavour, other.server = source.login, source.flavour, source.server

    def loop() -> None:
        try:
            with closing(session.connect(source.login)) as other.connection:
                other.run(f"USE {DATABASE}")
                number = 0
                while not stop.is_set():
                    number += 1
                    write(other, number)
        except BaseException as err:  # noqa: BLE001
            failed.append(err)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failed == []


# --- any key -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A kind of key: its columns' types, and a maker of values."""

    name: str
    types: tuple[str, ...]
    make: Callable[[random.Random], tuple[Any, ...]]
    only: Flavour | None = None
    definition: str = "PRIMARY KEY ({columns})"


LETTERS = "aAáÁàbBßsSzZ ñNn😀é0'\"\\%_`\t-ÿı\u0301あア中"


def texts(charset: str, size: int = 5) -> Callable[[random.Random], tuple[Any, ...]]:
    codec = {"utf8mb4": "utf-8", "latin1": "cp1252", "cp932": "cp932"}.get(charset, "utf-8")
    fit = [c for c in LETTERS if _fits(c, codec) and (charset != "utf8mb3" or ord(c) < 65536)]
    return lambda r: ("".join(r.choices(fit, k=r.randint(0, size))),)


def _fits(letter: str, codec: str) -> bool:
    try:
        return letter.encode(codec).decode(codec) == letter
    except UnicodeError:
        return False


def text_key(collation: str, only: Flavour | None = None, kind: str = "varchar(20)") -> Key:
    charset = collation.split("_")[0] if collation != "uca1400_ai_ci" else "utf8mb4"
    column = f"{kind} CHARACTER SET {charset} COLLATE {collation}"
    return Key(f"{kind} {collation}", (column,), texts(charset), only)


def number(low: int, high: int) -> Callable[[random.Random], tuple[Any, ...]]:
    def make(r: random.Random) -> tuple[Any, ...]:
        return (str(r.choice([low, high, low + 1, high - 1, r.randint(low, high)])),)

    return make


def blob(size: int) -> Callable[[random.Random], tuple[Any, ...]]:
    return lambda r: (bytes(r.choices([0, 1, 32, 39, 92, 97, 254, 255], k=r.randint(0, size))),)


def decimal(r: random.Random) -> tuple[Any, ...]:
    digits = "".join(r.choices("0123456789", k=30))
    return (f"{r.choice(['', '-'])}{r.choice(['0', '9' * 35, '1'])}.{digits}",)


def moment(r: random.Random) -> tuple[Any, ...]:
    odd = ["0000-00-00 00:00:00", "2024-02-00 00:00:00", "9999-12-31 23:59:59.999999"]
    usual = f"2024-02-31 0{r.randint(0, 9)}:00:00.{r.randint(0, 999999):06}"
    return (r.choice([*odd, usual, usual]),)


def day(r: random.Random) -> tuple[Any, ...]:
    odd = ["0000-00-00", "2024-00-00", "9999-12-31", "1000-01-01"]
    usual = f"{r.randint(1900, 2100)}-{r.randint(0, 12):02}-{r.randint(0, 31):02}"
    return (r.choice([*odd, usual, usual]),)


def span(r: random.Random) -> tuple[Any, ...]:
    sign = r.choice(["", "-"])
    return (f"{sign}{r.randint(0, 838):02}:{r.randint(0, 59):02}:00.{r.randint(0, 99):02}",)


def uuid_text(r: random.Random) -> tuple[Any, ...]:
    h = f"{r.getrandbits(128):032x}"
    return (f"{h[:8]}-{h[8:12]}-{r.choice('147f')}{h[13:16]}-{h[16:20]}-{h[20:]}",)


def floating(code: str) -> Callable[[random.Random], tuple[Any, ...]]:
    def make(r: random.Random) -> tuple[Any, ...]:
        while True:
            found = struct.unpack(code, r.randbytes(struct.calcsize(code)))[0]
            if found == found and abs(found) < 1e38 and abs(found) > 1e-37:
                return (repr(found),)

    return make


ELEMENTS = ",".join(f"'e{63 - i}'" for i in range(64))
MIXED = ("varchar(9) COLLATE utf8mb4_general_ci", "enum('z','a','b')", "binary(3)", "datetime(2)")


def mixed(r: random.Random) -> tuple[Any, ...]:
    stamp = f"2024-01-01 00:00:00.{r.randint(0, 20):02}"
    return (r.choice("aAbß"), r.choice("zab"), blob(3)(r)[0], stamp)


def elements(r: random.Random) -> tuple[Any, ...]:
    return (r.choice([0, 1, 2**63, 2**64 - 1]) ^ r.getrandbits(3),)


def address(r: random.Random) -> tuple[Any, ...]:
    return (f"{r.getrandbits(16):x}::{r.getrandbits(9):x}",)


def pair(r: random.Random) -> tuple[Any, ...]:
    return (str(r.randint(-3, 3)), str(r.randint(-40, 40)))


KEYS = [
    Key("int", ("int",), number(-(2**31), 2**31 - 1)),
    Key("small int", ("int",), number(-300, 300)),
    Key("unsigned bigint", ("bigint unsigned",), number(0, 2**64 - 1)),
    Key("zerofill", ("int(12) unsigned zerofill",), number(0, 400)),
    text_key("utf8mb4_general_ci"),
    text_key("utf8mb4_unicode_ci"),
    text_key("utf8mb4_bin", kind="char(20)"),
    text_key("utf8mb4_0900_ai_ci", Flavour.MYSQL),
    text_key("utf8mb4_0900_as_cs", Flavour.MYSQL, kind="char(20)"),
    text_key("utf8mb4_0900_bin", Flavour.MYSQL),
    text_key("uca1400_ai_ci", Flavour.MARIADB),
    text_key("utf8mb4_nopad_bin", Flavour.MARIADB),
    text_key("latin1_swedish_ci"),
    text_key("latin1_german2_ci", kind="char(20)"),
    text_key("utf8mb3_general_ci"),
    text_key("utf16_unicode_ci"),
    text_key("cp932_japanese_ci"),
    Key("varbinary", ("varbinary(9)",), blob(9)),
    Key("binary", ("binary(6)",), blob(6)),
    Key("decimal", ("decimal(65,30)",), decimal),
    Key("double", ("double",), floating("d")),
    Key("float", ("float",), floating("f")),
    Key("datetime", ("datetime(6)",), moment),
    Key("date", ("date",), day),
    Key("time", ("time(2)",), span),
    Key("timestamp", ("timestamp(3)",), lambda r: (f"2024-01-01 00:00:{r.uniform(0, 59):06.3f}",)),
    Key("year", ("year",), lambda r: (str(r.choice([0, *range(1901, 2156)])),)),
    Key("enum", ("enum('z','a','','y')",), lambda r: (r.choice(["z", "a", "", "y"]),)),
    Key("set", (f"set({ELEMENTS})",), elements),
    Key("bit", ("bit(64)",), lambda r: (r.choice([0, 2**63, 2**64 - 1]) ^ r.getrandbits(8),)),
    Key("uuid", ("uuid",), uuid_text, Flavour.MARIADB),
    Key("inet6", ("inet6",), address, Flavour.MARIADB),
    Key("mixed", MIXED, mixed),
    Key("two integers", ("int", "bigint"), pair),
    Key("unique", ("varchar(9)",), texts("utf8mb4"), None, "KEY o (v), UNIQUE KEY `u ``q` (k0)"),
    Key("descending", ("varchar(9)", "int"), pair, None, "PRIMARY KEY (k0 DESC, k1)"),
    Key(
        "invisible",
        ("varchar(9)",),
        texts("utf8mb4"),
        Flavour.MYSQL,
        "UNIQUE KEY o (k0, v), UNIQUE KEY u (k0) INVISIBLE",
    ),
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_chunks_of_any_key_are_the_table_in_key_order(source: Source, key: Key) -> None:
    if key.only not in (None, source.flavour):
        with pytest.raises((SourceUnavailable, SourceUnsupported)):  # so the list stays honest
            _make_table(source, key)
        return
    names = _make_table(source, key)
    values = random.Random(key.name)
    marks = ", ".join(["%s"] * len(names))
    for v in range(220):
        sql = f"INSERT IGNORE INTO t ({', '.join(names)}, v) VALUES ({marks}, {v})"
        source.run(sql, *key.make(values))
    schema = source.schema()
    assert schema.handle_index is not None
    assert [c.lower() for c in schema.handle_index.columns] == names
    wanted = [int(v) for (v,) in source.run(f"SELECT v FROM t ORDER BY {', '.join(names)}")]
    found = source.chunks(schema, wish=13)
    assert found[0].lower is None
    assert found[-1].upper is None
    assert len(found) >= len(wanted) // 52
    parts = [[row["v"] for row in source.read(schema, chunk)] for chunk in found]
    assert [v for part in parts for v in part] == wanted
    if not (len(names) == 1 and "int" in key.types[0]):  # those are cut by calculation
        assert [len(part) for part in parts] == [chunk.rows for chunk in found]
        assert {len(part) for part in parts[:-1]} <= {13}
        assert parts[-1]


def _make_table(source: Source, key: Key) -> list[str]:
    names = [f"k{i}" for i in range(len(key.types))]
    columns = ", ".join(f"{n} {t} NOT NULL" for n, t in zip(names, key.types, strict=True))
    definition = key.definition.format(columns=", ".join(names))
    source.run("SET sql_mode = 'ALLOW_INVALID_DATES'")
    source.run(f"CREATE TABLE t ({columns}, v int NOT NULL, {definition})")
    return names


def test_uneven_integer_keys_give_chunks_of_about_the_wish(source: Source) -> None:
    source.run("CREATE TABLE t (id bigint unsigned PRIMARY KEY, pad char(80) DEFAULT 'x')")
    source.run("CREATE TABLE n (n int PRIMARY KEY)")
    for start in range(0, 5000, 500):
        numbers = ", ".join(f"({n})" for n in range(start, start + 500))
        source.run(f"INSERT INTO n VALUES {numbers}")
    for start, step in ((1, 10**9), (10**15, 1), (2**64 - 5001, 1)):
        source.run(f"INSERT INTO t (id) SELECT {start} + n * {step} FROM n")
    source.run(f"INSERT INTO t (id) VALUES ({2**64 - 1})")
    source.run("ANALYZE TABLE t")
    schema = source.schema()
    found = source.chunks(schema, wish=1000, count=4)
    rows = [source.read(schema, chunk) for chunk in found]
    wanted = [int(i) for (i,) in source.run("SELECT id FROM t ORDER BY id")]
    assert [row["id"] for part in rows for row in part] == wanted
    assert max(map(len, rows)) <= 5000
    assert len(found) <= 60


def test_rows_added_at_both_ends_meanwhile_fall_into_the_end_chunks(source: Source) -> None:
    source.run("CREATE TABLE t (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v int)")
    source.run("CREATE TABLE u (k bigint PRIMARY KEY, v int)")
    for v in range(100):
        source.run(f"INSERT INTO t VALUES ('m{v:03}', {v})")
        source.run(f"INSERT INTO u VALUES ({v * 10}, {v})")

    def write(other: Source, number: int) -> None:
        other.run(f"INSERT INTO t VALUES ('a{number:06}', -1), ('z{number:06}', -1)")
        other.run(f"INSERT INTO u VALUES ({-number}, -1), ({1000 + number}, -1)")

    for name in ("t", "u"):
        schema = source.schema(name)
        with writing(source, write):
            found: list[Chunk] = []
            while (not found or found[-1].upper is not None) and len(found) < 40:
                after = found[-1].upper if found else None
                found += next_chunks(source.connection, source.login, schema, after, 20, 1)
        if found[-1].upper is not None:  # the writer was faster: the rest is one chunk
            found.append(Chunk(found[-1].upper, None, 1))
        rows = [row for chunk in found for row in source.read(schema, chunk)]
        wanted = source.run(f"SELECT k FROM {name} ORDER BY k")
        assert [str(row["k"]) for row in rows] == [k for (k,) in wanted]
        for both in ("t", "u"):  # the next writer counts from 1 again
            source.run(f"DELETE FROM {both} WHERE v < 0")


def test_an_empty_table_is_one_chunk(source: Source) -> None:
    source.run("CREATE TABLE t (a int PRIMARY KEY)")
    source.run("CREATE TABLE u (a char(3) PRIMARY KEY)")
    for name in ("t", "u"):
        schema = source.schema(name)
        assert source.chunks(schema, 10) == [Chunk(None, None, 0)]
        assert source.read(schema, Chunk(None, None, 0)) == []
        assert estimate_rows(source.connection, source.login, schema) == 1
        assert row_bytes(source.connection, source.login, schema) >= 1


def test_statistics_are_fresh(source: Source) -> None:
    source.run("CREATE TABLE t (a int PRIMARY KEY, b char(100))")
    schema = source.schema()
    assert estimate_rows(source.connection, source.login, schema) == 1
    numbers = ", ".join(f"({n}, 'x')" for n in range(3000))
    source.run(f"INSERT INTO t VALUES {numbers}")
    source.run("ANALYZE TABLE t")
    assert 1500 < estimate_rows(source.connection, source.login, schema) < 6000
    assert 50 < row_bytes(source.connection, source.login, schema) < 500


# --- values --------------------------------------------------------------------------------------

# Type, what is inserted, what comes out.
VALUES: list[tuple[str, str, Any]] = [
    ("tinyint", "-128", -128),
    ("bigint unsigned", "18446744073709551615", 18446744073709551615),
    ("int(9) unsigned zerofill", "42", 42),
    ("float", "0.1", struct.unpack("f", struct.pack("f", 0.1))[0]),
    ("float(7,3)", "1234.567", struct.unpack("f", struct.pack("f", 1234.567))[0]),
    ("double", "1.7976931348623157e308", 1.7976931348623157e308),
    ("double unsigned zerofill", "1.5", 1.5),
    ("decimal(65,30)", "-0.5", "-0." + "5".ljust(30, "0")),
    ("decimal(10,2) zerofill", "12.5", "12.50"),
    ("bit(64)", "18446744073709551615", 2**64 - 1),
    ("bit(1)", "1", 1),
    ("enum('b','a')", "'a'", 2),
    ("enum('b','a') NULL", "0", 0),
    (f"set({ELEMENTS})", "18446744073709551615", 2**64 - 1),
    ("char(5)", "'ab '", "ab"),
    ("varchar(5)", "'ab '", "ab "),
    ("varchar(9) CHARACTER SET latin1", "'gr\u00fc\u00df\u20ac'", "gr\u00fc\u00df\u20ac"),
    ("varchar(9) CHARACTER SET cp932", "'\u3042\u30a2'", "\u3042\u30a2"),
    ("text CHARACTER SET utf16", "'\U0001f600'", "\U0001f600"),
    ("binary(4)", "x'61'", b"a\0\0\0"),
    ("varbinary(4)", "x'00ff'", b"\x00\xff"),
    ("blob", "x''", b""),
    ("date", "'0000-00-00'", "0000-00-00"),
    ("datetime", "'2024-02-00 01:02:03'", "2024-02-00 01:02:03"),
    ("datetime(6)", "'9999-12-31 23:59:59.9'", "9999-12-31 23:59:59.900000"),
    ("timestamp(2) NULL", "'2024-06-01 12:00:00.25'", "2024-06-01 12:00:00.25"),
    ("timestamp NULL", "0", "0000-00-00 00:00:00"),
    ("time(3)", "'-838:59:59'", "-838:59:59.000"),
    ("year", "0", 0),
    ("year", "2155", 2155),
    ("geometry", "ST_GeomFromText('POINT(1 2)')", bytes(4) + struct.pack("<BIdd", 1, 1, 1, 2)),
    ("int INVISIBLE", "7", 7),
    ("int GENERATED ALWAYS AS (1 + 1) VIRTUAL", "DEFAULT", 2),
    ("int GENERATED ALWAYS AS (1 + 2) STORED", "DEFAULT", 3),
]
JSON = '{"b": [1, null, "\u00e9"], "a": true}'
OF_ONE: dict[Flavour, list[tuple[str, str, Any]]] = {
    Flavour.MYSQL: [
        ("json", f"'{JSON}'", '{"a": true, "b": [1, null, "\u00e9"]}'),
        ("vector(3)", "STRING_TO_VECTOR('[1,-2.5,0.1]')", "[1,-2.5,0.1]"),
    ],
    Flavour.MARIADB: [
        ("json", f"'{JSON}'", JSON),
        ("uuid", "'123E4567-E89B-12D3-A456-426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
        ("inet6", "'2001:DB8::1'", "2001:db8::1"),
        ("inet4", "'10.0.0.1'", "10.0.0.1"),
        *(("year(2)", f"'{year}'", year) for year in (1970, 1999, 2000, 2069)),
        ("year(2)", "0", 2000),
    ],
}


def assert_as_logged(source: Source, schema: TableSchema, log: Logged) -> None:
    """The snapshot and the log give the same images, bit for bit."""
    chunk = Chunk(None, None, 1)
    read = chunk_read.read_chunk(source.login, schema, chunk, 77, 5, source.flavour)
    seen = pa.concat_arrays([rows.after for rows in read])
    written = pa.concat_arrays([rows.after for rows in log.rows(lambda _: schema)])
    assert seen.type == written.type
    for column in schema.columns:
        both = seen.field(column.name), written.field(column.name)
        assert both[0].to_pylist() == both[1].to_pylist(), column.type.sql
    assert seen.equals(written)


def test_every_type_comes_in_its_canonical_form(source: Source) -> None:
    values = VALUES + OF_ONE[source.flavour]
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(values))
    source.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    names = ", ".join(f"c{i}" for i in range(len(values)))
    given = ", ".join(sql for _, sql, _ in values)
    schema = source.schema()
    with logged(source.server) as log:
        source.run(f"INSERT INTO t (id, {names}) VALUES (1, {given})")
        source.run("INSERT INTO t (id) VALUES (2)")
    assert_as_logged(source, schema, log)
    one, two = source.read(schema, Chunk(None, None, 1))
    for i, (kind, sql, wanted) in enumerate(values):
        assert (kind, sql, one[f"c{i}"]) == (kind, sql, wanted)
        assert two[f"c{i}"] is None or "GENERATED" in kind
    assert list(one) == [c.name for c in schema.columns]


@pytest.mark.parametrize(("kind", "code"), [("double", "d"), ("float", "f")])
def test_floats_keep_every_bit(source: Source, kind: str, code: str) -> None:
    values, wanted = random.Random(kind), []
    while len(wanted) < 400:
        number = struct.unpack(code, values.randbytes(struct.calcsize(code)))[0]
        if number == number and abs(number) != float("inf"):
            wanted.append(number)
    source.run(f"CREATE TABLE t (id int PRIMARY KEY, f {kind})")
    rows = ", ".join(f"({i}, {n!r})" for i, n in enumerate(wanted))
    with logged(source.server) as log:
        source.run(f"INSERT INTO t VALUES {rows}")
    assert_as_logged(source, source.schema(), log)
    found = source.read(source.schema(), Chunk(None, None, 1))
    assert [row["f"].hex() for row in found] == [n.hex() for n in wanted]


def test_rows_are_inserts_with_one_time_and_rising_numbers(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, blank char(200))")
    numbers = ", ".join(f"({n}, REPEAT('x', 200))" for n in range(5000))
    source.run(f"INSERT INTO t VALUES {numbers}")
    for start in range(5000, 100_000, 5000):
        source.run(f"INSERT INTO t SELECT id + {start}, blank FROM t WHERE id < 5000")
    schema = source.schema()
    blocks = list(
        chunk_read.read_chunk(
            source.login, schema, Chunk(None, None, 1), 77, 1 << 40, source.flavour
        )
    )
    assert len(blocks) > 1
    assert max(b.batch.nbytes for b in blocks) < 32 << 20
    assert {int(op) for b in blocks for op in b.op} == {int(Op.INSERT)}
    assert {int(ts) for b in blocks for ts in b.commit_ts} == {77}
    assert all(b.before.null_count == len(b) for b in blocks)
    numbered = [n for b in blocks for n in b.batch.column("seq").to_pylist()]
    assert numbered == list(range(1 << 40, (1 << 40) + 100_000))


def test_a_row_larger_than_a_packet(mysql: Source) -> None:
    mysql.run("CREATE TABLE t (id int PRIMARY KEY, b longblob)")
    mysql.run("INSERT INTO t VALUES (1, 'a'), (2, REPEAT('xy', 9000000)), (3, 'c')")
    rows = mysql.read(mysql.schema(), Chunk(None, None, 1))
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert rows[1]["b"] == b"xy" * 9000000


@pytest.mark.parametrize("mode", ["disabled", "required"])
def test_reading_with_and_without_tls(mysql: Source, mode: str) -> None:
    mysql.run("CREATE TABLE t (id int PRIMARY KEY, b longblob)")
    rows = ", ".join(f"({i}, REPEAT('x', 10000))" for i in range(1000))
    mysql.run(f"INSERT INTO t VALUES {rows}")
    mysql.login = replace(mysql.login, ssl_mode=mode)
    with session.connected(mysql.login) as connection:
        cipher = session.rows(connection, mysql.login, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
    assert bool(cipher) == (mode == "required")
    found = mysql.read(mysql.schema(), Chunk(None, None, 1))
    assert [len(row["b"]) for row in found] == [10000] * 1000


# --- a table that changes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE t DROP COLUMN b", "has no column 'b' any more"),
        ("ALTER TABLE t MODIFY b varchar(20)", r"column 'b' was varchar\(10\).*varchar\(20\)"),
        ("ALTER TABLE t MODIFY b varchar(10) CHARACTER SET latin1", "latin1"),
        ("ALTER TABLE t MODIFY c int unsigned", "unsigned"),
        ("ALTER TABLE t RENAME COLUMN c TO d", "has no column 'c' any more"),
        ("DROP TABLE t", "1146"),
        ("RENAME TABLE t TO u", "1146"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE KEY z (id)", "1176"),
        (f"DROP DATABASE {DATABASE}", "1049|1146"),
    ],
)
def test_an_altered_table_outdates_the_snapshot(source: Source, change: str, words: str) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, b varchar(10), c int)")
    schema = source.schema()
    source.run(change)
    with pytest.raises(SnapshotOutdated, match=words):
        source.read(schema, Chunk(None, None, 1))


def test_columns_that_trade_names_behind_the_view_outdate_it(source: Source) -> None:
    """MySQL's view goes on under the new names, while its catalog has the old ones."""
    source.run("CREATE TABLE t (id int PRIMARY KEY, b varchar(10), c int)")
    source.run("INSERT INTO t VALUES (1, 'text', 5)")
    schema = source.schema()
    left = ["ALTER TABLE t CHANGE b c varchar(10), CHANGE c b int"]

    def trade(name: str) -> None:
        if name == "touch table" and left:
            source.run(left.pop())

    with watched(trade), pytest.raises(SnapshotOutdated, match=r"column '[bc]' was .* and is"):
        source.read(schema, Chunk(None, None, 1))
    assert not left


@pytest.mark.parametrize(
    "change",
    ["ADD COLUMN x int FIRST", "ADD KEY z (b)", "COMMENT 'x'", "MODIFY c int COMMENT 'x'"],
)
def test_what_leaves_the_columns_alone_does_not(source: Source, change: str) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, b varchar(10), c int)")
    source.run("INSERT INTO t VALUES (1, 'x', 2)")
    schema = source.schema()
    source.run(f"ALTER TABLE t {change}")
    assert source.read(schema, Chunk(None, None, 1)) == [{"id": 1, "b": "x", "c": 2}]


def test_a_change_just_after_the_view_was_opened_gets_a_new_view(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, b int)")
    source.run("INSERT INTO t VALUES (1, 2)")
    schema = source.schema()
    run, left = session.rows, [1]

    def altered_behind(connection: Any, login: Any, sql: str, values: Any = ()) -> Any:
        found = run(connection, login, sql, values)
        if sql == positions.SNAPSHOT and left[0]:
            left[0] -= 1
            run(source.connection, login, f"ALTER TABLE t ADD COLUMN x{left[0]} int, FORCE")
        return found

    monkeypatch.setattr(session, "rows", altered_behind)
    assert source.read(schema, Chunk(None, None, 1)) == [{"id": 1, "b": 2}]
    assert left == [0]
    left[0] = 100
    with pytest.raises(SnapshotGone, match="1412"):
        source.read(schema, Chunk(None, None, 1))
    assert left == [90]


def test_the_table_stays_as_it_is_while_it_is_read(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, b longblob)")
    rows = ", ".join(f"({i}, REPEAT('x', 400000))" for i in range(100))
    source.run(f"INSERT INTO t VALUES {rows}")
    schema = source.schema()
    found = chunk_read.read_chunk(source.login, schema, Chunk(None, None, 1), 77, 0, source.flavour)
    count = len(next(found))
    source.run("DELETE FROM t")
    source.run("SET lock_wait_timeout = 1")
    with pytest.raises(SourceUnavailable, match="1205"):
        source.run("ALTER TABLE t ADD COLUMN x int")
    assert count + sum(map(len, found)) == 100
    source.run("ALTER TABLE t ADD COLUMN x int")


def test_a_killed_connection_is_an_error_to_be_retried(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, b longblob)")
    rows = ", ".join(f"({i}, REPEAT('x', 400000))" for i in range(100))
    source.run(f"INSERT INTO t VALUES {rows}")
    schema = source.schema()
    found = chunk_read.read_chunk(source.login, schema, Chunk(None, None, 1), 77, 0, source.flavour)
    next(found)
    reading = source.run(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT `id`, `b`%'"
    )
    source.run(f"KILL {reading[0][0]}")
    with pytest.raises(SourceUnavailable):
        list(found)
    assert len(source.read(schema, Chunk(None, None, 1))) == 100


# --- places --------------------------------------------------------------------------------------


def insert_one(other: Source, number: int) -> None:
    other.run(f"INSERT INTO t VALUES ({number})")


def test_low_and_high_frame_a_view_under_writes(source: Source) -> None:
    source.run("CREATE TABLE t (a int)")
    schema = source.schema()
    base = source.transactions(source.high())
    with writing(source, insert_one), writing(source, insert_one):
        for _ in range(25):
            low = source.transactions(source.low())
            seen = len(source.read(schema))
            high = source.transactions(source.high())
            assert low - base <= seen <= high - base
    assert source.transactions(source.low()) == source.transactions(source.high())


def test_an_exact_view_under_writes_mariadb_knows(mariadb_server: Server) -> None:
    for source in opened(mariadb_server):
        source.run("CREATE TABLE t (a int)")
        schema = source.schema()
        base = source.transactions(source.high())
        with writing(source, insert_one), writing(source, insert_one):
            for _ in range(20):
                place, rows = source.exact(schema)
                assert len(rows) == source.transactions(place) - base


def test_an_exact_view_between_writes_on_mysql(mysql: Source) -> None:
    def burst(other: Source, number: int) -> None:
        insert_one(other, number)
        if number % 20 == 0:
            time.sleep(0.02)

    mysql.run("CREATE TABLE t (a int)")
    schema = mysql.schema()
    base = mysql.transactions(mysql.high())
    with writing(mysql, burst):
        for _ in range(10):
            place, rows = mysql.exact(schema, lock=True)
            assert len(rows) == mysql.transactions(place) - base


def test_without_a_quiet_moment_mysql_needs_a_lock(
    mysql: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql.run("CREATE TABLE t (a int)")
    schema = mysql.schema()
    base = mysql.transactions(mysql.high())
    tries = []
    monkeypatch.setattr(positions.QuietMoment, "place", lambda *_: tries.append(1))
    with writing(mysql, insert_one), writing(mysql, insert_one):
        with pytest.raises(SourceUnsupported, match=r"snapshot_read\.t .*snapshot-lock=table"):
            mysql.exact(schema)
        assert len(tries) == 50
        for _ in range(5):
            place, rows = mysql.exact(schema, lock=True)
            assert len(rows) == mysql.transactions(place) - base
    mysql.run("INSERT INTO t VALUES (0)")  # the lock is gone


def test_an_engine_without_transactions_is_locked_while_it_is_read(source: Source) -> None:
    source.run("CREATE TABLE t (a int, b blob) ENGINE=MyISAM")
    rows = ", ".join(f"({i}, REPEAT('x', 60000))" for i in range(400))
    source.run(f"INSERT INTO t VALUES {rows}")
    schema = source.schema()
    with pytest.raises(SourceUnsupported, match="no transactions; set snapshot-lock=table"):
        source.exact(schema)
    place, found = chunk_read.read_exact(source.login, schema, 77, 0, source.flavour, True)
    assert place["file"]
    count = len(next(found))
    source.run("SET lock_wait_timeout = 1")
    with pytest.raises(SourceUnavailable, match="1205"):
        source.run("INSERT INTO t VALUES (0, 'x')")
    assert count + sum(map(len, found)) == 400
    source.run("INSERT INTO t VALUES (0, 'x')")


def test_an_exact_view_of_an_altered_table_is_outdated(source: Source) -> None:
    source.run("CREATE TABLE t (a int, b int)")
    schema = source.schema()
    source.run("ALTER TABLE t DROP COLUMN b")
    with pytest.raises(SnapshotOutdated, match="'b'"):
        source.exact(schema)
