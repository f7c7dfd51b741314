from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.spark import session


def test_ctrl_c_is_ours_as_soon_as_spark_has_its_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = signal.getsignal(signal.SIGINT)
    context = SimpleNamespace(environment={})

    def made(conf: object) -> object:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark puts its own handler in place
        return context

    seen: list[Any] = []

    def opened(found: object) -> object:
        seen.append((found, signal.getsignal(signal.SIGINT)))
        return "session"

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # so that they are as before afterwards
    monkeypatch.setattr(session, "has_java", lambda: True)
    monkeypatch.setattr(session, "SparkContext", SimpleNamespace(getOrCreate=made))
    monkeypatch.setattr(session, "SparkSession", opened)
    try:
        assert session.open_session("test", tmp_path, "local[1]") == "session"
        assert seen == [(context, ours)]
    finally:
        signal.signal(signal.SIGINT, ours)
