"""Objects as files: create if absent, compare and swap, content of any length."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from rowferry.errors import FileConflict, SinkUnavailable, SinkUnwritable, Verdict
from rowferry.flow.sink.storage import object_files
from rowferry.flow.sink.storage.files import DirectoryEntry, each
from rowferry.flow.sink.storage.object_files import ObjectFiles
from rowferry.flow.sink.storage.upload_spool import Budget, UploadSpool


@pytest.fixture
def files() -> ObjectFiles:
    return ObjectFiles(MemoryStore(), "s3://bucket", "/pre/fix/")


def test_create_is_once_and_for_all(files: ObjectFiles) -> None:
    assert files.create("a/b", b"one") is True
    assert files.create("a/b", b"one") is False
    for other in (b"two", b"one more", b""):
        with pytest.raises(FileConflict, match="s3://bucket/pre/fix/a/b exists") as raised:
            files.create("a/b", other)
        assert raised.value.verdict is Verdict.STOP
    stored = files.get("a/b")
    assert stored is not None
    assert stored.data == b"one"


def test_a_request_that_met_another_one_is_tried_again(
    files: ObjectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses one of two requests at once (409), and the other may come to nothing."""

    def refuse(*_: object, **__: object) -> None:
        raise AlreadyExistsError("409 Conflict: <Code>ConditionalRequestConflict</Code>")

    with monkeypatch.context() as patch:
        patch.setattr(object_files.obstore, "put", refuse)
        with pytest.raises(SinkUnavailable, match="s3://bucket/pre/fix/a/b: the store was at work"):
            files.create("a/b", b"one")
    assert files.create("a/b", b"one") is True


def test_swap_needs_what_it_expects(files: ObjectFiles) -> None:
    assert files.swap("x", b"1", None)
    first = files.get("x")
    assert not files.swap("x", b"2", None)
    assert files.swap("x", b"2", first)
    assert not files.swap("x", b"3", first)
    stored = files.get("x")
    assert stored is not None
    assert stored.data == b"2"
    files.delete("x")
    assert not files.swap("x", b"3", stored)
    assert files.get("x") is None


def test_a_swap_that_finds_its_own_bytes_has_succeeded(files: ObjectFiles) -> None:
    """The answer to the first request got lost, and the client sent it again."""
    files.swap("x", b"1", None)
    first = files.get("x")
    files.swap("x", b"2", first)
    assert files.swap("x", b"2", first)
    assert files.swap("x", b"2", None)


def test_a_listing_shows_this_prefix_only(files: ObjectFiles) -> None:
    store = files._store
    ObjectFiles(store, "s3://bucket", "pre/fixed").create("other", b"")
    for path in ("metadata", "db/t/1/CDC000001.csv", "db/t/1/meta/CDC.index", "db/meta/s.json"):
        files.create(path, b"x")
    assert files.entries("") == [DirectoryEntry("db", True), DirectoryEntry("metadata", False)]
    assert files.entries("db/t/1") == [
        DirectoryEntry("CDC000001.csv", False),
        DirectoryEntry("meta", True),
    ]
    assert files.entries("none") == []
    assert len(list(files.paths(9))) == 4
    assert sorted(files.paths(2)) == ["db/meta/s.json", "metadata"]
    files.delete("db/meta/s.json")
    files.delete("db/meta/s.json")
    assert not files.exists("db/meta/s.json")
    assert files.exists("metadata")


@pytest.mark.parametrize("name", ["日本", "a b", "50%25", "%2E%2E", "#?&+*", "ä~'()"])
def test_names_stay_as_they_are(files: ObjectFiles, name: str) -> None:
    files.create(f"{name}/{name}", b"x")
    assert list(files.paths(9)) == [f"{name}/{name}"]
    assert files.entries("") == [DirectoryEntry(name, True)]


@pytest.mark.parametrize("size", [0, 10, 256 << 10, (256 << 10) + 1, 9 << 20])
@pytest.mark.parametrize("in_memory", [0, 150_000, 64 << 20])
def test_content_of_any_length(files: ObjectFiles, size: int, in_memory: int) -> None:
    files._spool = UploadSpool(in_memory)
    data = os.urandom(size)
    staged = files.stage()
    for begin in range(0, size, 100_000):
        staged.append(memoryview(data)[begin : begin + 100_000])
    assert staged.create("x") is True
    assert staged.create("x") is False
    staged.abandon()
    staged.abandon()
    stored = files.get("x")
    assert stored is not None
    assert stored.data == data


