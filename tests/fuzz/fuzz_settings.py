"""Targets: what operators write, up to the stages that it makes; and logins."""

from __future__ import annotations

import json
import os
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from fuzz_driver import Target
from fuzz_text import DDL, JSON_WORDS, KNOWN, MEMORY, SQL_WORDS, TABLE, text
from joserfc.jwk import OKPKey

from rowferry.control.operator.resnapshots import _range
from rowferry.control.operator.settings.start_place import moved
from rowferry.downstream.trace.row_key import RowKey, key_pairs
from rowferry.face.bearer import TokenIssuer, _key_set
from rowferry.face.credentials import KnownLogins
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.capture.binlog.ddl.statements import effects
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.flavour import Flavour
from rowferry.mysql.key_values import key_bound
from rowferry.mysql.session import ServerFacts
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.config_file import parse_config
from rowferry.spec.declared import parse_declared
from rowferry.spec.secret_reference import read_reference, references_of
from rowferry.spec.uri import Uri

# --- changefeeds ----------------------------------------------------------------------------------

FEEDS = (
    b"mysql://u:p@h:3306/?start-ts=5\nkafka://h:9092/t?protocol=canal-json&partition-num=3\n"
    b'{"filter":{"rules":["*.*","!d.x"],"event-filters":[{"matcher":["d.t"],"ignore-event":'
    b'["insert"],"ignore-sql":["^DROP"],"ignore-insert-value-expr":"id > 5"}]},'
    b'"sink":{"dispatchers":[{"matcher":["d.*"],"topic":"a_{schema}_{table}","partition":"index-value"},{"matcher":'
    b'["*.*"],"partition":"columns","columns":["id"],"target-schema":"{schema}_x"}],'
    b'"column-selectors":[{"matcher":["d.t"],"columns":["id","c*"]}],"kafka-config":{"max-message-bytes":'
    b'1000000,"large-message-handle":{"large-message-handle-option":"none"}}}}',
    b"mysql://u:env:SECRET@h/\nfile:///tmp/x?protocol=csv&flush-interval=5s&file-size=67108864\n"
    b'{"case-sensitive":true,"sink":{"csv":{"delimiter":",","quote":"\\"","null":"\\\\N",'
    b'"include-commit-ts":true},"date-separator":"day"},"transform":{"salt":"0123456789abcdef0",'
    b'"masks":[{"matcher":["*.*"],"columns":["c0"],"action":"hash"},{"matcher":["*.*"],"columns":'
    b'["c1"],"action":"expression","expression":"c1 + 1"}],"computed":[{"matcher":["*.*"],'
    b'"column":"y","type":"bigint","expression":"id * 2"}]}}',
    b"range://h:1/?feed-level=transaction\nmysql://u:p@h:3306/?worker-count=4&max-txn-row=9&time-zone=%2B01:00\n"
    b'{"enable-sync-point":true,"sync-point-interval":"5m","sink":{"safe-mode":true},"scheduler":'
    b'{"enable-table-across-nodes":true},"mounter":{"worker-num":16}}',
    b"mysql://u@h:1/\nblackhole://\n{}",
    b"mysql://u@h:1/?snapshot=never&start-gtid=3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5\n"
    b"https://h/x?protocol=json&timeout=5s\n"
    b'{"sample-changes":false,"sink":{"only-output-updated-columns":true}}',
    b"mysql://u@h:1/\npulsar://h:6650/persistent://a/b/c?protocol=open-protocol\n{}",
    b"mysql://u@h:1/\ndelta+file:///tmp/lake\n"
    b'{"sink":{"lake":{"mode":"upsert","layouts":[{"matcher":["*.*"],"partition-by":["day(c3)"]}]}}}',
    b"mysql://u@h:1/\npostgresql://u:p@h/d\n{}",
)


def changefeed(data: bytes) -> Any:
    """Read a source, a sink and a configuration, a line each; make the stages of it."""
    source, _, rest = data.decode("utf-8", "replace").partition("\n")
    sink, _, config = rest.partition("\n")
    spec, notices = build_spec(
        source,
        sink,
        parse_config(config, "json", "f"),
        "f",
        tables=option_tables,
        sinks=sink_traits,
    )
    flow = assemble(spec)
    flow.decide.check_tables([TABLE])
    if flow.decide.captures(TABLE):
        flow.decide.seen_as(TABLE)
    references = list(references_of(spec, option_tables(spec)))
    return len(notices), len(references), str(spec.sink)


