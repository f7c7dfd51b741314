"""Each object store: conditional writes of many at once, uploads that break, refused logins."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from object_store_kit import files_at, sink_uri

from rowferry.errors import FileConflict, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.storage import buckets, object_files
from rowferry.flow.sink.storage.files import DirectoryEntry
from rowferry.testing.servers import Minio, ObjectServer, Relay

WRITERS = 8
MB = 1 << 20


def test_of_many_that_create_one_name_one_wins(server: ObjectServer, prefix: str) -> None:
    meet = threading.Barrier(WRITERS)

    def create(number: int) -> bytes | None:
        files = files_at(sink_uri(server, prefix))
        content = b"%d" % (number // 2)  # two of them bring the same bytes
        meet.wait(120)
        try:
            files.create("a/x", content)
        except FileConflict:
            return None
        return content

    with ThreadPoolExecutor(WRITERS) as pool:
        found = [content for content in pool.map(create, range(WRITERS)) if content is not None]
    assert len(found) == 2
    stored = files_at(sink_uri(server, prefix)).get("a/x")
    assert stored is not None
    assert set(found) == {stored.data}


def test_no_swap_is_lost_when_many_count(server: ObjectServer, prefix: str) -> None:
    files_at(sink_uri(server, prefix)).create("n", b"0")

    def count(_: int) -> None:
        files = files_at(sink_uri(server, prefix))
        for _ in range(4):
            while True:
                stored = files.get("n")
                assert stored is not None
                # A text of its own, so that nobody takes another's success for its own.
                number = int(json.loads(stored.data if stored.data != b"0" else b"[0]")[0]) + 1
                text = json.dumps([number, threading.get_ident()]).encode()
                if files.swap("n", text, stored):
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    stored = files_at(sink_uri(server, prefix)).get("n")
    assert stored is not None
    assert json.loads(stored.data)[0] == 16


def test_names_lists_and_lengths(server: ObjectServer, prefix: str) -> None:
    files = files_at(sink_uri(server, prefix))
    other = files_at(sink_uri(server, f"{prefix}-more"))
    other.create("metadata", b"theirs")
    paths = [f"{name}/t/1/CDC.csv" for name in ("日本", "a b", "50%25", "%2E%2E", "x+y&z=#?*")]
    for path in paths:
        assert files.create(path, path.encode()) is True
    files.create("empty", b"")
    assert sorted(files.paths(9)) == sorted([*paths, "empty"])
    assert {e.name for e in files.entries("") if e.is_directory} == {p[:-12] for p in paths}
    assert files.entries("日本/t/1") == [DirectoryEntry("CDC.csv", False)]
    assert files.entries("none") == []
    for path in paths:
        stored = files.get(path)
        assert stored is not None
        assert stored.data == path.encode()
    assert files.create("empty", b"") is False
    for path in [*paths, "empty", "never"]:
        files.delete(path)
    assert list(files.paths(9)) == []
    assert list(other.paths(9)) == ["metadata"]


def test_an_upload_in_parts_is_as_conditional(
    server: ObjectServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_files, "_PART", 5 * MB)
    files = files_at(sink_uri(server, prefix), one_put=2 * MB)
    data = os.urandom(11 * MB)
    assert files.create("x", data) is True
    assert files.create("x", data) is False
    with pytest.raises(FileConflict):
        files.create("x", bytes(len(data)))
    assert list(files.paths(9)) == ["x"]
    stored = files.get("x")
    assert stored is not None
    assert stored.data == data


@pytest.mark.parametrize("in_parts", [False, True])
def test_an_upload_that_breaks_is_never_seen_half(
    s3_server: Minio, prefix: str, monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    monkeypatch.setattr(object_files, "_PART", 5 * MB)
    data = os.urandom(11 * MB)
    seen = files_at(sink_uri(s3_server, prefix))
    with Relay(s3_server.client_port) as relay:
        uri = sink_uri(s3_server, prefix, relay)
        files = files_at(uri, one_put=2 * MB if in_parts else 99 * MB)
        for number, sent in enumerate((100, 3 * MB, 8 * MB, 10 * MB)):
            relay.break_after(sent)
            try:
                files.create(f"x{number}", data)
            except SinkUnavailable:
                stored = seen.get(f"x{number}")
                assert stored is None or stored.data == data
                files.create(f"x{number}", data)
            assert relay.broken
            stored = seen.get(f"x{number}")
            assert stored is not None
            assert stored.data == data
        relay.lose_answers(1)
        try:
            files.create("y", data)
        except SinkUnavailable:
            files.create("y", data)
        files.sweep()
    assert sorted(seen.paths(9)) == ["x0", "x1", "x2", "x3", "y"]


def test_slow_puts_and_a_network_that_is_cut(
    server: ObjectServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(buckets.RETRIES, "max_retries", 1)
    with Relay(server.client_port) as relay:
        hasty = files_at(sink_uri(server, prefix, relay, **{"request-timeout": "300ms"}))
        relay.delay_s = 0.1
        with pytest.raises(SinkUnavailable, match=r"/slow: "):
            hasty.create("slow", os.urandom(2 * MB))
        patient = files_at(sink_uri(server, prefix, relay))
        relay.delay_s = 0.01
        data = os.urandom(MB)
        patient.create("slow but sure", data)
        relay.cut()
        with pytest.raises(SinkUnavailable, match="slow but sure"):
            patient.get("slow but sure")
        relay.heal()
        stored = patient.get("slow but sure")
        assert stored is not None
        assert stored.data == data


def test_refused_logins_and_missing_buckets_are_for_good(
    s3_server: Minio, azure_server: ObjectServer, prefix: str
) -> None:
    wrong = {"secret-access-key": "x" * 20 + "wrong"}
    for uri in (
        sink_uri(s3_server, prefix, **wrong),
        sink_uri(s3_server, prefix, **{"access-key": "nobody"}),
        sink_uri(s3_server, prefix).replace("s3://rowferry", "s3://not-made"),
        sink_uri(azure_server, prefix, **{"account-key": "d3Jvbmc="}),
    ):
        files = files_at(uri)
        for ask in (files.check_writable, lambda files=files: files.create("a", b"")):
            with pytest.raises(SinkUnwritable) as raised:
                ask()
            said = str(raised.value)
            assert "\n" not in said
            assert s3_server.password not in said
            assert "wrong" not in said


def test_tls(tmp_path: Path) -> None:
    with Minio.start_with_tls(tmp_path / "s3") as server:
        assert server.certificates is not None
        uri = server.uri("tls", ca=str(server.certificates.ca))
        assert server.endpoint.startswith("https://")
        files = files_at(uri)
        assert files.create("a", b"x")
        assert files.entries("") == [DirectoryEntry("a", False)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(buckets.RETRIES, "max_retries", 0)
            with pytest.raises(SinkUnavailable):
                files_at(server.uri("tls")).get("a")
