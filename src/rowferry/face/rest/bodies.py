"""Bodies of requests. Keys that nobody knows and values of another type are refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Ts = Annotated[int, Field(ge=0, lt=1 << 63)]


class Body(BaseModel):
    """Nothing is converted: a number written as text is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PdBody(Body):
    """What TiCDC's clients send along about their cluster; read by nobody here."""

    pd_addrs: list[str] | None = Field(None, description="ignored")
    ca_path: str = Field("", description="ignored")
    cert_path: str = Field("", description="ignored")
    key_path: str = Field("", description="ignored")
    cert_allowed_cn: list[str] | None = Field(None, description="ignored")


class CreateBody(PdBody):
    """A changefeed that is wanted."""

    changefeed_id: str = Field("", description="its name; empty: made from source and sink")
    keyspace: str = Field("", description="`default`, the only one")
    namespace: str = Field("", description="the old name of `keyspace`")
    source_uri: str = Field("", description="where to read; empty: the server's own default source")
    sink_uri: str = Field(description="where to write")
    start_ts: Ts = Field(0, description="begin behind this commit-ts; 0: as the source URI says")
    target_ts: Ts = Field(0, description="end at this commit-ts; 0: never")
    replica_config: dict[str, Any] | None = Field(
        None, description="the configuration, with TiCDC's keys in snake_case"
    )


class UpdateBody(PdBody):
    """New settings of a stopped or failed changefeed; what is absent stays."""

    source_uri: str = ""
    sink_uri: str = ""
    target_ts: Ts = 0
    start_ts: Ts = Field(0, description="cannot be changed")
    replica_config: dict[str, Any] | None = Field(None, description="replaces the whole one")
    changefeed_id: str = Field("", description="ignored: the path names it")
    keyspace: str = ""
    namespace: str = ""


class ResumeBody(PdBody):
    """How to go on."""

    overwrite_checkpoint_ts: Ts = Field(0, description="go on behind this commit-ts")


class VerifyBody(PdBody):
    """A changefeed whose tables are asked for."""

    source_uri: str = ""
    sink_uri: str = ""
    start_ts: Ts = 0
    replica_config: dict[str, Any] | None = None


class LogLevelBody(Body):
    """How much the server logs."""

    log_level: str = "info"


class RedactBody(Body):
    """Whether secrets are hidden in logs."""

    redact_info_log: str


class ResetBody(Body):
    """Where to begin anew: exactly one of the three."""

    commit_ts: Ts | None = None
    position: str | None = Field(None, description="FILE:OFFSET, or GTIDs")
    snapshot: bool = False


class TablesBody(Body):
    """Filter rules of tables to capture, or to capture no more: one of the two."""

    add: list[str] = []
    drop: list[str] = []


class ResnapshotBody(Body):
    """Rows of one captured table that are to be read and delivered again."""

    table: str = Field(description="db.table, as it is captured")
    keys: str = Field("", description="FIRST..LAST, FIRST.. or ..LAST; empty: all rows")
    where: str = Field("", description="an expression as in event filters; empty: all rows")


class ParkedBody(Body):
    """Which parked rows are meant: one, those of a table (or of a key of it), or all."""

    row: str = Field("", description="the id of one, as the list shows it")
    table: str = Field("", description="db.table at the source")
    key: str = Field("", description="of the table, as the list shows it; empty: all keys")
    all: bool = Field(False, description="all parked rows of the changefeed")


class PlaceBody(Body):
    """A place of a MySQL or MariaDB server's log, between two transactions."""

    server: str = Field(description="its server_uuid; of MariaDB `server-id <number>`")
    file: str
    offset: Annotated[int, Field(ge=4)]
    gtid: str = Field("", description="all transactions before it; empty: the server keeps none")


class HoldBody(Body):
    """Where a changefeed is to stand still, and for how long at most."""

    position: PlaceBody | None = Field(None, description="absent: at the next border")
    seconds: int = Field(60, description="it goes on after that, whatever happens")
    hold: str = Field("", description="the id of one's own hold, to move it")


class ApplyBody(Body):
    """Changefeeds that files declare, and how far to go."""

    declarations: list[dict[str, Any]] = Field(
        description="the content of files: `owner` and `changefeeds`"
    )
    dry_run: bool = Field(False, description="tell the difference, and change nothing")
    prune: bool = Field(False, description="remove what the owners' files declare no more")
    adopt: bool = Field(False, description="take over those that no file, or another, looks after")


class EndpointBody(Body):
    """A source or a sink that is looked at on its own."""

    replica_config: dict[str, Any] | None = Field(None, description="only its part is used")
    changefeed_id: str = Field("", description="whose stored secrets `***` stands for")


class SourceBody(EndpointBody):
    """A source."""

    source_uri: str = Field("", description="empty: the server's own default source")


class SourceTablesBody(SourceBody):
    """A source, or a database of it."""

    database: str = Field("", description="empty: its databases are listed")


class SinkBody(EndpointBody):
    """A sink."""

    sink_uri: str = Field(min_length=1)


class SqlBody(Body):
    """One SQL statement about changefeeds."""

    statement: str = Field(min_length=1)


_ALL = (
    CreateBody,
    UpdateBody,
    ResumeBody,
    VerifyBody,
    ResetBody,
    TablesBody,
    HoldBody,
    ApplyBody,
    ResnapshotBody,
)
KNOWN_KEYS = sorted({name for body in _ALL for name in body.model_fields})
