"""Real sockets: HTTP and HTTPS, with and without certificates of clients."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPSConnection, RemoteDisconnected
from pathlib import Path

import pytest

from rowferry.control.operator.operations import Operations
from rowferry.errors import BadOption
from rowferry.face.about import About
from rowferry.face.gate import Tls
from rowferry.face.rest.app import create_app
from rowferry.face.rest.guard import MOST_BYTES
from rowferry.face.rest.serving import serve
from rowferry.testing.servers.certificates import Certificates

ANY = "127.0.0.1:0"
ABOUT = About("127.0.0.1:8300", "0.1.0", 1_700_000_000.0, "here")


def test_an_app_is_served(operations: Operations) -> None:
    app = create_app(operations, ABOUT)
    with serve(app, ANY) as serving:
        assert serving.url == f"http://{serving.address}"
        host, port = serving.address.split(":")
        talk = HTTPConnection(host, int(port), timeout=60)
        talk.request("GET", "/health")
        answer = talk.getresponse()
        assert (answer.status, answer.read(), answer.headers["server"]) == (200, b"{}", None)
        talk.request("POST", "/api/v2/changefeeds", body=b"x" * (4 * MOST_BYTES))
        answer = talk.getresponse()
        assert answer.status == 413 and b"RF-1021" in answer.read()
        talk.close()
        with pytest.raises(BadOption, match=f"{serving.address}: cannot be used"):
            serve(app, serving.address)
    serving.close()
    with pytest.raises(ConnectionRefusedError):
        HTTPConnection(host, int(port), timeout=60).connect()


def test_tls(operations: Operations, tmp_path: Path) -> None:
    made = Certificates.make(tmp_path)
    app = create_app(operations, ABOUT)
    trusting = ssl.create_default_context(cafile=str(made.ca))
    known = ssl.create_default_context(cafile=str(made.ca))
    known.load_cert_chain(made.client, made.client_key)

    def status(address: str, context: ssl.SSLContext) -> int:
        host, port = address.split(":")
        talk = HTTPSConnection(host, int(port), context=context, timeout=60)
        try:
            talk.request("GET", "/health")
            return talk.getresponse().status
        finally:
            talk.close()

    with serve(app, ANY, Tls(made.server, made.server)) as serving:
        assert serving.url.startswith("https://")
        assert status(serving.address, trusting) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            status(serving.address, ssl.create_default_context())
    with serve(app, ANY, Tls(made.server, made.server, made.ca)) as serving:
        assert status(serving.address, known) == 200
        with pytest.raises((ssl.SSLError, RemoteDisconnected, ConnectionError)):
            status(serving.address, trusting)


def test_tls_files_are_checked_first(operations: Operations, tmp_path: Path) -> None:
    made = Certificates.make(tmp_path)
    app = create_app(operations, ABOUT)
    for wrong, words in (
        (Tls(made.server, made.client_key), "cannot be used"),
        (Tls(tmp_path / "nope", made.server), "nope"),
        (Tls(made.server, made.server, made.client_key), "the authority"),
    ):
        with pytest.raises(BadOption, match=words):
            serve(app, ANY, wrong)
