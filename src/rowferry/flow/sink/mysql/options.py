"""Options of the MySQL/TiDB sink, and the settings that they amount to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from rowferry.errors import BadUri, OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    Option,
    OptionTable,
    Shape,
    duration,
    flag,
    one_of,
    text,
    texts,
    whole,
)
from rowferry.spec.uri import host_port

_ATOMICITY: Final = ("none", "table", "global")
_UPSERTS: Final = "updates are written as multi-row upserts, like inserts"
_SECOND: Final = timedelta(seconds=1)


def _capped(key: str, least: int, most: int) -> Shape[int]:
    """A whole number that is at least `least` (0 or 1); one above `most` counts as `most`."""
    checked, clamped = whole(), whole(least, most, clamp=True)
    bound = "greater than 0" if least else "greater than or equal to 0"

    def parse(value: Any) -> int:
        number = checked.parse(value)
        if number < least:
            raise ValueError(f"invalid {key} {number}, which must be {bound}")
        return clamped.parse(number)

    return Shape(clamped.words, parse, checked.parse)


def _replacements() -> Shape[tuple[str, ...]]:
    def parse(value: Any) -> tuple[str, ...]:
        found = texts().parse(value)
        for one in found:
            at, _, statement = one.strip().partition(" ")
            if not at.isdecimal() or not statement.strip():
                raise ValueError("each is a commit-ts, a space and the statement to run instead")
        return found

    return Shape('a list such as ["<commit-ts> ALTER TABLE …"]', parse)


def _moments() -> Shape[tuple[str, ...]]:
    def parse(value: Any) -> tuple[str, ...]:
        given = [str(v) if type(v) is int else v for v in value] if type(value) is list else value
        found = texts().parse(given)
        if not all(one.isdecimal() for one in found):
            raise ValueError("each is the commit-ts of a DDL")
        return found

    return Shape('a list of commit-ts such as ["433305438660591626"]', parse)


WORKER_COUNT = Option(
    "worker-count",
    _capped("worker-count", 1, 1024),
    0,
    "With how many connections a task writes side by side; 0: 16, for TiDB 64.",
    uri=True,
)
MAX_TXN_ROW = Option(
    "max-txn-row",
    _capped("max-txn-row", 1, 2048),
    256,
    "The most rows in one statement, and about as many in one transaction.",
    uri=True,
)
MAX_MULTI_UPDATE_ROW = Option(
    "max-multi-update-row",
    _capped("max-multi-update-row", 1, 256),
    40,
    "The most rows of one UPDATE with CASE.",
    uri=True,
    no_effect=_UPSERTS,
)
MAX_MULTI_UPDATE_ROW_SIZE = Option(
    "max-multi-update-row-size",
    _capped("max-multi-update-row-size", 0, 8192),
    1024,
    "The longest rows that one UPDATE with CASE may take.",
    uri=True,
    no_effect=_UPSERTS,
)
BATCH_DML = Option(
    "batch-dml-enable",
    flag(),
    True,
    "Write the net effect of each key by statements of many rows. When false, every change is a "
    "statement of its own, in the order of the log; much slower.",
    uri=True,
)
MULTI_STATEMENT = Option(
    "multi-stmt-enable",
    flag(),
    True,
    "Send the statements of a transaction in one go.",
    uri=True,
)
SAFE_MODE = Option(
    "safe-mode",
    flag(),
    False,
    "Write rows by REPLACE, which also removes whatever stands in their way.",
    uri=True,
)
EXACTLY_ONCE = Option(
    "exactly-once",
    flag(),
    False,
    "Note in each transaction how far its lane has come, so that a replay applies nothing twice. "
    "Without it a replay gives the same rows again, except in tables without a key.",
    uri=True,
)
META_DATABASE = Option(
    "meta-database",
    text(),
    "tidb_cdc",
    "The downstream database that holds the sink's own tables; made when missing.",
    uri=True,
    alterable=False,
)
CREATE_TABLES = Option(
    "create-tables",
    flag(),
    False,
    "Make captured tables that the downstream lacks, after the source's definition.",
    uri=True,
)
SKIP_DDL = Option(
    "skip-ddl",
    _moments(),
    (),
    "Commit-ts of DDLs that are not run here, e.g. one that the downstream refuses.",
)
REPLACE_DDL = Option(
    "replace-ddl",
    _replacements(),
    (),
    "Statements to run in place of a DDL, each behind the DDL's commit-ts.",
)
DDL_TIMEOUT = Option(
    "ddl-timeout",
    duration(_SECOND),
    timedelta(hours=24),
    "How long a DDL (a long index build) may take before the changefeed looks again.",
    uri=True,
)
ASYNC_DDL_TIMEOUT = Option(
    "async-ddl-timeout",
    duration(),
    timedelta(minutes=2),
    "How long TiCDC waits for an index build before it goes on beside it.",
    uri=True,
    no_effect="a DDL is waited for; ddl-timeout says how long",
)
TIMEOUT = Option(
    "timeout",
    duration(_SECOND),
    timedelta(seconds=10),
    "How long to wait for a connection.",
    uri=True,
)
READ_TIMEOUT = Option(
    "read-timeout",
    duration(_SECOND),
    timedelta(minutes=2),
    "How long to wait for the answer to a statement.",
    uri=True,
)
WRITE_TIMEOUT = Option(
    "write-timeout",
    duration(_SECOND),
    timedelta(minutes=2),
    "How long sending a statement may take.",
    uri=True,
)
TIME_ZONE = Option(
    "time-zone",
    text(),
    "",
    "The session time zone in which DDLs run; empty: the downstream's own. Rows keep their moments "
    "in every zone: TIMESTAMP values are written in UTC.",
    uri=True,
)
TIDB_TXN_MODE = Option(
    "tidb-txn-mode",
    text(),
    "pessimistic",
    "How transactions run on TiDB.",
    uri=True,
    no_effect="they are pessimistic: the fence row must be locked",
)
CACHE_PREPARED = Option(
    "cache-prep-stmts",
    flag(),
    True,
    "Keep prepared statements.",
    uri=True,
    no_effect="statements are not prepared",
)
ENABLE_DDL_TS = Option(
    "enable-ddl-ts",
    flag(),
    True,
    "Note DDLs in ddl_ts_v1.",
    uri=True,
    no_effect="DDLs are noted in a table of our own, always",
)
HAS_VECTOR = Option(
    "has-vector-type",
    flag(),
    False,
    "Write vectors as text.",
    uri=True,
    no_effect="vectors are written as the downstream reads them",
)
WHERE_CLAUSE = Option(
    "where-clause",
    text(),
    "v2",
    "How TiCDC writes conditions.",
    uri=True,
    no_effect="there is one form",
)
SSL_MODE = Option(
    "ssl-mode",
    one_of("auto", "disabled", "preferred", "required", "verify-ca", "verify-identity"),
    "auto",
    "TLS. `auto`: verify-ca where ssl-ca is given, else required for schemes with +ssl, else "
    "disabled.",
    uri=True,
)
SSL_CA = Option("ssl-ca", text(), "", "File with the authorities' certificates (PEM).", uri=True)
SSL_CERT = Option("ssl-cert", text(), "", "File with our own certificate (PEM).", uri=True)
SSL_KEY = Option("ssl-key", text(), "", "File with the key of our own certificate.", uri=True)

MYSQL_TABLE = OptionTable(
    "sink.mysql-config",
    (
        WORKER_COUNT,
        MAX_TXN_ROW,
        MAX_MULTI_UPDATE_ROW,
        MAX_MULTI_UPDATE_ROW_SIZE,
        BATCH_DML,
        MULTI_STATEMENT,
        EXACTLY_ONCE,
        META_DATABASE,
        CREATE_TABLES,
        SKIP_DDL,
        REPLACE_DDL,
        DDL_TIMEOUT,
        ASYNC_DDL_TIMEOUT,
        TIMEOUT,
        READ_TIMEOUT,
        WRITE_TIMEOUT,
        TIME_ZONE,
        TIDB_TXN_MODE,
        CACHE_PREPARED,
        ENABLE_DDL_TS,
        HAS_VECTOR,
        WHERE_CLAUSE,
        SSL_MODE,
        SSL_CA,
        SSL_CERT,
        SSL_KEY,
    ),
)
ATOMICITY = Option(
    "transaction-atomicity",
    one_of(*_ATOMICITY),
    "none",
    "`table`: the changes of one transaction to one table are applied in one transaction. "
    "`global`: those of all tables are, and everything is applied by one connection in the order "
    "of the log. `none`: rows are applied side by side, whatever transaction they came from.",
    uri=True,
)
SINK_TABLE = OptionTable("sink", (ATOMICITY, SAFE_MODE))


@dataclass(frozen=True, slots=True)
class Login:
    """Where and how to connect; `str()` shows no secret. An empty `ssl_ca` trusts any server."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ssl_mode: str
    ssl_ca: str
    ssl_cert: str
    ssl_key: str
    connect_s: float
    read_s: float
    write_s: float

    def __str__(self) -> str:
        return f"{self.user}@{host_port(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one changefeed, read and checked.

    Attributes:
        workers: connections of a task; 0: as many as fit the server.
        replaced_ddl: by commit-ts, what to run instead ("": nothing).
    """

    login: Login
    workers: int
    max_rows: int
    batches: bool
    joins_statements: bool
    safe_mode: bool
    exactly_once: bool
    atomicity: str
    meta_database: str
    create_tables: bool
    replaced_ddl: dict[int, str]
    ddl_s: float
    time_zone: str

    @property
    def in_lanes(self) -> bool:
        """Whether each lane is applied by one connection, in order."""
        return self.exactly_once or self.atomicity != "none" or not self.batches


def read_settings(spec: ChangefeedSpec) -> Settings:
    """Read the sink's options.

    Raises:
        BadOption: a value that cannot be used.
        BadUri: the URI is not that of one server.
        OptionsConflict: half a client certificate, or a DDL that is both skipped and replaced.
    """
    options, shared = spec.options(MYSQL_TABLE), spec.options(SINK_TABLE)
    replaced = {int(at): "" for at in options[SKIP_DDL]}
    for one in options[REPLACE_DDL]:
        at, _, statement = one.strip().partition(" ")
        if int(at) in replaced:
            raise OptionsConflict(f"the DDL of commit-ts {at} is named twice; skip or replace it")
        replaced[int(at)] = statement.strip()
    return Settings(
        login=_login(spec),
        workers=options[WORKER_COUNT],
        max_rows=options[MAX_TXN_ROW],
        batches=options[BATCH_DML],
        joins_statements=options[MULTI_STATEMENT],
        safe_mode=shared[SAFE_MODE],
        exactly_once=options[EXACTLY_ONCE],
        atomicity=shared[ATOMICITY],
        meta_database=options[META_DATABASE],
        create_tables=options[CREATE_TABLES],
        replaced_ddl=replaced,
        ddl_s=options[DDL_TIMEOUT].total_seconds(),
        time_zone=options[TIME_ZONE].strip("\"'"),
    )


def _login(spec: ChangefeedSpec) -> Login:
    uri, options = spec.sink, spec.options(MYSQL_TABLE)
    host, _, port = uri.address.rpartition(":") if ":" in uri.address else (uri.address, "", "")
    if not host or "," in host or (port and not port.isdecimal()) or not uri.user:
        raise BadUri(
            f"{uri} is no MySQL sink; write {uri.scheme}://<user>:<password>@<host>:<port>/"
        )
    if uri.path not in ("", "/"):
        raise BadUri(f"{uri} names a database; tables keep their own, or get another by routing")
    if bool(options[SSL_CERT]) != bool(options[SSL_KEY]):
        raise OptionsConflict("ssl-cert and ssl-key belong together; give both or none")
    mode = options[SSL_MODE]
    if mode == "auto":
        encrypted = uri.scheme.endswith("+ssl") or bool(options[SSL_CERT])
        mode = "verify-ca" if options[SSL_CA] else "required" if encrypted else "disabled"
    if mode == "disabled" and uri.scheme.endswith("+ssl"):
        raise OptionsConflict(f"ssl-mode = disabled contradicts {uri.scheme}://; keep one")
    return Login(
        host=host.strip("[]"),
        port=int(port or 3306),
        user=uri.user,
        password=uri.password,
        ssl_mode=mode,
        ssl_ca=options[SSL_CA],
        ssl_cert=options[SSL_CERT],
        ssl_key=options[SSL_KEY],
        connect_s=options[TIMEOUT].total_seconds(),
        read_s=options[READ_TIMEOUT].total_seconds(),
        write_s=options[WRITE_TIMEOUT].total_seconds(),
    )
