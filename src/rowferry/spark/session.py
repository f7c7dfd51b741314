"""The SparkSession and its settings; Spark's own output goes to a file, never to the terminal."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from rowferry.errors import NoJava

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


def open_session(
    name: str, log_dir: Path, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark (or attach to a cluster) for one Rowferry process.

    Args:
        name: shown by Spark as the application's name.
        log_dir: Spark's log files go here.
        master: `local[*]`, `spark://…`, `yarn` or `k8s://…`.
        settings: further Spark settings; they win over ours.

    Raises:
        NoJava: the Java virtual machine did not start.
    """
    # Workers must run the same virtual environment, or they die at once.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    log_dir = log_dir.absolute()
    log_dir.mkdir(parents=True, exist_ok=True)
    log4j = log_dir / "log4j2.properties"
    log4j.write_text(_LOG4J.format(file=log_dir / "spark.log"))
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "768m",
        "spark.driver.host": "127.0.0.1" if master.startswith("local") else "",
        "spark.driver.bindAddress": "127.0.0.1" if master.startswith("local") else "",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} -XX:+UseSerialGC",
        "spark.speculation": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": str(log_dir / "warehouse"),
        "spark.log.level": "WARN",
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**ours, **(settings or {})}.items():
        if value:
            builder = builder.config(key, value)
    with _output_to(log_dir / "spark-process.log"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return builder.getOrCreate()
        except Exception as err:
            if "JAVA_GATEWAY_EXITED" in str(err) or isinstance(err, FileNotFoundError):
                raise NoJava(
                    "Spark's Java process did not start; install Java 17 or newer (or set "
                    f"JAVA_HOME); details are in {log_dir / 'spark-process.log'}"
                ) from None
            raise


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Let child processes that start now inherit a file as their output instead of the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(target)
