"""How far a table is that is read beside the log: a part of the stored position."""

from __future__ import annotations

from dataclasses import dataclass

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.change.resnapshot import ResnapshotOutcome
from rowferry.mysql.key_ranges import Bound


@dataclass(slots=True)
class Reread(JsonForm):
    """How far one resnapshot is, or one table that joins.

    Attributes:
        key: the columns of the key that bounds are of.
        order: the order of rows in which bounds have their place; empty: not noted yet.
        part: the table partition that is being read.
        bound: all rows up to here were planned, in this partition; None: none yet.
        digest: how the table's partitions were made; when they change, all is read from the start.
        complete: the last part was planned; the log has not passed it yet.
        joins: nobody has asked for it again: it comes for the first time, and the watermark stands
            until all of it is there.
    """

    FORM = FormRules(brief=True)

    id: str
    table_id: int
    name: str
    where: str = ""
    first: Bound | None = None
    last: Bound | None = None
    key: tuple[str, ...] = ()
    order: str = ""
    part: int = 0
    bound: Bound | None = None
    digest: str = ""
    done: int = 0
    total: int = 1
    complete: bool = False
    outcome: ResnapshotOutcome = ResnapshotOutcome.OPEN
    words: str = ""
    joins: bool = False
