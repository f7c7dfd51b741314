"""Servers that are not the real one ask each MySQL client of the product for its password."""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from rowferry.control.store.sql_store import open_store
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.flow.sink.mysql import session as downstream
from rowferry.flow.sink.mysql.options import read_settings
from rowferry.mysql import guarded_client
from rowferry.mysql import session as upstream
from rowferry.mysql.login_options import LoginOptions
from rowferry.spec.build import build_spec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MySql
from rowferry.testing.servers.certificates import Certificates

SALT: Final = b"abcdefghijklmnopqrst"
_TLS_FLAG: Final = 0x800
_CAPABILITIES: Final = 0x1 | 0x8 | 0x200 | 0x8000 | 0x80000 | 0x200000
_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Rogue:
    """Greets like MySQL and asks for the password in one of the ways that it could.

    Attributes:
        got: all that clients have sent.
    """

    def __init__(self, asks: str, tls: ssl.SSLContext | None = None) -> None:
        self._asks, self._tls = asks, tls
        self.got: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> Rogue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                talk = self._listener.accept()[0]
                with suppress(OSError, EOFError), talk:
                    talk.settimeout(10)
                    self._serve(talk)

    def _serve(self, talk: socket.socket) -> None:
        plugin = (
            b"sha256_password" if self._asks == "greets with sha256" else b"caching_sha2_password"
        )
        flags = (_CAPABILITIES | (_TLS_FLAG if self._tls else 0)).to_bytes(4, "little")
        greeting = b"\x0a8.0.36\0" + bytes(4) + SALT[:8] + b"\0" + flags[:2] + b"\x2d\2\0"
        greeting += flags[2:] + b"\x15" + bytes(10) + SALT[8:] + b"\0" + plugin + b"\0"
        _send(talk, 0, greeting)
        if self._tls is None:
            self._ask(talk)
            return
        _receive(talk)
        with self._tls.wrap_socket(talk, server_side=True) as covered:
            self._ask(covered)

    def _ask(self, talk: socket.socket) -> None:
        number = self._hear(talk) + 1
        if self._asks in ("public key", "first login"):
            _send(talk, number, b"\1\4")  # the password is not known yet: all of it
            number = self._hear(talk) + 1
        if self._asks.startswith("mysql_") or self._asks == "dialog":
            rest = b"\4Password: " if self._asks == "dialog" else b""
            _send(talk, number, b"\xfe" + self._asks.encode() + b"\0" + rest)
            number = self._hear(talk) + 1
        # Inside TLS nobody answers its greeting by that plugin, so that it must ask.
        if self._asks == "switches to sha256" or (self._asks == "greets with sha256" and self._tls):
            _send(talk, number, b"\xfesha256_password\0" + SALT + b"\0")
            number = self._hear(talk) + 1
        if self._asks in ("public key", "switches to sha256", "greets with sha256"):
            public = _KEY.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            _send(talk, number, b"\1" + public)
            self._hear(talk)

    def _hear(self, talk: socket.socket) -> int:
        number, body = _receive(talk)
        self.got.append(body)
        return number

    def knows(self, password: str) -> bool:
        """Return whether somebody has told it the password."""
        word = password.encode()
        return any(word in body or _decrypted(body) == word for body in self.got)


def _send(talk: socket.socket, number: int, body: bytes) -> None:
    talk.sendall(len(body).to_bytes(3, "little") + bytes([number]) + body)


def _receive(talk: socket.socket) -> tuple[int, bytes]:
    head = _exactly(talk, 4)
    return head[3], _exactly(talk, int.from_bytes(head[:3], "little"))


def _exactly(talk: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = talk.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _decrypted(body: bytes) -> bytes:
    if len(body) != 256:
        return b""
    pad = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
    try:
        plain = _KEY.decrypt(body, pad)
    except ValueError:  # by another key
        return b""
    return bytes(c ^ SALT[i % len(SALT)] for i, c in enumerate(plain)).rstrip(b"\0")


# --- the clients ---------------------------------------------------------------------------------


def _source(login: str, parameters: str) -> None:
    uri = Uri.parse(f"mysql://{login}/?{parameters}", "source")
    upstream.connect(upstream.Login.of(uri, LoginOptions.read(dict(uri.parameters)))).close()


def _sink(login: str, parameters: str) -> None:
    uri = f"mysql://{login}/?{parameters}"
    spec, _ = build_spec(
        "range://127.0.0.1:1", uri, None, "feed", tables=option_tables, sinks=sink_traits
    )
    downstream.connect(read_settings(spec).login).close()


def _consume(login: str, parameters: str) -> None:
    MySqlTarget(Uri.parse(f"mysql://{login}/?{parameters}", "--apply"))


def _meta(login: str, parameters: str) -> None:
    open_store(f"mysql://{login}/meta?{parameters}").close()


CLIENTS: Final[dict[str, Callable[[str, str], None]]] = {
    "source": _source,
    "sink": _sink,
    "consume": _consume,
    "meta": _meta,
}
WAYS: Final = ["mysql_clear_password", "dialog", "mysql_old_password", "public key"]
WAYS_OF_OLD: Final = ["switches to sha256", "greets with sha256"]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    return CLIENTS[request.param]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("pem"))


@contextmanager
def rogue(asks: str, certificates: Certificates | None = None) -> Iterator[Rogue]:
    context = None
    if certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server)
    with Rogue(asks, context) as found:
        yield found


def _attempt(client: Any, found: Rogue, password: str, parameters: str = "") -> RowferryError:
    with pytest.raises(RowferryError) as said:
        client(f"ann:{password}@127.0.0.1:{found.port}", parameters)
    assert password not in str(said.value)
    return said.value


