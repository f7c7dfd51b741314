"""Options of the MySQL/TiDB sink, and the settings that they amount to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from rowferry.errors import BadOption, BadUri, OptionsConflict
from rowferry.flow.sink.ddl_choices import commit_stamps, replaced_ddl, replacements
from rowferry.mysql.login import Login, server_address
from rowferry.mysql.login_options import KeyOptions
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    OptionShape,
    Section,
    duration,
    flag,
    matching,
    one_of,
    option,
    text,
    whole,
)
from rowferry.spec.quarantine import QuarantineOptions
from rowferry.spec.sink_traits import PlaceKeys
from rowferry.spec.uri import Uri

_ATOMICITY: Final = ("none", "table", "global")
_UPSERTS: Final = "updates are written as multi-row upserts, like inserts"
_SECOND: Final = timedelta(seconds=1)


def _capped(key: str, least: int, most: int) -> OptionShape[int]:
    """A whole number that is at least `least` (0 or 1); one above `most` counts as `most`."""
    checked, clamped = whole(), whole(least, most, clamp=True)
    bound = "greater than 0" if least else "greater than or equal to 0"

    def parse(value: Any) -> int:
        number = checked.parse(value)
        if number < least:
            raise ValueError(f"invalid {key} {number}, which must be {bound}")
        return clamped.parse(number)

    return OptionShape(clamped.words, parse, checked.parse)


class MysqlOptions(KeyOptions, section="sink.mysql-config"):
    """The options of the MySQL/TiDB sink."""

    worker_count = option(
        _capped("worker-count", 1, 1024),
        0,
        "With how many connections a task writes side by side; 0: 16, for TiDB 64.",
        uri=True,
    )
    max_txn_row = option(
        _capped("max-txn-row", 1, 2048),
        256,
        "The most rows in one statement, and about as many in one transaction.",
        uri=True,
    )
    max_multi_update_row = option(
        _capped("max-multi-update-row", 1, 256),
        40,
        "The most rows of one UPDATE with CASE.",
        uri=True,
        no_effect=_UPSERTS,
    )
    max_multi_update_row_size = option(
        _capped("max-multi-update-row-size", 0, 8192),
        1024,
        "The longest rows that one UPDATE with CASE may take.",
        uri=True,
        no_effect=_UPSERTS,
    )
    batch_dml_enable = option(
        flag(),
        True,
        "Write the net effect of each key by statements of many rows. When false, every change is "
        "a statement of its own, in the order of the log; much slower.",
        uri=True,
    )
    multi_stmt_enable = option(
        flag(), True, "Send the statements of a transaction in one go.", uri=True
    )
    exactly_once = option(
        flag(),
        False,
        "Note in each transaction how far its lane has come, so that a replay applies nothing "
        "twice. Without it a replay gives the same rows again, except in tables without a key.",
        uri=True,
    )
    meta_database = option(
        text(),
        "tidb_cdc",
        "The downstream database that holds the sink's own tables; made when missing.",
        uri=True,
        alterable=False,
    )
    create_tables = option(
        flag(),
        False,
        "Make captured tables that the downstream lacks, after the source's definition.",
        uri=True,
    )
    skip_ddl = option(
        commit_stamps(),
        (),
        "Commit-ts of DDLs that are not run here, e.g. one that the downstream refuses.",
    )
    replace_ddl = option(
        replacements(), (), "Statements to run in place of a DDL, each behind the DDL's commit-ts."
    )
    ddl_timeout = option(
        duration(_SECOND),
        timedelta(hours=24),
        "How long a DDL (a long index build) may take before the changefeed looks again.",
        uri=True,
    )
    async_ddl_timeout = option(
        duration(),
        timedelta(minutes=2),
        "How long TiCDC waits for an index build before it goes on beside it.",
        uri=True,
        no_effect="a DDL is waited for; ddl-timeout says how long",
    )
    timeout = option(
        duration(_SECOND), timedelta(seconds=10), "How long to wait for a connection.", uri=True
    )
    read_timeout = option(
        duration(_SECOND),
        timedelta(minutes=2),
        "How long to wait for the answer to a statement.",
        uri=True,
    )
    write_timeout = option(
        duration(_SECOND), timedelta(minutes=2), "How long sending a statement may take.", uri=True
    )
    time_zone = option(
        matching(r"""["']?[A-Za-z0-9_+:/-]*["']?""", "a time zone's name or offset"),
        "",
        "The session time zone in which DDLs run; empty: the downstream's own. Rows keep their "
        "moments in every zone: TIMESTAMP values are written in UTC.",
        uri=True,
    )
    tidb_txn_mode = option(
        text(),
        "pessimistic",
        "How transactions run on TiDB.",
        uri=True,
        no_effect="they are pessimistic: the fence row must be locked",
    )
    cache_prep_stmts = option(
        flag(), True, "Keep prepared statements.", uri=True, no_effect="statements are not prepared"
    )
    enable_ddl_ts = option(
        flag(),
        True,
        "Note DDLs in ddl_ts_v1.",
        uri=True,
        no_effect="DDLs are noted in a table of our own, always",
    )
    has_vector_type = option(
        flag(),
        False,
        "Write vectors as text.",
        uri=True,
        no_effect="vectors are written as the downstream reads them",
    )
    where_clause = option(
        text(), "v2", "How TiCDC writes conditions.", uri=True, no_effect="there is one form"
    )
    ssl_mode = option(
        one_of("auto", "disabled", "preferred", "required", "verify-ca", "verify-identity"),
        "auto",
        "TLS. `auto`: verify-ca where ssl-ca is given, else required for schemes with +ssl, else "
        "preferred.",
        uri=True,
    )


