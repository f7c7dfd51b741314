"""Compressed data files: names, bytes that a replay repeats, and reading back."""

from __future__ import annotations

import gzip
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from object_kit import process, rows_in
from obstore.store import MemoryStore
from storage_kit import EMPLOYEE, files_in, opened, segment, slice_of

from rowferry.errors import BadOption, FileConflict, SinkDamaged
from rowferry.flow.sink.storage.compress import DataContent, nothing, uncompressed
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.flow.sink.storage.reader import StoredData, read_storage

SLICE = slice_of(EMPLOYEE)
DAY = "hr/employee/100/2023-05-09"
KINDS = {"gzip": "gz", "zstd": "zst"}


class Kept:
    """Staged content in memory."""

    def __init__(self) -> None:
        self.data = b""

    def append(self, data: bytes | memoryview) -> None:
        self.data += bytes(data)


def packed(kind: str, data: bytes, cuts: list[int]) -> bytes:
    kept = Kept()
    content = DataContent(kept, kind)  # type: ignore[arg-type]
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        content.add(memoryview(data)[begin:end])
    content.finish()
    assert content.size == len(kept.data)
    return kept.data


def rows(count: int) -> bytes:
    draw = random.Random(1)
    return b"".join(b'"I","t","d",%d,"%x"\r\n' % (n, draw.getrandbits(80)) for n in range(count))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 1000, 100_000])
def test_the_bytes_depend_on_the_content_only(kind: str, count: int) -> None:
    data = rows(count)
    whole = packed(kind, data, [])
    draw = random.Random(2)
    for _ in range(3):
        cuts = sorted(draw.randrange(len(data) + 1) for _ in range(7))
        assert packed(kind, data, cuts) == whole
    assert uncompressed(f"csv.{KINDS[kind]}", whole, "x") == data
    if kind == "gzip":
        assert gzip.decompress(whole) == data
        assert whole[4:8] == bytes(4), "no time of day"
        read = subprocess.run(["gzip", "-dc"], input=whole, capture_output=True, check=True)
        assert read.stdout == data
    if count > 1000:
        assert len(whole) < len(data) / 2
    if not count:
        assert whole == nothing(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_writes_and_its_reader_reads_compressed_files(tmp_path: Path, kind: str) -> None:
    feed = opened(tmp_path, query=f"compression={kind}")
    feed.run(segment(0, SLICE), content=b"a\nb\n")
    feed.run(segment(0, SLICE), content=b"")
    found = files_in(tmp_path)
    names = [f"CDC{n:020d}.csv.{KINDS[kind]}" for n in (1, 2)]
    assert found[f"{DAY}/meta/CDC.index"] == f"{names[1]}\n".encode()
    assert {p for p in found if "CDC0" in p} == {f"{DAY}/{n}" for n in names}
    steps = [s for s in read_storage(tmp_path) if isinstance(s, StoredData)]
    assert [s.content for s in steps] == [b"a\nb\n", b""]
    with pa.input_stream(str(tmp_path / DAY / names[0]), compression=kind) as stream:
        assert stream.read() == b"a\nb\n"


def test_a_repeated_task_finds_its_own_bytes(tmp_path: Path) -> None:
    feed = opened(tmp_path, query="compression=gzip")
    plan = feed.plan(segment(0, SLICE))
    feed.write(plan)
    (again,) = feed.write(plan)
    assert again.note is not None
    assert again.note["already"]
    assert again.bytes == len(gzip.compress(b"row\n", mtime=0))
    with pytest.raises(FileConflict):
        feed.write(plan, b"other\n")


def test_numbers_of_discarded_plans_are_whole_streams() -> None:
    store = MemoryStore()
    feed = process(store, 1, query="compression=zstd")
    lost = feed.plan(segment(0, SLICE))
    feed.write(lost, b"lost\n")
    feed.sink.discard(lost)
    feed.run(segment(0, SLICE), content=b"new\n")
    assert rows_in(store) == [b"new\n"]


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_numbers_of_discarded_plans_begin_as_every_file(kind: str) -> None:
    """A reader of csv with column names finds them in each file, or refuses it."""
    store = MemoryStore()
    feed = process(store, 1, query=f"compression={kind}")
    codec: Any = SimpleNamespace(file_head=lambda table: b"names\n")
    feed.sink._codec = codec
    lost = feed.plan(segment(0, SLICE))
    feed.write(lost, b"names\nlost\n")
    feed.sink.discard(lost)
    feed.run(segment(0, SLICE), content=b"names\nnew\n")
    assert rows_in(store) == [b"names\n", b"names\n", b"new\n"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_told_by_name(tmp_path: Path, kind: str) -> None:
    feed = opened(tmp_path, query=f"compression={kind}")
    feed.run(segment(0, SLICE))
    (path,) = tmp_path.rglob("CDC0*")
    path.write_bytes(b"not compressed at all")
    with pytest.raises(SinkDamaged, match=f"{path.name} is not {kind}"):
        list(read_storage(LocalFiles(tmp_path)))


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"none \| gzip \| zstd"):
        opened(tmp_path, query="compression=lz4")
