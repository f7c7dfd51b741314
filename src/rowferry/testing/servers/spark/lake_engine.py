"""A Spark with the published libraries of Delta and Iceberg, which reads and changes lake tables.

It is an engine of others, in a process of its own: another version of Spark than the one that is
installed, since no published library works with that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.maven import Jars
from rowferry.testing.servers.spark.classes import SparkClasses
from rowferry.testing.servers.spark.releases import SPARK_RELEASES

LAKE_SPARK: Final = next(r for r in SPARK_RELEASES if r.name.startswith("pyspark-4.1."))
LAKE_JARS: Final = Jars(
    "spark-lake-4.1",
    libraries=(
        "io.delta:delta-spark_4.1_2.13:4.4.0",
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    ),
)
# All else that Maven brings with them is in Spark already.
_NAMES: Final = ("delta-*.jar", "unitycatalog-*.jar", "iceberg-*.jar", "sqlite-jdbc-*.jar")
_SETTINGS: Final = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",  # tables of a few rows are not worth compiling
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
# Reads a statement a line, writes a line with the file of its rows, or with what went wrong.
_PROGRAM: Final = """
import json, sys
import pyarrow as pa
from pyspark.sql import SparkSession
told, folder, settings = sys.stdout, sys.argv[1], json.loads(sys.argv[2])
sys.stdout = sys.stderr
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
print("rowferry: {}", file=told, flush=True)
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    try:
        for name, value in asked["settings"].items():
            spark.conf.set(name, value)
        rows = pa.table({})
        if asked["wanted"]:
            rows = spark.sql(asked["sql"]).toArrow()
        elif asked["sql"]:
            spark.sql(asked["sql"]).collect()
        place = f"{folder}/{number}.arrow"
        with pa.OSFile(place, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        answer = {"rows": place}
    except Exception as err:
        answer = {"error": f"{type(err).__name__}: {err}"}
    print(f"rowferry: {json.dumps(answer)}", file=told, flush=True)
"""
_MARK: Final = "rowferry: "  # some statements print words of their own


class LakeSpark:
    """One session of this Spark; it ends with its block.

    Args:
        folder: for what it writes beside the tables; made if it is not there.
        more: settings of Spark that win; without them it is one for tables of a few rows.
    """

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        jars = [p for name in _NAMES for p in sorted(LAKE_JARS.ensure().glob(name))]
        settings = {
            **_SETTINGS,
            "spark.jars": ",".join(map(str, jars)),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **(more or {}),
        }
        own = {**LAKE_SPARK.environment(), "SPARK_LOCAL_IP": "127.0.0.1"}
        # Kept classes are those of the version that is installed.
        env = {k: v for k, v in own.items() if k not in SparkClasses.environment()}
        self._messages = (folder / "spark.err").open("w+")
        self._child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(folder), json.dumps(settings)],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
        )
        if not self._line():
            self.close()
            raise SourceUnavailable("Spark with the libraries of Delta and Iceberg did not start")

    def rows(self, query: str) -> pa.Table:
        """Return the rows of a query.

        Raises:
            RuntimeError: Spark refuses it; the text is Spark's.
        """
        return self._answer({"sql": query, "settings": {}, "wanted": True})

    def run(self, statement: str) -> None:
        """Run a statement; what it answers is not of interest.

        Raises:
            RuntimeError: Spark refuses it; the text is Spark's.
        """
        self._answer({"sql": statement, "settings": {}, "wanted": False})

    def use(self, settings: Mapping[str, str]) -> None:
        """Change settings of the session, such as its catalogs."""
        self._answer({"sql": "", "settings": dict(settings), "wanted": False})

    def _answer(self, asked: Mapping[str, Any]) -> pa.Table:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(asked) + "\n")
        self._child.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line() or '{"error": "Spark has ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        with pa.memory_map(answer["rows"]) as file:
            return pa.ipc.open_file(file).read_all()

    def _line(self) -> str:
        """Return the next answer; empty: the process has ended, and its last words are printed."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(_MARK):
                return line.removeprefix(_MARK)
        self._messages.flush()
        self._messages.seek(0)
        print(self._messages.read()[-4000:])
        return ""

    def close(self) -> None:
        """End the process, and its Java with it."""
        assert self._child.stdin is not None and self._child.stdout is not None
        with suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(60)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._messages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
