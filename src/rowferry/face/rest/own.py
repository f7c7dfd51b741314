"""Our own paths, below /api/rowferry: the overview, dry runs, resets, tables, SQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from rowferry.control.operator.actor import current_actor
from rowferry.control.operator.checks.health import FAILED, Health
from rowferry.control.operator.declared.apply import ApplyRequest, apply_declared, to_json
from rowferry.control.operator.declared.export import export_declared
from rowferry.control.operator.operations import Created, Held, Operations
from rowferry.control.operator.quarantine import Choice, values_form
from rowferry.control.operator.quarantine import forms as parked_forms
from rowferry.control.operator.resnapshots import forms
from rowferry.control.operator.statements.declared import DECLARATION
from rowferry.control.operator.statements.execute import execute
from rowferry.errors import BadOption, RoleTooLow, RowferryError
from rowferry.face.about import About
from rowferry.face.json_log import all_shown, redacted
from rowferry.face.rest.bodies import (
    ApplyBody,
    CreateBody,
    HoldBody,
    ParkedBody,
    ResetBody,
    ResnapshotBody,
    SinkBody,
    SourceBody,
    SourceTablesBody,
    SqlBody,
    TablesBody,
    UpdateBody,
)
from rowferry.face.rest.changefeeds import Named, changed, wanted
from rowferry.face.rest.overview import (
    Overview,
    changefeed_page,
    day_form,
    log_form,
    sample_form,
    target_form,
)
from rowferry.face.rest.replica_config import to_config
from rowferry.face.sources import Sources
from rowferry.spec.declared import read_declaration

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

    @paths.get("/changefeeds/{changefeed_id}/day", summary="What it did in the last 24 hours")
    def day(changefeed_id: Named) -> dict[str, Any]:
        return {"samples": day_form(operations.day(changefeed_id))}

    @paths.get("/changefeeds/{changefeed_id}/log", summary="The last log lines about it")
    def log(changefeed_id: Named, limit: int = 200) -> dict[str, Any]:
        return {"lines": log_form(operations.log(changefeed_id, limit))}

    @paths.post("/changefeeds/check", summary="What creating a changefeed would do")
    def check(body: CreateBody) -> dict[str, Any]:
        def foreseen() -> Created:
            if not body.sink_uri:
                raise BadOption("sink_uri is empty; it says where to write")
            return operations.create(wanted(body, sources), dry_run=True)

        return _foreseen(foreseen)

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

    @paths.get("/form", summary="What a form for changefeeds is made of")
    def form() -> dict[str, Any]:
        return operations.form_facts()

    @paths.post("/source/check", summary="Whether a source can be read")
    def check_source(body: SourceBody) -> dict[str, Any]:
        uri, config = body.source_uri or sources.choose(), to_config(body.replica_config or {})
        return _checked(operations.check_endpoint("source", uri, config, body.changefeed_id))

    @paths.post("/sink/check", summary="Whether a sink can be written")
    def check_sink(body: SinkBody) -> dict[str, Any]:
        config = to_config(body.replica_config or {})
        return _checked(
            operations.check_endpoint("sink", body.sink_uri, config, body.changefeed_id)
        )

    @paths.post("/source/tables", summary="Databases of a source, or tables of one of them")
    def source_tables(body: SourceTablesBody) -> dict[str, Any]:
        uri, config = body.source_uri or sources.choose(), to_config(body.replica_config or {})
        listed = operations.list_source(uri, config, body.database, body.changefeed_id)
        return {
            "databases": list(listed.databases),
            "tables": [{"name": one.name, "rows": one.rows} for one in listed.tables],
            "more": listed.more,
        }

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

    @paths.post("/apply", summary="Bring changefeeds to what files declare")
    def apply(body: ApplyBody) -> dict[str, Any]:
        contents = enumerate(body.declarations, 1)
        declared = [read_declaration(one, f"declaration {place}") for place, one in contents]
        request = ApplyRequest(tuple(declared), body.dry_run, body.prune, body.adopt)
        steps = apply_declared(operations, request)
        return {"steps": [all_shown(to_json(step)) for step in steps]}

    @paths.get("/export", summary="Changefeeds in the form that apply takes")
    def export(
        changefeeds: Annotated[str, Query(description="ids with commas; empty: all")] = "",
        owner: Annotated[str, Query(description="only those that his files declare")] = "",
        name: Annotated[str, Query(alias="as", description="the owner in the answer")] = "",
    ) -> dict[str, Any]:
        named = [one for one in changefeeds.split(",") if one]
        export = export_declared(operations, named, owner, name)
        return {
            "declaration": export.declaration.to_json(),
            "hidden": list(export.hidden),
            "left_out": list(export.left_out),
        }

    @paths.get("/changefeeds/{changefeed_id}/columns", summary="Columns of a captured table")
    def columns(changefeed_id: Named, table: str) -> list[dict[str, Any]]:
        known = operations.columns(changefeed_id, table)
        return [{"name": name, "type": kind, "key": key} for name, kind, key in known]

    @paths.get("/changefeeds/{changefeed_id}/sample", summary="The last changes it delivered")
    def sample(changefeed_id: Named) -> dict[str, Any]:
        return sample_form(operations.last_changes(changefeed_id), changefeed_id)

    @paths.get("/changefeeds/{changefeed_id}/target", summary="What its lake tables are made of")
    def target(changefeed_id: Named) -> dict[str, Any]:
        return target_form(operations.target_tables(changefeed_id), changefeed_id)

    @paths.get("/changefeeds/{changefeed_id}/resnapshots", summary="Tables that are read again")
    def resnapshots(changefeed_id: Named) -> list[dict[str, Any]]:
        return forms(operations.resnapshots(changefeed_id))

    @paths.post("/changefeeds/{changefeed_id}/resnapshots", summary="Read a table again")
    def resnapshot(changefeed_id: Named, body: ResnapshotBody) -> dict[str, Any]:
        asked = operations.resnapshot(changefeed_id, body.table, body.keys, body.where)
        known = forms(operations.resnapshots(changefeed_id))
        return next(one for one in known if one["id"] == asked.id)

    @paths.delete(
        "/changefeeds/{changefeed_id}/resnapshots/{resnapshot}", summary="Cancel one of them"
    )
    def cancel_resnapshot(changefeed_id: Named, resnapshot: str) -> list[dict[str, Any]]:
        return forms(operations.cancel_resnapshot(changefeed_id, resnapshot))

    @paths.get("/changefeeds/{changefeed_id}/quarantine", summary="Rows that the sink refused")
    def quarantine(changefeed_id: Named) -> list[dict[str, Any]]:
        return [all_shown(one) for one in parked_forms(operations.quarantined(changefeed_id))]

    @paths.get(
        "/changefeeds/{changefeed_id}/quarantine/{row}", summary="One of them with its values"
    )
    def quarantined_row(changefeed_id: Named, row: str) -> dict[str, Any]:
        return values_form(operations.quarantined_row(changefeed_id, row))

    def parked_answer(changefeed: str, rows: int) -> dict[str, Any]:
        known = parked_forms(operations.quarantined(changefeed))
        return {"rows": rows, "parked": [all_shown(one) for one in known]}

    @paths.post("/changefeeds/{changefeed_id}/quarantine/retry", summary="Send rows again")
    def retry_quarantined(changefeed_id: Named, body: ParkedBody) -> dict[str, Any]:
        choice = Choice(body.row, body.table, body.key, body.all)
        return parked_answer(changefeed_id, operations.retry_quarantined(changefeed_id, choice))

    @paths.post("/changefeeds/{changefeed_id}/quarantine/drop", summary="Forget rows for good")
    def drop_quarantined(changefeed_id: Named, body: ParkedBody) -> dict[str, Any]:
        choice = Choice(body.row, body.table, body.key, body.all)
        return parked_answer(changefeed_id, operations.drop_quarantined(changefeed_id, choice))

    @paths.post("/sql", summary="Carry out one SQL statement about changefeeds")
    def sql(body: SqlBody) -> dict[str, Any]:
        answer = execute(operations, body.statement)
        return {
            "columns": list(answer.columns),
            "rows": [
                [
                    redacted(v) if isinstance(v, str) and column != DECLARATION else v
                    for column, v in zip(answer.columns, row, strict=True)
                ]
                for row in answer.rows
            ],
            "message": answer.message,
        }

    return paths


def _foreseen(find: Callable[[], Created]) -> dict[str, Any]:
    """Return what something would do, or why it cannot be done."""
    try:
        prepared = find()
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
        "tables": [str(t) for t in prepared.eligible],
        "ineligible": [str(t) for t in prepared.ineligible],
        "outputs": {str(t): redacted(where) for t, where in prepared.outputs.items()},
        "rules": list(prepared.rules),
        "notices": [redacted(line) for line in prepared.notices],
    }


def _checked(checks: Sequence[Health]) -> dict[str, Any]:
    lines = [
        {
            "check": one.check,
            "result": one.result,
            "words": redacted(one.words),
            "cure": redacted(one.cure),
        }
        for one in checks
    ]
    return {"ok": all(one.result != FAILED for one in checks), "checks": lines}


def _held(held: Held) -> dict[str, Any]:
    hold = held.hold
    return {
        "hold": None
        if hold is None
        else {
            "id": hold.id,
            "until": round(hold.until * 1000),
            "position": hold.place,
            "stands": hold.reached,
            "micro_batch": hold.micro_batch,
        },
        "pending": held.pending,
        "micro_batch": held.micro_batch,
        "lag_ms": held.lag_ms,
    }
