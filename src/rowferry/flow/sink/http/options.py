"""Options of the HTTP sink, and the settings that they amount to."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from rowferry.errors import BadOption, BadUri, OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import own_tables
from rowferry.spec.option import (
    Option,
    OptionTable,
    Shape,
    duration,
    flag,
    one_of,
    size,
    text,
    texts,
    whole,
)
from rowferry.spec.sink_family import family_of

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset(
    {"host", "content-type", "content-length", "content-encoding", "transfer-encoding"}
    | {"connection", "idempotency-key"}
)
_PREFIX: Final = "rowferry-"


def _is_value(value: str) -> bool:
    """Return whether a text can be a header's value."""
    return all(c == "\t" or 32 <= ord(c) < 127 or 160 <= ord(c) < 256 for c in value)


def _header_value() -> Shape[str]:
    def parse(value: Any) -> str:
        found = text().parse(value)
        if not _is_value(found):
            raise ValueError("a header's value is one line of printable Latin-1 characters")
        return found

    return Shape("text of one line", parse)


def _headers() -> Shape[tuple[str, ...]]:
    def parse(value: Any) -> tuple[str, ...]:
        found = texts().parse(value)
        for line in found:
            name, colon, rest = line.partition(":")
            if not colon or not _NAME.fullmatch(name) or not _is_value(rest):
                raise ValueError("a header is written as 'Name: value'")
            if name.lower() in _OURS or name.lower().startswith(_PREFIX):
                raise ValueError(f"the header {name} is written by the sink itself")
        return found

    return Shape('a list of headers, each as "Name: value"', parse)


MAX_BATCH_ROWS = Option(
    "max-batch-rows", whole(1, 1_000_000), 1000, "The most row changes in one request.", uri=True
)
MAX_BATCH_BYTES = Option(
    "max-batch-bytes",
    size(1024, 1 << 30),
    1 << 20,
    "The most bytes of row changes in one request, before compression. A row that is longer stops "
    "the changefeed.",
    uri=True,
)
WORKER_COUNT = Option(
    "worker-count",
    whole(1, 256),
    4,
    "Into how many lanes each table's keys are divided. Requests of one lane are sent one after "
    "the other, those of different lanes side by side.",
    uri=True,
)
COMPRESSION = Option(
    "compression", one_of("none", "gzip"), "none", "How request bodies are compressed.", uri=True
)
TIMEOUT = Option(
    "timeout",
    duration(timedelta(milliseconds=10), timedelta(minutes=10)),
    timedelta(seconds=10),
    "How long to wait for a connection, for sending, and for the answer, each.",
    uri=True,
)
MAX_RETRY = Option(
    "max-retry",
    whole(0, 100),
    3,
    "How often a request is repeated at once when the receiver refuses it for now (408, 425, 429, "
    "5xx) or drops the connection. After that, and when it does not answer in time, the "
    "changefeed waits by its own back-off.",
    uri=True,
)
BACKOFF = Option(
    "backoff",
    duration(timedelta(milliseconds=1), timedelta(minutes=1)),
    timedelta(milliseconds=200),
    "The pause before the first repetition; it doubles with each, up to `max-backoff`, and up to a "
    "quarter of it is left to chance.",
    uri=True,
)
MAX_BACKOFF = Option(
    "max-backoff",
    duration(timedelta(milliseconds=1), timedelta(minutes=10)),
    timedelta(seconds=5),
    "The longest pause between two repetitions. A receiver that asks for a longer one "
    "(Retry-After) gets it from the changefeed's own back-off.",
    uri=True,
)
AUTHORIZATION = Option(
    "authorization",
    _header_value(),
    "",
    "The Authorization header, as it is. The URI's user and password are sent as `Basic`.",
    secret=True,
)
AUTHORIZATION_ENV = Option(
    "authorization-env",
    text(),
    "",
    "The environment variable that holds the Authorization header, in every process that sends.",
)
BEARER_TOKEN = Option(
    "bearer-token",
    _header_value(),
    "",
    "A token that is sent as `Authorization: Bearer …`.",
    secret=True,
)
HEADERS = Option(
    "headers", _headers(), (), 'Further headers of each request, as ["Name: value"].', secret=True
)
SSL_CA = Option("ssl-ca", text(), "", "File with the authorities' certificates (PEM).", uri=True)
SSL_CERT = Option("ssl-cert", text(), "", "File with our own certificate (PEM).", uri=True)
SSL_KEY = Option("ssl-key", text(), "", "File with the key of our own certificate.", uri=True)
SKIP_VERIFY = Option(
    "insecure-skip-verify", flag(), False, "Trust any receiver: for tests only.", uri=True
)

