"""The SparkSession and its settings; Spark's own output goes to a file, never to the terminal."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from rowferry.errors import EngineError, SparkMasterAway
from rowferry.spark import doors, shipping
from rowferry.spark.versions import (
    JAVA_GONE,
    JAVA_RAISED,
    check_release,
    end_java,
    forget_session,
    has_java,
    start_java,
)

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.filePermissions = rw-------
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""

_STOPPED: Final = "stopped SparkContext"
_room: Final = doors.Room()  # a process has one session at a time


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
        WrongSpark: this version of Spark is not known.
        BadOption: the master wants a secret that was not given.
        SparkMasterAway: no master of a Spark cluster answers.
        EngineError: Spark does not take the settings.
    """
    check_release()
    refuse_absent_master(master)  # Spark itself would try for more than a minute
    # Workers must run the same virtual environment, or they die at once.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log_dir, settings = log_dir.absolute(), settings or {}
    doors.private_folder(log_dir)
    log4j = log_dir / "log4j2.properties"
    log4j.write_text(_LOG4J.format(file=log_dir / "spark.log"))
    entry = doors.authentication(master, settings)
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
    every = {**ours, **settings, **entry, **_room.settings(master, settings)}
    every |= shipping.key_setting(has_java())
    conf = SparkConf(loadDefaults=False).setAppName(name).setMaster(master)
    for key, value in every.items():
        if value and not doors.is_hidden(key):
            conf.set(key, value)
    if not has_java():
        start_java(conf, log_dir / "spark-process.log")
    for key in filter(doors.is_hidden, every):  # not before: they would stand on a command line
        conf.set(key, every[key])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _interrupts_left_alone():
                context = SparkContext.getOrCreate(conf)
            shipping.keep_apart(context)
            return SparkSession(context)  # which takes seconds, in which Ctrl-C may come
        except JAVA_RAISED as err:
            why = str(getattr(err, "java_exception", err)).partition("\n")[0]
            end_java()
            _room.clear()
            if master.startswith(STANDALONE) and _STOPPED in why:
                # It was there a moment ago: Spark has given it up, and says only what followed.
                raise master_away(
                    master, f"it did not take us in; see {log_dir / 'spark.log'}"
                ) from None
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


def close_session(session: SparkSession) -> None:
    """Stop Spark and end its Java process; one that is gone already is forgotten."""
    try:
        session.stop()
    except JAVA_GONE:
        forget_session()
    end_java()
    _room.clear()


STANDALONE: Final = "spark://"
_WAIT_S: Final = 5.0
_PORT: Final = 7077


def refuse_absent_master(master: str) -> None:
    """Refuse a cluster of Spark's own kind none of whose masters takes a connection.

    Other kinds (`local`, `yarn`, `k8s://`) are left to Spark.

    Raises:
        SparkMasterAway: with the reason of the last one that was tried.
    """
    if not master.startswith(STANDALONE):
        return
    why = "no address is given"
    for place in filter(None, master.removeprefix(STANDALONE).split(",")):
        host, _, port = place.strip().rpartition(":")
        if not host:
            host, port = port, str(_PORT)
        if not port.isdigit():
            continue  # Spark says what is wrong with it
        try:
            socket.create_connection((host.strip("[]"), int(port)), _WAIT_S).close()
        except OSError as err:
            why = err.strerror or str(err)
        else:
            return
    raise master_away(master, why)


def master_away(master: str, why: str) -> SparkMasterAway:
    """Return the error of a master that does not answer."""
    return SparkMasterAway(f"no Spark master answers at {master}: {why}")
