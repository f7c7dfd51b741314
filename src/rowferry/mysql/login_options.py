"""Options of every connection to a MySQL or MariaDB server."""

from __future__ import annotations

from datetime import timedelta

from rowferry.spec.option import Section, duration, flag, one_of, option, text


class KeyOptions(Section, section=""):
    """Whose certificates and keys a connection to a server trusts, and which are its own."""

    ssl_ca = option(
        text(), "", "File with the authorities' certificates (PEM).", uri=True, names="path"
    )
    ssl_cert = option(text(), "", "File with our own certificate (PEM).", uri=True, names="path")
    ssl_key = option(
        text(), "", "File with the key of our own certificate.", uri=True, names="path"
    )
    get_server_public_key = option(
        flag(),
        False,
        "Without TLS, encrypt the password with whatever public key the server offers: whoever "
        "stands in the server's place can then read it.",
        uri=True,
    )
    server_public_key_path = option(
        text(),
        "",
        "File with the server's public key (PEM): without TLS, at logins by "
        "`caching_sha2_password` and `sha256_password`, the password is encrypted with it, and "
        "with no other.",
        uri=True,
        names="path",
    )
    clear_password_over = option(
        one_of("tls", "verified-tls"),
        "tls",
        "Where a server may have the password itself, which MySQL 8 wants at a first login: inside "
        "any TLS, with a warning, or only where its certificate was verified.",
        uri=True,
    )


class LoginOptions(KeyOptions, section=""):
    """How to connect to a server."""

    connect_timeout = option(
        duration(), timedelta(seconds=10), "How long to wait for a connection.", uri=True
    )
    read_timeout = option(
        duration(),
        timedelta(seconds=60),
        "How long the server may stay silent before the connection is made anew; the log's "
        "connection asks for a heartbeat every third of it.",
        uri=True,
    )
    ssl_mode = option(
        one_of("disabled", "preferred", "required", "verify-ca", "verify-identity"),
        "preferred",
        "TLS: `preferred` uses it where the server offers it, `required` insists, `verify-ca` "
        "checks the server's certificate, `verify-identity` also its host name.",
        uri=True,
    )
