"""What others have written beside the data of a lake: errors that name the table, no crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.avro import file as avro_file
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent, ManifestFile, write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.types import LongType, NestedField

from rowferry.errors import SinkDamaged
from rowferry.flow.sink.lake.delta.log import DeltaLog
from rowferry.flow.sink.lake.iceberg import avro_decoder
from rowferry.flow.sink.lake.iceberg.avro_decoder import CheckedDecoder, use_checked_decoder
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.options import IcebergOptions
from rowferry.flow.sink.lake.iceberg.state import StateReader, row_snapshots
from rowferry.flow.sink.lake.stored_columns import StoredColumns
from rowferry.flow.sink.storage.local_files import LocalFiles

OURS = {"name": "id", "type": "long", "metadata": {"rowferry.column": 1}}


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        '{"fields": 5}',
        '{"fields": [5]}',
        json.dumps({"fields": [{**OURS, "name": 5}]}),
        json.dumps({"fields": [{**OURS, "metadata": {"rowferry.column": "1"}}]}),
        json.dumps({"fields": [{"name": "id", "metadata": {"rowferry.column": 1}}]}),
    ],
)
def test_what_are_no_columns(text: str) -> None:
    with pytest.raises(ValueError, match="no columns of a table"):
        StoredColumns.read(text, mapped=False, max_id=0)


def test_columns_of_somebody_else() -> None:
    for other in ({"name": "x", "type": "long"}, {"name": "x", "type": "long", "metadata": None}):
        text = json.dumps({"fields": [OURS, other]})
        assert StoredColumns.read(text, mapped=False, max_id=0) is None


# --- Delta ----------------------------------------------------------------------------------------


def log_of(root: Path, *actions: dict[str, Any]) -> DeltaLog:
    place = root / "t/_delta_log"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return DeltaLog(LocalFiles(root), "t")


METADATA = {"schemaString": json.dumps({"fields": [OURS]}), "partitionColumns": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"schemaString": "{"},
        {"schemaString": 5},
        {"configuration": {"rowferry.max-column-id": "x"}},
        {"configuration": 5},
    ],
)
def test_metadata_of_a_log(tmp_path: Path, wrong: dict[str, Any]) -> None:
    log = log_of(tmp_path, {"metaData": METADATA})
    whole = log.read()
    assert whole.columns is not None and log.state_at(0) is not None
    log_of(tmp_path, {"metaData": {**METADATA, **wrong}})
    with pytest.raises(SinkDamaged, match="does not hold what a log of Delta's holds"):
        log.read()
    with pytest.raises(SinkDamaged, match="does not hold what a log of Delta's holds"):
        log.state_at(0)


def test_a_removal_without_a_time(tmp_path: Path) -> None:
    log = log_of(
        tmp_path, {"metaData": METADATA}, {"remove": {"path": "a", "deletionTimestamp": None}}
    )
    assert [r["deletionTimestamp"] for r in log.read().removed.values()] == [0]
    log_of(tmp_path, {"metaData": METADATA}, {"remove": {"path": "a", "deletionTimestamp": "x"}})
    with pytest.raises(SinkDamaged):
        log.read()


@pytest.mark.parametrize(
    "about",
    [5, {}, {"rowferry.micro-batch": []}, {"rowferry.micro-batch": "3"}],
)
def test_what_a_commit_says_of_itself(tmp_path: Path, about: Any) -> None:
    said = {"rowferry.changefeed": "f", "operation": "WRITE", **about} if about != 5 else about
    log = log_of(tmp_path, {"commitInfo": said}, {"metaData": METADATA})
    assert log.commits_of("f", {3}) == {}
    log_of(tmp_path, {"x": {"commitInfo": 1}}, {"metaData": METADATA})
    assert log.commits_of("f", {3}) == {}


def test_the_commits_of_micro_batches(tmp_path: Path) -> None:
    said = {"rowferry.changefeed": "f", "operation": "WRITE", "rowferry.micro-batch": 3}
    log = log_of(tmp_path, {"commitInfo": said}, {"metaData": METADATA})
    assert log.commits_of("f", {3}) == {3: "0"} and log.commits_of("g", {3}) == {}


# --- Iceberg --------------------------------------------------------------------------------------


class Lake:
    """An Iceberg table with one snapshot that has no file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        files = LocalFiles(root)
        files.prepare()
        self.io = FilesIO(files, f"file://{root}")
        self.catalog = IcebergCatalog(IcebergOptions.read({}), self.io, str(root))
        self.list = root / "d/t/list.avro"

        def made(catalog: Catalog) -> None:
            catalog.create_namespace(("d",))
            schema = Schema(NestedField(1, "id", LongType(), required=False))
            catalog.create_table(
                ("d", "t"), schema, f"file://{root}/d/t", properties={"format-version": "2"}
            )

        self.catalog._writing(made)
        with write_manifest_list(
            2, self.io.new_output(f"file://{self.list}"), 5, None, 1, "null"
        ) as writer:
            writer.add_manifests([manifest(f"file://{root}/d/t/m.avro")])
        summary = Summary(
            Operation.APPEND, **{"rowferry.changefeed": "f", "rowferry.micro-batch": "3"}
        )
        snapshot = Snapshot(
            snapshot_id=5,
            parent_snapshot_id=None,
            sequence_number=1,
            timestamp_ms=1,
            manifest_list=f"file://{self.list}",
            summary=summary,
            schema_id=0,
        )
        self.update(
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=5),
        )

    def update(self, *updates: Any) -> None:
        table = self.catalog.load("d/t")
        assert self.catalog.commit("d/t", table, (), updates)

    def read(self) -> Any:
        return StateReader(self.catalog, "d/t").read(None)


