"""Options of every connection to a MySQL or MariaDB server."""

from __future__ import annotations

from datetime import timedelta

from rowferry.spec.option import Option, duration, flag, one_of, text

CONNECT_TIMEOUT = Option(
    "connect-timeout",
    duration(),
    timedelta(seconds=10),
    "How long to wait for a connection.",
    uri=True,
)
READ_TIMEOUT = Option(
    "read-timeout",
    duration(),
    timedelta(seconds=60),
    "How long the server may stay silent before the connection is made anew; the log's connection "
    "asks for a heartbeat every third of it.",
    uri=True,
)
SSL_MODE = Option(
    "ssl-mode",
    one_of("disabled", "preferred", "required", "verify-ca", "verify-identity"),
    "preferred",
    "TLS: `preferred` uses it where the server offers it, `required` insists, `verify-ca` checks "
    "the server's certificate, `verify-identity` also its host name.",
    uri=True,
)
SSL_CA = Option(
    "ssl-ca",
    text(),
    "",
    "File with the authorities' certificates (PEM).",
    uri=True,
    names="path",
)
SSL_CERT = Option(
    "ssl-cert", text(), "", "File with our own certificate (PEM).", uri=True, names="path"
)
SSL_KEY = Option(
    "ssl-key", text(), "", "File with the key of our own certificate.", uri=True, names="path"
)
GET_PUBLIC_KEY = Option(
    "get-server-public-key",
    flag(),
    False,
    "Without TLS, encrypt the password with whatever public key the server offers: whoever stands "
    "in the server's place can then read it.",
    uri=True,
)

LOGIN_OPTIONS = (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    SSL_MODE,
    SSL_CA,
    SSL_CERT,
    SSL_KEY,
    GET_PUBLIC_KEY,
)
