from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rowferry.errors import FileConflict, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.storage import files as storage_files
from rowferry.flow.sink.storage import local_files, local_handles
from rowferry.flow.sink.storage.files import DirectoryEntry, each, each_fenced
from rowferry.flow.sink.storage.local_files import LocalFiles

LONG = bytes(range(256)) * 400  # more than waits in memory


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    found = LocalFiles(tmp_path / "root")
    found.prepare()
    return found


def test_create_is_once_and_for_all(files: LocalFiles) -> None:
    assert files.create("a/b/c", b"x") is True
    assert files.create("a/b/c", b"x") is False
    with pytest.raises(FileConflict, match="a/b/c exists with other content"):
        files.create("a/b/c", b"y")
    stored = files.get("a/b/c")
    assert stored is not None
    assert stored.data == b"x"
    assert files.entries("rowferry.tmp") == []


def test_swap_needs_what_it_expects(files: LocalFiles) -> None:
    assert files.swap("f", b"1", None) is True
    assert files.swap("f", b"2", None) is False
    first = files.get("f")
    assert files.swap("f", b"2", first) is True
    assert files.swap("f", b"3", first) is False
    second = files.get("f")
    assert second is not None
    assert second.data == b"2"
    files.delete("f")
    assert files.swap("f", b"3", second) is False
    assert files.get("f") is None


def test_a_rewrite_with_the_same_content_changes_the_tag(files: LocalFiles) -> None:
    files.create("f", b"1")
    first = files.get("f")
    assert files.swap("f", b"1", first) is True
    assert files.swap("f", b"2", first) is False


def test_entries_delete_and_prune(files: LocalFiles) -> None:
    files.create("d/x", b"")
    files.create("d/e/y", b"")
    assert files.entries("d") == [DirectoryEntry("e", True), DirectoryEntry("x", False)]
    assert files.entries("missing") == []
    files.prune("d/e")
    files.delete("d/e/y")
    files.delete("d/e/y")
    files.prune("d/e")
    files.prune("d/e")
    assert files.entries("d") == [DirectoryEntry("x", False)]


def test_staged_content_grows_without_a_name(files: LocalFiles) -> None:
    staged = files.stage()
    staged.append(b"ab")
    staged.append(memoryview(bytearray(b"cd")))
    assert files.entries("rowferry.tmp") == []  # what is short waits in memory
    staged.append(LONG)
    staged.append(b"ef")
    assert len(files.entries("rowferry.tmp")) == 1
    files.flush([staged])
    assert staged.create("f") is True
    staged.abandon()
    stored = files.get("f")
    assert stored is not None
    assert stored.data == b"abcd" + LONG + b"ef"
    assert files.entries("rowferry.tmp") == []


def test_short_contents_wait_in_memory_as_far_as_it_goes(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "_HELD_IN_ALL", 10)
    one, two, three = files.stage(b"12345678"), files.stage(b"abcdefgh"), files.stage(b"12")
    assert len(files.entries("rowferry.tmp")) == 1  # the second had no room
    one.abandon()
    four = files.stage(b"87654321")
    assert len(files.entries("rowferry.tmp")) == 1
    files.flush([two, three, four])
    assert [s.create(f"a/{i}") for i, s in enumerate((two, three, four))] == [True] * 3
    found = [files.get(f"a/{i}") for i in range(3)]
    assert [s.data for s in found if s] == [b"abcdefgh", b"12", b"87654321"]
    for staged in (two, three, four):
        staged.abandon()
    assert files.entries("rowferry.tmp") == []


def test_many_staged_files_hold_no_handles(files: LocalFiles) -> None:
    before = len(os.listdir("/proc/self/fd"))
    staged = [files.stage() for _ in range(50)]
    for one in staged:
        one.append(b"x")
    assert len(os.listdir("/proc/self/fd")) <= before
    for one in staged:
        one.abandon()


def test_staged_content_that_was_swept_away_does_not_come_back_torn(files: LocalFiles) -> None:
    staged = files.stage()
    staged.append(LONG)
    files.sweep()
    with pytest.raises(SinkUnavailable, match="No such file"):
        staged.append(LONG)
    with pytest.raises(SinkUnavailable):
        staged.create("f")
    staged.abandon()
    assert not files.exists("f")


