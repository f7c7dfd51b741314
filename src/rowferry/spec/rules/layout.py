"""`[[sink.lake.layouts]]`: how the files of lake tables are laid out, for tables by name.

This module reads the shape only; what `partition-by` means is the business of the sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rowferry.errors import BadLayout
from rowferry.spec.option import size
from rowferry.spec.rules.matched import matched_rules

LEAST_FILE: Final = 1024
MOST_FILE: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class LayoutRule:
    """One rule.

    Attributes:
        place: its place in the list, from 0.
        matcher: which tables it is for, in the table filter's syntax.
        partition_by: columns, or transforms of them, in order.
        target_file_size: about how many bytes a data file has; 0: as the other tables.
    """

    place: int
    matcher: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    target_file_size: int = 0

    def path(self, key: str) -> str:
        """Return a key as errors name it."""
        return f"sink.lake.layouts[{self.place}].{key}"


LAYOUTS: Final = matched_rules(
    "sink.lake.layouts", LayoutRule, BadLayout, target_file_size=size(LEAST_FILE, MOST_FILE)
)
