"""A pytest plugin for the hunt after one defect: what is most likely to find it runs first.

The servers live as long as all hunts together: a fixture that would start one gets that one. What
found the defect is written to a file.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rowferry
from rowferry.testing.servers import Kafka, MariaDb, MySql

KINDS = {"mysql": MySql, "mariadb": MariaDb, "kafka": Kafka}
ORDERS = "ROWFERRY_HUNT"  # the environment's name of the file that has `Orders`
_PLAIN = (str, int, float, bytes, bool, tuple, list, dict, Path, type(None))


class Orders(SimpleNamespace):
    """What a hunt is told.

    Attributes:
        sources: where the package must come from.
        first: parts of tests' names; those that hold the first of them run first, and so on.
        servers: facts of the servers that run already, by their folders' names.
        report: the file for what was found.
    """

    sources: str
    first: tuple[str, ...]
    servers: dict[str, dict[str, Any]]
    report: str


def facts_of(server: Any) -> dict[str, Any]:
    """Return what another process must know of a server."""
    facts = {k: v for k, v in vars(server).items() if isinstance(v, _PLAIN)}
    return {**facts, "_child": None, "pid": server.pid}


def _started(kind: Any, facts: dict[str, Any]) -> Any:
    """Return a running server as if it had been started here; nothing here can end it."""
    server = kind(facts["folder"], *([1, ()] if issubclass(kind, MySql | MariaDb) else []))
    known = dict(facts)
    pid = known.pop("pid")
    vars(server).update(known)
    server._child = SimpleNamespace(pid=pid, poll=lambda: None)
    server._end = lambda how: None
    server._clear = lambda: None
    return server


def _attach(orders: Orders) -> None:
    for kind in set(KINDS.values()):
        start: Callable[..., Any] = kind.start

        def found(folder: Path, *rest: Any, _start: Any = start, _kind: Any = kind, **more: Any):
            if folder.name in orders.servers and KINDS.get(folder.name) is _kind:
                return _started(_kind, orders.servers[folder.name])
            return _start(folder, *rest, **more)

        kind.start = found  # type: ignore[method-assign]


class Hunt:
    """Orders the tests, and notes the first that fails."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._began = time.monotonic()
        self._notes: dict[str, Any] = {"run": 0}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = self._orders.first

        def place(item: pytest.Item) -> int:
            return next((i for i, part in enumerate(wanted) if part in item.nodeid), len(wanted))

        items.sort(key=place)
        self._notes["all"] = len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._notes["run"] += 1
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
    orders: Orders = pickle.loads(Path(os.environ[ORDERS]).read_bytes())
    assert str(rowferry.__file__).startswith(orders.sources), rowferry.__file__
    _attach(orders)
    config.pluginmanager.register(Hunt(orders))
