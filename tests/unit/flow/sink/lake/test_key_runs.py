"""Key runs and deletion vectors: bytes that come back, keys that are told apart."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowferry.errors import SinkDamaged
from rowferry.flow.sink.lake.data_file import read_parquet
from rowferry.flow.sink.lake.delta.deletion_vector import decode_rows, encode_rows, un_z85, z85
from rowferry.flow.sink.lake.key_run import GONE, KeyRun
from rowferry.flow.sink.lake.keys import Keys, keys_of
from rowferry.flow.sink.lake.runs import TouchedKeys


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
