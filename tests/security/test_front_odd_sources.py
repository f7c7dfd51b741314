"""Sources and sinks whose answers make no sense: every face tells it in one line of ours."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from front_kit import Front
from wire_rogue_kit import EOF, OK, Answer, column, honest, packets, result, rogue

from rowferry.control.operator.operations import Operations
from rowferry.face import rpc
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire.subscribe_pb2_grpc import SubscriptionsStub

CHECK, SQL = "/api/rowferry/changefeeds/check", "/api/rowferry/sql"
SINK = "blackhole:///?protocol=json"
ODD = {
    "a word": result([b"x"]),
    "nothing": packets(b"\1", column(), EOF, EOF),
    "NULL": packets(b"\1", column(), EOF, b"\xfb", EOF),
    "many columns": result([b"1"] * 12),
    "many rows": result(*[[b"1"]] * 5),
    "a number below zero": result([b"-1", b"-1"]),
    "a number beyond all": result([b"9" * 40, b"9" * 40]),
    "no result": packets(OK),
    "an empty packet": packets(b""),
}


def odd(name: str, after: int) -> Any:
    """Return answers that are usual at first, and then odd."""
    asked: list[bytes] = []

    def answers(command: bytes) -> Answer:
        asked.append(command)
        sql = command[1:].upper()
        usual = command[:1] != b"\x03" or sql.startswith((b"SET", b"ROLLBACK", b"COMMIT"))
        return honest(command) if usual or len(asked) <= after else [ODD[name]]

    return answers


@pytest.mark.parametrize("after", [0, 4, 9])
@pytest.mark.parametrize("name", ODD)
def test_rest_and_sql_tell_it(front: Front, name: str, after: int) -> None:
    with rogue(odd(name, after)) as server:
        uri = f"mysql://u:p@127.0.0.1:{server.port}/"
        said = front.ask("POST", CHECK, {"source_uri": uri, "sink_uri": SINK})
        assert said.status == 200, said
        assert said.form["ok"] is False and said.form["error"]["code"] != "RF-0000", said
        assert "AssertionError" not in said.form["error"]["message"]
    with rogue(odd(name, after)) as server:
        statement = (
            f"EXPLAIN CREATE CHANGEFEED x FROM 'mysql://u:p@127.0.0.1:{server.port}/' INTO '{SINK}'"
        )
        said = front.ask("POST", SQL, {"statement": statement})
        assert said.status in (400, 500) and "[RF-0000]" not in said.words, said


@pytest.mark.parametrize("name", ODD)
def test_a_sink_is_judged_alike(front: Front, name: str) -> None:
    with rogue(odd(name, 3)) as source, rogue(odd(name, 0)) as sink:
        asked = {
            "source_uri": f"mysql://u:p@127.0.0.1:{source.port}/",
            "sink_uri": f"mysql://u:p@127.0.0.1:{sink.port}/",
        }
        said = front.ask("POST", CHECK, asked)
        assert said.status == 200 and said.form["ok"] is False
        assert said.form["error"]["code"] != "RF-0000", said


def test_calls_tell_it(operations: Operations) -> None:
    with (
        rpc.serve(operations, "127.0.0.1:0") as serving,
        grpc.insecure_channel(serving.address) as channel,
    ):
        stub = SubscriptionsStub(channel)  # type: ignore[no-untyped-call]
        for name in ODD:
            with rogue(odd(name, 4)) as server:
                where = {"uri": SINK, "source_uri": f"mysql://u:p@127.0.0.1:{server.port}/"}
                request = wire.SubscribeCDCRequest(
                    subscriber_name="s",
                    db_name="a",
                    table_name="b",
                    sink=wire.CDCSink(type="storage", config=where),
                )
                with pytest.raises(grpc.RpcError) as told:
                    stub.SubscribeCDC(request, timeout=120)
                code, words = told.value.code(), told.value.details()  # type: ignore[attr-defined]
                assert code is not grpc.StatusCode.INTERNAL and "RF-0000" not in words, name
