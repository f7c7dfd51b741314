"""Floods of connections, bodies and slow requests: the server answers all the same."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from front_kit import PATIENCE_S, Front, is_ended

from rowferry.control.operator.operations import Operations
from rowferry.errors import ServerBusy
from rowferry.face import rpc
from rowferry.face.descriptors import share_of_descriptors
from rowferry.face.gate import Gate
from rowferry.face.rest.door import DoorPatience
from rowferry.face.rest.turns import Turns
from rowferry.face.rpc_calls import Shares
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire.subscribe_pb2_grpc import SubscriptionsStub

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and settings
HALF = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "
MOST = 12
SHORT = DoorPatience(head_s=0.3, body_s=0.3, answer_s=60.0, rest_s=0.3, taking_s=0.3)
CHECK = "/api/rowferry/changefeeds/check"
WANTED = {"source_uri": "range://a:1", "sink_uri": "blackhole:///?protocol=json"}


def test_half_requests_make_room_for_whole_ones(opened: Callable[..., Front]) -> None:
    front = opened(most=MOST, patience=DoorPatience(head_s=600.0))
    with front.crowd(5 * MOST, HALF) as crowd:
        for _ in range(3):
            assert front.ask("GET", "/health").status == 200
        first = crowd[: 4 * MOST]
        assert all(is_ended(one) for one in first)  # who came first has gone
        late = crowd[-1]
        late.sendall(b"y\r\n\r\n")  # who was served last may still finish
        assert late.recv(4096).startswith(b"HTTP/1.1 200")


def test_those_that_are_served_are_not_closed_for_others(
    opened: Callable[..., Front], slow: SimpleNamespace
) -> None:
    front = opened(most=4, patience=DoorPatience(head_s=600.0))
    with slow.asked(front, 4) as answers, closing(front.knock(HALF)) as fifth:
        assert is_ended(fifth)
    assert [one.status for one in answers] == [200] * 4


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HALF,
        b"POST /api/v2/changefeeds HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF,
    ],
    ids=["nothing", "half a head", "half a body", "half a second one"],
)
def test_a_connection_that_waits_is_ended(opened: Callable[..., Front], sent: bytes) -> None:
    front = opened(patience=SHORT)
    with closing(front.knock(sent)) as connection:
        assert is_ended(connection)


def test_a_body_without_end_is_ended(opened: Callable[..., Front]) -> None:
    front = opened(patience=SHORT)
    head = b"POST /api/v2/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with closing(front.knock(head)) as connection:
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        with pytest.raises(ConnectionError):
            for _ in range(100_000):
                connection.sendall(piece)
    assert front.ask("GET", "/health").status == 200


def test_a_body_that_nobody_reads_is_ended(opened: Callable[..., Front]) -> None:
    """It is refused before it is read; then some of it is dropped, however fast it comes."""
    front = opened(gate=Gate.of("word"), patience=DoorPatience(rest_s=600.0))
    head = b"POST /api/v2/log HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with closing(front.knock(head)) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")
        with pytest.raises(ConnectionError):
            for _ in range(2_000):
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def test_a_body_that_is_too_large_ends_the_connection(front: Front) -> None:
    body = b" " * (2 << 20)
    head = b"POST /api/v2/changefeeds HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with closing(front.knock(head % len(body) + body)) as connection:
        said = b""
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                said += part
    assert said.startswith(b"HTTP/1.1 413") and b"connection: close" in said.lower()


def test_who_takes_nothing_is_not_waited_for(opened: Callable[..., Front]) -> None:
    front = opened(patience=SHORT)
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect((front.host, front.port))
    with connection, pytest.raises(ConnectionError):
        for _ in range(1_000_000):
            connection.sendall(request)


def test_the_limit_of_descriptors_is_raised_and_shared() -> None:
    program = (
        "import resource as r; from rowferry.face.descriptors import *; "
        "r.setrlimit(r.RLIMIT_NOFILE, (256, 512)); print(share_of_descriptors()); "
        "raise_descriptor_limit(); print(r.getrlimit(r.RLIMIT_NOFILE), share_of_descriptors())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split("\n")[:2] == ["64", "(512, 512) 128"]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 2 * share_of_descriptors() <= soft  # REST and gRPC leave half to all others


@pytest.fixture
def slow(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Dry runs that take until they are told to end."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    created = operations.create

    def create(wanted: Any, dry_run: bool = False) -> Any:
        begun.release()
        go_on.wait(PATIENCE_S)
        return created(wanted, dry_run)

    monkeypatch.setattr(operations, "create", create)

    class Asked:
        def __init__(self, front: Front, count: int) -> None:
            self.answers: list[Any] = []
            self._threads = [
                threading.Thread(
                    target=lambda: self.answers.append(front.ask("POST", CHECK, WANTED))
                )
                for _ in range(count)
            ]

        def __enter__(self) -> list[Any]:
            for one in self._threads:
                one.start()
            for _ in self._threads:
                assert begun.acquire(timeout=PATIENCE_S)
            return self.answers

        def __exit__(self, *error: Any) -> None:
            go_on.set()
            for one in self._threads:
                one.join(PATIENCE_S)

    yield SimpleNamespace(asked=Asked, go_on=go_on, begun=begun)
    go_on.set()


def test_slow_dry_runs_leave_room_for_all_others(front: Front, slow: SimpleNamespace) -> None:
    with slow.asked(front, Turns().acting) as answers:
        refused = front.ask("POST", CHECK, WANTED)
        assert refused.status == 429 and refused.headers["retry-after"] == "5"
        assert refused.words.startswith("[RF-8003] 16 requests")
        assert front.ask("GET", "/api/v2/changefeeds").status == 200
        assert front.ask("GET", "/health").status == 200
    assert [one.status for one in answers] == [200] * Turns().acting
    assert front.ask("POST", CHECK, WANTED).status == 200  # turns are given back


def test_an_answer_has_an_end(opened: Callable[..., Front], slow: SimpleNamespace) -> None:
    front = opened(turns=Turns(acting=1, answer_s=0.2))
    late = front.ask("POST", CHECK, WANTED)
    assert late.status == 504 and late.words.startswith("[RF-8004] not done within 0.2 s")
    assert front.ask("POST", CHECK, WANTED).status == 429  # its thread is still at work
    assert front.ask("GET", "/health").status == 200


def test_health_is_told_when_all_threads_are_taken(
    opened: Callable[..., Front], operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    feeds = operations.feeds

    def wait(states: Any = ()) -> Any:
        begun.release()
        go_on.wait(PATIENCE_S)
        return feeds(states)

    monkeypatch.setattr(operations, "feeds", wait)
    front, answers = opened(turns=Turns(looking=50)), list[Any]()
    ask = lambda: answers.append(front.ask("GET", "/api/v2/changefeeds"))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(50)]
    for one in threads:
        one.start()
    try:
        for _ in range(40):  # all that there are
            assert begun.acquire(timeout=PATIENCE_S)
        assert front.ask("GET", "/health").status == 200
        assert front.ask("GET", "/api/v2/health").status == 200
    finally:
        go_on.set()
        for one in threads:
            one.join(PATIENCE_S)
    assert [one.status for one in answers] == [200] * 50


@contextmanager
def piped(address: str, source: str) -> Iterator[str]:
    """Lead connections to an address on, so that they come from `source`."""
    host, _, port = address.rpartition(":")
    talks: list[socket.socket] = []

    def copy(come: socket.socket, go: socket.socket) -> None:
        with suppress(OSError):
            while data := come.recv(65536):
                go.sendall(data)

    def take() -> None:
        with suppress(OSError):
            while True:
                one = listener.accept()[0]
                other = socket.create_connection((host, int(port)), PATIENCE_S, (source, 0))
                talks.extend((one, other))
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        taking.join()
    for talk in talks:
        talk.close()


def test_one_client_does_not_take_all_calls(operations: Operations, slow: SimpleNamespace) -> None:
    wanted = wire.SubscribeCDCRequest(
        subscriber_name="x",
        db_name="a",
        table_name="b",
        sink=wire.CDCSink(
            type="storage", config={"uri": "file:///x?protocol=csv", "source_uri": "range://a:1"}
        ),
    )
    with (
        rpc.serve(operations, "127.0.0.1:0") as serving,
        piped(serving.address, "127.0.0.2") as elsewhere,
        grpc.insecure_channel(serving.address) as channel,
        grpc.insecure_channel(elsewhere) as other,
    ):
        ours, theirs = (SubscriptionsStub(c) for c in (channel, other))  # type: ignore[no-untyped-call]
        calls = [ours.SubscribeCDC.future(wanted, timeout=PATIENCE_S) for _ in range(8)]
        for _ in calls:
            assert slow.begun.acquire(timeout=PATIENCE_S)
        with pytest.raises(grpc.RpcError) as refused:
            ours.SubscribeCDC(wanted, timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert "[RF-8003] 8 calls of this client" in refused.value.details()  # type: ignore[attr-defined]
        with pytest.raises(grpc.RpcError) as answered:
            theirs.SubscribeCDC(wire.SubscribeCDCRequest(subscriber_name="x"), timeout=PATIENCE_S)
        assert "db_name and table_name" in answered.value.details()  # type: ignore[attr-defined]
        slow.go_on.set()
        assert all(call.exception(PATIENCE_S) for call in calls)  # nobody answers at range://a:1
        with pytest.raises(grpc.RpcError) as again:
            ours.SubscribeCDC(wire.SubscribeCDCRequest(subscriber_name="x"), timeout=PATIENCE_S)
        assert "db_name and table_name" in again.value.details()  # type: ignore[attr-defined]


def test_shares_are_by_network_where_one_client_has_many_addresses() -> None:
    shares = Shares(1)
    with shares.taken("2001:db8::1"), shares.taken("10.0.0.1"), shares.taken("2001:db8:0:1::1"):
        for taken in ("2001:db8::ffff", "10.0.0.1", "::ffff:10.0.0.1"):
            with pytest.raises(ServerBusy), shares.taken(taken):
                pass
        with shares.taken("10.0.0.2"), shares.taken("unix:here"):
            pass
    with shares.taken("2001:db8::ffff"):
        pass


def test_calls_are_limited_as_well(operations: Operations) -> None:
    with rpc.serve(operations, "127.0.0.1:0", connections=MOST) as serving:
        host, _, port = serving.address.rpartition(":")
        with ExitStack() as held:

            def connected() -> socket.socket:
                made = socket.create_connection((host, int(port)), PATIENCE_S)
                held.enter_context(made).sendall(HTTP2)
                return made

            for _ in range(MOST):
                assert connected().recv(1)  # the server's own settings
            assert all(is_ended(connected()) for _ in range(3))
        with grpc.insecure_channel(serving.address) as channel:
            stub = SubscriptionsStub(channel)  # type: ignore[no-untyped-call]
            large = wire.SubscribeCDCRequest(subscriber_name="x" * (1 << 20))
            with pytest.raises(grpc.RpcError) as refused:
                stub.SubscribeCDC(large, timeout=PATIENCE_S, wait_for_ready=True)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
            deep = wire.SubscribeCDCRequest(
                subscriber_name="x",
                db_name="a",
                table_name="b",
                sink=wire.CDCSink(
                    type="storage",
                    config={"uri": "file:///x", "source_uri": "range://a:1", "a." * 9000: "1"},
                ),
            )
            with pytest.raises(grpc.RpcError) as refused:
                stub.SubscribeCDC(deep, timeout=PATIENCE_S)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
            assert "more than 8 parts" in refused.value.details()  # type: ignore[attr-defined]
