"""Spark's classes in the form that Java loads at once: a start of Spark then takes less work.

Java checks and links some ten thousand classes at each start of Spark, and tests start it often. It
can write what it loaded to a file, and later starts read that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from zlib import crc32

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.maven import java
from rowferry.testing.servers.packages import cache, locked

_LIMIT_S: Final = 1800.0  # for a machine under load; it takes half a minute of one core
# As `spark/session.py` starts Java.
_FLAGS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_TRIAL: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.parallelize(range(2), 2).map(lambda x: x).collect()
spark.range(10, numPartitions=2).mapInArrow(lambda b: b, "id long").selectExpr("sum(id)").collect()
spark.createDataFrame([(1, "a")], "id int, s string").toArrow()
spark.stop()
"""


class SparkClasses:
    """The file for the Spark and the Java that are installed here."""

    @classmethod
    def ensure(cls) -> Path:
        """Return the file; make it if it is not there, which takes one start of Spark."""
        archive = cls.path()
        if not archive.exists():
            with locked("spark-classes"):
                if not archive.exists():
                    cls._make(archive)
        return archive

    @classmethod
    def path(cls) -> Path:
        """Return where the file is, or will be."""
        program = Path(java()).resolve()
        known = f"{_spark()} {program} {program.stat().st_mtime_ns}"
        return cache() / "spark-classes" / f"{crc32(known.encode()):08x}.jsa"

    @classmethod
    def environment(cls) -> dict[str, str]:
        """Return what lets Spark's Java use the file; nothing where there is none."""
        try:
            archive = cls.path()
        except (SourceUnavailable, OSError):
            return {}
        if not archive.exists() or not archive.stat().st_size:
            return {}
        # The second is for the small program that finds out how Java is to be started.
        return {
            "SPARK_SUBMIT_OPTS": f"-XX:SharedArchiveFile={archive} -Xlog:disable",
            "SPARK_LAUNCHER_OPTS": _FLAGS,
        }

    @classmethod
    def _make(cls, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            trial = Path(folder, "trial.py")
            trial.write_text(_TRIAL)
            command = [str(_spark() / "bin" / "spark-submit"), "--master", "local[2]"]
            command += ["--driver-java-options", f"{_FLAGS} -XX:ArchiveClassesAtExit={part}"]
            for setting in ("ui.enabled=false", "sql.codegen.wholeStage=false"):
                command += ["--conf", f"spark.{setting}"]
            own = {
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            subprocess.run(
                [*command, str(trial)],
                cwd=folder,
                env={**os.environ, **own},
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        if not part.exists():
            part.touch()  # this Java cannot: starts are slower, and nobody tries again
        part.rename(path)


def _spark() -> Path:
    module = find_spec("pyspark")
    if module is None or module.origin is None:
        raise SourceUnavailable("PySpark is not installed")
    return Path(module.origin).parent
