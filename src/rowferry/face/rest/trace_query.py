"""What is asked for in the address of a trace."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from rowferry.control.operator.trace.forms import LIMIT, SECONDS, TraceRequest
from rowferry.downstream.trace.row_key import key_pairs


class TraceQuery(BaseModel):
    """Which row, and how far to look."""

    model_config = ConfigDict(extra="forbid")

    keyspace: str = Field("", description="`default`")
    table: str = Field(description="db.table, as it is captured")
    key: list[str] = Field(description="COLUMN=VALUE, once for each column of the key")
    since: str = Field("", description="a commit-ts, or a time in ISO 8601")
    until: str = Field("", description="a commit-ts, or a time in ISO 8601")
    limit: int = Field(LIMIT, description="how many changes are enough; the newest are shown")
    log: bool = Field(False, description="look transactions up in the source's log, too")
    values: bool = Field(False, description="show rows; for the role operator")
    seconds: float = Field(SECONDS, description="how long to look at most")

    def request(self) -> TraceRequest:
        """Return what is asked for.

        Raises:
            BadTrace: the key is not written as COLUMN=VALUE.
        """
        pairs = key_pairs(self.key)
        return TraceRequest(
            self.table, pairs, self.since, self.until, self.limit, self.log, self.seconds
        )