# --- files of changefeeds -------------------------------------------------------------------------

KINDS = ("yaml", "json", "toml")
DECLARED = (
    b"\0owner: shop\nx-mine: &s mysql://ferry:env:P@db:3306/\nchangefeeds:\n  orders:\n"
    b"    source: *s\n    sink: kafka://k:9092/orders?protocol=canal-json\n    start-ts: 5\n"
    b"    target-ts: 9\n    paused: true\n    config:\n      filter:\n"
    b"        rules: ['shop.orders']\n",
    b'\1{"owner":"shop","changefeeds":{"a":{"source":"mysql://h/","sink":"file://out",'
    b'"config":{"sink":{"dispatchers":[{"matcher":["*.*"],"partition":"ts"}]}}}}}',
    b"\2owner = 'shop'\n[changefeeds.a]\nsource = 'mysql://h/'\nsink = 'file:///x?protocol=csv'\n"
    b"start-ts = 5\n[changefeeds.a.config]\ncase-sensitive = true\n",
)


def declared(data: bytes) -> Any:
    kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    found = parse_declared(data[1:].decode("utf-8", "replace"), kind, "f", "/x")
    return [json.dumps(one.to_json()) for one in found]


# --- places, keys, references ---------------------------------------------------------------------

FACTS = ServerFacts(Flavour.MYSQL, (8, 0, 36), "8.0.36", 1, "a")
MARIA = ServerFacts(Flavour.MARIADB, (10, 11, 6), "10.11.6-MariaDB", 1, "b")
LOGGED = (
    *DDL,
    b"CREATE TABLE x SELECT * FROM t START TRANSACTION",
    b"CREATE UNIQUE INDEX i ON t (v)",
    b"ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u WITHOUT VALIDATION",
    b"SET STATEMENT max_statement_time=1 FOR ALTER TABLE t WAIT 5 ADD COLUMN z int",
    b"CREATE OR REPLACE TABLE d.t (id int PRIMARY KEY, x text(9), PERIOD FOR p (a, b))",
    b"DROP DATABASE `d` /* generated by server */",
)


def logged(data: bytes) -> Any:
    """Read a statement of the log; its first byte says of which server and in which mode."""
    mode = data[0] if data else 0
    facts = MARIA if mode & 1 else FACTS
    sql_mode = (4 if mode & 2 else 0) | (1 << 20 if mode & 4 else 0)
    numbers = count(10)
    found = effects(
        data[1:].decode("utf-8", "replace"),
        "d",
        {KNOWN.id: KNOWN},
        lambda t: t.database == "d",
        lambda: next(numbers),
        facts,
        sql_mode=sql_mode,
    )
    return None if found is None else (len(found.changes), found.unread, found.swapped)


PLACED = ChangefeedSpec(
    "a", Uri.parse("mysql://h/?snapshot=never", "source"), Uri.parse("blackhole://", "sink")
)
POSITIONS = (
    b"binlog.000003:154",
    b"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5",
    b"0-1-100",
)
KEYED = parse_create(
    "CREATE TABLE d.k (a varchar(9), b decimal(10,2), c datetime(3), e enum('a','b'), f double,"
    " g varbinary(9), h bigint, PRIMARY KEY (a, b, c, e, f, g, h))",
    "d",
)
KEYS = (b"a=x\nb=1.50\nc=2020-01-02T03:04:05.678\ne=a\nf=1.5\ng=0x00ff\nh=-7",)
RANGES = (
    b"x,1.5,2020-01-02,a,1e5,0x00,7..",
    b'["x",1.5,"2020-01-02","a",1,"0x00",7]..["y",2,"2020-01-03","b",2,"0x01",8]',
)


def placed(data: bytes) -> Any:
    spec, words = moved(PLACED, None, data.decode("utf-8", "replace"))
    return str(spec.source), words


