"""Certificates: of the server and its clients, and what happens when their files change."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from front_kit import ABOUT, PATIENCE_S

from rowferry.control.operator.operations import Operations
from rowferry.face import fresh, rpc
from rowferry.face.gate import Tls
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.testing.servers.certificates import Certificates
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire.subscribe_pb2_grpc import SubscriptionsStub


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "EVERY_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name in ("old", "new"):
        Certificates.make(tmp_path / name)
    put(tmp_path, "old")
    yield tmp_path


def put(folder: Path, name: str) -> None:
    """Let the server's files be those of one authority."""
    for file in ("ca.pem", "server.pem"):
        (folder / "half").write_bytes((folder / name / file).read_bytes())
        os.replace(folder / "half", folder / file)


def tls(folder: Path, clients: bool) -> Tls:
    server = folder / "server.pem"
    return Tls(server, server, folder / "ca.pem" if clients else None)


def trusting(folder: Path, name: str, known: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / name / "ca.pem"))
    if known:
        context.load_cert_chain(folder / known / "client.pem", folder / known / "client_key.pem")
    return context


def answers(address: str, context: ssl.SSLContext) -> bool:
    """Return whether a server that is trusted lets us in."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as talk:
                talk.sendall(
                    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                return talk.recv(100).startswith(b"HTTP/1.1 200")
        except (ssl.SSLError, ConnectionError):
            return False


def test_rest_uses_the_files_as_they_are(
    operations: Operations, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(create_app(operations, ABOUT), "127.0.0.1:0", tls(folder, False)) as serving:
        assert answers(serving.address, trusting(folder, "old"))
        put(folder, "new")
        assert answers(serving.address, trusting(folder, "new"))
        assert not answers(serving.address, trusting(folder, "old"))
        (folder / "server.pem").write_text("half a file")
        with caplog.at_level(logging.ERROR):
            assert answers(serving.address, trusting(folder, "new"))
        assert "what it said before counts" in caplog.text


def test_rest_knows_its_clients_by_the_newest_authority(
    operations: Operations, folder: Path
) -> None:
    with serve(create_app(operations, ABOUT), "127.0.0.1:0", tls(folder, True)) as serving:
        assert answers(serving.address, trusting(folder, "old", "old"))
        assert not answers(serving.address, trusting(folder, "old"))
        assert not answers(serving.address, trusting(folder, "old", "new"))
        put(folder, "new")
        assert answers(serving.address, trusting(folder, "new", "new"))
        assert not answers(serving.address, trusting(folder, "new", "old"))


def test_a_session_is_not_taken_up_again(operations: Operations, folder: Path) -> None:
    with serve(create_app(operations, ABOUT), "127.0.0.1:0", tls(folder, True)) as serving:
        host, _, port = serving.address.rpartition(":")
        context = trusting(folder, "old", "old")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection((host, int(port)), PATIENCE_S) as plain:
            with context.wrap_socket(plain, server_hostname=host) as talk:
                session = talk.session
        with socket.create_connection((host, int(port)), PATIENCE_S) as plain:
            with context.wrap_socket(plain, server_hostname=host, session=session) as talk:
                assert not talk.session_reused


def test_calls_use_the_files_as_they_are(operations: Operations, folder: Path) -> None:
    def code(serving: rpc.RpcServing, server: str, client: str) -> grpc.StatusCode:
        pem = {n: (folder / client / f"{n}.pem").read_bytes() for n in ("client", "client_key")}
        credentials = grpc.ssl_channel_credentials(
            (folder / server / "ca.pem").read_bytes(), pem["client_key"], pem["client"]
        )
        with grpc.secure_channel(serving.address, credentials) as channel:
            stub = SubscriptionsStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as told:
                stub.UnsubscribeCDC(wire.UnsubscribeCDCRequest(subscriber_name="x"), timeout=60)
            found: grpc.StatusCode = told.value.code()  # type: ignore[attr-defined]
            return found

    there, away = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE
    with rpc.serve(operations, "127.0.0.1:0", tls(folder, True)) as serving:
        assert code(serving, "old", "old") is there
        assert code(serving, "old", "new") is away
        put(folder, "new")
        assert code(serving, "new", "new") is there
        assert code(serving, "new", "old") is away
        assert code(serving, "old", "new") is away
