"""gRPC: every change of one row, and the last changes of a changefeed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc

from rowferry.change.sampled_change import SampledChange
from rowferry.change.table import TableId
from rowferry.control.operator.operation_forms import sample_words
from rowferry.control.operator.trace.forms import LIMIT, SECONDS, TraceRequest, trace_form
from rowferry.errors import BadOption
from rowferry.face.json_log import redacted
from rowferry.face.rpc_calls import RpcMethods
from rowferry.wire import trace_pb2 as wire


class TraceMethods(RpcMethods):
    """The methods of the service `rowferry.wire.Traces`."""

    def Trace(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return every change of one row that was delivered, and where it went."""
        return self._calls.answered(context, lambda: self._trace(request))

    def LastChanges(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the last changes that were delivered."""
        return self._calls.answered(context, lambda: self._last(request))

    def _trace(self, request: Any) -> Any:
        if not request.db_name or not request.table_name:
            raise BadOption("db_name and table_name must both be given")
        asked = TraceRequest(
            str(TableId(request.db_name, request.table_name)),
            tuple(request.key.items()),
            request.since,
            request.until,
            request.limit or LIMIT,
            request.log,
            request.seconds or SECONDS,
        )
        look = self._operations.trace_values if request.values else self._operations.trace
        form = trace_form(look(request.changefeed_id, asked))
        return wire.TraceResponse(
            changes=[_traced(one) for one in form["changes"]],
            complete=form["complete"],
            notes=[redacted(line) for line in form["notes"]],
            looked=form["looked"],
            seconds=form["seconds"],
        )

    def _last(self, request: Any) -> Any:
        last = self._operations.last_changes(request.changefeed_id)
        return wire.LastChangesResponse(
            message=sample_words(last, request.changefeed_id),
            mode=str(last.mode),
            owner=last.owner,
            here=last.here,
            changes=[_sampled(one) for one in last.changes],
        )


def _traced(one: Mapping[str, Any]) -> Any:
    batch = one["micro_batch"] or {"first": 0, "last": 0, "published_at": 0}
    return wire.TracedRow(
        op=one["op"],
        commit_ts=one["commit_ts"] or 0,
        committed_at=one["committed_at"] or 0,
        first_micro_batch=batch["first"],
        last_micro_batch=batch["last"],
        published_at=batch["published_at"],
        log=_texts(one["log"]),
        place=_texts(one["place"]),
        key_only=one.get("key_only", False),
        before=image_text(one.get("before")),
        after=image_text(one.get("after")),
    )


def _texts(words: Mapping[str, Any]) -> dict[str, str]:
    return {name: redacted(str(value)) for name, value in words.items()}


def _sampled(one: SampledChange) -> Any:
    return wire.LastChange(
        db_name=one.table.database,
        table_name=one.table.table,
        op=one.op,
        commit_ts=one.commit_ts,
        key=image_text(one.key),
        before=image_text(one.before),
        after=image_text(one.after),
    )


def image_text(image: Mapping[str, Any] | None) -> str:
    """Return a row as an object of JSON; empty: there is none."""
    return "" if image is None else json.dumps(dict(image), ensure_ascii=False, default=str)
