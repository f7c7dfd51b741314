"""Key runs and deletion vectors: bytes that come back, keys that are told apart."""

from __future__ import annotations

import gc
import io
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowferry.errors import SinkDamaged
from rowferry.flow.sink.lake import runs
from rowferry.flow.sink.lake.data_file import read_parquet
from rowferry.flow.sink.lake.delta.deletion_vector import decode_rows, encode_rows, un_z85, z85
from rowferry.flow.sink.lake.key_filter import KeyFilter
from rowferry.flow.sink.lake.key_run import GONE, KeyRun
from rowferry.flow.sink.lake.keys import Keys, keys_of
from rowferry.flow.sink.lake.runs import RunStore, TouchedKeys
from rowferry.flow.sink.lake.shared_cache import SharedCache
from rowferry.flow.sink.storage.files import Files, Stored
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.moment import watched


def test_moments_have_one_key_in_whatever_form_they_are_stored() -> None:
    """Spark writes them in 96 bits, without a time zone."""
    moment = datetime(2024, 2, 29, 1, 2, 3, 4, UTC)
    ours = pa.table({"k": pa.array([moment], pa.timestamp("us", "UTC"))})
    content = io.BytesIO()
    pq.write_table(ours, content, use_deprecated_int96_timestamps=True)
    theirs = read_parquet(content.getvalue(), ["k"])
    keys = [keys_of([t.column("k").combine_chunks()]) for t in (ours, theirs)]
    assert keys[0].codes.tolist() == keys[1].codes.tolist()


def run_of(keys: Keys) -> KeyRun:
    made = KeyRun.make(["k"], keys, np.arange(len(keys), dtype=np.uint32))
    found = KeyRun.read(np.frombuffer(made.content(), np.uint8))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([5, -3, 9, 0, -(1 << 63), (1 << 63) - 1])],
        [pa.array(["b", "", "ß", "a" * 40, "aa", "a"])],
        [pa.array([1, 1, 2, 2, 3, 3]), pa.array(["x", "y", "x", "y", "x", "y"])],
        [
            pa.array([b"a", b"ab", b"", b"b", b"c", b"d"]),
            pa.array([b"b", b"", b"ab", b"", b"", b""]),
        ],
        [pa.array([0.0, 1.5, -2.0, 1e300, 5e-324, 7.0])],
    ],
    ids=["number", "text", "two", "bytes", "floats"],
)
def test_every_key_is_found_where_it_is(columns: list[pa.Array]) -> None:
    keys = keys_of(columns)
    run = run_of(keys)
    wanted = keys.take(np.argsort(keys.codes, kind="stable"))
    places, rows = run.look_up(wanted)
    assert sorted(places) == list(range(6)) and sorted(rows) == list(range(6))
    for place, row in zip(places, rows, strict=True):
        one = wanted.take(np.array([place]))
        assert one.codes[0] == keys.codes[row]
        if keys.texts is not None and one.texts is not None:
            assert one.texts[0] == keys.texts[int(row)]
    other = keys_of([c.slice(0, 0) for c in columns])
    assert len(run.look_up(other)[0]) == 0


def test_keys_of_one_hash_are_told_apart() -> None:
    texts = pa.array([b"first", b"second", b"third"], pa.large_binary())
    same = Keys(np.array([7, 7, 7], np.uint64), texts)
    run = run_of(same)
    wanted = Keys(np.array([7, 7], np.uint64), pa.array([b"third", b"none"], pa.large_binary()))
    places, rows = run.look_up(wanted)
    assert (list(places), list(rows)) == ([0], [2])
    again = Keys(np.array([7, 7], np.uint64), pa.array([b"second", b"new"], pa.large_binary()))
    touched = TouchedKeys([run, run_of(again)])
    assert [list(d) for d in touched.dead] == [[1], []] and len(touched.keys) == 4


@dataclass(frozen=True)
class OneFile:
    path: str


def colliding(numbers: list[int]) -> Keys:
    """Keys of which many have one hash."""
    texts = pa.array([b"%d" % n for n in numbers], pa.large_binary())
    return Keys(np.array([n % 7 << 40 for n in numbers], np.uint64), texts)


def decimals(numbers: list[int]) -> Keys:
    """Keys of whole numbers, and of others where a negative one is among them."""
    return keys_of([pa.array(numbers, pa.int64()).cast(pa.decimal128(20, 0))])


