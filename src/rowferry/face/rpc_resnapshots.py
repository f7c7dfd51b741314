"""gRPC: tables that are read again beside the stream of their changefeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from rowferry.change.table import TableId
from rowferry.control.operator.operation_forms import ResnapshotProgress
from rowferry.control.operator.operations import Operations
from rowferry.errors import BadOption
from rowferry.face.json_log import redacted
from rowferry.face.rpc_calls import Calls
from rowferry.wire import resnapshot_pb2 as wire
from rowferry.wire import resnapshot_pb2_grpc as stubs


class ResnapshotMethods:
    """The methods of the service `rowferry.wire.Resnapshots`."""

    def __init__(self, operations: Operations, calls: Calls) -> None:
        self._operations = operations
        self._calls = calls

    def Resnapshot(  # noqa: N802 (the name on the wire)
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Let rows of a captured table be read and delivered again."""
        return self._calls.answered(context, lambda: self._ask(request))

    def ListResnapshots(  # noqa: N802 (the name on the wire)
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Return the open ones, and the last that ended."""
        return self._calls.answered(
            context, lambda: _answer(self._operations.resnapshots(request.changefeed_id))
        )

    def CancelResnapshot(  # noqa: N802 (the name on the wire)
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """End an open one where it is; what was delivered stays."""

        def cancel() -> Any:
            known = self._operations.cancel_resnapshot(request.changefeed_id, request.id)
            return _answer(known)

        return self._calls.answered(context, cancel)

    def _ask(self, request: Any) -> Any:
        if not request.db_name or not request.table_name:
            raise BadOption("db_name and table_name must both be given")
        feed, table = request.changefeed_id, TableId(request.db_name, request.table_name)
        asked = self._operations.resnapshot(feed, str(table), request.keys, request.where)
        known = self._operations.resnapshots(feed)
        (mine,) = (one for one in known if one.asked.id == asked.id)
        return wire.ResnapshotResponse(resnapshot=_state(mine))


def _answer(known: Sequence[ResnapshotProgress]) -> Any:
    return wire.ResnapshotsResponse(resnapshots=[_state(one) for one in known])


def _state(one: ResnapshotProgress) -> Any:
    asked = one.asked
    return wire.ResnapshotState(
        id=asked.id,
        db_name=asked.table.database,
        table_name=asked.table.table,
        first_key=list(asked.first),
        last_key=list(asked.last),
        where=asked.where,
        state=one.state,
        rows=one.rows,
        total=one.total,
        asked_at=round(asked.asked_at * 1000),
        ended_at=round(asked.ended_at * 1000),
        message=redacted(asked.words),
    )


def add_resnapshots(operations: Operations, calls: Calls, server: grpc.Server) -> None:
    """Let a server answer the service's methods."""
    methods = ResnapshotMethods(operations, calls)
    stubs.add_ResnapshotsServicer_to_server(methods, server)  # type: ignore[no-untyped-call]
