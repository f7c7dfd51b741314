"""TiCDC's paths below /api/v2/changefeeds."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operations import ChangedSettings, Operations, Wanted
from rowferry.control.operator.trace.forms import LIMIT, SECONDS, TraceRequest, trace_form
from rowferry.downstream.trace.row_key import key_pairs
from rowferry.errors import BadInput, BadUri, NotSupported
from rowferry.face.about import About
from rowferry.face.json_log import all_shown
from rowferry.face.rest import answers
from rowferry.face.rest.answers import (
    KEYSPACE,
    ChangefeedDetail,
    ChangefeedList,
    ChangefeedStatus,
    Nothing,
    SyncedStatus,
)
from rowferry.face.rest.bodies import CreateBody, ResumeBody, UpdateBody, VerifyBody
from rowferry.face.rest.replica_config import to_config
from rowferry.face.sources import Sources
from rowferry.flow.sink.blackhole import NOWHERE
from rowferry.spec.changefeed import check_changefeed_id

ERROR_TIME_NOTES: Final = 20  # lines of history in which an error's time is looked for
_PER_TABLE: Final = "Spark divides the work; tables are not moved between servers"


def named(changefeed_id: str) -> str:
    """Return the id in a path, checked."""
    return check_changefeed_id(changefeed_id)


def check_keyspace(keyspace: Annotated[str, Query(description="`default`")] = KEYSPACE) -> None:
    """Refuse a keyspace that cannot be."""
    if keyspace not in ("", KEYSPACE):
        raise BadInput(f"keyspace {keyspace!r}: there is only {KEYSPACE!r}")


Named = Annotated[str, Depends(named)]


def wanted(body: CreateBody | VerifyBody, sources: Sources) -> Wanted:
    """Return what a body asks for."""
    if isinstance(body, CreateBody):
        check_keyspace(body.keyspace or body.namespace)
    return Wanted(
        source_uri=body.source_uri or sources.choose(),
        sink_uri=body.sink_uri or NOWHERE,
        changefeed_id=(body.changefeed_id or None) if isinstance(body, CreateBody) else None,
        config=to_config(body.replica_config or {}),
        start_ts=body.start_ts or None,
        target_ts=(body.target_ts or None) if isinstance(body, CreateBody) else None,
    )


def changed(body: UpdateBody) -> ChangedSettings:
    """Return what a body changes."""
    if body.start_ts:
        raise BadInput("start_ts can not be updated")
    config = body.replica_config
    return ChangedSettings(
        source_uri=body.source_uri or None,
        sink_uri=body.sink_uri or None,
        config=None if config is None else to_config(config),
        target_ts=body.target_ts or None,
    )


def parse_states(text: str) -> tuple[FeedState, ...]:
    """Return the states that a list is asked for; none: those that it shows by itself."""
    if text == "all":
        return tuple(FeedState)
    try:
        return tuple(FeedState(word) for word in text.split(",") if word)
    except ValueError:
        raise BadInput(f"state {text!r}: use all, {', '.join(FeedState)}") from None


def changefeed_paths(operations: Operations, about: About, sources: Sources) -> APIRouter:
    """Return the paths."""
    paths = APIRouter(
        prefix="/api/v2/changefeeds", tags=["changefeeds"], dependencies=[Depends(check_keyspace)]
    )

    @paths.post("", summary="Create a changefeed")
    def create(body: CreateBody) -> ChangefeedDetail:
        if not body.sink_uri:
            raise BadUri("sink_uri is empty, cannot create a changefeed without sink_uri")
        return answers.detail(operations.create(wanted(body, sources)).feed, about.version)

    @paths.get("", summary="List changefeeds")
    def list_them(
        state: Annotated[str, Query(description="a state, several with commas, or all")] = "",
    ) -> ChangefeedList:
        feeds = operations.feeds(parse_states(state))
        history = operations.store.history
        items = [answers.item(f, history(f.id, ERROR_TIME_NOTES) if f.error else ()) for f in feeds]
        return ChangefeedList(total=len(items), items=items)

    @paths.get("/{changefeed_id}", summary="All about one changefeed")
    def query(changefeed_id: Named) -> ChangefeedDetail:
        return answers.seen_detail(operations.see(changefeed_id, 0.0), about.version)

    @paths.put("/{changefeed_id}", summary="Change a stopped or failed changefeed")
    def update(changefeed_id: Named, body: UpdateBody) -> ChangefeedDetail:
        return answers.detail(operations.update(changefeed_id, changed(body)), about.version)

    @paths.delete("/{changefeed_id}", summary="Remove a changefeed")
    def remove(changefeed_id: Named) -> Nothing | None:
        return None if operations.remove(changefeed_id) is None else Nothing()

    @paths.post("/{changefeed_id}/pause", summary="Stop at the next border")
    def pause(changefeed_id: Named) -> Nothing:
        operations.pause(changefeed_id)
        return Nothing()

    @paths.post("/{changefeed_id}/resume", summary="Go on")
    def resume(changefeed_id: Named, body: ResumeBody | None = None) -> Nothing:
        overwrite = body.overwrite_checkpoint_ts if body else 0
        operations.resume(changefeed_id, overwrite or None)
        return Nothing()

    @paths.get("/{changefeed_id}/status", summary="State and timestamps")
    def status(changefeed_id: Named) -> ChangefeedStatus:
        return answers.status(operations.see(changefeed_id, 0.0))

    @paths.get("/{changefeed_id}/synced", summary="Whether it has caught up")
    def synced(changefeed_id: Named) -> SyncedStatus:
        return answers.synced_status(operations.synced(changefeed_id))

    @paths.get("/{changefeed_id}/tables", summary="Ids of the tables, by server")
    def tables(changefeed_id: Named) -> dict[str, Any]:
        seen = operations.see(changefeed_id, 0.0)
        if seen.server is None:
            return {"total": 0, "items": []}
        row = {
            "node_id": seen.server.holder.instance,
            "table_ids": answers.table_ids(seen.ranges),
        }
        return {"total": 1, "items": [row]}

    @paths.get("/{changefeed_id}/trace", summary="Every change of one row, and where it went")
    def trace(changefeed_id: Named, asked: Annotated[TraceQuery, Query()]) -> dict[str, Any]:
        look = operations.trace_values if asked.values else operations.trace
        form = trace_form(look(changefeed_id, asked.request()))
        hidden = ("before", "after")  # what rows hold is no text of ours: it is shown as it is
        shown = [
            {k: v if k in hidden else all_shown(v) for k, v in one.items()}
            for one in form["changes"]
        ]
        return {**all_shown({**form, "changes": []}), "key": form["key"], "changes": shown}

    for name in ("move_table", "move_split_table", "split_table_by_region_count", "merge_table"):
        not_supported(paths, "POST", f"/{{changefeed_id}}/{name}", _PER_TABLE)
    not_supported(paths, "GET", "/{changefeed_id}/get_dispatcher_count", _PER_TABLE)
    return paths


def not_supported(paths: APIRouter, method: str, path: str, why: str) -> None:
    """Add a path of TiCDC's that always says why it does nothing here."""

    def refuse() -> Nothing:
        raise NotSupported(f"{path.rsplit('/', 1)[-1]} is not supported: {why}")

    paths.add_api_route(
        path,
        refuse,
        methods=[method],
        summary="Not supported",
        name=f"refuse {method} {path}",
        description=f"Always refused: {why}.",
    )


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
