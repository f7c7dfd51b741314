"""A real `rowferry server`: a sink that never answers, the ports that were free, its metrics."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

import grpc
import pytest
import yaml

from page_examples import ROOT
from rowferry.change.table import TableId
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import ServerProcess, checkpoint, wait_for
from rowferry.testing.servers.prometheus import Prometheus

WITHIN_S = 600.0
ROWS = 3_000
TABLES = [f"t{i}" for i in range(4)]  # a task for each, if there were enough slots


# A range store keeps its log, the snapshots have ended, local files are no target with calls, and
# no row is refused.
NOT_HERE = {
    *("rowferry_retention_left_seconds", "rowferry_snapshot_parts", "rowferry_conflicts_total"),
    *("rowferry_dropped_rows_total", "rowferry_sink_retries_total"),
    *("rowferry_sink_calls_total", "rowferry_sink_bytes_total", "rowferry_parked_rows_total"),
}


class Silent:
    """Takes connections and requests, and answers nothing until the end of the block."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked = threading.Event()  # somebody waits for an answer
        self._talks: list[socket.socket] = []
        self._taking = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> Self:
        self._taking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Close all connections; from now on nobody listens. On repeat: nothing."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._taking.join()
        self._listener.close()
        for talk in self._talks:
            with suppress(OSError):
                talk.shutdown(socket.SHUT_RDWR)
            talk.close()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                talk = self._listener.accept()[0]
                self._talks.append(talk)
                threading.Thread(target=self._listen, args=(talk,), daemon=True).start()

    def _listen(self, talk: socket.socket) -> None:
        with suppress(OSError):
            if talk.recv(1):  # who only looks whether somebody is there sends nothing
                self.asked.set()


