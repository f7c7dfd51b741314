"""A Spark cluster on this machine: a master and workers as processes, from pyspark's own jars."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import HOST, end, spawn
from rowferry.testing.servers.maven import java

_START_S: Final = 120.0
_FRUGAL: Final = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_DEPLOY: Final = "org.apache.spark.deploy"


class SparkCluster:
    """A standalone master with workers of one core each; all die with this process.

    Attributes:
        master: the URL for `--spark-master`.
        settings: what an application must say to be let in.
    """

    def __init__(self, folder: Path, workers: int = 2, memory: str = "512m") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        secret, own = secrets.token_hex(32), folder / "secret"
        own.touch(0o600)
        own.write_text(f"{secret}\n")
        self.settings = {"spark.authenticate.secret.file": str(own)}
        self._properties = folder / "spark.conf"
        self._properties.touch(0o600)
        self._properties.write_text(
            "spark.authenticate true\nspark.network.crypto.enabled true\n"
            f"spark.authenticate.secret {secret}\n"
        )
        self._children: list[subprocess.Popen[bytes]] = []
        try:
            log_file = self._start("master", "master.Master", "--host", HOST, "--port", "0")
            self.master = _awaited(r"Starting Spark master at (spark://\S+)", log_file, folder)
            room = ("--host", HOST, "--cores", "1", "--memory", memory)
            begun = []
            for name in [f"worker-{number}" for number in range(workers)]:
                place = ("--work-dir", str(folder / name))
                begun.append(self._start(name, "worker.Worker", *place, *room, self.master))
            for log_file in begun:
                _awaited(r"(Successfully registered with master)", log_file, folder)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, main: str, *arguments: str) -> Path:
        home = _spark_home()
        log_file = self._folder / f"{name}.err"
        settings = (f"-Dspark.{main.partition('.')[0]}.ui.port=0",)
        env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_SCALA_VERSION": _scala_version(home),  # it is no build tree, where it would look
            "PYSPARK_PYTHON": sys.executable,
        }
        jars = ("-cp", f"{home / 'conf'}:{home / 'jars'}/*")
        web = ("--webui-port", "0", "--properties-file", str(self._properties))
        command = [java(), *_FRUGAL, *settings, *jars, f"{_DEPLOY}.{main}", *web, *arguments]
        self._children.append(spawn(command, log_file, env))
        return log_file

    def executors(self) -> list[int]:
        """Return the pids of the executors that run now, one for each worker that has one."""
        workers = {child.pid for child in self._children[1:]}
        pids = []
        for entry in Path("/proc").iterdir():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes()
            except (OSError, ValueError, IndexError):
                continue
            if parent in workers and b"CoarseGrainedExecutorBackend" in words:
                pids.append(int(entry.name))
        return sorted(pids)

    def close(self) -> None:
        """End all processes."""
        for child in reversed(self._children):
            end(child, signal.SIGKILL)
        self._children = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SourceUnavailable("pyspark is not installed")
    return Path(spec.origin).parent


def _scala_version(home: Path) -> str:
    (jar,) = (home / "jars").glob("spark-core_*.jar")
    return jar.name.removeprefix("spark-core_").partition("-")[0]


def _awaited(pattern: str, log_file: Path, folder: Path) -> str:
    """Wait for a line of a process's messages and return what it names."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        match = re.search(pattern, log_file.read_text(errors="replace"))
        if match:
            return match[1]
        time.sleep(0.05)
    raise SourceUnavailable(f"a process of Spark did not start; its messages are in {folder}")
