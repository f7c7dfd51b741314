"""What others compressed or answer: never more in memory than it may be, and one clear error."""

from __future__ import annotations

import gzip
import http.server
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from rowferry.errors import (
    CorruptLog,
    OddAnswer,
    RowRejected,
    ServerError,
    SinkDamaged,
    SinkUnwritable,
)
from rowferry.face.cli import client as cli
from rowferry.flow.capture.binlog.decode import columns
from rowferry.flow.capture.binlog.frame import compressed
from rowferry.flow.capture.range_log import client as range_log
from rowferry.flow.encode.avro import registry
from rowferry.flow.sink.http.client import Receiver
from rowferry.flow.sink.http.options import read_settings as http_settings
from rowferry.flow.sink.storage import compress, object_files
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

MOST = 1 << 20
BOMB = gzip.compress(bytes(32 << 20), 9)


# --- HTTP -----------------------------------------------------------------------------------------


@contextmanager
def answering(status: int, encoding: str, pieces: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """Serve one answer to every request; gives the server's address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            if encoding:
                self.send_header("Content-Encoding", encoding)
            self.end_headers()
            try:
                for piece in pieces():
                    self.wfile.write(piece)
            except OSError:
                pass  # the client has had enough

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def endless() -> Iterator[bytes]:
    for _ in range(256):
        yield b'{"schema":"' + bytes(65536)


def a_bomb() -> Iterator[bytes]:
    yield BOMB


def test_a_bomb_from_a_registry() -> None:
    with answering(200, "gzip", a_bomb) as url:
        found = registry.SchemaRegistry(registry.RegistryAddress(url))
        with pytest.raises(SinkUnwritable, match="schema registry .* is compressed .*, unasked"):
            found.schema(1)


def test_a_registry_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MOST_ANSWER", MOST)
    with answering(200, "", endless) as url:
        found = registry.SchemaRegistry(registry.RegistryAddress(url))
        with pytest.raises(SinkUnwritable, match=f"more than {MOST} bytes"):
            found.register("s", "{}")


def test_a_registry_that_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_WITHIN_S", 0.0)
    with answering(200, "", endless) as url:
        found = registry.SchemaRegistry(registry.RegistryAddress(url))
        with pytest.raises(SinkUnwritable, match="takes longer than 0 s"):
            found.probe()


@pytest.mark.parametrize(
    ("encoding", "pieces", "words"),
    [("gzip", a_bomb, "compressed"), ("", endless, f"more than {MOST} bytes")],
)
def test_a_server_of_ours_that_is_none(
    encoding: str,
    pieces: Callable[[], Iterator[bytes]],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "_MOST_ANSWER", MOST)
    with answering(200, encoding, pieces) as url:
        found = cli.Client(cli.Access(url))
        with pytest.raises(ServerError, match=words):
            found.get("api", "v2", "status")
        found.close()


def test_a_bomb_from_a_receiver() -> None:
    """Its words are shown as they came: nothing of them is inflated."""
    words = gzip.compress(b"inflated words" + bytes(8 << 20))
    with answering(400, "gzip", lambda: iter([words])) as url:
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec("feed", source, Uri.parse(f"{url}/?protocol=canal-json", "sink"), {})
        receiver = Receiver(http_settings(spec, ()))
        with pytest.raises(RowRejected, match="it answers 400") as found:
            receiver.send(b"{}", {})
        assert "inflated words" not in str(found.value)
        receiver.close()


# --- gRPC -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"), [(bytes(2 * MOST), f"more than {MOST} bytes"), (b"\xff" * 9, "no message")]
)
def test_a_range_master_that_is_none(
    answer: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_log, "MOST_ANSWER", MOST)

    class Everything(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: answer)

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[Everything()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        client = range_log.RangeClient(f"127.0.0.1:{port}", "test")
        try:
            with pytest.raises(OddAnswer, match=words):
                client.routes()
        finally:
            client.close()
            server.stop(None).wait()


# --- the log --------------------------------------------------------------------------------------


def maria(plain: bytes) -> bytes:
    """Return data as MariaDB compresses it in events: its length is told truly."""
    return b"\x84" + len(plain).to_bytes(4, "big") + zlib.compress(plain, 9)


def test_a_bomb_in_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "LONGEST_ROW", MOST)
    assert compressed.inflate_part(maria(bytes(MOST)), "an event") == bytes(MOST)
    with pytest.raises(CorruptLog, match=f"announces {MOST + 1} bytes; no event has more"):
        compressed.inflate_part(maria(bytes(MOST + 1)), "an event")


def test_a_bomb_in_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LONGEST_ROW", MOST)
    assert columns._inflate(maria(bytes(MOST)), 0) == bytes(MOST)
    with pytest.raises(columns.BadValue):
        columns._inflate(maria(bytes(MOST + 1)), 0)


def payload(plain: bytes) -> bytes:
    """Return a TRANSACTION_PAYLOAD event's body."""
    packed = pa.Codec("zstd").compress(plain, asbytes=True)
    fields = ((1, len(packed)), (2, 0), (3, len(plain)))
    head = b"".join(bytes([k, 9, 254]) + struct.pack("<Q", v) for k, v in fields)
    return head + b"\0" + packed


def test_an_inflated_events_length_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of a compressed transaction that says that 4 GB follow."""
    head = struct.pack("<IBIIIH", 0, 2, 1, 0xFFFFFFFF, 0, 0)
    with pytest.raises(CorruptLog, match="an event of 4294967295 bytes"):
        list(compressed.inflate_payload([payload(head + bytes(16 << 20))]))


# --- files and messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_bomb_among_the_files(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "MOST_FILE", MOST)
    suffix = compress.SUFFIXES[kind]
    whole = compress._block(kind, bytes(MOST))
    assert compress.uncompressed(f"csv{suffix}", whole, "f") == bytes(MOST)
    with pytest.raises(SinkDamaged, match=f"grows to more than {MOST} bytes"):
        compress.uncompressed(f"csv{suffix}", compress._block(kind, bytes(MOST + 1)), "f")


def test_an_object_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "MOST_FILE", MOST)
    store = MemoryStore()
    files = object_files.ObjectFiles(store, "s3://b", "")
    files.create("metadata", bytes(MOST + 1))
    with pytest.raises(SinkDamaged, match=f"s3://b/metadata has more than {MOST} bytes"):
        files.get("metadata")
