"""gRPC: changefeeds as files declare them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import grpc

from rowferry.control.operator.declared.apply import ApplyRequest, apply_declared, to_json
from rowferry.control.operator.declared.export import export_declared
from rowferry.face.json_log import redacted
from rowferry.face.rpc_calls import RpcMethods
from rowferry.spec.config_file import parse_config, write_config
from rowferry.spec.declared import Declaration, read_declaration
from rowferry.wire import declare_pb2 as wire

_TYPE: Final = "yaml"


class DeclarationMethods(RpcMethods):
    """The methods of the service `rowferry.wire.Declarations`."""

    def Apply(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Bring changefeeds to what files declare."""
        return self._calls.answered(context, lambda: self._apply(request))

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return changefeeds in the form that `Apply` takes."""
        return self._calls.answered(context, lambda: self._export(request))

    def _apply(self, request: Any) -> Any:
        kind = request.type or _TYPE
        declared = tuple(
            _declaration(text, kind, f"declaration {place}")
            for place, text in enumerate(request.declarations, 1)
        )
        asked = ApplyRequest(declared, request.dry_run, request.prune, request.adopt)
        steps = apply_declared(self._operations, asked)
        return wire.ApplyResponse(steps=[_step(to_json(step)) for step in steps])

    def _export(self, request: Any) -> Any:
        kind = request.type or _TYPE
        write_config({}, kind, "type")  # a wrong word is told before anybody is asked
        name = getattr(request, "as")
        export = export_declared(
            self._operations, list(request.changefeed_ids), request.owner, name
        )
        return wire.ExportResponse(
            declaration=write_config(export.declaration.to_json(), kind, "type"),
            hidden=export.hidden,
            left_out=export.left_out,
        )


def _declaration(text: str, kind: str, where: str) -> Declaration:
    # As the text stands: files of rules that it names are the caller's, and refused later on.
    return read_declaration(parse_config(text, kind, where), where)


def _step(form: Mapping[str, Any]) -> Any:
    error = form["error"]
    return wire.AppliedStep(
        changefeed_id=form["changefeed"],
        owner=form["owner"],
        action=form["action"],
        outcome=form["outcome"],
        differences=[
            wire.Difference(key=one["key"], before=_json(one["before"]), after=_json(one["after"]))
            for one in form["differences"]
        ],
        tables=form["tables"],
        notices=[redacted(line) for line in form["notices"]],
        error="" if error is None else redacted(f"[{error['code']}] {error['message']}"),
    )


def _json(value: Any) -> str:
    return redacted(json.dumps(value, ensure_ascii=False))
