"""A pytest plugin for the hunt after one defect.

The servers live as long as all hunts together: a fixture that would start one gets that one. What
found the defect is written to a file.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rowferry
from rowferry.testing.servers import Kafka, MariaDb, MySql
from rowferry.testing.servers.child import Living

KINDS = {
    "mysql": MySql,
    "mariadb": MariaDb,
    "mysql-copy": MySql,
    "mariadb-copy": MariaDb,
    "kafka": Kafka,
}
COPIES = {"mysql": 2, "mariadb": 2}  # moments and histories have their own: both use all of one
ORDERS = "ROWFERRY_HUNT"  # the environment's name of the file that has `Orders`


class Orders(SimpleNamespace):
    """What a hunt is told.

    Attributes:
        sources: where the package must come from.
        first: the moments and histories that run before all others.
        sound: nothing is planted.
        servers: the servers that run already, by their folders' names; each is given to one who
            would start it.
        report: the file for what was found.
    """

    sources: str
    first: tuple[str, ...]
    sound: bool
    servers: dict[str, list[Living]]
    report: str


def orders() -> Orders:
    """Return what this hunt is told."""
    told: Orders = pickle.loads(Path(os.environ[ORDERS]).read_bytes())
    return told


def _given(server: Any) -> Any:
    """Return a running server as if it had been started here; nothing here can end it."""
    server._end = lambda how: None
    return server


def _attach(told: Orders) -> None:
    for kind in set(KINDS.values()):
        start = kind.start.__func__

        def found(cls: Any, folder: Path, *rest: Any, _start: Any = start, **more: Any) -> Any:
            if KINDS.get(folder.name) is cls and told.servers[folder.name]:
                return _given(told.servers[folder.name].pop(0))
            return _start(cls, folder, *rest, **more)

        kind.start = classmethod(found)  # type: ignore[assignment,method-assign]


class Hunt:
    """Notes the first test that fails."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._began = time.monotonic()
        self._notes: dict[str, Any] = {"run": 0, "failed": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._notes["run"] += 1
        if report.failed:
            self._notes["failed"].append(report.nodeid)
        if report.failed and "test" not in self._notes:
            crash = getattr(report.longrepr, "reprcrash", None)
            words = str(crash.message if crash else report.longrepr).strip().splitlines()
            self._notes |= {
                "test": report.nodeid,
                "words": (words or [""])[0][:300],
                "seconds": round(time.monotonic() - self._began, 1),
            }
        self._write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._notes |= {"test": report.nodeid, "words": "it cannot be imported", "seconds": 0}
            self._write()

    def _write(self) -> None:
        Path(self._orders.report).write_text(json.dumps(self._notes))


def pytest_configure(config: pytest.Config) -> None:
    if ORDERS not in os.environ:
        return
    told = orders()
    assert str(rowferry.__file__).startswith(told.sources), rowferry.__file__
    _attach(told)
    config.pluginmanager.register(Hunt(told))
