"""A data server before its master has answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rowferry.refstore.data_server import DataServer
from rowferry.refstore.range import RangeOptions
from rowferry.wire import range_cdc_pb2 as cdc


def test_a_server_that_has_just_started_is_of_no_other_cluster(tmp_path: Path) -> None:
    """It leads nothing yet; who asks it looks for the leader again, and does not stop."""
    server = DataServer("127.0.0.1:0", "127.0.0.1:1", tmp_path, RangeOptions())
    try:
        here = cdc.RangeRoute(range_id=2, leader=server.address)
        answers: Any = cdc.GetRoutesResponse(routes=[here], cluster_id=1)
        server._ask_master = lambda *args: answers  # type: ignore[method-assign]
        request = cdc.CdcRegisterRequest(range_id=2, header=cdc.RequestHeader(cluster_id=1))
        register = server._cdc_methods()["CdcRegister"][1]
        assert register(request).error.code == cdc.CDCError.NOT_LEADER
        server._cluster_id = 3
        assert register(request).error.code == cdc.CDCError.WRONG_CLUSTER
    finally:
        server._ask_master = lambda *args: None  # type: ignore[method-assign]
        server.stop()
