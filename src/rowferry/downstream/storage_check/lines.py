"""Rows of a data file as columns, whatever the protocol: what the readers here give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rowferry.downstream.storage_check.rules import Rule


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that breaks a rule; the first row of a file is 1."""

    rule: Rule
    row: int
    words: str


@dataclass(slots=True)
class Lines:
    """Some consecutive rows of a file.

    Attributes:
        first_row: the number of the first of them.
        count: how many there are.
        commit_ts: None where the file does not tell. Without the TiDB extension canal-json tells
            the millisecond only: then its counter is 0.
        inserts: which of them are inserts.
        faults: what is wrong with them in themselves.
    """

    first_row: int
    count: int
    commit_ts: npt.NDArray[np.uint64] | None = None
    inserts: npt.NDArray[np.bool_] | None = None
    faults: list[RowFault] = field(default_factory=list)

    def split(self) -> Iterator[RowFault]:
        """Yield the faults by row."""
        yield from sorted(self.faults, key=lambda f: f.row)
