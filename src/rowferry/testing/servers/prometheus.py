"""Prometheus and its `promtool`, for tests of metrics and alert rules; Debian's packages."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import HOST, Living, free_port
from rowferry.testing.servers.packages import Packages

PACKAGES: Final = Packages("prometheus", "bookworm", ("prometheus",))
_TOOL_S: Final = 120.0


def promtool(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Prometheus' own tool in a folder; returns what it printed, and its exit code."""
    command = [*PACKAGES.program("usr/bin/promtool"), *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=_TOOL_S
    )


class Prometheus(Living):
    """A Prometheus on 127.0.0.1 that scrapes some servers once a second."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.absolute()
        self.port = 0

    @classmethod
    def ensure(cls) -> Path:
        """Return the folder of its programs; fetch them if need be."""
        return PACKAGES.ensure()

    @classmethod
    def start(cls, folder: Path, targets: Sequence[str], rules: Path | None = None) -> Self:
        """Start one and return when it answers; `targets` are HOST:PORT of servers.

        Raises:
            SourceUnavailable: it cannot be had, or does not start.
        """
        server = cls(folder)
        server.folder.mkdir(parents=True, exist_ok=True)
        listed = ", ".join(json.dumps(target) for target in targets)
        rule_files = f"rule_files: [{json.dumps(str(rules))}]\n" if rules else ""
        (server.folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"{rule_files}"
            "scrape_configs:\n"
            "  - job_name: rowferry\n"
            f"    static_configs: [{{targets: [{listed}]}}]\n"
        )
        server._begin_at(server._launch)
        return server

    def _launch(self) -> None:
        self.port = free_port()
        command = [
            *PACKAGES.program("usr/bin/prometheus"),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={HOST}:{self.port}",
            "--log.level=warn",
        ]
        self._run(command, self.folder / "prometheus.err", self._answers)

    def _answers(self, log_text: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gives now: one item for each series.

        Raises:
            SourceUnavailable: Prometheus does not understand it; its own words say why.
        """
        words = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{words}", timeout=30) as answer:
                parsed = json.load(answer)
        except urllib.error.HTTPError as err:
            raise SourceUnavailable(f"{expression}: {err.read().decode()}") from err
        return list(parsed["data"]["result"])
