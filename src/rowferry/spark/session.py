"""The SparkSession and its settings; Spark's own output goes to a file, never to the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from rowferry.errors import EngineError, NoJava

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
        EngineError: Spark does not take the settings, or does not reach the master.
    """
    # Workers must run the same virtual environment, or they die at once.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
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
        # Rows never enter Java: what counts is a quick start, not its compilers.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} -XX:+UseSerialGC "
        "-XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.python.daemon.module": "rowferry.spark.daemon",
        "spark.speculation": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": str(log_dir / "warehouse"),
        "spark.log.level": "WARN",
    }
    conf = SparkConf(loadDefaults=False).setAppName(name).setMaster(master)
    for key, value in {**ours, **(settings or {})}.items():
        if value:
            conf.set(key, value)
    if SparkContext._gateway is None:
        _start_java(conf, log_dir / "spark-process.log")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _interrupts_left_alone():
                context = SparkContext.getOrCreate(conf)
            return SparkSession(context)  # which takes seconds, in which Ctrl-C may come
        except (Py4JJavaError, PySparkException) as err:  # which, depends on sessions before
            why = str(getattr(err, "java_exception", err)).partition("\n")[0]
            _end_java()
            raise EngineError(
                f"Spark did not start on {master}: {why}; check --spark-master and --spark-conf; "
                f"details are in {log_dir / 'spark.log'}"
            ) from None


@contextmanager
def _interrupts_left_alone() -> Iterator[None]:
    """Keep our answer to Ctrl-C: Spark puts its own in place, which cancels the jobs under way."""
    ours = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, ours)


def _start_java(conf: SparkConf, output: Path) -> None:
    """Start Spark's Java process: output to a file, out of reach of the terminal's Ctrl-C."""
    with open(output, "ab") as target:
        popen = {"stdout": target, "stderr": target, "start_new_session": True}
        try:
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway)
        except (PySparkRuntimeError, OSError) as err:
            raise NoJava(
                "Spark's Java process did not start; install Java 17 or newer (or set JAVA_HOME); "
                f"details are in {output} ({type(err).__name__})"
            ) from None


def close_session(session: SparkSession) -> None:
    """Stop Spark and end its Java process; one that is gone already is forgotten."""
    try:
        session.stop()
    except (OSError, Py4JError):
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
    _end_java()


def _end_java() -> None:
    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # its end tells the process to go
        try:
            gateway.proc.wait(10)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()