def test_content_above_one_put_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "_PART", 5 << 20)
    files = ObjectFiles(MemoryStore(), "s3://bucket", "p", one_put=100_000)
    data = os.urandom(12 << 20)
    assert files.create("x", data) is True
    assert files.create("x", data) is False
    with pytest.raises(FileConflict):
        files.create("x", data[:-1] + b"?")
    assert list(files.paths(9)) == ["x"]
    stored = files.get("x")
    assert stored is not None
    assert stored.data == data


def test_staged_content_needs_one_handle_and_leaves_nothing(files: ObjectFiles) -> None:
    files._spool = spool = UploadSpool(1 << 20)
    gc.collect()  # handles that other tests left behind must not go in between
    before = len(os.listdir("/proc/self/fd"))
    staged = [files.stage(b"x" * (300 << 10)) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    for number, content in enumerate(staged):
        content.append(b"%d" % number)
    assert [c.content.whole()[-2:] for c in staged[:2]] == [b"x0", b"x1"]
    for content in staged:
        content.abandon()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert spool._free == 1 << 20


def test_a_budget_lets_no_more_in_than_it_has() -> None:
    budget, inside, most = Budget(10), [0], [0]
    guard = threading.Lock()

    def work(wanted: int) -> None:
        with budget.taking(wanted):
            with guard:
                inside[0] += min(wanted, 10)
                most[0] = max(most[0], inside[0])
            time.sleep(0.001)
            with guard:
                inside[0] -= min(wanted, 10)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 4, 99, 1, 5] * 10))
    assert inside == [0]
    assert 3 < most[0] <= 10


def test_sweep_removes_what_uploads_left(files: ObjectFiles) -> None:
    files.create("rowferry.tmp/1", b"x")
    files.create("metadata", b"x")
    files.sweep()
    assert list(files.paths(9)) == ["metadata"]


def test_each_keeps_the_order_and_tells_the_first_error(files: ObjectFiles) -> None:
    assert each(files, lambda n: n * 2, range(100)) == [n * 2 for n in range(100)]

    def fail(number: int) -> None:
        if number % 10 == 3:
            raise SinkUnavailable(str(number))

    with pytest.raises(SinkUnavailable, match="3"):
        each(files, fail, range(100))


_ANSWER = (
    "Generic S3 error: Error performing PUT http://h/b/x?sig=hidden in 1ms - "
    "Server returned non-2xx status code: {status}: <Error><Code>{code}</Code></Error>\n"
    "Debug source: Client(sig=hidden)"
)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (GenericError(_ANSWER.format(status="503", code="SlowDown")), SinkUnavailable, "SlowDown"),
        (GenericError(_ANSWER.format(status="404", code="NoSuchBucket")), SinkUnwritable, "Bucket"),
        (GenericError(_ANSWER.format(status="400", code="BadDigest")), SinkUnwritable, "BadDigest"),
        (
            GenericError(_ANSWER.format(status="400", code="RequestTimeout")),
            SinkUnavailable,
            "RequestTimeout",
        ),
        (PermissionDeniedError("no"), SinkUnwritable, "no"),
        (GenericError("GET http://h/b?sig=hidden: timed out"), SinkUnavailable, "timed out"),
        (OSError("connection reset"), SinkUnavailable, "connection reset"),
        (
            FileNotFoundError(_ANSWER.format(status="404", code="NoSuchBucket")),
            SinkUnwritable,
            "404",
        ),
    ],
)
def test_errors_are_ours_and_hide_signatures(
    files: ObjectFiles, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: Any, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(object_files.obstore, "put", fail)
    with pytest.raises(kind, match=words) as raised:
        files.overwrite("x", b"1")
    assert "hidden" not in str(raised.value)
    assert "s3://bucket/pre/fix/x" in str(raised.value)
    assert raised.value.__cause__ is None
