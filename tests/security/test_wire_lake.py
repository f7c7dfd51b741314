"""What lies beside the data of lake tables: whoever may write there does not get further."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rowferry.errors import SinkDamaged
from rowferry.flow.sink.lake.delta.deletion_vector import decode_rows, encode_rows
from rowferry.flow.sink.lake.delta.log import DeltaLog
from rowferry.flow.sink.lake.key_run import KeyRun
from rowferry.flow.sink.lake.keys import Keys
from rowferry.flow.sink.storage.local_files import LocalFiles

HEAD = struct.pack("<iq", 1681511377, 1) + bytes(4)


def run(ends: list[int], texts: bytes = b"abcdefgh") -> KeyRun | None:
    """Read a run of four keys whose ends are these."""
    codes = np.arange(4, dtype=np.uint64)
    held = pa.array([b"ab", b"cd", b"ef", b"gh"], pa.large_binary())
    made = KeyRun.make(("id",), Keys(codes, held), np.arange(4, dtype=np.uint32)).content()
    whole = made[: -len(texts) - 40] + np.array(ends, "<i8").tobytes() + texts
    return KeyRun.read(np.frombuffer(whole, np.uint8))


def test_a_run_of_keys_is_not_read_beyond_its_end() -> None:
    good = run([0, 2, 4, 6, 8])
    assert good and good.keys.texts and good.keys.texts.to_pylist() == [b"ab", b"cd", b"ef", b"gh"]
    for ends in (
        [0, 2, 4, 6, 1 << 40],  # behind the end of the run
        [0, 2, 4, 6, -1],
        [-64, 2, 4, 6, 8],  # in front of its beginning
        [0, 1 << 20, 4, 6, 8],
        [0, 6, 4, 6, 8],
    ):
        assert run(ends) is None  # it is derived, and made anew


@pytest.mark.parametrize("names", [b"[1]", b'"id"', b"{", b"\xff", b"[" * 20_000])
def test_names_of_a_run_that_are_none(names: bytes) -> None:
    padded = names + bytes(-len(names) % 8)
    head = struct.pack("<8sQQQ", b"RFRUN001", 0, 0xFFFFFFFF, len(names))
    assert KeyRun.read(np.frombuffer(head + padded, np.uint8)) is None


@pytest.mark.parametrize(
    "bomb",
    [
        HEAD + struct.pack("<II", 12346, 0xFFFFFFF0),
        HEAD
        + struct.pack("<I", 12347)
        + b"\x01"
        + struct.pack("<HHH", 0, 0xFFFF, 0xFFFF)
        + struct.pack("<HH", 0, 0xFFFF) * 0xFFFF,
    ],
    ids=["containers", "runs"],
)
def test_a_deletion_vector_that_grows(bomb: bytes) -> None:
    """A few bytes, or 262 KB, would be 4 GB, or 34 GB."""
    tracemalloc.start()
    try:
        with pytest.raises(SinkDamaged, match="a deletion vector cannot be read"):
            decode_rows(bomb, "t")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_rows_of_a_deletion_vector_ascend() -> None:
    rows = np.array([5, 3], np.int64)
    with pytest.raises(SinkDamaged, match="do not ascend"):
        decode_rows(encode_rows(rows), "t")


SCHEMA = json.dumps({"type": "struct", "fields": []})


@pytest.mark.parametrize("path", ["../../victim", "a/../../../victim", ".."])
def test_a_log_leads_nowhere_else(path: str, tmp_path: Path) -> None:
    """Expired files are deleted, and data files read, by names that others wrote."""
    (tmp_path / "victim").write_text("kept")
    root = tmp_path / "lake"
    (root / "d/t/_delta_log").mkdir(parents=True)
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "a", "schemaString": SCHEMA, "partitionColumns": []}},
        {"add": {"path": path, "size": 1}},
        {"remove": {"path": path, "deletionTimestamp": 1, "size": 1}},
    ]
    text = "\n".join(json.dumps(a) for a in actions)
    (root / f"d/t/_delta_log/{0:020d}.json").write_text(text)
    files = LocalFiles(root)
    files.prepare()
    named = next(iter(DeltaLog(files, "d/t").read().removed.values()))["path"]
    where = f"d/t/{named}"
    for use in (files.get, files.exists, files.delete, files.tag, files.entries):
        with pytest.raises(SinkDamaged, match="would be elsewhere"):
            use(where)
    with pytest.raises(SinkDamaged, match="would be elsewhere"):
        files.overwrite(where, b"x")
    assert (tmp_path / "victim").read_text() == "kept"
    files.overwrite("d/t..x/..y", b"x")  # names may have dots
    assert files.get("d/t..x/..y") is not None


@pytest.mark.parametrize("last", [{"version": 1, "parts": 1 << 60}, {"version": -1}, {}, []])
def test_a_checkpoint_of_many_parts(last: object, tmp_path: Path) -> None:
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    (tmp_path / "t/_delta_log/_last_checkpoint").write_text(json.dumps(last))
    log = DeltaLog(LocalFiles(tmp_path), "t")
    if isinstance(last, dict) and last.get("parts"):
        assert not log.read().exists  # its first part is not there
        return
    with pytest.raises(SinkDamaged, match="_last_checkpoint"):
        log.read()