class SharedOptions(Section, section="sink"):
    """Options that this sink reads in the section of all sinks."""

    transaction_atomicity = option(
        one_of(*_ATOMICITY),
        "none",
        "`table`: the changes of one transaction to one table are applied in one transaction. "
        "`global`: those of all tables are, and everything is applied by one connection in the "
        "order of the log. `none`: rows are applied side by side, whatever transaction they came "
        "from.",
        uri=True,
    )
    safe_mode = option(
        flag(),
        False,
        "Write rows by REPLACE, which also removes whatever stands in their way.",
        uri=True,
    )


@dataclass(frozen=True, slots=True)
class MySqlSettings:
    """The options of one changefeed, and what they amount to together.

    Attributes:
        replaced_ddl: by commit-ts, what to run instead ("": nothing).
    """

    options: MysqlOptions
    shared: SharedOptions
    login: Login
    replaced_ddl: dict[int, str]

    @property
    def time_zone(self) -> str:
        """The session time zone of DDLs, which a URI may have in quotes; empty: the server's."""
        return self.options.time_zone.strip("\"'")

    @property
    def in_lanes(self) -> bool:
        """Whether each lane is applied by one connection, in order."""
        by_lane = self.options.exactly_once or self.shared.transaction_atomicity != "none"
        return by_lane or not self.options.batch_dml_enable


def read_settings(spec: ChangefeedSpec) -> MySqlSettings:
    """Read the sink's options.

    Raises:
        BadOption: a value that cannot be used.
        BadUri: the URI is not that of one server.
        OptionsConflict: half a client certificate, a DDL that is both skipped and replaced, or
            settings with which no row can be parked.
    """
    options = spec.options(MysqlOptions)
    replaced = replaced_ddl(options.skip_ddl, options.replace_ddl)
    shared, login = spec.options(SharedOptions), _login(spec.sink, options)
    settings = MySqlSettings(options, shared, login, replaced)
    if settings.in_lanes and spec.options(QuarantineOptions).parks:
        raise OptionsConflict(
            "on-bad-row = quarantine carries a micro-batch out again without the refused row, "
            "which exactly-once = true and batch-dml-enable = false do not allow; leave one out"
        )
    return settings


def _login(uri: Uri, options: MysqlOptions) -> Login:
    address = server_address(uri)
    if address is None:
        raise BadUri(
            f"{uri} is no MySQL sink; write {uri.scheme}://<user>:<password>@<host>:<port>/"
        )
    if uri.path not in ("", "/"):
        raise BadUri(f"{uri} names a database; tables keep their own, or get another by routing")
    if bool(options.ssl_cert) != bool(options.ssl_key):
        raise OptionsConflict("ssl-cert and ssl-key belong together; give both or none")
    mode = options.ssl_mode
    if mode == "auto":
        encrypted = uri.scheme.endswith("+ssl") or bool(options.ssl_cert)
        mode = "verify-ca" if options.ssl_ca else "required" if encrypted else "preferred"
    if mode == "disabled" and uri.scheme.endswith("+ssl"):
        raise OptionsConflict(f"ssl-mode = disabled contradicts {uri.scheme}://; keep one")
    unchecked = mode in ("disabled", "preferred") and not options.ssl_cert
    return Login(
        *address,
        user=uri.user,
        password=uri.password,
        ssl_mode=mode,
        ssl_ca="" if unchecked else options.ssl_ca,
        ssl_cert=options.ssl_cert,
        ssl_key=options.ssl_key,
        connect_timeout_s=options.timeout.total_seconds(),
        read_timeout_s=options.read_timeout.total_seconds(),
        write_timeout_s=options.write_timeout.total_seconds(),
        takes_public_key=options.get_server_public_key,
        public_key_path=options.server_public_key_path,
        clear_password_over=options.clear_password_over,
        whose="the sink",
    )


def _place_uri(parameters: Mapping[str, str]) -> str:
    host, port = parameters["mysql_host"], parameters["mysql_port"] or "3306"
    if not port.isdecimal() or int(port) > 65535:
        raise BadOption("sink.config has a mysql_port that is no port's number")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    login = quote(parameters["mysql_user"], safe="")
    if parameters["mysql_password"]:
        login += ":" + quote(parameters["mysql_password"], safe="")
    return f"mysql://{login}{'@' if login else ''}{host}:{port}/"


PLACE_KEYS: Final = PlaceKeys(
    ("mysql_host", "mysql_port", "mysql_user", "mysql_password"),
    ("mysql_host",),
    _place_uri,
    takes_tables=True,
)
