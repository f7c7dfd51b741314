"""Processes that run with one of the versions of Spark that Rowferry runs with.

The one that is installed, or an older one, which is fetched when it is asked for first and comes
before the installed one on the module path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rowferry.testing.servers.spark.classes import SparkClasses
from rowferry.testing.servers.spark.releases import SPARK_RELEASES

INSTALLED = version("pyspark")
OLDER = [release.name.removeprefix("pyspark-") for release in SPARK_RELEASES]


@dataclass(frozen=True)
class Spark:
    """A version, and how processes find it."""

    release: str
    environment: dict[str, str]

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python with this version."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def ferry(self, folder: Path, *arguments: str, code: int = 0) -> str:
        """Run `rowferry`; return what it says, of an end with this exit code."""
        ended = self.run(folder, "-m", "rowferry", *arguments)
        assert ended.returncode == code, ended.stdout
        return ended.stdout


def spark_of(release: str) -> Spark:
    """Return a version; it is fetched if it is not there.

    Raises:
        SourceUnavailable: it cannot be had here.
    """
    found = dict(zip(OLDER, SPARK_RELEASES, strict=True)).get(release)
    # Classes that were kept are those of the version that is installed.
    kept = () if found is None else SparkClasses.environment()
    given = found.environment() if found else os.environ
    return Spark(release, {name: value for name, value in given.items() if name not in kept})
