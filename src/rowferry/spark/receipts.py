"""Receipts as rows that Spark carries from tasks to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rowferry.change.plan import Receipt, Volume

_VOLUMES = ("captured_rows", "captured_bytes", "decided_rows", "decided_bytes")
RECEIPT = pa.schema(
    [
        ("segment", pa.int32()),
        ("slice", pa.int32()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("source_bytes", pa.int64()),
        ("note", pa.string()),
        ("source_facts", pa.string()),
        ("last_ts", pa.int64()),
        ("counts", pa.string()),
        ("sample", pa.string()),
        ("quarantine", pa.string()),
        *((name, pa.int64()) for name in _VOLUMES),
    ]
)
RECEIPT_DDL = (
    "segment int, slice int, rows long, bytes long, source_bytes long, note string, "
    "source_facts string, last_ts long, counts string, sample string, quarantine string, "
    + ", ".join(f"{name} long" for name in _VOLUMES)
)


def receipt_batch(receipts: Sequence[Receipt]) -> pa.RecordBatch:
    """Return receipts as a batch."""
    columns = {
        "segment": [r.segment for r in receipts],
        "slice": [r.slice for r in receipts],
        "rows": [r.rows for r in receipts],
        "bytes": [r.bytes for r in receipts],
        "source_bytes": [r.source_bytes for r in receipts],
        "note": [json.dumps(r.note) for r in receipts],
        "source_facts": [json.dumps(r.source_facts) for r in receipts],
        "last_ts": [r.last_ts for r in receipts],
        "counts": [json.dumps(r.counts) for r in receipts],
        "sample": [json.dumps(r.sample) for r in receipts],
        "quarantine": [json.dumps(r.quarantine) for r in receipts],
        "captured_rows": [r.captured.rows for r in receipts],
        "captured_bytes": [r.captured.bytes for r in receipts],
        "decided_rows": [r.decided.rows for r in receipts],
        "decided_bytes": [r.decided.bytes for r in receipts],
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECEIPT)


def read_receipts(rows: Sequence[Mapping[str, Any]]) -> Iterator[Receipt]:
    """Read rows of such a batch."""
    for row in rows:
        forms = ("note", "source_facts", "counts", "sample", "quarantine")
        fields = {**row, **{name: json.loads(row[name]) for name in forms}}
        volumes = [fields.pop(name) for name in _VOLUMES]
        yield Receipt(**fields, captured=Volume(*volumes[:2]), decided=Volume(*volumes[2:]))
