"""The log survives a torn tail, refuses damage, and keeps its indexes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rowferry.errors import StoreDamaged
from rowferry.refstore.storage.kernels import LOG_TAG
from rowferry.refstore.storage.logfile import RECORD_BYTES, LogFile
from rowferry.refstore.storage.pairs import Pairs
from rowferry.wire import range_cdc_pb2 as cdc


def append(log: LogFile, ts: int, keys: list[bytes], value: bytes = b"v") -> None:
    pairs = Pairs.of([(k, value) for k in keys])
    entries, ends = pairs.entries(LOG_TAG, np.full(len(keys), ts, np.uint64))
    log.append(ts - 5, ts, 0, entries, ends)


def keys_in(raw: bytes) -> list[bytes]:
    return [e.key for e in cdc.CdcPullLogResponse.FromString(raw).log_data]


def filled(folder: Path, count: int = 5) -> LogFile:
    log = LogFile(folder, fsync=False)
    for n in range(1, count + 1):
        append(log, n * 10, [b"%d-a" % n, b"%d-b" % n])
    return log


def test_pull_and_figures(tmp_path: Path) -> None:
    log = filled(tmp_path)
    raw, last = log.pull(1, 3, 1 << 20)
    assert (keys_in(raw), last) == ([b"2-a", b"2-b", b"3-a", b"3-b"], 3)
    assert log.pull(5, 9, 100) == (b"", 5)
    assert [log.pull(n, 5, 1)[1] for n in range(5)] == [1, 2, 3, 4, 5]
    assert [log.index_at(ts) for ts in (0, 9, 10, 35, 50, 99)] == [0, 0, 1, 3, 5, 5]
    figures = log.figures(1, 4, 1)
    assert (figures.entries, figures.bytes) == (6, len(log.pull(1, 4, 1 << 20)[0]))
    assert [(i, ts) for i, ts, _ in figures.marks] == [(2, 20), (3, 30), (4, 40)]
    assert log.commit_of(25) == 30
    assert log.commit_of(24) == 0


@pytest.mark.parametrize("lost", [1, 7, 30, 60])
def test_a_torn_tail_is_cut(tmp_path: Path, lost: int) -> None:
    filled(tmp_path).close()
    path = tmp_path / "log"
    path.write_bytes(path.read_bytes()[:-lost])
    log = LogFile(tmp_path, fsync=False)
    assert log.last_index == 4
    append(log, 60, [b"new"])
    log.close()
    again = LogFile(tmp_path, fsync=False)
    assert keys_in(again.pull(3, 9, 1 << 20)[0]) == [b"4-a", b"4-b", b"new"]


def test_damage_before_the_tail_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / "log"
    sound = path.read_bytes()
    for place in range(0, len(sound) - 120, 11):
        broken = bytearray(sound)
        broken[place] ^= 0xFF
        path.write_bytes(bytes(broken))
        with pytest.raises(StoreDamaged, match="byte"):
            LogFile(tmp_path, fsync=False)


def test_a_large_transaction_is_whole_or_absent(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    keys = [b"%06d" % n for n in range(3000)]
    append(log, 20, keys, b"x" * 300)
    assert log.last_index > 3
    raw, _ = log.pull(1, log.last_index, 1 << 30)
    assert keys_in(raw) == keys
    assert len(log.pull(1, log.last_index, RECORD_BYTES)[0]) <= RECORD_BYTES
    log.close()
    path = tmp_path / "log"
    path.write_bytes(path.read_bytes()[:-1])
    assert LogFile(tmp_path, fsync=False).last_index == 1


def test_dropping_keeps_indexes(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.drop_through(3)
    for found in (log, LogFile(tmp_path, fsync=False)):
        assert (found.base_index, found.base_ts, found.last_index) == (3, 30, 5)
        assert keys_in(found.pull(3, 9, 1 << 20)[0]) == [b"4-a", b"4-b", b"5-a", b"5-b"]
    log.drop_through(5)
    again = LogFile(tmp_path, fsync=False)
    assert (again.base_index, again.last_index, again.last_ts) == (5, 5, 50)
    append(again, 60, [b"x"])
    assert again.last_index == 6


def test_a_span_keeps_records_and_indexes(tmp_path: Path) -> None:
    log = filled(tmp_path)
    folder = tmp_path / "half"
    folder.mkdir()
    log.write_span(folder, b"2-b", b"4-b")
    half = LogFile(folder, fsync=False)
    assert half.last_index == 5
    assert [half.ts_at(n) for n in range(1, 6)] == [10, 20, 30, 40, 50]
    assert keys_in(half.pull(0, 5, 1 << 20)[0]) == [b"2-b", b"3-a", b"3-b", b"4-a"]
