"""Targets: what lies beside the data of lake tables, which others may write as well."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fuzz_driver import Target, buffer
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from rowferry.flow.sink.lake.delta.deletion_vector import decode_rows, encode_rows, vector_path
from rowferry.flow.sink.lake.delta.log import DeltaLog
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.options import IcebergOptions
from rowferry.flow.sink.lake.iceberg.state import StateReader, row_snapshots
from rowferry.flow.sink.lake.key_run import KeyRun
from rowferry.flow.sink.lake.keys import Keys
from rowferry.flow.sink.storage.local_files import LocalFiles

# --- deletion vectors -----------------------------------------------------------------------------

MAGIC = (1681511377).to_bytes(4, "little")
RUNS = (  # containers of runs, as other programs write them: rows 5 to 9, and 70,000 of the next
    MAGIC
    + (1).to_bytes(8, "little")
    + bytes(4)
    + (12347 | 1 << 16).to_bytes(4, "little")
    + b"\x03"
    + b"\0\0\x04\0\x01\0\xff\xff"
    + b"\x01\0\x05\0\x04\0"
    + b"\x01\0\0\0\xff\xff"
)
VECTORS = (
    encode_rows(np.array([1, 5, 9, 70_000, 1 << 33], np.int64)),
    encode_rows(np.arange(3, 6000, dtype=np.int64)),
    RUNS,
)
VECTOR_WORDS = (b"\xff\xff\xff\xff", b"\x3b\x30", b"\x3a\x30\0\0", b"\xff\xff")


def vector(data: bytes) -> Any:
    rows = decode_rows(bytes(data), "t")
    return len(rows), int(rows[-1]) if len(rows) else 0


# --- key runs -------------------------------------------------------------------------------------


def run_bytes(texts: list[bytes] | None) -> bytes:
    codes = np.array([3, 5, 5, 9], np.uint64)
    held = None if texts is None else pa.array(texts, pa.large_binary())
    return KeyRun.make(("id",), Keys(codes, held), np.arange(4, dtype=np.uint32)).content()


WANTED = Keys(np.array([5, 9], np.uint64), pa.array([b"b", b"dddd"], pa.large_binary()))


def key_run(data: bytes) -> Any:
    """Read all of a run: what it says lies behind its end would be read, too."""
    run = KeyRun.read(buffer(data))
    if run is None:
        return None
    texts = None if run.keys.texts is None else run.keys.texts.to_pylist()
    places, rows = run.look_up(WANTED)
    return run.names, run.keys.codes.tolist(), texts, places.tolist(), rows.tolist()


# --- Delta's log ----------------------------------------------------------------------------------

COLUMNS = json.dumps(
    {
        "type": "struct",
        "fields": [
            {
                "name": name,
                "type": kind,
                "nullable": True,
                "metadata": {"rowferry.column": number, "rowferry.scale": 0},
            }
            for number, (name, kind) in enumerate((("id", "long"), ("v", "string")), 1)
        ],
    }
)

COMMIT = b"\n".join(
    json.dumps(action).encode()
    for action in (
        {
            "commitInfo": {
                "timestamp": 1,
                "operation": "WRITE",
                "operationParameters": {},
                "rowferry.changefeed": "f",
                "rowferry.micro-batch": 3,
            }
        },
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "a",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": COLUMNS,
                "partitionColumns": [],
                "configuration": {"rowferry.max-column-id": "2"},
            }
        },
        {"add": {"path": "a.parquet", "size": 9, "stats": '{"numRecords":1}', "dataChange": True}},
        {
            "remove": {
                "path": "b.parquet",
                "deletionTimestamp": 1,
                "deletionVector": {
                    "storageType": "u",
                    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
                    "offset": 4,
                    "sizeInBytes": 40,
                    "cardinality": 6,
                },
            }
        },
        {"txn": {"appId": "f", "version": 3}},
    )
)
LOG_WORDS = (b"null", b"[]", b"{}", b'"path"', b'"add"', b"1e999", b"-1", b"../", b"\n", b"[" * 99)


def delta_log(name: str) -> Callable[[bytes], Any]:
    folder = tempfile.TemporaryDirectory(prefix="rowferry-fuzz-")

    def run(data: bytes) -> Any:
        root = Path(folder.name)
        (root / "t/_delta_log").mkdir(parents=True, exist_ok=True)
        (root / "t/_delta_log" / name).write_bytes(data)
        log = DeltaLog(LocalFiles(root), "t")
        state = log.read()
        columns = state.columns.physical if state.exists and state.columns else None
        said = len(log.commit_info(0)), log.commits_of("f", {3}), len(list(state.actions()))
        vectors = [f.vector for f in state.files.values() if f.vector]
        vectors += [r["deletionVector"] for r in state.removed.values() if r.get("deletionVector")]
        files = [(f.path, f.size, f.records, f.deleted) for f in state.files.values()]
        paths = [vector_path(v) for v in vectors]
        return state.version, state.transactions, files, paths, columns, said

    run.folder = folder  # type: ignore[attr-defined]  # as long as the target
    return run


LAST = b'{"version":7,"size":3,"parts":2}'

# --- Iceberg's metadata ---------------------------------------------------------------------------

SNAPSHOT = 3051729675574597004
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "v", "required": False, "type": "string"},
    ],
}


def metadata(place: str, **more: Any) -> bytes:
    return json.dumps(
        {
            "format-version": 2,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": f"{place}/d/t",
            "last-sequence-number": 1,
            "last-updated-ms": 1602638573590,
            "last-column-id": 2,
            "current-schema-id": 0,
            "schemas": [SCHEMA],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {
                "rowferry.changefeed": "f",
                "rowferry.columns": COLUMNS,
                "rowferry.max-column-id": "2",
                "rowferry.txn.f": "3",
                "rowferry.mode": "upsert",
            },
            "snapshot-log": [],
            "metadata-log": [],
            **more,
        }
    ).encode()


def with_snapshot(place: str) -> bytes:
    snapshot = {
        "snapshot-id": SNAPSHOT,
        "timestamp-ms": 1602638573590,
        "sequence-number": 1,
        "summary": {
            "operation": "append",
            "rowferry.changefeed": "f",
            "rowferry.micro-batch": "3",
        },
        "manifest-list": f"{place}/d/t/list.avro",
        "schema-id": 0,
    }
    return metadata(place, **{"current-snapshot-id": SNAPSHOT, "snapshots": [snapshot]})


class IcebergTable:
    """A table in a catalog of its own, one of whose files an input is written over."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rowferry-fuzz-")
        root = Path(self._folder.name)
        self.place = f"file://{root}"
        self.root = root / "d/t"
        self.root.mkdir(parents=True)
        files = LocalFiles(root)
        files.prepare()
        self.io = FilesIO(files, self.place)
        self.list, self.manifest = self._manifests()
        self._catalogs: dict[int, IcebergCatalog] = {}  # one for each process

    def _manifests(self) -> tuple[bytes, bytes]:
        spec = PartitionSpec(spec_id=0)
        schema = Schema.model_validate(SCHEMA)
        with write_manifest(
            2, spec, schema, self.io.new_output(f"{self.place}/d/t/m.avro"), SNAPSHOT, "null"
        ) as writer:
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"{self.place}/d/t/a.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=1,
                file_size_in_bytes=9,
                spec_id=0,
            )
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=SNAPSHOT,
                    sequence_number=1,
                    file_sequence_number=1,
                    data_file=file,
                )
            )
        manifest = writer.to_manifest_file()
        with write_manifest_list(
            2, self.io.new_output(f"{self.place}/d/t/list.avro"), SNAPSHOT, None, 1, "null"
        ) as list_writer:
            list_writer.add_manifests([manifest])
        return (self.root / "list.avro").read_bytes(), (self.root / "m.avro").read_bytes()

    def catalog(self) -> IcebergCatalog:
        """Return this process's catalog; its one table is there without a commit."""
        known = self._catalogs.get(os.getpid())
        if known is None:
            file = self.root / f"{os.getpid()}.db"
            options = IcebergOptions.read({"catalog": f"file://{file}"})
            known = self._catalogs[os.getpid()] = IcebergCatalog(options, self.io, str(self.root))
            known._writing(lambda catalog: None)
            with closing(sqlite3.connect(file)) as base, base:
                base.execute(
                    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name,"
                    " metadata_location, iceberg_type) VALUES ('rowferry', 'd', 't', ?, 'TABLE')",
                    (f"{self.place}/d/t/{os.getpid()}.metadata.json",),
                )
        return known

    def over(self, name: str) -> Callable[[bytes], Any]:
        """Return what reads the table with an input in place of one of its files."""

        def run(data: bytes) -> Any:
            files = {
                "metadata.json": with_snapshot(self.place),
                "list.avro": self.list,
                "m.avro": self.manifest,
            }
            if name == "metadata.json":
                data = data.replace(b"file:///place", self.place.encode())
            for file, content in {**files, name: data}.items():
                own = f"{os.getpid()}.{file}" if file == "metadata.json" else file
                (self.root / own).write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the library's, about summaries of snapshots
                state = StateReader(self.catalog(), "d/t").read(None)
            columns = state.columns
            snapshots = row_snapshots(state, "f", {3})
            return len(state.files), state.notes, columns and columns.physical, snapshots

        return run