def row_key(data: bytes) -> Any:
    words = data.decode("utf-8", "replace").split("\n")
    key = RowKey.read(KEYED, key_pairs(words))
    return key.shown(), key.as_insert().batch.num_rows


def key_range(data: bytes) -> Any:
    bounds = _range(KEYED, data.decode("utf-8", "replace"))
    return [key_bound(KEYED, one) for one in bounds if one]


# --- logins ---------------------------------------------------------------------------------------

# The key of an example in RFC 8037.
KEY = {
    "kty": "OKP",
    "crv": "Ed25519",
    "kid": "a",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
}
PUBLIC = json.dumps({"keys": [{k: v for k, v in KEY.items() if k != "d"}]}).encode()
CLAIMS = (
    b'{"alg":"Ed25519","kid":"a"}\n{"iss":"https://i","aud":"a","exp":4102444800,"sub":"u",'
    b'"roles":["rowferry-admin"]}',
    b'{"alg":"Ed25519"}\n{"iss":"https://i","aud":["a","b"],"exp":4102444800.5,"sub":"u",'
    b'"roles":"rowferry-viewer x","nbf":5}',
)
USERS = (
    b"# people\nann:admin:scrypt$16384$8$1$c2FsdHNhbHQ=$"
    b"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n",
)
TOKENS = (b"ci:viewer:2027-01-31:sha256$" + b"ab" * 32 + b"\n", b"oneword\n")


def bearer() -> Callable[[bytes], Any]:
    """Read tokens with the right signature, whatever they say: head and claims, a line each."""
    folder = tempfile.TemporaryDirectory(prefix="rowferry-fuzz-")
    keys = Path(folder.name) / "keys.json"
    keys.write_bytes(PUBLIC)
    issuer = TokenIssuer("https://i", "a", str(keys))
    private = OKPKey.import_key(KEY).private_key

    def run(data: bytes) -> Any:
        head, _, claims = data.partition(b"\n")
        signed = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in (head, claims))
        sign = urlsafe_b64encode(private.sign(signed)).rstrip(b"=")
        return issuer.who((signed + b"." + sign).decode())

    run.folder = folder  # type: ignore[attr-defined]  # as long as the target
    return run


def logins(users: bool) -> Callable[[bytes], Any]:
    folder = tempfile.TemporaryDirectory(prefix="rowferry-fuzz-", dir=MEMORY)

    def run(data: bytes) -> Any:
        file = Path(folder.name) / str(os.getpid())
        file.write_bytes(data)
        found = KnownLogins.read(None if users else file, file if users else None)
        return len(found.users), len(found.tokens)

    return run


URI_WORDS = (b"://", b"?", b"&", b"=", b"%", b"@", b"\n")
TARGETS = (
    Target("changefeeds", FEEDS, changefeed, 1, (*URI_WORDS, *JSON_WORDS)),
    Target(
        "changefeeds in files", DECLARED, declared, 2, (b"*s", b"&s", b": ", b"\n  ", b"file://")
    ),
    Target("DDL of a log", tuple(b"\0" + one for one in LOGGED), logged, 1, SQL_WORDS),
    Target("places of a log", POSITIONS, placed, 20, (b":", b"-", b",")),
    Target(
        "references to secrets",
        (b"env:NAME", b"file:/run/x", b"vault:kv/a/b#c", b"literal:env:x", b"plain"),
        text(lambda t: str(read_reference(t, "x"))),
        40,
        (b"#", b"/", b"..", b":"),
    ),
    Target("keys of rows", KEYS, row_key, 10, (b"=", b"\n", b"0x", b"e9", b"`")),
    Target("ranges of keys", RANGES, key_range, 10, (b"..", b"[", b'"', b"]..", b",", b"[" * 99)),
    Target("logins: tokens of issuers", CLAIMS, bearer(), 4, (*JSON_WORDS, b"[" * 99)),
    Target(
        "logins: keys of issuers",
        (PUBLIC,),
        text(lambda t: len(_key_set(t, "x").keys)),
        4,
        JSON_WORDS,
    ),
    Target("logins: users", USERS, logins(True), 4, (b":", b"$", b"\n", b"#")),
    Target("logins: tokens", TOKENS, logins(False), 4, (b":", b"$", b"\n", b"never")),
)
