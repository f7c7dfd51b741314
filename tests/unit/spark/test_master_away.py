"""A Spark master that is not there has an error of its own, with the cure, and at once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rowferry.errors import SparkMasterAway, Verdict
from rowferry.spark.session import open_session, refuse_absent_master
from rowferry.testing.servers.child import free_ports


def test_nobody_listens(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(SparkMasterAway) as refused:
        open_session("test", tmp_path, f"spark://127.0.0.1:{port}")
    words = str(refused.value)
    assert words.startswith("[RF-7004] ") and "\n" not in words
    assert f"spark://127.0.0.1:{port}" in words
    assert "--spark-master" in refused.value.cure
    assert refused.value.verdict is Verdict.RETRY


def test_one_of_several_is_enough() -> None:
    (away,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = listener.getsockname()[1]
        refuse_absent_master(f"spark://127.0.0.1:{away},127.0.0.1:{here}")


@pytest.mark.parametrize("master", ["local[*]", "yarn", "k8s://https://127.0.0.1:1"])
def test_other_kinds_are_left_to_spark(master: str) -> None:
    refuse_absent_master(master)
