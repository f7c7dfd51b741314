"""Targets: what lies beside the data of lake tables, which others may write as well."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fuzz_driver import Target, buffer

from rowferry.flow.sink.lake.delta.deletion_vector import decode_rows, encode_rows, vector_path
from rowferry.flow.sink.lake.delta.log import DeltaLog
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

COMMIT = b"\n".join(
    json.dumps(action).encode()
    for action in (
        {"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationParameters": {}}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "a",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": '{"type":"struct","fields":[]}',
                "partitionColumns": [],
                "configuration": {},
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
        state = DeltaLog(LocalFiles(root), "t").read()
        vectors = [f.vector for f in state.files.values() if f.vector]
        vectors += [r["deletionVector"] for r in state.removed.values() if r.get("deletionVector")]
        files = [(f.path, f.size, f.records, f.deleted) for f in state.files.values()]
        return state.version, state.transactions, files, [vector_path(v) for v in vectors]

    run.folder = folder  # type: ignore[attr-defined]  # as long as the target
    return run


LAST = b'{"version":7,"size":3,"parts":2}'

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
)
