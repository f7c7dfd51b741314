"""TLS: whom the sink trusts, and how it proves who it is."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.plan import Topic
from rowferry.errors import SinkUnavailable, SinkUnwritable
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.encode.plain_json.codec import PlainJson
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.http.sink import HttpSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.receiver import HttpReceiver
from rowferry.testing.servers.certificates import Certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def receiver(made: Certificates) -> Iterator[HttpReceiver]:
    with HttpReceiver(_context(made)) as started:
        yield started


def _context(made: Certificates) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(made.server)
    return found


def _sink(receiver: HttpReceiver, host: str = "127.0.0.1", **options: Any) -> HttpSink:
    uri = Uri.parse(receiver.uri.replace("127.0.0.1", host), "sink")
    config = {"sink": {"http-config": {"max-retry": 0, **options}}}
    spec = ChangefeedSpec("feed", Uri.parse("range://127.0.0.1:1", "source"), uri, config)
    return HttpSink(spec, codec_for(PlainJson, spec))


def _use(sink: HttpSink) -> None:
    sink.probe(Owner("feed", 1))
    messages = Encoded(pa.array([b"1"], pa.large_binary()))
    sink.deliver(iter([Packet(0, 0, Topic("a.b", 4, 1024), 0, messages)]))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_trusted_authority(receiver: HttpReceiver, made: Certificates, host: str) -> None:
    _use(_sink(receiver, host, **{"ssl-ca": str(made.ca)}))
    assert [r.body for r in receiver.taken] == [b"[1]"]


def test_an_unknown_authority_stops(receiver: HttpReceiver) -> None:
    for call in (lambda s: s.probe(Owner("feed", 1)), _use):
        with pytest.raises(SinkUnwritable, match=r"certificate is not trusted.*ssl-ca"):
            call(_sink(receiver))
    messages = Encoded(pa.array([b"1"], pa.large_binary()))
    with pytest.raises(SinkUnwritable, match=r"certificate is not trusted.*ssl-ca"):
        _sink(receiver).deliver(iter([Packet(0, 0, Topic("a.b", 4, 1024), 0, messages)]))
    assert receiver.seen == []


def test_any_receiver_is_trusted_where_that_is_asked_for(receiver: HttpReceiver) -> None:
    _use(_sink(receiver, **{"insecure-skip-verify": True}))
    assert len(receiver.taken) == 1


def test_a_receiver_that_wants_a_certificate(made: Certificates) -> None:
    context = _context(made)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(made.ca)
    ours = {"ssl-cert": str(made.client), "ssl-key": str(made.client_key)}
    with HttpReceiver(context) as receiver:
        _use(_sink(receiver, **{"ssl-ca": str(made.ca)}, **ours))
        assert len(receiver.taken) == 1
        with pytest.raises(SinkUnavailable, match=r"https://127\.0\.0\.1"):
            _use(_sink(receiver, **{"ssl-ca": str(made.ca)}))


def test_files_that_cannot_be_used(receiver: HttpReceiver, tmp_path: Path) -> None:
    missing = tmp_path / "none.pem"
    with pytest.raises(SinkUnwritable, match=r"none\.pem cannot be used for TLS"):
        _sink(receiver, **{"ssl-ca": str(missing)}).probe(Owner("feed", 1))


def test_plain_text_where_tls_is_spoken(receiver: HttpReceiver) -> None:
    uri = receiver.uri.replace("https:", "http:")
    spec = ChangefeedSpec(
        "feed",
        Uri.parse("range://127.0.0.1:1", "source"),
        Uri.parse(f"{uri}?max-retry=0", "sink"),
    )
    messages = Encoded(pa.array([b"1"], pa.large_binary()))
    with pytest.raises(SinkUnavailable, match=r"http://127\.0\.0\.1"):
        HttpSink(spec, codec_for(PlainJson, spec)).deliver(
            iter([Packet(0, 0, Topic("a.b", 4, 1024), 0, messages)])
        )