@pytest.mark.parametrize("asks", WAYS + WAYS_OF_OLD)
def test_nobody_gets_the_password_for_asking(client: Any, asks: str) -> None:
    password = secrets.token_hex(8)
    with rogue(asks) as found:
        said = _attempt(client, found, password)
    assert found.got and not found.knows(password)
    assert said.verdict is Verdict.STOP, said


@pytest.mark.parametrize("asks", ["mysql_clear_password", "dialog"])
def test_nor_over_tls_with_any_certificate(
    client: Any, asks: str, certificates: Certificates
) -> None:
    password = secrets.token_hex(8)
    with rogue(asks, certificates) as found:
        said = _attempt(client, found, password, "ssl-mode=required")
    assert found.got and not found.knows(password)
    assert "verify-identity" in str(said)


def test_a_verified_server_may_have_it_in_plain(client: Any, certificates: Certificates) -> None:
    password = secrets.token_hex(8)
    with rogue("mysql_clear_password", certificates) as found:
        _attempt(client, found, password, f"ssl-mode=verify-ca&ssl-ca={certificates.ca}")
    assert found.knows(password)


def test_a_public_key_is_taken_where_the_user_says_so(client: Any) -> None:
    password = secrets.token_hex(8)
    with rogue("public key") as found:
        _attempt(client, found, password, "ssl-mode=disabled&get-server-public-key=true")
    assert found.knows(password)


INSIDE: Final = ["first login", "switches to sha256", "greets with sha256"]


@pytest.mark.parametrize("asks", INSIDE)
def test_the_password_inside_tls_that_nobody_verified(
    client: Any,
    asks: str,
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is given, as by every client, with one warning; refused where the user asks for it."""
    monkeypatch.setattr(guarded_client, "_is_loopback", lambda address: False)
    monkeypatch.setattr(guarded_client, "_warned", set())  # an earlier server had the same port
    password = secrets.token_hex(8)
    with rogue(asks, certificates) as found:
        said = _attempt(
            client, found, password, "ssl-mode=required&clear-password-over=verified-tls"
        )
        assert found.got and not found.knows(password)
        assert said.verdict is Verdict.STOP and "verify-identity" in str(said)
        assert not caplog.records
        for _ in range(2):
            _attempt(client, found, password, "ssl-mode=required")
        assert found.knows(password)
    (warning,) = (r for r in caplog.records if "RF-1035" in r.getMessage())
    assert "verify-identity" in warning.getMessage()
    assert password not in warning.getMessage()


@pytest.mark.parametrize("asks", INSIDE)
def test_a_verified_server_or_one_on_loopback_is_not_warned_of(
    asks: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    password = secrets.token_hex(8)
    for parameters in (
        "ssl-mode=required",
        f"ssl-mode=verify-ca&ssl-ca={certificates.ca}&clear-password-over=verified-tls",
    ):
        with rogue(asks, certificates) as found:
            _attempt(_source, found, password, parameters)
        assert found.knows(password)
    assert not caplog.records


@pytest.mark.parametrize("asks", ["public key", "switches to sha256"])
def test_a_key_that_the_user_gave_is_the_only_one(
    client: Any, asks: str, certificates: Certificates, tmp_path: Path
) -> None:
    """What a server offers in its place is not used, nor is the password sent without it."""
    own = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    given = tmp_path / "public_key.pem"
    password = secrets.token_hex(8)
    for key, known in ((own, False), (_KEY.public_key(), True)):
        given.write_bytes(
            key.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        with rogue(asks) as found:
            _attempt(client, found, password, f"server-public-key-path={given}")
        assert found.got and found.knows(password) is known
    for wrong in (tmp_path / "none", Path(certificates.ca)):
        with rogue(asks) as found:
            said = _attempt(client, found, password, f"server-public-key-path={wrong}")
        assert said.verdict is Verdict.STOP and "server-public-key-path" in str(said)


def test_a_real_server_takes_the_password_by_its_key(
    client: Any, mysql_server: MySql, tmp_path: Path
) -> None:
    (_, key) = mysql_server.execute("SHOW STATUS LIKE 'Caching_sha2_password_rsa_public_key'")[0]
    (tmp_path / "key.pem").write_text(key)
    name, password = f"k{secrets.token_hex(4)}", secrets.token_hex(8)
    mysql_server.script(
        "CREATE DATABASE meta",
        f"CREATE USER '{name}'@'%' IDENTIFIED WITH caching_sha2_password BY '{password}'",
        f"GRANT ALL ON *.* TO '{name}'@'%'",
    )
    try:
        client(
            f"{name}:{password}@127.0.0.1:{mysql_server.port}",
            f"ssl-mode=disabled&server-public-key-path={tmp_path / 'key.pem'}",
        )
    finally:
        mysql_server.script(f"DROP USER '{name}'@'%'", "DROP DATABASE meta")


def test_a_real_server_lets_in_with_and_without_tls(client: Any, mysql_server: MySql) -> None:
    name, password = f"k{secrets.token_hex(4)}", secrets.token_hex(8)
    mysql_server.script(
        "CREATE DATABASE meta",
        f"CREATE USER '{name}'@'%' IDENTIFIED WITH caching_sha2_password BY '{password}'",
        f"GRANT ALL ON *.* TO '{name}'@'%'",
    )
    at = f"{name}:{password}@127.0.0.1:{mysql_server.port}"
    try:
        with pytest.raises(RowferryError, match="get-server-public-key"):
            client(at, "ssl-mode=disabled")
        client(at, "ssl-mode=disabled&get-server-public-key=true")
        mysql_server.execute("FLUSH PRIVILEGES")  # it forgets passwords that it has seen
        client(at, "")
    finally:
        mysql_server.script(f"DROP USER '{name}'@'%'", "DROP DATABASE meta")
