"""Targets: messages and files that are read back, requests, statements, settings."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from codec_harness import CODEC_HARNESSES, PLANNED_AT_MS, TOPIC, pairs, rows_of, table_of
from fastapi.testclient import TestClient
from fuzz_driver import Target

from rowferry.change.chunk import Change, Op, Rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId
from rowferry.control.operator.statements.syntax import parse as parse_statement
from rowferry.errors import NoSuchChangefeed, SinkDamaged
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.flow.assemble import sink_traits
from rowferry.flow.decide.expression import Expression
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.flow.encode.parquet.format import Parquet
from rowferry.flow.sink.storage.index_file import read_any_index, read_metadata
from rowferry.flow.sink.storage.paths import SchemaFile, parse_path
from rowferry.flow.sink.storage.schema_file import of_table, read_document
from rowferry.mysql.ddl.rename import rename_tables
from rowferry.mysql.ddl.statement import parse_create, plan_ddl
from rowferry.mysql.ddl.text import first_words
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.config_file import read_config
from rowferry.spec.uri import Uri

# --- messages and files ---------------------------------------------------------------------------

TABLE = table_of(
    SqlType("varchar", length=40),
    SqlType("bigint", unsigned=True),
    SqlType("decimal", length=10, scale=2),
    SqlType("datetime", scale=3),
    SqlType("varbinary", length=9),
    SqlType("double"),
    SqlType("json"),
    SqlType("enum", elements=("a", "b")),
    SqlType("set", elements=("a", "b")),
    SqlType("date"),
)
FULL = {
    "id": 1,
    "c0": 'h"é,\\\n',
    "c1": 7,
    "c2": "-1.50",
    "c3": "2020-01-02 03:04:05.678",
    "c4": b"\0\xff",
    "c5": 1.5,
    "c6": '{"a": [1, "x"]}',
    "c7": 1,
    "c8": 3,
    "c9": "0000-00-00",
}
EMPTY = {**dict.fromkeys(FULL), "id": 2}
ROWS = rows_of(
    TABLE, [(Op.INSERT, None, FULL), (Op.UPDATE, FULL, {**FULL, "c1": 8}), (Op.DELETE, EMPTY, None)]
)


def described(changes: Iterator[Change]) -> list[str]:
    return [str(c.batch.num_rows) if isinstance(c, Rows) else str(c) for c in changes]


def file_target(name: str, share: int, words: tuple[bytes, ...]) -> Target:
    codec = CODEC_HARNESSES[name].build()
    whole = codec.file_head(TABLE) + bytes(codec.encode_rows(ROWS, PLANNED_AT_MS).value_bytes())
    return Target(
        f"files: {name}", (whole,), lambda d: described(codec.decode(d, TABLE)), share, words
    )


def message_target(name: str, share: int, words: tuple[bytes, ...] = ()) -> Target:
    """Messages of a queue: two bytes for the key's length, the key, the value."""
    codec = CODEC_HARNESSES[name].build(sink="kafka://127.0.0.1:9092/topic")
    sent = codec.batch(codec.encode_rows(ROWS, PLANNED_AT_MS, TOPIC), TOPIC)
    corpus = tuple(
        len(k or b"").to_bytes(2, "big") + (k or b"") + (v or b"") for k, v in pairs(sent) if v
    )

    def run(data: bytes) -> Any:
        cut = 2 + int.from_bytes(data[:2], "big")
        return described(codec.decode_message(data[2:cut] or None, data[cut:]))

    return Target(f"messages: {name}", corpus, run, share, words)


def parquet_target(share: int) -> Target:
    spec = ChangefeedSpec(
        "f",
        Uri.parse(NO_PLACE, "source"),
        Uri.parse("file:///x?protocol=parquet", "sink"),
        {"sink": {"parquet": {"zero-date": "null"}}},
    )
    made = Parquet(spec, sink_traits("file"))
    parts: list[bytes] = []
    file = made.file(TABLE, parts.append)
    file.add(ROWS)
    file.finish()
    words = (b"PAR1", b"\xff\xff\xff\xff\x0f", b"\x15\x00", b"\x19\x1c")
    run = lambda data: described(made.decode(bytes(data), TABLE))  # noqa: E731
    return Target("files: parquet", (b"".join(map(bytes, parts)),), run, share, words)