HTTP_TABLE = OptionTable(
    "sink.http-config",
    (
        MAX_BATCH_ROWS,
        MAX_BATCH_BYTES,
        WORKER_COUNT,
        COMPRESSION,
        TIMEOUT,
        MAX_RETRY,
        BACKOFF,
        MAX_BACKOFF,
        AUTHORIZATION,
        AUTHORIZATION_ENV,
        BEARER_TOKEN,
        HEADERS,
        SSL_CA,
        SSL_CERT,
        SSL_KEY,
        SKIP_VERIFY,
    ),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the receiver is.

    Attributes:
        target: path and query as they are sent.
        shown: the address for people, without what may be a secret.
    """

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    shown: str


@dataclass(frozen=True, slots=True)
class Tls:
    """How the receiver is trusted, and how we prove who we are; empty: not given."""

    ca: str
    cert: str
    key: str
    skip_verify: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one changefeed, read and checked."""

    address: Address
    tls: Tls
    max_rows: int
    max_bytes: int
    lanes: int
    gzip: bool
    timeout_s: float
    max_retry: int
    backoff_s: float
    max_backoff_s: float
    headers: dict[str, str] = field(repr=False)


def read_settings(spec: ChangefeedSpec, codec_tables: Iterable[OptionTable]) -> Settings:
    """Read the HTTP sink's options; the URI's parameters that nobody declares are the receiver's.

    Raises:
        BadOption: a value that cannot be used.
        BadUri: the URI names no receiver.
        OptionsConflict: more than one Authorization, or half a client certificate.
    """
    options = spec.options(HTTP_TABLE)
    if bool(options[SSL_CERT]) != bool(options[SSL_KEY]):
        raise OptionsConflict("ssl-cert and ssl-key belong together; give both or none")
    tables = [*own_tables(family_of(spec.sink.scheme)), HTTP_TABLE, *codec_tables]
    declared = {o.key for table in tables for o in table.options if o.uri}
    return Settings(
        address=_address(spec, declared),
        tls=Tls(options[SSL_CA], options[SSL_CERT], options[SSL_KEY], options[SKIP_VERIFY]),
        max_rows=options[MAX_BATCH_ROWS],
        max_bytes=options[MAX_BATCH_BYTES],
        lanes=options[WORKER_COUNT],
        gzip=options[COMPRESSION] == "gzip",
        timeout_s=options[TIMEOUT].total_seconds(),
        max_retry=options[MAX_RETRY],
        backoff_s=options[BACKOFF].total_seconds(),
        max_backoff_s=options[MAX_BACKOFF].total_seconds(),
        headers=_all_headers(spec),
    )


def _address(spec: ChangefeedSpec, declared: set[str]) -> Address:
    uri = spec.sink
    parts = urlsplit(f"//{uri.address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise BadUri(f"the sink URI names no receiver; write it as {uri.scheme}://host:port/path")
    query = urlencode([(k, v) for k, v in uri.parameters if k not in declared], quote_via=quote)
    path = quote(uri.path or "/", safe="/:@!$&'()*+,;=~")
    return Address(
        scheme=uri.scheme,
        host=host,
        port=port or (443 if uri.scheme == "https" else 80),
        target=path + (f"?{query}" if query else ""),
        shown=f"{uri.scheme}://{uri.address}{path}",
    )


def _all_headers(spec: ChangefeedSpec) -> dict[str, str]:
    """Return the user's headers by name, Authorization among them where there is one."""
    options, uri = spec.options(HTTP_TABLE), spec.sink
    found: dict[str, str] = {}
    for line in options[HEADERS]:
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    ways = {
        HTTP_TABLE.path(AUTHORIZATION.key): options[AUTHORIZATION],
        HTTP_TABLE.path(AUTHORIZATION_ENV.key): _from_environment(options[AUTHORIZATION_ENV]),
        HTTP_TABLE.path(BEARER_TOKEN.key): _bearer(options[BEARER_TOKEN]),
        "the URI's user": _basic(uri.user, uri.password),
        HTTP_TABLE.path(HEADERS.key): next(
            (v for n, v in found.items() if n.lower() == "authorization"), ""
        ),
    }
    given = {way: value for way, value in ways.items() if value}
    if len(given) > 1:
        raise OptionsConflict(f"{' and '.join(given)} each give an Authorization; keep one")
    for value in given.values():
        found = {n: v for n, v in found.items() if n.lower() != "authorization"}
        found["Authorization"] = value
    return found


def _from_environment(name: str) -> str:
    if not name:
        return ""
    value = os.environ.get(name, "")
    if not value or not _is_value(value):
        path = HTTP_TABLE.path(AUTHORIZATION_ENV.key)
        raise BadOption(
            f"{path}: the environment variable {name} is not set, or holds no header's value, in "
            "this process; set it for the driver and for every executor"
        )
    return value


def _bearer(token: str) -> str:
    return f"Bearer {token}" if token else ""


def _basic(user: str, password: str) -> str:
    if not user and not password:
        return ""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
