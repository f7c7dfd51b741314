"""Data files as they come to a rebuild: mapped, uncompressed, fetched ahead within bounds."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from rebuild_kit import Directory

from rowferry.downstream.rebuild import content
from rowferry.downstream.rebuild.content import contents
from rowferry.downstream.rebuild.table import plan_tables, rebuild_here, rebuild_within
from rowferry.errors import SinkDamaged
from rowferry.flow.sink.storage.files import Files, Stored
from rowferry.flow.sink.storage.local_files import LocalFiles

SHORT, LONG = b"a,b\r\n", b"0123456789abcdef" * 100_000
FORMS = {
    "csv": bytes,
    "csv.gz": lambda data: gzip.compress(data[:700_000]) + gzip.compress(data[700_000:]),
    "csv.zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
}


class Bucket:
    """Objects that are given when the test says so; counts those under way or not yet taken."""

    def __init__(self, objects: dict[str, bytes], parallel: int = 8) -> None:
        self.objects, self.parallel = objects, parallel
        self.asked: list[str] = []
        self._guard = threading.Lock()

    def shown(self, path: str) -> str:
        return f"s3://b/{path}"

    def get(self, path: str) -> Stored | None:
        with self._guard:
            self.asked.append(path)
        return Stored(self.objects[path], "") if path in self.objects else None


def taken(files: Any, paths: list[str], **more: int) -> list[bytes]:
    return [bytes(data[:]) for data in contents(cast("Files", files), paths, **more)]


@pytest.mark.parametrize("form", FORMS)
def test_files_and_objects_give_the_same_content(form: str, tmp_path: Path) -> None:
    wanted = [SHORT, LONG, b"", LONG[::-1], SHORT]
    objects = {f"CDC{n}.{form}": FORMS[form](data) for n, data in enumerate(wanted)}
    for path, data in objects.items():
        (tmp_path / path).write_bytes(data)
    assert taken(LocalFiles(tmp_path), list(objects)) == wanted
    assert taken(Bucket(objects), list(objects)) == wanted


def test_a_long_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "CDC1.csv").write_bytes(LONG)
    (found,) = contents(LocalFiles(tmp_path), ["CDC1.csv"])
    assert isinstance(found, content._Mapped)
    assert found.startswith(LONG[:20]) and not found.startswith(b"x")


def test_as_many_objects_come_ahead_as_fit() -> None:
    objects = {f"CDC{n}.csv": b"x" * 100 for n in range(40)}
    for held, ahead in ((100, 1), (399, 3), (100_000, 8)):
        bucket = Bucket(objects)
        for done, _ in enumerate(contents(cast("Files", bucket), list(objects), held), 1):
            # The one that was taken, and those ahead; the first tells how long they are.
            assert len(bucket.asked) <= done + ahead
        assert sorted(bucket.asked) == sorted(objects)


def test_who_stops_early_leaves_nothing_running() -> None:
    objects = {f"CDC{n}.csv": b"x" for n in range(40)}
    bucket, before = Bucket(objects), threading.active_count()
    found = contents(cast("Files", bucket), list(objects))
    next(found)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(bucket.asked) < len(objects)


def test_what_is_gone_or_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "CDC1.csv.gz").write_bytes(b"not compressed")
    objects = {"CDC1.csv.gz": b"not compressed"}
    for files in (LocalFiles(tmp_path), Bucket(objects)):
        with pytest.raises(SinkDamaged, match=r"CDC1\.csv\.gz is not gzip"):
            taken(files, ["CDC1.csv.gz"])
        with pytest.raises(SinkDamaged, match=r"CDC9\.csv is gone"):
            taken(files, ["CDC9.csv"])


def test_long_files_with_heads_are_rebuilt(tmp_path: Path) -> None:
    """A decoder gets a mapped file as it gets bytes."""
    place = Directory(tmp_path / "out", "output-field-header = true")
    t = place.version("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(99))", 10)
    place.rows(t, *(f'I 11 {n},"{n:090d}"' for n in range(12_000)))
    (file,) = place.root.rglob("CDC0*.csv")
    (plan,) = plan_tables(place.feed())
    head = place.feed().codec.file_head(t)
    assert head
    file.write_bytes(head + file.read_bytes())
    rows = rebuild_here(plan).sort_by("id")
    assert file.stat().st_size > 1 << 20
    assert rows.num_rows == 12_000
    assert rows.slice(11_999).to_pylist() == [{"id": 11_999, "v": f"{11_999:090d}"}]
    assert rebuild_within(plan, 1000) is None
    whole = rebuild_within(plan, 1 << 30)
    assert whole is not None and whole.num_rows == 12_000
