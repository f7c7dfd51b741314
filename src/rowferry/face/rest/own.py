"""Our own paths, below /api/rowferry: the overview, dry runs, resets, tables, SQL."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from rowferry.control.operator.actor import current_actor
from rowferry.control.operator.operations import Created, Held, Operations
from rowferry.control.operator.statement import execute
from rowferry.errors import BadOption, RoleTooLow, RowferryError
from rowferry.face.about import About
from rowferry.face.json_log import redacted
from rowferry.face.rest.bodies import (
    CreateBody,
    HoldBody,
    ResetBody,
    SqlBody,
    TablesBody,
    UpdateBody,
)
from rowferry.face.rest.changefeeds import Named, changed, wanted
from rowferry.face.rest.overview import Overview, changefeed_page
from rowferry.face.sources import Sources

_PAGE_S = 900.0  # how far back the samples of one changefeed go


def own_paths(operations: Operations, about: About, sources: Sources) -> APIRouter:
    """Return the paths."""
    paths = APIRouter(prefix="/api/rowferry", tags=["rowferry"])
    overview = Overview(operations, about)

    def page(changefeed: str) -> dict[str, Any]:
        return changefeed_page(operations.see(changefeed, _PAGE_S), time.time())

    @paths.get("/overview", summary="All changefeeds and servers at a glance")
    def look() -> dict[str, Any]:
        actor = current_actor.get()
        you = None if actor is None else {"name": actor.name, "role": str(actor.role)}
        return {**overview.look(), "you": you}

    @paths.get("/changefeeds/{changefeed_id}", summary="All that is known about a changefeed")
    def query(changefeed_id: Named) -> dict[str, Any]:
        return page(changefeed_id)

    @paths.post("/changefeeds/check", summary="What creating a changefeed would do")
    def check(body: CreateBody) -> dict[str, Any]:
        def found() -> Created:
            if not body.sink_uri:
                raise BadOption("sink_uri is empty; it says where to write")
            return operations.create(wanted(body, sources), dry_run=True)

        return _foreseen(found)

    @paths.post("/changefeeds/{changefeed_id}/check", summary="What changing it would do")
    def check_update(changefeed_id: Named, body: UpdateBody) -> dict[str, Any]:
        return _foreseen(lambda: operations.foresee_update(changefeed_id, changed(body)))

    @paths.post("/changefeeds/{changefeed_id}/reset", summary="Begin a stopped one anew")
    def reset(changefeed_id: Named, body: ResetBody) -> dict[str, Any]:
        operations.reset(changefeed_id, body.commit_ts, body.position, body.snapshot)
        return page(changefeed_id)

    @paths.post("/changefeeds/{changefeed_id}/tables", summary="Add or drop tables as it runs")
    def tables(changefeed_id: Named, body: TablesBody) -> dict[str, Any]:
        if bool(body.add) == bool(body.drop):
            raise BadOption("give either add or drop, a list of table filter rules")
        if body.add:
            operations.add_tables(changefeed_id, body.add)
        else:
            operations.drop_tables(changefeed_id, body.drop)
        return page(changefeed_id)

    @paths.get("/changefeeds/{changefeed_id}/hold", summary="Where it stands")
    def held(changefeed_id: Named) -> dict[str, Any]:
        return _held(operations.held(changefeed_id))

    @paths.post("/changefeeds/{changefeed_id}/hold", summary="Let it stand still for a while")
    def hold(changefeed_id: Named, body: HoldBody) -> dict[str, Any]:
        place = None if body.position is None else body.position.model_dump()
        return _held(operations.hold(changefeed_id, place, body.seconds, body.hold))

    @paths.delete("/changefeeds/{changefeed_id}/hold", summary="Let it go on")
    def end_hold(changefeed_id: Named, hold: str) -> dict[str, Any]:
        return _held(operations.end_hold(changefeed_id, hold))

    @paths.post("/sql", summary="Carry out one SQL statement about changefeeds")
    def sql(body: SqlBody) -> dict[str, Any]:
        answer = execute(operations, body.statement)
        return {
            "columns": list(answer.columns),
            "rows": [
                [redacted(v) if isinstance(v, str) else v for v in row] for row in answer.rows
            ],
            "message": answer.message,
        }

    return paths


def _shown(value: Any) -> Any:
    return redacted(value) if isinstance(value, str) else value


def _foreseen(find: Callable[[], Created]) -> dict[str, Any]:
    """Return what something would do, or why it cannot be done."""
    try:
        found = find()
    except RoleTooLow:
        raise
    except RowferryError as err:
        return {"ok": False, "error": {"code": err.code, "message": redacted(err.words)}} | {
            "tables": [],
            "ineligible": [],
            "outputs": {},
            "rules": [],
            "notices": [],
        }
    return {
        "ok": True,
        "error": None,
        "tables": [str(t) for t in found.eligible],
        "ineligible": [str(t) for t in found.ineligible],
        "outputs": {str(t): redacted(where) for t, where in found.outputs.items()},
        "rules": list(found.rules),
        "notices": [redacted(line) for line in found.notices],
    }


def _held(found: Held) -> dict[str, Any]:
    hold = found.hold
    return {
        "hold": None
        if hold is None
        else {
            "id": hold.id,
            "until": round(hold.until * 1000),
            "position": hold.place,
            "stands": hold.stands,
            "micro_batch": hold.micro_batch,
        },
        "pending": found.pending,
        "micro_batch": found.micro_batch,
        "lag_ms": found.lag_ms,
    }
