"""What others compressed or answer: never more in memory than it may be, and one clear error."""

from __future__ import annotations

import gzip
import http.server
import io
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore
from sqlalchemy.exc import SQLAlchemyError

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.control.store import postgres_kind
from rowferry.control.store.faults import in_our_words
from rowferry.control.store.kind import kind_of
from rowferry.errors import (
    CorruptLog,
    DecodeError,
    MetaUnavailable,
    OddAnswer,
    RowRejected,
    ServerError,
    SinkDamaged,
    SinkUnwritable,
)
from rowferry.face.cli.remote import client as cli
from rowferry.flow.capture.binlog.decode import columns
from rowferry.flow.capture.binlog.frame import compressed
from rowferry.flow.capture.range_log import client as range_log
from rowferry.flow.encode.avro import registry
from rowferry.flow.encode.parquet.reader import read_file
from rowferry.flow.sink.http.client import Receiver
from rowferry.flow.sink.http.options import read_settings as http_settings
from rowferry.flow.sink.storage import compress, object_files
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import Postgres

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


def test_a_directory_of_a_bucket_with_names_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    files = object_files.ObjectFiles(store, "s3://b", "p")
    names = [f"CDC{i:06}.csv" for i in range(1, 2001)]
    for name in names:
        obstore.put(store, f"p/d/t/{name}", b"")
    obstore.put(store, "p/d/t/meta/CDC.index", b"")
    obstore.put(store, "p/d/t2/other", b"")
    found = files.entries("d/t")
    assert [(e.name, e.is_directory) for e in found] == [
        *((n, False) for n in names),
        ("meta", True),
    ]
    monkeypatch.setattr(object_files, "MOST_NAMES", 100_000)
    with pytest.raises(
        SinkDamaged, match=r"s3://b/p/d/t has more objects than can be listed \(\d+"
    ):
        files.entries("d/t")
    files.check_writable()  # looks at no more than one page


def test_an_answer_of_a_meta_database_without_end(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_kind, "MOST_ANSWER", MOST)
    engine = kind_of(postgres_server.url("postgres"), 30.0).engine()
    try:
        with engine.connect() as connection:
            for _ in range(3):  # each answer counts for itself
                whole = connection.exec_driver_sql(f"SELECT repeat('x', {MOST // 2})").scalar_one()
                assert len(whole) == MOST // 2
            with pytest.raises(SQLAlchemyError) as said:
                connection.exec_driver_sql("SELECT repeat('x', 8192) FROM generate_series(1, 2000)")
        error = in_our_words(said.value, "meta")
        assert isinstance(error, MetaUnavailable)
        assert f"the server's answer is longer than {MOST} bytes" in str(error)
    finally:
        engine.dispose()


def test_a_text_that_a_parquet_file_holds_once_and_means_often() -> None:
    """18 KB of a dictionary and its numbers would be gigabytes of rows."""
    kinds = {"id": SqlType("bigint"), "c": SqlType("longtext")}
    shape = tuple(Column(place, name, kind) for place, (name, kind) in enumerate(kinds.items(), 1))
    table = TableSchema(TableId("d", "t"), 1, 1, shape)
    count = 2300
    once = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * 1_000_000])
    numbers = pa.array(range(count), pa.int64())
    rows = {"_op": ["insert"] * count, "_commit_ts": numbers, "_seq": numbers, "id": numbers}
    out = io.BytesIO()
    # Without Arrow's own schema a reader takes the column for one of plain texts.
    pq.write_table(
        pa.table({**rows, "c": once}),
        out,
        compression="zstd",
        dictionary_pagesize_limit=64 << 20,
        store_schema=False,
    )
    assert len(out.getvalue()) < 50_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DecodeError, match="its texts have more than"):
        list(read_file(out.getvalue(), table))
    assert pa.total_allocated_bytes() - before < 100 << 20
