"""What plans and receipts tell: the last numbers of directories, and how long files become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rowferry.change.plan import Plan, Receipt
from rowferry.change.table import TableId

_EXPANSION_BOUNDS = (1 / 64, 64.0)  # a table whose rows are mostly dropped gets no endless ones


def last_numbers(plan: Plan) -> dict[str, int]:
    """Return the last number of each directory that the plan writes to."""
    last: dict[str, int] = {}
    for output in plan.outputs:
        directory, number = output.target["directory"], output.target["number"]
        last[directory] = max(number, last.get(directory, 0))
    return last


def moved_on(old: Mapping[str, int], new: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the newest entries of both, those of `new` last; no number goes back."""
    newest = {k: v for k, v in old.items() if k not in new}
    newest.update((k, max(v, old.get(k, 0))) for k, v in new.items())
    return dict(list(newest.items())[-most:])


def expansions(plan: Plan, receipts: Sequence[Receipt]) -> dict[TableId, float]:
    """Return file bytes per log byte of each table that the receipts measured."""
    slices = {s.ordinal: s.slices for s in plan.stretch.segments}
    read: dict[TableId, int] = {}
    written: dict[TableId, int] = {}
    for receipt in receipts:
        table = slices[receipt.segment][receipt.slice].table
        read[table] = read.get(table, 0) + receipt.source_bytes
        written[table] = written.get(table, 0) + receipt.bytes
    least, most = _EXPANSION_BOUNDS
    return {t: min(max(written[t] / n, least), most) for t, n in read.items() if n > 0}
