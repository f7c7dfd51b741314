"""A stretch never crosses the border of a date partition: where the present one ends. Pure."""

from __future__ import annotations

from collections.abc import Callable

from rowferry.change.position import PHYSICAL_SHIFT


def label_end(first: int, ceiling: int, partition_label: Callable[[int], str]) -> int:
    """Return the last commit-ts up to `ceiling` that has the label of `first`."""
    if first >= ceiling or partition_label(first) == partition_label(ceiling):
        return ceiling
    label = partition_label(first)
    low, high = first >> PHYSICAL_SHIFT, ceiling >> PHYSICAL_SHIFT  # they end at a millisecond
    while high - low > 1:
        middle = (low + high) // 2
        if partition_label(middle << PHYSICAL_SHIFT) == label:
            low = middle
        else:
            high = middle
    return (high << PHYSICAL_SHIFT) - 1
