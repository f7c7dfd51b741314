"""Reading a table's log as a CDC reader does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.range_log.client import KnownRange, RangeClient, Rerouted
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.flow.capture.range_log.page import DELETE
from rowferry.refstore.client import Store


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row change; `before` and `after` are None where there is no image."""

    range_id: int
    commit_ts: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    value: bytes


def eventually(check: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.05)


def routes_of(reader: RangeClient, table: TableSchema) -> list[KnownRange]:
    wanted = set(table.physical_ids)
    return [r for r in reader.routes() if r.physical_id in wanted]


def pulled(
    reader: RangeClient, table: TableSchema, route: KnownRange, after: int = 0
) -> tuple[list[LogRow], int]:
    """Return the rest of a range's log and its last index."""
    decoder, rows = RowDecoder(table), []
    last = reader.heads([(route, after)])[0].last_index
    while after < last:
        page, after = reader.pull_log(route, after, last)
        raw, at, size = page.raw, page.key_at, page.key_len
        stored = np.where(page.kind == DELETE, -1, page.value_len)
        new = decoder.decode(raw, at, size, page.value_at, stored).to_pylist()
        old = decoder.decode(raw, at, size, page.old_at, page.old_len).to_pylist()
        for i in range(len(page)):
            rows.append(
                LogRow(route.range_id, int(page.commit_ts[i]), old[i], new[i], page.value(i))
            )
    return rows, last


def whole_log(reader: RangeClient, store: Store, table: TableId) -> list[LogRow]:
    """Return all changes of a table in commit-ts order; leaders may be changing."""
    schema = store.table(table)
    end = time.monotonic() + 120
    while True:
        try:
            rows: list[LogRow] = []
            for route in routes_of(reader, schema):
                rows += pulled(reader, schema, route)[0]
            return sorted(rows, key=lambda r: r.commit_ts)
        except Rerouted:
            assert time.monotonic() < end
            time.sleep(0.05)


def rebuilt(rows: Sequence[LogRow]) -> dict[int, dict[str, Any]]:
    """Apply changes by key, checking that each one's before-image is the present row."""
    state: dict[int, dict[str, Any]] = {}
    for row in rows:
        image = row.after or row.before
        assert image is not None
        assert state.get(image["id"]) == row.before
        if row.after is None:
            del state[image["id"]]
        else:
            state[image["id"]] = row.after
    return state


def content(store: Store, table: TableId) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in store.scan(table).to_pylist()}