def test_content_is_on_disk_before_it_has_its_name(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append((os.readlink(f"/proc/self/fd/{handle}"), files.exists("a/f")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    files.create("a/f", b"x")
    root = str(files.root)
    assert "rowferry.tmp" in seen[0][0]
    assert not seen[0][1]
    assert sorted(seen[1:]) == [(root, True), (f"{root}/a", True)]
    seen.clear()
    LocalFiles(files.root, fsync=False).create("a/g", b"x")
    assert seen == []


def test_many_files_reach_the_disk_together(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    singly: list[int] = []
    monkeypatch.setattr(os, "fsync", singly.append)
    together: list[Path] = []
    monkeypatch.setattr(local_files, "sync_file_system", together.append)
    staged = [files.stage(b"x") for _ in range(9)]
    files.flush(staged)
    assert together == [files.root]
    for number, one in enumerate(staged):
        one.create(f"d{number}/f")
    assert together == [files.root]
    files.settle()
    files.settle()
    assert together == [files.root] * 2
    assert singly == []


def test_names_that_did_not_reach_the_disk_are_brought_there_again(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next try, and by the next process that finds the file."""
    seen: list[str] = []
    fails = [True]

    def sync(place: str) -> None:
        if fails and Path(place).is_dir():
            raise OSError(errno.EIO, fails.pop() and "no luck")
        seen.append(place)

    monkeypatch.setattr(local_files, "sync", sync)
    home = str(files.root / "a")
    with pytest.raises(SinkUnavailable, match="no luck"):
        files.create("a/f", b"x")
    files.settle()
    assert {str(files.root), home} <= set(seen)
    seen.clear()
    assert not LocalFiles(files.root).create("a/f", b"x")
    assert home in seen


def test_a_whole_file_system_is_synced(files: LocalFiles) -> None:
    local_handles.sync_file_system(files.root)
    with pytest.raises(FileNotFoundError):
        local_handles.sync_file_system(files.root / "missing")


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, SinkUnavailable),
        (errno.EIO, SinkUnavailable),
        (errno.EDQUOT, SinkUnavailable),
        (errno.EROFS, SinkUnwritable),
        (errno.EACCES, SinkUnwritable),
        (errno.ENAMETOOLONG, SinkUnwritable),
    ],
)
def test_errors_of_the_system_get_their_verdict(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def write(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(error, match=os.strerror(number)):
        files.create("f", b"x")
    monkeypatch.undo()
    assert files.entries("rowferry.tmp") == []
    assert files.create("f", b"x") is True


def test_a_file_in_place_of_a_directory(files: LocalFiles) -> None:
    files.create("d", b"")
    with pytest.raises(SinkUnwritable):
        files.create("d/f", b"x")
    with pytest.raises(SinkUnwritable):
        files.get("d/f")


def test_too_long_a_name(files: LocalFiles) -> None:
    with pytest.raises(SinkUnwritable, match="too long"):
        files.create("x" * 300, b"x")


def test_each_works_at_once_and_answers_in_order(files: LocalFiles) -> None:
    together = threading.Barrier(files.parallel)

    def slowly(item: int) -> int:
        if item < files.parallel:
            together.wait(120)  # as many as that are under way at the same time
        return -item

    assert each(files, slowly, range(50)) == [-n for n in range(50)]
    assert each(files, str, []) == []


def test_each_inside_of_each_waits_for_no_free_thread(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads that there are may be busy with calls that make calls themselves."""
    few: dict[int, ThreadPoolExecutor] = {}
    monkeypatch.setattr(storage_files, "_pool", few)
    monkeypatch.setattr(storage_files, "_MOST_AT_DISK", 2)
    files.parallel = 8

    def inner(number: int) -> int:
        return sum(each(files, lambda n: n * number, range(4)))

    assert each(files, inner, range(20)) == [6 * n for n in range(20)]
    few[2].shutdown()


def test_each_raises_the_first_error_and_begins_no_more(files: LocalFiles) -> None:
    done: list[int] = []

    def fail(item: int) -> None:
        if item in (3, 4):
            raise SinkUnavailable(f"no {item}")
        done.append(item)

    with pytest.raises(SinkUnavailable, match="no 3"):
        each(files, fail, [0, 1, 2, 3])
    with pytest.raises(SinkUnavailable):
        each(files, fail, [4] * 1000 + list(range(5, 5000)))
    assert len(done) < 5000


def test_what_takes_the_lock_itself_goes_one_by_one(files: LocalFiles) -> None:
    def lock(item: int) -> int:
        assert threading.current_thread() is threading.main_thread()
        with files.locked():
            return item

    assert each_fenced(files, lock, range(9)) == list(range(9))


def test_threads_make_the_same_directories(files: LocalFiles) -> None:
    staged = [files.stage(b"x") for _ in range(200)]
    files.flush(staged)
    made = each(files, lambda n: staged[n].create(f"a/b/{n % 7}/c/{n}"), range(200))
    assert all(made)
    files.settle()
    assert sum(1 for path in files.paths(9) if path.startswith("a/")) == 200
