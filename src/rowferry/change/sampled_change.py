"""A few of the last changes that were delivered, as people look at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

from rowferry.change.table import TableId

HIDDEN: Final = "***"
Image: TypeAlias = Mapping[str, str | None]


class SampleMode(StrEnum):
    """What is kept of them: nothing, what happened to which table, or also values."""

    OFF = "false"
    MASKED = "masked"
    VALUES = "true"


@dataclass(frozen=True, slots=True)
class SampledChange:
    """One change of a row; long values are cut.

    Attributes:
        table: as readers of the sink see its name.
        op: insert, update, delete or snapshot.
        key: the columns of the key; where values are hidden, each is `***`.
        before, after: the images; None: there is none, or it is hidden.
    """

    table: TableId
    op: str
    commit_ts: int
    key: Image
    before: Image | None = None
    after: Image | None = None

    def masked(self) -> SampledChange:
        """Return the change without any value."""
        return replace(self, key=dict.fromkeys(self.key, HIDDEN), before=None, after=None)

    def to_json(self) -> dict[str, Any]:
        """Return the form that receipts carry."""
        return asdict(self) | {"table": list(self.table)}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(**{**form, "table": TableId(*form["table"])})
