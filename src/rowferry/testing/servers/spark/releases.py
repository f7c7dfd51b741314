"""The versions of Spark that Rowferry runs with, beside the one that is installed with it."""

from __future__ import annotations

from typing import Final

from rowferry.testing.servers.programs import PythonPackages

_PY4J: Final = "py4j==0.10.9.9"
SPARK_RELEASES: Final = tuple(
    PythonPackages(f"pyspark-{release}", (f"pyspark=={release}", _PY4J))
    for release in ("4.0.5", "4.1.4", "4.2.1")
)
