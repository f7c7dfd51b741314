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
from rowferry.spec.option import (
    OptionShape,
    OptionTable,
    Section,
    duration,
    flag,
    one_of,
    option,
    size,
    text,
    texts,
    whole,
)
from rowferry.spec.secrets import Hiding, secrets_of
from rowferry.spec.uri import Uri

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset(
    {"host", "content-type", "content-length", "content-encoding", "transfer-encoding"}
    | {"connection", "idempotency-key"}
)
_PREFIX: Final = "rowferry-"


def _is_value(value: str) -> bool:
    """Return whether a text can be a header's value."""
    return all(c == "\t" or 32 <= ord(c) < 127 or 160 <= ord(c) < 256 for c in value)


def _header_value() -> OptionShape[str]:
    def parse(value: Any) -> str:
        header = text().parse(value)
        if not _is_value(header):
            raise ValueError("a header's value is one line of printable Latin-1 characters")
        return header

    return OptionShape("text of one line", parse)


def _headers() -> OptionShape[tuple[str, ...]]:
    def parse(value: Any) -> tuple[str, ...]:
        lines = texts().parse(value)
        for line in lines:
            name, colon, rest = line.partition(":")
            if not colon or not _NAME.fullmatch(name) or not _is_value(rest):
                raise ValueError("a header is written as 'Name: value'")
            if name.lower() in _OURS or name.lower().startswith(_PREFIX):
                raise ValueError(f"the header {name} is written by the sink itself")
        return lines

    return OptionShape('a list of headers, each as "Name: value"', parse, kind="texts")


class HttpOptions(Section, section="sink.http-config"):
    """The options of the HTTP sink."""

    max_batch_rows = option(
        whole(1, 1_000_000), 1000, "The most row changes in one request.", uri=True
    )
    max_batch_bytes = option(
        size(1024, 1 << 30),
        1 << 20,
        "The most bytes of row changes in one request, before compression. A row that is longer "
        "stops the changefeed.",
        uri=True,
    )
    worker_count = option(
        whole(1, 256),
        4,
        "Into how many lanes each table's keys are divided. Requests of one lane are sent one "
        "after the other, those of different lanes side by side.",
        uri=True,
    )
    compression = option(
        one_of("none", "gzip"), "none", "How request bodies are compressed.", uri=True
    )
    timeout = option(
        duration(timedelta(milliseconds=10), timedelta(minutes=10)),
        timedelta(seconds=10),
        "How long to wait for a connection, for sending, and for the answer, each.",
        uri=True,
    )
    max_retry = option(
        whole(0, 100),
        3,
        "How often a request is repeated at once when the receiver refuses it for now (408, 425, "
        "429, 5xx) or drops the connection. After that, and when it does not answer in time, the "
        "changefeed waits by its own back-off.",
        uri=True,
    )
    backoff = option(
        duration(timedelta(milliseconds=1), timedelta(minutes=1)),
        timedelta(milliseconds=200),
        "The pause before the first repetition; it doubles with each, up to `max-backoff`, and up "
        "to a quarter of it is left to chance.",
        uri=True,
    )
    max_backoff = option(
        duration(timedelta(milliseconds=1), timedelta(minutes=10)),
        timedelta(seconds=5),
        "The longest pause between two repetitions. A receiver that asks for a longer one "
        "(Retry-After) gets it from the changefeed's own back-off.",
        uri=True,
    )
    authorization = option(
        _header_value(),
        "",
        "The Authorization header, as it is. The URI's user and password are sent as `Basic`.",
        secret=True,
    )
    authorization_env = option(
        text(),
        "",
        "The environment variable that holds the Authorization header, in every process that "
        "sends. A server must allow it: `--allow-env`.",
        names="env",
    )
    bearer_token = option(
        _header_value(), "", "A token that is sent as `Authorization: Bearer …`.", secret=True
    )
    headers = option(
        _headers(), (), 'Further headers of each request, as ["Name: value"].', secret=True
    )
    ssl_ca = option(
        text(), "", "File with the authorities' certificates (PEM).", uri=True, names="path"
    )
    ssl_cert = option(text(), "", "File with our own certificate (PEM).", uri=True, names="path")
    ssl_key = option(
        text(), "", "File with the key of our own certificate.", uri=True, names="path"
    )
    insecure_skip_verify = option(flag(), False, "Trust any receiver: for tests only.", uri=True)


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
class HttpSettings:
    """The options of one changefeed, and what they amount to together."""

    options: HttpOptions
    address: Address
    headers: dict[str, str] = field(repr=False)
    hiding: Hiding


def read_settings(spec: ChangefeedSpec, others: Iterable[OptionTable]) -> HttpSettings:
    """Read the HTTP sink's options; the URI's parameters that nobody declares are the receiver's.

    `others` are the tables beside its own that may have parameters there.

    Raises:
        BadOption: a value that cannot be used.
        BadUri: the URI names no receiver.
        OptionsConflict: more than one Authorization, or half a client certificate.
    """
    options = spec.options(HttpOptions)
    if bool(options.ssl_cert) != bool(options.ssl_key):
        raise OptionsConflict("ssl-cert and ssl-key belong together; give both or none")
    tables = (HttpOptions.TABLE, *others)
    declared = {o.key for table in tables for o in table.options if o.uri}
    headers = _all_headers(options, spec.sink)
    words = (part for value in headers.values() for part in (value, value.rpartition(" ")[2]))
    hiding = Hiding((*secrets_of(spec, tables), *words), (spec.sink.user,))
    return HttpSettings(options, _address(spec.sink, declared), headers, hiding)


def _address(uri: Uri, declared: set[str]) -> Address:
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


def _all_headers(options: HttpOptions, uri: Uri) -> dict[str, str]:
    """Return the user's headers by name, Authorization among them where there is one."""
    headers: dict[str, str] = {}
    for line in options.headers:
        name, _, value = line.partition(":")
        headers[name.strip()] = value.strip()
    ways = {
        HttpOptions.path(HttpOptions.authorization): options.authorization,
        HttpOptions.path(HttpOptions.authorization_env): _from_environment(
            options.authorization_env
        ),
        HttpOptions.path(HttpOptions.bearer_token): _bearer(options.bearer_token),
        "the URI's user": _basic(uri.user, uri.password),
        HttpOptions.path(HttpOptions.headers): next(
            (v for n, v in headers.items() if n.lower() == "authorization"), ""
        ),
    }
    given = {way: value for way, value in ways.items() if value}
    if len(given) > 1:
        raise OptionsConflict(f"{' and '.join(given)} each give an Authorization; keep one")
    for value in given.values():
        headers = {n: v for n, v in headers.items() if n.lower() != "authorization"}
        headers["Authorization"] = value
    return headers


def _from_environment(name: str) -> str:
    if not name:
        return ""
    value = os.environ.get(name, "")
    if not value or not _is_value(value):
        path = HttpOptions.path(HttpOptions.authorization_env)
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
