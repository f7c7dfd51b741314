"""gRPC: rows that a sink refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from rowferry.change.table import TableId
from rowferry.control.operator.quarantine import Choice, forms, values_form
from rowferry.errors import BadOption
from rowferry.face.json_log import redacted
from rowferry.face.rpc_calls import RpcMethods
from rowferry.face.rpc_traces import image_text
from rowferry.wire import quarantine_pb2 as wire


class QuarantineMethods(RpcMethods):
    """The methods of the service `rowferry.wire.Quarantine`."""

    def ListQuarantined(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the rows that the sink refused, and those that wait behind them."""
        return self._calls.answered(context, lambda: self._rows(request.changefeed_id, 0))

    def ShowQuarantined(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return one of them with its values."""
        return self._calls.answered(context, lambda: self._show(request))

    def RetryQuarantined(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Let rows be sent again, with all that waits behind them."""

        def retry() -> Any:
            sent = self._operations.retry_quarantined(request.changefeed_id, _choice(request))
            return self._rows(request.changefeed_id, sent)

        return self._calls.answered(context, retry)

    def DropQuarantined(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Forget rows for good."""

        def drop() -> Any:
            gone = self._operations.drop_quarantined(request.changefeed_id, _choice(request))
            return self._rows(request.changefeed_id, gone)

        return self._calls.answered(context, drop)

    def _rows(self, changefeed: str, chosen: int) -> Any:
        known = self._operations.quarantined(changefeed)
        shown = [_row(form, row.table) for form, row in zip(forms(known), known, strict=True)]
        return wire.QuarantinedRows(rows=shown, chosen=chosen)

    def _show(self, request: Any) -> Any:
        parked = self._operations.quarantined_row(request.changefeed_id, request.row)
        form = values_form(parked)
        return wire.QuarantinedValues(
            row=_row(form, parked.row.table),
            before=image_text(form["before"]),
            after=image_text(form["after"]),
        )


def _choice(request: Any) -> Choice:
    if bool(request.db_name) != bool(request.table_name):
        raise BadOption("db_name and table_name must both be given, or neither")
    table = str(TableId(request.db_name, request.table_name)) if request.db_name else ""
    return Choice(request.row, table, request.key, request.all)


def _row(form: Mapping[str, Any], table: TableId) -> Any:
    return wire.QuarantinedRow(
        row=form["row"],
        db_name=table.database,
        table_name=table.table,
        key=form["key"],
        op=form["op"],
        commit_ts=form["commit_ts"],
        micro_batch=form["micro_batch"],
        bytes=form["bytes"],
        parked_at=form["parked_at"],
        state=form["state"],
        cause=redacted(form["cause"]),
    )