ICEBERG = IcebergTable()

TARGETS = (
    Target("lake: deletion vectors", VECTORS, vector, 20, VECTOR_WORDS),
    Target(
        "lake: key runs",
        (run_bytes(None), run_bytes([b"a", b"b", b"cc", b"dddd"])),
        key_run,
        20,
        (b"\xff\xff\xff\xff\0\0\0\0", b'["id"]'),
    ),
    Target("lake: Delta's log", (COMMIT,), delta_log(f"{0:020d}.json"), 2, LOG_WORDS),
    Target("lake: Delta's checkpoints", (LAST,), delta_log("_last_checkpoint"), 2, LOG_WORDS),
    Target(
        "lake: Iceberg's metadata",
        (metadata("file:///place"), with_snapshot("file:///place")),
        ICEBERG.over("metadata.json"),
        1,
        LOG_WORDS,
    ),
    Target(
        "lake: Iceberg's lists of manifests",
        (ICEBERG.list,),
        ICEBERG.over("list.avro"),
        1,
        (b"Obj\x01", b"avro.schema", b"\xff\xff\xff\xff\x0f"),
    ),
    Target(
        "lake: Iceberg's manifests",
        (ICEBERG.manifest,),
        ICEBERG.over("m.avro"),
        1,
        (b"Obj\x01", b"avro.schema", b"\xff\xff\xff\xff\x0f"),
    ),
)
