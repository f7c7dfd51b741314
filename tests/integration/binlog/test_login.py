"""Logging in to real servers: authentication, TLS, and what is said when it fails."""

from __future__ import annotations

import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rowferry.errors import BadUri, LoginRefused, RowferryError, SourceUnavailable
from rowferry.mysql.session import Login, connected, one_row, rows
from rowferry.testing.servers import MariaDb, MySql, Server


@contextmanager
def user(server: Server, plugin: str, require: str = "") -> Iterator[Login]:
    """A user of the server that logs in by this plugin, for a while."""
    name, password = f"u{secrets.token_hex(4)}", secrets.token_hex(8)
    how = f"IDENTIFIED WITH {plugin} BY '{password}'"
    if server.flavour.value == "mariadb":
        how = f"IDENTIFIED VIA {plugin} USING PASSWORD('{password}')"
    server.execute(f"CREATE USER '{name}'@'%' {how} {require}")
    try:
        yield replace(server.login, user=name, password=password)
    finally:
        server.execute(f"DROP USER '{name}'@'%'")


def cipher(login: Login) -> str:
    """Log in; return the cipher of the connection, "" when it is plain."""
    with connected(login) as connection:
        return str(one_row(connection, login, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[1])


def refusal(login: Login, kind: type[RowferryError] = LoginRefused) -> str:
    with pytest.raises(kind) as caught:
        cipher(login)
    text = str(caught.value)
    assert "\n" not in text
    assert login.password not in text
    return text


# --- authentication ------------------------------------------------------------------------------


@pytest.mark.parametrize("plugin", ["caching_sha2_password", "sha256_password"])
@pytest.mark.parametrize("ssl_mode", ["disabled", "preferred", "required"])
def test_mysql_plugins(mysql_server: MySql, plugin: str, ssl_mode: str) -> None:
    with user(mysql_server, plugin) as login:
        mysql_server.execute(
            "FLUSH PRIVILEGES"
        )  # forgets passwords: the first login is the long one
        plain = ssl_mode == "disabled"
        for _ in range(2):
            asked = replace(login, ssl_mode=ssl_mode, takes_public_key=plain)
            assert bool(cipher(asked)) == (not plain)


@pytest.mark.parametrize("plugin", ["mysql_native_password", "ed25519"])
@pytest.mark.parametrize("ssl_mode", ["disabled", "preferred", "required"])
def test_mariadb_plugins(tls_mariadb: MariaDb, plugin: str, ssl_mode: str) -> None:
    with user(tls_mariadb, plugin) as login:
        assert bool(cipher(replace(login, ssl_mode=ssl_mode))) == (ssl_mode != "disabled")


def test_values_come_as_text_in_utc(source_server: Server) -> None:
    with connected(source_server.login) as connection:
        (row,) = rows(
            connection,
            source_server.login,
            "SELECT 1, 1.50, NULL, %s, @@session.time_zone, @@session.sql_mode, x'00ff'",
            ["a'b"],
        )
    assert row == ("1", "1.50", None, "a'b", "+00:00", "", b"\x00\xff")


@pytest.mark.parametrize("ssl_mode", ["disabled", "preferred"])
def test_wrong_password(source_server: Server, ssl_mode: str) -> None:
    login = replace(
        source_server.login,
        password="not-this-one",
        ssl_mode=ssl_mode,
        takes_public_key=ssl_mode == "disabled",
    )
    assert "1045" in refusal(login)
    cipher(source_server.login)


def test_unknown_user(source_server: Server) -> None:
    assert "nobody" in refusal(replace(source_server.login, user="nobody"))


def test_locked_account(source_server: Server) -> None:
    with connected(source_server.login) as connection:
        admin = source_server.login
        rows(connection, admin, "CREATE USER 'shut'@'%' IDENTIFIED BY 'xyzzy-42' ACCOUNT LOCK")
        try:
            assert "lock" in refusal(replace(admin, user="shut", password="xyzzy-42"))
        finally:
            rows(connection, admin, "DROP USER 'shut'@'%'")


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    text = refusal(Login("127.0.0.1", port, "u", "hidden-word"), SourceUnavailable)
    assert f"127.0.0.1:{port}" in text


def test_no_such_host() -> None:
    text = refusal(Login("no-such-host.invalid", 3306, "u", "hidden-word"), SourceUnavailable)
    assert "no-such-host.invalid" in text


def test_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        login = Login("127.0.0.1", port, "u", "hidden-word", connect_timeout_s=1, read_timeout_s=1)
        assert str(port) in refusal(login, SourceUnavailable)


# --- TLS -----------------------------------------------------------------------------------------


class Authority:
    """Certificates made by openssl: an authority, and a server's at 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a")
        self.key, self.cert = folder / "server-key.pem", folder / "server.pem"
        request, names = folder / "server.csr", folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1")
        openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server"),
            *("-keyout", str(self.key), "-out", str(request)),
        )
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.ca), "-days", "2"),
            *("-CAkey", str(folder / "ca-key.pem"), "-CAcreateserial"),
            *("-extfile", str(names), "-out", str(self.cert)),
        )

    def _run(self, *words: str) -> None:
        openssl(*words, "-keyout", str(self.folder / "ca-key.pem"), "-out", str(self.ca))


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_mariadb(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDb]:
    """A MariaDB server with a certificate, and with the plugin that is not loaded by default."""
    options = [
        f"--ssl-ca={authority.ca}",
        f"--ssl-cert={authority.cert}",
        f"--ssl-key={authority.key}",
        "--plugin-load-add=auth_ed25519",
    ]
    with MariaDb.start(tmp_path_factory.mktemp("tls"), 103, options) as server:
        yield server


@pytest.fixture
def fresh_mysql(tmp_path: Path) -> Iterator[MySql]:
    with MySql.start(tmp_path, 104) as server:
        yield server


@pytest.mark.parametrize("ssl_mode", ["required", "verify-ca", "verify-identity"])
def test_mariadb_certificate_is_accepted(
    tls_mariadb: MariaDb, authority: Authority, ssl_mode: str
) -> None:
    assert cipher(replace(tls_mariadb.login, ssl_mode=ssl_mode, ssl_ca=str(authority.ca)))


@pytest.mark.parametrize("ssl_mode", ["required", "verify-ca"])
def test_mysql_certificate_is_accepted(mysql_server: MySql, ssl_mode: str) -> None:
    ca = str(mysql_server.datadir / "ca.pem")
    assert cipher(replace(mysql_server.login, ssl_mode=ssl_mode, ssl_ca=ca))


def test_a_name_that_is_not_the_certificates(mysql_server: MySql) -> None:
    ca = str(mysql_server.datadir / "ca.pem")
    text = refusal(replace(mysql_server.login, ssl_mode="verify-identity", ssl_ca=ca))
    assert "certificate" in text


def test_another_authority(mysql_server: MySql, authority: Authority) -> None:
    text = refusal(replace(mysql_server.login, ssl_mode="verify-ca", ssl_ca=str(authority.ca)))
    assert "certificate verify failed" in text and "ssl-ca" in text


def test_no_authority_trusts_nobody(mysql_server: MySql) -> None:
    assert "certificate" in refusal(replace(mysql_server.login, ssl_mode="verify-ca"))


def test_tls_is_insisted_on(mariadb_server: MariaDb) -> None:
    """This server has no certificate."""
    assert cipher(replace(mariadb_server.login, ssl_mode="preferred")) == ""
    assert "ssl-mode" in refusal(replace(mariadb_server.login, ssl_mode="required"))


def test_a_user_that_must_use_tls(mysql_server: MySql) -> None:
    with user(mysql_server, "caching_sha2_password", "REQUIRE SSL") as login:
        refusal(replace(login, ssl_mode="disabled"))
        assert cipher(replace(login, ssl_mode="preferred"))


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_server_that_insists_on_tls(
    flavour: str, tls_mariadb: MariaDb, request: pytest.FixtureRequest
) -> None:
    server = tls_mariadb if flavour == "mariadb" else request.getfixturevalue("fresh_mysql")
    # The administrator's own connection is a plain one that stays.
    server.execute("SET GLOBAL require_secure_transport = ON")
    try:
        assert "ssl-mode" in refusal(replace(server.login, ssl_mode="disabled"))
        assert cipher(replace(server.login, ssl_mode="preferred"))
    finally:
        server.execute("SET GLOBAL require_secure_transport = OFF")


@pytest.mark.parametrize("ssl_mode", ["preferred", "required"])
def test_a_client_certificate(mysql_server: MySql, ssl_mode: str) -> None:
    data = mysql_server.datadir
    with user(mysql_server, "caching_sha2_password", "REQUIRE X509") as login:
        login = replace(login, ssl_mode=ssl_mode)
        refusal(login)
        cert, key = str(data / "client-cert.pem"), str(data / "client-key.pem")
        assert cipher(replace(login, ssl_cert=cert, ssl_key=key))


def test_tls_files_that_are_none(mysql_server: MySql, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    text = refusal(replace(mysql_server.login, ssl_mode="verify-ca", ssl_ca=missing), BadUri)
    assert "ssl-ca" in text