class Talk:
    """Requests to a server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, body: Any = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=WITHIN_S) as answer:
            return str(answer.read().decode())

    def create(self, name: str, source: str, sink: str) -> None:
        rules = {"filter": {"rules": ["load.*"]}}
        body = {"changefeed_id": name, "source_uri": source, "sink_uri": sink}
        self.ask("/api/v2/changefeeds", {**body, "replica_config": rules})

    def feed(self, name: str) -> Any:
        return json.loads(self.ask(f"/api/v2/changefeeds/{name}"))


def test_a_hanging_sink_leaves_a_slot_to_the_others(tmp_path: Path) -> None:
    arguments = ["--addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"]
    arguments += ["--spark-master", "local[1]"]
    with (
        Silent() as silent,
        LocalCluster(tmp_path / "store", 1) as cluster,
        cluster.store() as store,
        ServerProcess(arguments, tmp_path / "server") as server,
    ):
        store.ddl("CREATE DATABASE load")
        for name in TABLES:
            store.ddl(f"CREATE TABLE load.{name} (id bigint PRIMARY KEY, note varchar(40))")
            rows = [{"id": i, "note": f"note {i}"} for i in range(ROWS)]
            store.load(TableId("load", name), rows)
        found: list[re.Match[str]] = []

        def serves() -> bool:
            found.extend(re.finditer(r"serving at (\S+), gRPC at (\S+)\n", server.printed()))
            return bool(found) or not server.alive

        wait_for(serves, "a server", WITHIN_S)
        talk, source = Talk(found[0][1]), f"range://{cluster.master_address}"
        # Parts of a snapshot are carried out by Spark. This request would last for ten minutes.
        waits = f"http://127.0.0.1:{silent.port}/?protocol=canal-json&timeout=10m&max-retry=0"
        talk.create("silent", source, waits)
        assert silent.asked.wait(WITHIN_S), server.printed()[-2000:]
        talk.create("well", source, f"file://{tmp_path / 'well'}?protocol=csv")
        now = store.timestamp()
        wait_for(lambda: checkpoint(tmp_path / "well") >= now, "the other one", WITHIN_S)
        assert talk.feed("silent")["state"] == "normal"  # it hangs, and nothing else
        silent.hang_up()
        wait_for(lambda: talk.feed("silent")["state"] == "warning", "an error", WITHIN_S)

        _check_addresses(talk, *found[0].groups())
        _check_metrics(talk, store)
        _check_prometheus(talk, tmp_path / "prometheus")
        server.terminate()
        assert server.wait(WITHIN_S) == 0, server.printed()[-2000:]


def _check_addresses(talk: Talk, url: str, called: str) -> None:
    """What is advertised is where the server is reached, whatever it was told to take."""
    (one,) = json.loads(talk.ask("/api/v2/captures"))["items"]
    assert f"http://{one['address']}" == url
    assert not url.endswith(":0") and not called.endswith(":0")
    with grpc.insecure_channel(called) as channel:
        grpc.channel_ready_future(channel).result(WITHIN_S)


def _check_metrics(talk: Talk, store: Store) -> None:
    """Every series that the dashboard and the alerts look at is there, with its stages."""
    queries = (ROOT / "deploy/grafana/rowferry.json").read_text()
    queries += yaml.dump(yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text()))
    used = set(re.findall(r"rowferry_\w+", queries))
    used -= NOT_HERE
    error = 'rowferry_errors_total{changefeed="silent",code="RF-4001"}'
    ids = count(ROWS)
    shown: dict[str, float] = {}

    def all_there() -> bool:
        with store.transaction() as work:  # also one that was just taken over has figures then
            work.insert(TableId("load", TABLES[0]), [{"id": next(ids), "note": ""}])
        lines = [line for line in talk.ask("/metrics").splitlines() if line[:1] != "#"]
        shown.clear()
        shown.update((name, float(value)) for name, value in (li.rsplit(" ", 1) for li in lines))
        by_stage = [
            shown.get(f'rowferry_{what}_total{{changefeed="well",stage="{stage}"}}', 0.0)
            for what in ("rows", "bytes")
            for stage in ("captured", "decided", "sent")
        ]
        return (
            used <= {name.partition("{")[0] for name in shown}
            and min(by_stage) > 0
            and len(set(by_stage[:3])) == 1  # nothing is filtered here
            and shown.get(error, 0) > 0
        )

    try:
        wait_for(all_there, "all metrics", WITHIN_S, 0.5)
    except TimeoutError:
        pytest.fail(f"{used - {n.partition('{')[0] for n in shown}} is missing, or: {shown}")


def _check_prometheus(talk: Talk, folder: Path) -> None:
    """A real Prometheus reads the server, and every query of dashboard and alerts finds series."""
    dashboard = json.loads((ROOT / "deploy/grafana/rowferry.json").read_text())
    rules = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"][0]["rules"]
    queries = [
        t["expr"].replace("$changefeed", ".*") for p in dashboard["panels"] for t in p["targets"]
    ]
    talk.ask("/api/v2/changefeeds/silent/pause", {})
    target = talk.url.removeprefix("http://")
    with Prometheus.start(folder, [target], ROOT / "deploy/alerts.yaml") as prometheus:
        paused = 'rowferry_changefeed_state{changefeed="silent", state="stopped"} == 1'
        wait_for(lambda: bool(prometheus.query(paused)), "a paused one that is shown", WITHIN_S)
        wait_for(lambda: bool(prometheus.query("rate(rowferry_rows_total[1m])")), "rates", WITHIN_S)
        for query in queries:
            found = prometheus.query(query)
            if not NOT_HERE & set(re.findall(r"rowferry_\w+", query)):
                assert found, query
        for rule in rules:
            prometheus.query(rule["expr"])
        lag = 'rowferry_checkpoint_age_seconds{changefeed="silent"}'
        assert prometheus.query(lag)  # nobody runs it, and it is shown all the same
        wait_for(
            lambda: (
                not prometheus.query('ALERTS{changefeed="silent", alertname!="RowferryErrors"}')
            ),
            "silence",
            WITHIN_S,
        )
