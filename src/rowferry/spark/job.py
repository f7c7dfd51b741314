"""One micro-batch as one Spark job: a row per segment, a task per row, receipts back.

The task does everything in one Python process (fetch, decode, decide, dispatch, encode, write), so
no row crosses the JVM; what returns is one small record per output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import SparkSession

from rowferry.change.plan import Output, Plan, Receipt, Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.flow.assemble import Flow, assemble
from rowferry.spark.failure import as_error
from rowferry.spark.session import close_session
from rowferry.spec.changefeed import ChangefeedSpec

_RECEIPT = pa.schema(
    [
        ("segment", pa.int32()),
        ("slice", pa.int32()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("source_bytes", pa.int64()),
        ("note", pa.string()),
        ("found", pa.string()),
    ]
)
_RECEIPT_DDL = (
    "segment int, slice int, rows long, bytes long, source_bytes long, note string, found string"
)


@lru_cache(maxsize=8)
def _flow_of(spec: str) -> Flow:
    """Return a worker process's stages for a spec; connections in them live from task to task."""
    return assemble(ChangefeedSpec.from_json(json.loads(spec)))


class SegmentTask:
    """What each task runs: its row's segment from the log to the sink."""

    def __init__(
        self,
        spec: ChangefeedSpec,
        plan: Plan,
        tables: Mapping[TableSlice, TableSchema],
    ) -> None:
        self._spec = json.dumps(spec.to_json())
        self._planned_at_ms = plan.planned_at_ms
        self._segments = {
            s.ordinal: (
                json.dumps(s.to_json()),
                [(o.slice, o.target) for o in plan.outputs_of(s.ordinal)],
                [json.dumps(tables[one].to_json()) for one in s.slices],
            )
            for s in plan.stretch.segments
        }

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the segments whose ordinals come in; yield their receipts."""
        for batch in batches:
            for ordinal in batch.column(0).to_numpy():
                receipts = list(self.run(int(ordinal)))
                columns = {
                    "segment": [r.segment for r in receipts],
                    "slice": [r.slice for r in receipts],
                    "rows": [r.rows for r in receipts],
                    "bytes": [r.bytes for r in receipts],
                    "source_bytes": [r.source_bytes for r in receipts],
                    "note": [json.dumps(r.note) for r in receipts],
                    "found": [json.dumps(r.found) for r in receipts],
                }
                yield pa.RecordBatch.from_pydict(columns, schema=_RECEIPT)

    def run(self, ordinal: int) -> Iterator[Receipt]:
        """Run one segment in this process."""
        segment_text, targets, table_texts = self._segments[ordinal]
        segment = Segment.from_json(json.loads(segment_text))
        tables = {
            one: TableSchema.from_json(json.loads(text))
            for one, text in zip(segment.slices, table_texts, strict=True)
        }
        outputs = tuple(Output(ordinal, place, target) for place, target in targets)
        flow = _flow_of(self._spec)
        return flow.run_segment(segment, outputs, tables, self._planned_at_ms)


class SparkRunner:
    """Runs plans as Spark jobs."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan and return their receipts.

        On raise, some segments may have been written; running the same plan again completes it.

        Raises:
            RowferryError: the error of the task that failed, with its code and verdict.
        """
        count = len(plan.stretch.segments)
        if not count:
            return []
        task = SegmentTask(spec, plan, tables)
        try:
            frame = self._session.range(0, count, 1, numPartitions=count)
            rows = frame.mapInArrow(task.__call__, _RECEIPT_DDL).collect()
        except Exception as err:
            raise as_error(err) from err
        return [
            Receipt(
                r.segment,
                r.slice,
                r.rows,
                r.bytes,
                r.source_bytes,
                json.loads(r.note),
                json.loads(r.found),
            )
            for r in rows
        ]

    def close(self) -> None:
        """Stop Spark and its Java process."""
        close_session(self._session)


class InProcessRunner:
    """Runs plans in this process, one segment after the other: for tests and tiny feeds."""

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan and return their receipts."""
        task = SegmentTask(spec, plan, tables)
        return [r for s in plan.stretch.segments for r in task.run(s.ordinal)]

    def close(self) -> None:
        """Nothing to let go."""