def manifest(path: str) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=9,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=5,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=1,
        existing_rows_count=0,
        deleted_rows_count=0,
    )


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    made = Lake(tmp_path)
    yield made
    made.catalog.close()


def test_a_manifest_that_is_gone(lake: Lake) -> None:
    with pytest.raises(SinkDamaged, match=r"the Iceberg table d\.t names .*m\.avro, which is gone"):
        lake.read()


def test_a_list_of_manifests_that_is_damaged(lake: Lake) -> None:
    whole = lake.list.read_bytes()
    words = r"the Iceberg table d\.t has metadata that cannot be read"
    for content in (b"", whole[:50], b"Obj\x01\xff\xff\xff\xff\x0f" + whole[4:]):
        lake.list.write_bytes(content)
        with pytest.raises(SinkDamaged, match=words):
            lake.read()


@pytest.mark.parametrize("key", ["rowferry.txn.f", "rowferry.max-column-id", "rowferry.columns"])
def test_a_property_of_ours_that_somebody_changed(lake: Lake, key: str) -> None:
    lake.update(SetPropertiesUpdate(updates={key: "{"}))
    with pytest.raises(SinkDamaged, match="has metadata that cannot be read"):
        lake.read()


def test_metadata_that_are_damaged(lake: Lake) -> None:
    table = lake.catalog.load("d/t")
    assert table is not None
    file = Path(table.metadata_location.removeprefix("file://"))
    whole = file.read_text()
    for content in ("{", whole.replace('"schemas"', '"x"', 1), "[]"):
        file.write_text(content)
        with pytest.raises(SinkDamaged, match="names metadata that cannot be read"):
            lake.read()


def test_a_number_of_a_snapshot_that_is_none(lake: Lake) -> None:
    table = lake.catalog.load("d/t")
    state = StateReader(lake.catalog, "d/t")
    assert table is not None
    from rowferry.flow.sink.lake.iceberg.state import IcebergState

    assert row_snapshots(IcebergState(table), "f", {3}) == {3: "5"}
    summary = table.metadata.snapshots[0].summary
    assert summary is not None and state is not None
    for number in ("x", "-3", "9" * 5000):
        summary._additional_properties["rowferry.micro-batch"] = number
        assert row_snapshots(IcebergState(table), "f", {3}) == {}


# --- Avro -----------------------------------------------------------------------------------------


def test_the_library_reads_with_our_decoder(lake: Lake) -> None:
    assert avro_file.new_decoder is CheckedDecoder  # type: ignore[comparison-overlap]


VALUES = b"\x01\x02\x80\x01\x06abc\x0a\xd7\x23\x3c\x18\x2d\x44\x54\xfb\x21\x09\x40\x04\xc3\xa9"


def _values(decoder: Any) -> list[Any]:
    return [
        decoder.read_boolean(),
        *decoder.read_ints(2),
        decoder.read_bytes(),
        decoder.read_float(),
        decoder.read_double(),
        decoder.read_utf8(),
        decoder.tell(),
    ]


def test_values_are_read_as_the_library_reads_them() -> None:
    found = _values(CheckedDecoder(VALUES))
    assert found == _values(StreamingBinaryDecoder(VALUES))
    assert found[:4] == [True, 1, 64, b"abc"] and found[-2:] == ["é", len(VALUES)]
    for kind in (CheckedDecoder, StreamingBinaryDecoder):
        decoder, known = kind(b"\x02\x04ab\x04\x02x"), {}  # type: ignore[var-annotated]
        decoder.read_int_bytes_dict(2, known)
        assert known == {1: b"ab", 2: b"x"}
        decoder = kind(b"\x80\x01\x06abc\x05")
        decoder.skip_int()
        decoder.skip_bytes()
        assert decoder.read_int() == -3


def test_nothing_behind_the_end_is_read() -> None:
    for end in range(len(VALUES)):
        with pytest.raises(EOFError):
            _values(CheckedDecoder(VALUES[:end]))
    for call, error in (
        (lambda: CheckedDecoder(b"\x80" * 11).read_int(), ValueError),
        (lambda: CheckedDecoder(b"\x01a").read_bytes(), ValueError),
        (lambda: CheckedDecoder(b"\x02").read_ints(1 << 62), EOFError),
        (lambda: CheckedDecoder(b"\xfe\xff\xff\xff\x0fab").skip_bytes(), EOFError),
        (lambda: CheckedDecoder(b"\x80").skip_int(), EOFError),
    ):
        with pytest.raises(error):
            call()


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "zstandard"])
def test_a_block_does_not_grow_without_end(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_checked_decoder()
    ours = KNOWN_CODECS[codec]
    assert ours is not None
    packed, _ = ours.compress(b"plain" * 1000)
    assert ours.decompress(packed) == b"plain" * 1000
    monkeypatch.setattr(avro_decoder, "MOST_BLOCK_BYTES", 4999)
    with pytest.raises(ValueError, match="grows to more than 4999 bytes"):
        ours.decompress(packed)


def test_a_block_of_snappy_says_how_long_it_becomes() -> None:
    use_checked_decoder()
    ours = KNOWN_CODECS["snappy"]
    assert ours is not None
    with pytest.raises(ValueError, match="a block grows to more than"):
        ours.decompress(b"\xff\xff\xff\xff\x0f" + b"\0" * 20)