def simple_target(name: str, share: int, words: tuple[bytes, ...]) -> Target:
    """Messages of a queue whose rows are read by a definition that came before."""
    codec = CODEC_HARNESSES[name].build(sink="kafka://127.0.0.1:9092/topic")
    sent = codec.batch(codec.encode_rows(ROWS, PLANNED_AT_MS, TOPIC), TOPIC)
    corpus = tuple(value or b"" for _, value in pairs(sent))

    def run(data: bytes) -> Any:
        reader = CODEC_HARNESSES[name].build(sink="kafka://127.0.0.1:9092/topic")
        for value in corpus[:1]:
            list(reader.decode_message(None, value))
        return described(reader.decode_message(None, data))

    return Target(f"messages: {name}", corpus, run, share, words)


JSON_WORDS = (
    b"null",
    b"[",
    b"{",
    b'"',
    b"\\ud800",
    b"\\u0000",
    b"1e999",
    b"-",
    b"[]",
    b"{}",
    b"true",
)
AVRO_WORDS = (b"\0\0\0\0\1", b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f")
CSV_WORDS = (b'"', b"\\N", b",", b'"I"', b"\r\n", b"\n")


def schema_file(data: bytes) -> Any:
    """Read a schema file under the name that its content gives it."""
    file = SchemaFile("d", "t", 1, 1)
    try:
        document = read_document(data, file, "f")
    except SinkDamaged as err:
        named = parse_path(str(err).partition(" belongs to ")[2].partition(" (")[0])
        if not isinstance(named, SchemaFile):
            raise
        document = read_document(data, named, "f")
    return str(document.table_schema())


# --- requests and statements ----------------------------------------------------------------------


class Nothing:
    """Operations on a server that has no changefeed, and all in it; whatever is asked."""

    def __getattr__(self, name: str) -> Nothing:
        return Nothing()

    def __call__(self, *args: object, **more: object) -> NoReturn:
        raise NoSuchChangefeed("there is none")


class Failures(logging.Handler):
    """What a server fails inside of, which it tells its log only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.seen.append(record.exc_info[1])


def rest() -> Callable[[bytes], Any]:
    app = create_app(Nothing(), About("127.0.0.1:8300", "0", 1.0, "here"))  # type: ignore[arg-type]
    entered: list[TestClient] = []  # its loop is begun with the first request, once for a process
    failures = Failures()
    logging.getLogger("rowferry").addHandler(failures)
    paths = (
        ("POST", "/api/v2/changefeeds"),
        ("POST", "/api/rowferry/sql"),
        ("PUT", "/api/v2/changefeeds/a"),
        ("POST", "/api/v2/changefeeds/a/resume"),
        ("POST", "/api/v2/log"),
        ("POST", "/api/rowferry/apply"),
        ("POST", "/api/rowferry/changefeeds/a/reset"),
        ("POST", "/api/rowferry/changefeeds/a/tables"),
        ("POST", "/api/rowferry/changefeeds/a/resnapshots"),
        ("POST", "/api/rowferry/changefeeds/a/quarantine/retry"),
        ("POST", "/api/rowferry/changefeeds/a/hold"),
        ("POST", "/api/rowferry/changefeeds/check"),
        ("POST", "/api/rowferry/source/tables"),
        ("POST", "/api/rowferry/sink/check"),
        ("POST", "/api/v2/verify_table"),
    )

    def run(data: bytes) -> Any:
        method, path = paths[data[0] % len(paths)] if data else paths[0]
        if not entered:
            entered.append(TestClient(app, base_url="http://127.0.0.1:8300").__enter__())
        failures.seen.clear()
        said = entered[0].request(method, path, content=data[1:])
        if failures.seen:
            raise failures.seen[0]
        if said.status_code >= 500 or len(said.content) > 100_000:
            raise AssertionError(f"{said.status_code}: {said.text[:300]}")
        return said.status_code

    return run


BODIES = (
    b'\0{"changefeed_id":"a","source_uri":"range://h:1","sink_uri":"blackhole://","start_ts":0,'
    b'"replica_config":{"filter":{"rules":["*.*"]}}}',
    b'\1{"statement":"SHOW CHANGEFEEDS"}',
    b'\2{"sink_uri":"file:///a?protocol=csv","target_ts":5}',
    b'\3{"overwrite_checkpoint_ts":7}',
    b'\4{"log_level":"info"}',
    b'\5{"declarations":[{"owner":"o","changefeeds":{"a":{"source":"mysql://h/","sink":'
    b'"blackhole://"}}}],"dry_run":true}',
    b'\6{"position":"binlog.000001:4","snapshot":false}',
    b'\7{"add":["a.*"],"drop":[]}',
    b'\x08{"table":"a.b","keys":"1..5","where":"id > 5"}',
    b'\x09{"table":"a.b","key":"x"}',
    b'\x0a{"position":{"server":"a","file":"b.000001","offset":4},"seconds":5}',
    b'\x0b{"sink_uri":"blackhole://","replica_config":{"sync_point_interval":600000000000}}',
    b'\x0c{"source_uri":"mysql://h/","database":"d"}',
    b'\x0d{"sink_uri":"file:///x?protocol=csv"}',
    b'\x0e{"source_uri":"mysql://h/","replica_config":{"filter":{"rules":["*.*"]}}}',
)
STATEMENTS = (
    b"CREATE CHANGEFEED a FROM 'mysql://u:p@h:1/' INTO 'kafka://h:1/t?protocol=avro'"
    b" WITH (a.b = 1, c = ['x', true])",
    b"ALTER CHANGEFEED a SET (x = 'y')",
    b"SHOW CHANGEFEED `a`",
    b"DROP CHANGEFEED IF EXISTS a",
    b"PAUSE CHANGEFEED a",
)
DDL = (
    b"CREATE TABLE IF NOT EXISTS `d`.`t` (id bigint unsigned NOT NULL AUTO_INCREMENT, v"
    b" varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT 'x', e enum('a','b'),"
    b" d decimal(10,2) DEFAULT 1.5, PRIMARY KEY (id), UNIQUE KEY u (v(5))) ENGINE=InnoDB"
    b" PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),"
    b" PARTITION p1 VALUES LESS THAN MAXVALUE)",
    b"ALTER TABLE d.t ADD COLUMN (a int, b json), DROP COLUMN v, RENAME COLUMN e TO y"
    b", MODIFY d bigint FIRST",
    b"/*!50000 CREATE */ TABLE d.t2 LIKE d.t -- comment",
    b"RENAME TABLE d.t TO d.u, d.u TO d.w",
    b"DROP TABLE IF EXISTS a, `b``c`.d",
    b"TRUNCATE TABLE d.t",
)
SQL_WORDS = (
    b"'",
    b'"',
    b"`",
    b"(",
    b")",
    b",",
    b"/*",
    b"*/",
    b"--",
    b"\\",
    b";",
    b"NULL",
    b"1e9",
    b"0x",
    b"TABLE",
    b"=",
)
KNOWN = parse_create(DDL[0].decode(), "d")


def ddl(data: bytes) -> Any:
    sql = data.decode("utf-8", "replace")
    words, numbers = first_words(sql), count(10)
    renamed = rename_tables(sql, "d", lambda t: TableId("x", t.table))
    plans = plan_ddl(sql, "d", {KNOWN.id: KNOWN}, lambda: next(numbers))
    return words, renamed, len(plans)


# --- settings -------------------------------------------------------------------------------------

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk would be most of the time


def config(suffix: str) -> Callable[[bytes], Any]:
    folder = tempfile.TemporaryDirectory(prefix="rowferry-fuzz-", dir=MEMORY)

    def run(data: bytes) -> Any:
        file = Path(folder.name) / f"{os.getpid()}{suffix}"
        file.write_bytes(data)
        return str(read_config(file))

    return run


TOML = (
    b"case-sensitive = true\n[filter]\nrules = ['a.*', \"!b.c\"]\n"
    b"[[sink.dispatchers]]\nmatcher = ['*.*']\npartition = 'ts'\n"
)
YAML = (
    b"case-sensitive: true\nfilter:\n  rules: ['a.*', \"!b.c\"]\n"
    b"sink:\n  dispatchers:\n  - {matcher: ['*.*'], partition: ts}\n"
)
JSON_CONFIG = b'{"filter": {"rules": ["a.*"]}, "x": [1, 2.5, {"y": "z"}]}'
EXPRESSIONS = (
    b"id > 5 AND c0 LIKE 'a%' OR NOT c1 IN (1, 2, 3)",
    b"CASE WHEN c2 BETWEEN 1 AND 2 THEN upper(c0) = 'A' ELSE c5 * 2 + 1 >= -3 END",
    b"c3 >= '2020-01-01' AND length(c0) <> 0 AND c0 REGEXP '^a[b-c]+$'",
    b"coalesce(c1, 0) << 3 | 1 = 9 XOR c9 IS NULL",
)
URIS = (
    b"mysql://user:p%40ss@[::1]:3306/?ssl-mode=required&a=b",
    b"kafka://a:9092,b:9092/topic?protocol=canal-json&max-message-bytes=1",
    b"s3://bucket/prefix?endpoint=http://127.0.0.1:9000/&access-key=x",
    b"file:///tmp/a b?x=%41",
)
PATHS = (
    b"shop/orders/470482460079030272/2024-01-02/CDC000001.csv",
    b"d/t/meta/schema_1_0000000001.json",
    b"metadata",
)


def text(call: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: call(data.decode("utf-8", "replace"))


TARGETS = (
    file_target("csv", 2, CSV_WORDS),
    file_target("canal-json", 1, JSON_WORDS),
    file_target("json", 1, JSON_WORDS),
    message_target("canal-json", 8, JSON_WORDS),
    message_target("open-protocol", 5, JSON_WORDS),
    message_target("json", 4, JSON_WORDS),
    message_target("avro", 6, AVRO_WORDS),
    parquet_target(2),
    message_target("debezium", 4, JSON_WORDS),
    message_target("debezium-avro", 4, AVRO_WORDS),
    simple_target("simple", 4, JSON_WORDS),
    simple_target("simple+avro", 4, AVRO_WORDS),
    message_target("canal", 6, (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08", b"\x0a\x00")),
    Target("requests: REST", BODIES, rest(), 1, JSON_WORDS),
    Target(
        "statements of operators",
        STATEMENTS,
        text(lambda t: str(parse_statement(t))),
        14,
        SQL_WORDS,
    ),
    Target("DDL", DDL, ddl, 2, SQL_WORDS),
    Target(
        "expressions",
        EXPRESSIONS,
        text(lambda t: Expression(t, "x").fit(TABLE) and None),
        2,
        SQL_WORDS,
    ),
    Target(
        "table filters",
        (b"a.*", b"!`b`.c?", b"/^x[0-9]+$/./y/", b"[a-z]*.t"),
        text(lambda t: TableFilter([t]).matches_table("a", "b")),
        30,
        (b"*", b"?", b"!", b".", b"/", b"[", b"`", b"\\"),
    ),
    Target(
        "URIs",
        URIS,
        text(lambda t: str(Uri.parse(t, "sink"))),
        20,
        (b"%", b"@", b"://", b"?", b"&", b"=", b"[", b"%00"),
    ),
    Target(
        "settings: TOML",
        (TOML,),
        config(".toml"),
        2,
        (b"[", b"]", b"=", b"'", b'"""', b"\n", b"1979-05-27", b"nan"),
    ),
    Target(
        "settings: YAML",
        (YAML,),
        config(".yaml"),
        1,
        (b"&a", b"*a", b"!!python/object:x", b"? ", b": ", b"- ", b"\n  ", b"{", b"|"),
    ),
    Target("settings: JSON", (JSON_CONFIG,), config(".json"), 3, JSON_WORDS),
    Target("storage: index", (b"CDC000005.csv\n",), lambda d: read_any_index(d, "f"), 60),
    Target(
        "storage: metadata",
        (b'{"checkpoint-ts":470482460079030272}',),
        lambda d: read_metadata(d, "f"),
        50,
        JSON_WORDS,
    ),
    Target(
        "storage: schema files",
        (of_table(TABLE).content(), of_table(TABLE, column_ids=True).content()),
        schema_file,
        2,
        JSON_WORDS,
    ),
    Target(
        "storage: paths",
        PATHS,
        text(lambda t: str(parse_path(t))),
        100,
        (b"/", b"..", b"\0", b"CDC", b".csv"),
    ),
)
