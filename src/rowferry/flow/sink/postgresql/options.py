"""Options of the PostgreSQL sink, and the settings that they amount to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from rowferry.errors import BadUri, OptionsConflict
from rowferry.flow.encode.copy_rows.options import CopyOptions
from rowferry.flow.sink.ddl_choices import commit_stamps, replaced_ddl, replacements
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Section, duration, flag, one_of, option, text, whole
from rowferry.spec.uri import Uri, host_port

SCHEMES: Final = ("postgresql", "postgresql+ssl")
_SECOND: Final = timedelta(seconds=1)
_SSL: Final = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
# As libpq calls them.
_SSL_MODES: Final = dict(
    zip(_SSL, ("disable", "prefer", "require", "verify-ca", "verify-full"), strict=True)
)


class PostgresqlOptions(Section, section="sink.postgresql-config"):
    """The options of the PostgreSQL sink."""

    worker_count = option(
        whole(1, 256), 4, "With how many connections a task writes side by side.", uri=True
    )
    max_txn_row = option(
        whole(1, 1 << 20),
        20_000,
        "The most rows of one transaction.",
        uri=True,
    )
    meta_schema = option(
        text(),
        "rowferry",
        "The schema that holds the sink's own tables; made when missing.",
        uri=True,
        alterable=False,
    )
    create_tables = option(
        flag(),
        False,
        "Make captured tables that the downstream lacks, after the source's definition.",
        uri=True,
    )
    json_type = option(
        one_of("jsonb", "json"),
        "jsonb",
        "The type of JSON columns in tables that the sink makes. `jsonb` can be compared and "
        "indexed; it keeps the values of numbers, not how they are written. `json` keeps the text.",
        uri=True,
        alterable=False,
    )
    skip_ddl = option(
        commit_stamps(),
        (),
        "Commit-ts of DDLs that are not made here, e.g. one that cannot be translated.",
    )
    replace_ddl = option(
        replacements(),
        (),
        "PostgreSQL statements to run in place of a DDL, each behind the DDL's commit-ts.",
    )
    ddl_timeout = option(
        duration(_SECOND),
        timedelta(hours=24),
        "How long a DDL (a long index build) may take before the changefeed tries again.",
        uri=True,
    )
    timeout = option(
        duration(_SECOND), timedelta(seconds=10), "How long to wait for a connection.", uri=True
    )
    read_timeout = option(
        duration(_SECOND), timedelta(minutes=2), "How long a statement may take.", uri=True
    )
    ssl_mode = option(
        one_of("auto", *_SSL),
        "auto",
        "TLS. `auto`: verify-ca where ssl-ca is given, else required for postgresql+ssl, else "
        "preferred.",
        uri=True,
    )
    ssl_ca = option(
        text(), "", "File with the authorities' certificates (PEM).", uri=True, names="path"
    )
    ssl_cert = option(text(), "", "File with our own certificate (PEM).", uri=True, names="path")
    ssl_key = option(
        text(), "", "File with the key of our own certificate.", uri=True, names="path"
    )


@dataclass(frozen=True, slots=True)
class PostgresqlLogin:
    """Where and how to connect. `str()` shows no secret."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    ssl_mode: str
    ssl_ca: str
    ssl_cert: str
    ssl_key: str
    connect_timeout_s: float
    read_timeout_s: float

    def __str__(self) -> str:
        return f"{self.user}@{host_port(self.host, self.port)}/{self.database}"

    def __repr__(self) -> str:
        return f"PostgresqlLogin({self})"


@dataclass(frozen=True, slots=True)
class PostgresqlSettings:
    """The options of one changefeed, and what they amount to together.

    Attributes:
        replaced_ddl: by commit-ts, what to run instead ("": nothing).
        zero_is_null: days that PostgreSQL does not have become NULL.
    """

    options: PostgresqlOptions
    login: PostgresqlLogin
    replaced_ddl: dict[int, str]
    zero_is_null: bool


def read_settings(spec: ChangefeedSpec) -> PostgresqlSettings:
    """Read the sink's options.

    Raises:
        BadOption: a value that cannot be used.
        BadUri: the URI is not that of one database of one server.
        OptionsConflict: half a client certificate, or a DDL that is both skipped and replaced.
    """
    options = spec.options(PostgresqlOptions)
    replaced = replaced_ddl(options.skip_ddl, options.replace_ddl)
    zero_is_null = spec.options(CopyOptions).zero_dates == "null"
    return PostgresqlSettings(options, login_of(spec.sink, options), replaced, zero_is_null)


def login_of(uri: Uri, options: PostgresqlOptions) -> PostgresqlLogin:
    """Return where and how to connect.

    Raises:
        BadUri: it is not that of one database of one server.
        OptionsConflict: half a client certificate, or modes that contradict each other.
    """
    host, _, port = uri.address.rpartition(":") if ":" in uri.address else (uri.address, "", "")
    database = uri.path.strip("/")
    named = bool(host and uri.user and database) and "/" not in database
    if not named or "," in uri.address or (port and not port.isdecimal()):
        raise BadUri(
            f"{uri} is no PostgreSQL sink; write "
            f"{uri.scheme}://<user>:<password>@<host>:<port>/<database>"
        )
    if bool(options.ssl_cert) != bool(options.ssl_key):
        raise OptionsConflict("ssl-cert and ssl-key belong together; give both or none")
    encrypted = uri.scheme.endswith("+ssl")
    mode = options.ssl_mode
    if mode == "auto":
        needed = encrypted or bool(options.ssl_cert)
        mode = "verify-ca" if options.ssl_ca else "required" if needed else "preferred"
    if mode in ("disabled", "preferred") and encrypted:
        raise OptionsConflict(f"ssl-mode = {mode} contradicts {uri.scheme}://; keep one")
    if mode.startswith("verify") and not options.ssl_ca:
        raise OptionsConflict(f"ssl-mode = {mode} needs ssl-ca: whose certificates are trusted")
    return PostgresqlLogin(
        host.strip("[]"),
        int(port or 5432),
        uri.user,
        uri.password,
        database,
        _SSL_MODES[mode],
        options.ssl_ca if mode.startswith("verify") else "",
        options.ssl_cert,
        options.ssl_key,
        options.timeout.total_seconds(),
        options.read_timeout.total_seconds(),
    )