MAKERS: dict[str, Callable[[list[int]], Keys]] = {
    "number": lambda numbers: keys_of([pa.array(numbers, pa.int64())]),
    "text": lambda numbers: keys_of([pa.array([f"k{n}" for n in numbers], pa.string())]),
    "two": lambda numbers: keys_of(
        [pa.array(numbers, pa.int64()), pa.array([str(n % 3) for n in numbers], pa.string())]
    ),
    "collisions": colliding,
    "decimals": decimals,
}


@pytest.mark.parametrize("cost", [0, 3, 1 << 30], ids=["plain", "later", "filtered"])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_keys_are_those_of_a_dict(cost: int, kind: str, seed: int, tmp_path: Path) -> None:
    """Whether runs have filters or not, and with filters that are given up on the way."""
    random, make, files = Random(seed), MAKERS[kind], LocalFiles(tmp_path)
    files.prepare()
    lowest = random.choice([0, -5])
    content: dict[str, list[int]] = {}
    gone: dict[str, set[int]] = {}
    for n in range(5):
        size = random.choice([0, 1, 7, 60])
        numbers = [random.randrange(lowest, 400) for _ in range(size)]
        numbers = list(dict.fromkeys(numbers))
        content[str(n)] = numbers
        gone[str(n)] = {row for row in range(len(numbers)) if random.random() < 0.3}
        rows = np.arange(len(numbers), dtype=np.uint32)
        run = KeyRun.make(["k"], make(numbers), rows).content()
        files.overwrite(runs.run_path("t", str(n)), run)
    kept = SharedCache[KeyFilter](random.choice([700, 1 << 20]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "_LOOK_COSTS", cost)
        patched.setattr(runs, "_FILTERS", kept)
        store = RunStore(files, "t")
    for _ in range(3):
        numbers = random.sample(range(lowest, 500), random.choice([1, 20, 300]))
        wanted = make(numbers)
        wanted = wanted.take(np.argsort(wanted.codes, kind="stable"))
        expected: dict[str, set[int]] = {}
        left = set(numbers)
        for path in content:
            held = {n: row for row, n in enumerate(content[path]) if row not in gone[path]}
            if rows_there := {held[n] for n in left & held.keys()}:
                expected[path] = rows_there
            left -= held.keys()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(runs, "_LOOK_COSTS", cost)
            found = list(
                store.old_rows(
                    ("k",),
                    wanted,
                    map(OneFile, content),
                    lambda f: np.array(sorted(gone[f.path]), np.int64),
                )
            )
        assert {f.path: set(rows.tolist()) for f, rows in found} == expected
        assert all(np.all(rows[1:] > rows[:-1]) for _, rows in found)
        assert kept.bytes <= 5 * 520 if cost == 0 else cost == 3 or kept.bytes


def test_a_filter_lets_its_keys_pass_and_few_others() -> None:
    for kind in ("number", "text"):
        keys, others = (
            MAKERS[kind](list(range(0, 40_000, 2))),
            MAKERS[kind](list(range(1, 40_000, 2))),
        )
        run = run_of(keys)
        made = KeyFilter.of(run.names, run.keys)
        every = np.arange(20_000)
        assert len(made.passed(keys.codes, every)) == 20_000
        assert len(made.passed(others.codes, every)) < 20_000 // 30
        assert made.passed(keys.codes, every[5:9]).tolist() == [5, 6, 7, 8]


def test_a_run_whose_filter_lets_no_key_pass_is_not_read(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.prepare()
    store, keys = RunStore(files, "t"), MAKERS["text"](list(range(1000)))
    files.overwrite(runs.run_path("t", "a"), run_of(keys).content())
    wanted = keys.take(np.argsort(keys.codes, kind="stable"))
    assert len(store.look_up("a", ("k",), wanted, np.arange(1000))[0]) == 1000
    other = MAKERS["text"](list(range(2000, 2020)))
    told: list[str] = []
    with watched(told.append):
        for place in range(20):
            store._held.keep(())
            assert not len(store.look_up("a", ("k",), other, np.array([place]))[0])
    assert told.count("read key run") < 5


class Bucket:
    """As much of an object store as runs need."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads = 0

    def get(self, path: str) -> Stored | None:
        self.reads += 1
        return Stored(self.objects[path], "") if path in self.objects else None

    def overwrite(self, path: str, data: bytes) -> None:
        self.objects[path] = data

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def shown(self, path: str) -> str:
        return path


def in_bucket(bucket: Bucket, table: str, files: int) -> Keys:
    """Put the runs of data files with these keys, of texts that are long."""
    keys = keys_of([pa.array([f"{n:0200d}" for n in range(200)])])
    for n in range(files):
        run = KeyRun.make(["k"], keys, np.arange(200, dtype=np.uint32))
        bucket.overwrite(runs.run_path(table, str(n)), run.content())
    return keys.take(np.argsort(keys.codes, kind="stable"))


def test_copies_of_runs_share_one_bound_and_have_no_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = SharedCache[KeyRun](250_000)
    monkeypatch.setattr(runs, "_RUNS", kept)
    bucket, every = Bucket(), np.arange(200)
    stores = [RunStore(cast("Files", bucket), name) for name in "ab"]
    wanted = [in_bucket(bucket, name, 4) for name in "ab"]
    one = len(bucket.objects[runs.run_path("a", "0")])
    assert one > 200 * 200
    for number in [*range(4), 3, 3]:
        for store, keys in zip(stores, wanted, strict=True):
            assert len(store.look_up(str(number), ("k",), keys, every)[0]) == 200
            assert kept.bytes <= 250_000 and kept.bytes % one == 0
    assert kept.bytes == 250_000 // one * one and bucket.reads == 8
    assert not list(tmp_path.iterdir())
    stores[0].forget(["3"])
    assert stores[0]._held.get("3") is None and stores[1]._held.get("3") is not None
    del store, stores
    gc.collect()
    assert kept.bytes == 0


def test_a_run_for_which_the_disk_has_no_room_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    bucket = Bucket()
    store, keys = RunStore(cast("Files", bucket), "a"), in_bucket(bucket, "a", 1)
    for _ in range(2):
        assert len(store.look_up("0", ("k",), keys, np.arange(200))[0]) == 200
    assert bucket.reads == 2


def test_runs_in_a_directory_need_no_handles(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.prepare()
    store, keys = RunStore(files, "t"), keys_of([pa.array(range(10))])
    for n in range(30):
        files.overwrite(runs.run_path("t", str(n)), run_of(keys).content())
    before = set(os.listdir("/proc/self/fd"))
    held = [store.run(str(n), ("k",)) for n in range(30)]
    assert len(held) == 30 and len(set(os.listdir("/proc/self/fd")) - before) < 10
    assert store.run("7", ("k",)) is held[7]


def test_what_is_no_run_is_not_read() -> None:
    content = run_of(keys_of([pa.array([1, 2, 3])])).content()
    for data in (b"", content[:-1], content + b"\0", b"X" + content[1:]):
        assert KeyRun.read(np.frombuffer(data, np.uint8)) is None
    gone = KeyRun.make(["k"], keys_of([pa.array([1])]), np.array([GONE], np.uint32))
    assert KeyRun.read(np.frombuffer(gone.content(), np.uint8)).rows[0] == GONE  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "rows",
    [
        [0],
        [1, 2, 65535, 65536, 200_000],
        list(range(0, 300_000, 3)),
        [5, (1 << 32) + 5, (3 << 32) + 70_000],
    ],
    ids=["one", "few", "many", "long"],
)
def test_deletion_vectors_come_back(rows: list[int]) -> None:
    given = np.array(rows, np.int64)
    assert np.array_equal(decode_rows(encode_rows(given), "t"), given)


def test_a_vector_with_runs_is_read() -> None:
    """As others write them: one container with the runs 3..7 and 10..10, no offsets."""
    head = (1681511377).to_bytes(4, "little") + (1).to_bytes(8, "little") + bytes(4)
    cookie = (12347).to_bytes(4, "little") + b"\x01"
    about = (0).to_bytes(2, "little") + (5).to_bytes(2, "little")
    body = b"".join(n.to_bytes(2, "little") for n in (2, 3, 4, 10, 0))
    assert list(decode_rows(head + cookie + about + body, "t")) == [3, 4, 5, 6, 7, 10]


def test_what_is_no_vector_is_refused() -> None:
    for data in (b"", b"1234567890abcdef", encode_rows(np.array([1, 2]))[:-1]):
        with pytest.raises(SinkDamaged, match="t: a deletion vector cannot be read"):
            decode_rows(data, "t")


def test_texts_of_85_characters() -> None:
    data = bytes(range(16))
    assert len(z85(data)) == 20 and un_z85(z85(data)) == data
    assert z85(bytes.fromhex("864FD26FB559F75B")) == "HelloWorld"
