"""gRPC: tables that are read again beside the stream of their changefeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from rowferry.change.table import TableId
from rowferry.control.operator.operation_forms import ResnapshotProgress
from rowferry.errors import BadOption
from rowferry.face.json_log import redacted
from rowferry.face.rpc_calls import RpcMethods
from rowferry.wire import resnapshot_pb2 as wire


class ResnapshotMethods(RpcMethods):
    """The methods of the service `rowferry.wire.Resnapshots`."""

    def Resnapshot(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Let rows of a captured table be read and delivered again."""
        return self._calls.answered(context, lambda: self._ask(request))

    def ListResnapshots(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the open ones, and the last that ended."""
        return self._calls.answered(
            context, lambda: _answer(self._operations.resnapshots(request.changefeed_id))
        )

    def CancelResnapshot(self, request: Any, context: grpc.ServicerContext) -> Any:
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
