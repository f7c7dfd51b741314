"""A flood on a whole `rowferry server` with a changefeed: all of it goes on."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from rowferry.change.table import TableId
from rowferry.control.store.sql_store import open_store
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import ServerProcess, checkpoint, wait_for
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire.subscribe_pb2_grpc import SubscriptionsStub

WITHIN_S = 240.0
CROWD, DESCRIPTORS, DRY_RUNS = 1_300, 1_024, 40
HALF = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TABLE = TableId("load", "t")


class Attacked:
    """The server, its changefeed, and those who use both."""

    def __init__(self, server: ServerProcess, store: Store, folder: Path) -> None:
        self.server, self.store, self.folder = server, store, folder
        found = re.search(r"serving at http://(\S+), gRPC at (\S+)\n", server.printed())
        assert found
        self.rest, self.rpc = found[1], found[2]
        self._ids = count(1)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        talk = HTTPConnection(self.rest, timeout=WITHIN_S)
        try:
            talk.request(method, path, None if body is None else json.dumps(body))
            answer = talk.getresponse()
            said = answer.read()
            return answer.status, json.loads(said) if said[:1] in (b"{", b"[") else said
        finally:
            talk.close()

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))

    def claim(self) -> tuple[int, float]:
        """Who has the changefeed, and since when: another one where its lease was lost."""
        with closing(open_store(f"sqlite:///{self.folder / 'meta.db'}")) as meta:
            feed = meta.feed("feed")
            assert feed and feed.lease
            return feed.epoch, feed.lease.claimed_at

    def is_well(self) -> None:
        """Rows are delivered, and everybody is answered, while the attack lasts."""
        self.store.load(TABLE, [{"id": next(self._ids), "note": "x"}])
        now = self.store.timestamp()
        wait_for(lambda: checkpoint(self.folder / "out") >= now, "the changefeed", WITHIN_S)
        # A machine under load may answer late; one that is shut out does not answer at all.
        wait_for(lambda: self.ask("GET", "/health")[0] == 200, "health", WITHIN_S, step_s=1.0)
        seen = self.ask("GET", "/api/v2/changefeeds/feed")
        assert seen[0] == 200 and seen[1]["state"] == "normal", seen
        with grpc.insecure_channel(self.rpc) as channel, pytest.raises(grpc.RpcError) as said:
            SubscriptionsStub(channel).SubscribeCDC(  # type: ignore[no-untyped-call]
                wire.SubscribeCDCRequest(subscriber_name="x"), timeout=WITHIN_S, wait_for_ready=True
            )
        assert "db_name" in said.value.details()  # type: ignore[attr-defined]


@contextmanager
def crowd(address: str, sent: bytes) -> Iterator[None]:
    """Connect so many times, each time with some bytes and nothing more."""
    host, _, port = address.rpartition(":")
    with ExitStack() as held:
        for _ in range(CROWD):
            made = held.enter_context(socket.create_connection((host, int(port)), WITHIN_S))
            with suppress(ConnectionError):
                made.sendall(sent)
        yield


@contextmanager
def dry_runs(attacked: Attacked) -> Iterator[Counter[int]]:
    """Ask for dry runs with a source that takes connections, and never says a word."""
    answers: Counter[int] = Counter()
    with socket.create_server(("127.0.0.1", 0), backlog=DRY_RUNS) as silent:
        source = f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/?read-timeout=1h"
        body = {"source_uri": source, "sink_uri": "blackhole:///?protocol=json"}

        def ask() -> None:
            with suppress(OSError):
                answers[attacked.ask("POST", "/api/rowferry/changefeeds/check", body)[0]] += 1

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(DRY_RUNS)]
        for one in threads:
            one.start()
        surplus = DRY_RUNS - 16
        wait_for(lambda: answers[429] >= surplus, f"refusals, {answers}", WITHIN_S)
        yield answers
    for one in threads:
        one.join(WITHIN_S)


@pytest.mark.timeout(900)
def test_a_flood_on_a_whole_server(tmp_path: Path) -> None:
    arguments = ["--addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"]
    arguments += ["--spark-master", "local[1]", "--meta", f"sqlite:///{tmp_path / 'meta.db'}"]
    with (
        LocalCluster(tmp_path / "store", 1) as cluster,
        cluster.store() as store,
        ServerProcess(arguments, tmp_path / "server") as server,
    ):
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        store.ddl("CREATE DATABASE load")
        store.ddl("CREATE TABLE load.t (id bigint PRIMARY KEY, note varchar(40))")
        wait_for(lambda: "serving at" in server.printed() or not server.alive, "a server", WITHIN_S)
        attacked = Attacked(server, store, tmp_path)
        made = attacked.ask(
            "POST",
            "/api/v2/changefeeds",
            {
                "changefeed_id": "feed",
                "source_uri": f"range://{cluster.master_address}",
                "sink_uri": f"file://{tmp_path / 'out'}?protocol=csv",
                "replica_config": {"filter": {"rules": ["load.*"]}},
            },
        )
        assert made[0] == 200, made
        attacked.is_well()
        before = attacked.claim()
        with crowd(attacked.rest, HALF):
            attacked.is_well()
            assert attacked.descriptors < 3 * DESCRIPTORS // 4
            with crowd(attacked.rpc, HTTP2):
                attacked.is_well()
                assert attacked.descriptors < 3 * DESCRIPTORS // 4
        with dry_runs(attacked) as answers:
            attacked.is_well()
            assert answers == {429: DRY_RUNS - 16}
        attacked.is_well()
        assert attacked.claim() == before, "its lease was lost"
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        assert (soft, hard) == (DESCRIPTORS, DESCRIPTORS)
