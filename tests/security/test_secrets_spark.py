"""Secrets that Spark sees: nothing that it stores, shows or sends holds one in clear."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import VerifyRequest, verify
from rowferry.downstream.verify.side import DatabaseSide, open_side
from rowferry.errors import EngineError, SecretMissing
from rowferry.secrets.environment import sources_of_environment
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spark import rebuild_table
from rowferry.spark.datasource import TableReader, register, shipped_settings
from rowferry.spark.session import close_session, open_session
from rowferry.spark.shipping import TASK_KEY, shipped, unpacked
from rowferry.spark.table_request import read_request, source_of
from rowferry.spark.verify_job import SparkVerifyRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MySql

DATABASE = "secrets_spark"
WORD = "a/word: of 1 user"
FORMS = (WORD, "a%2Fword%3A%20of%201%20user", "a/word%3A%20of%201%20user")


@dataclass(frozen=True)
class Place:
    """A table of a user whose password stands in a file."""

    uri: str
    file: Path

    @property
    def options(self) -> dict[str, str]:
        return {"source": self.uri, "table": f"{DATABASE}.t"}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    events = folder / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
    }
    found = open_session("secrets", folder / "logs", "local[2]", settings)
    register(found)
    yield found
    close_session(found)


@pytest.fixture(scope="module")
def place(mysql_server: MySql, tmp_path_factory: pytest.TempPathFactory) -> Place:
    for statement in (
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.t (id int PRIMARY KEY, v varchar(9))",
        f"INSERT INTO {DATABASE}.t VALUES (1, 'a'), (2, 'b')",
        f"CREATE USER spark_reader IDENTIFIED BY '{WORD}'",
        "GRANT ALL ON *.* TO spark_reader",
    ):
        mysql_server.execute(statement)
    file = tmp_path_factory.mktemp("word") / "word"
    file.write_text(f"{WORD}\n")
    reference = f"file:{file}".replace("/", "%2F")
    address = Uri.parse(mysql_server.uri, "source").address
    return Place(f"mysql://spark_reader:{reference}@{address}/", file)


def readable(data: bytes) -> list[str]:
    """Return the forms of the secret that stand in some bytes."""
    return [form for form in FORMS if form.encode() in data]


def sent_by(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bytes]:
    """Return what returns all functions that tasks were given since, as bytes."""
    sent: list[bytes] = []
    frame = type(spark.range(1))
    whole: Any = frame.mapInArrow

    def noted(self: Any, function: Any, *more: Any, **others: Any) -> Any:
        sent.append(pickle.dumps(function))
        return whole(self, function, *more, **others)

    monkeypatch.setattr(frame, "mapInArrow", noted)
    return lambda: b"".join(sent)


# --- the data source -----------------------------------------------------------------------------


def test_a_stream_leaves_no_secret_behind(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither plans, checkpoints, offsets nor the event log; and it reads."""
    given = spark.readStream.format("rowferry").options(**place.options).load()
    rows: list[Any] = []
    query = (
        given.writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(row["id"] for row in rows) == [1, 2]
    once = spark.read.format("rowferry").options(**place.options).load()
    assert once.count() == 2
    once.explain(extended=True)
    plans = capsys.readouterr().out + str(query.lastProgress)
    assert "== Physical Plan ==" in plans
    logs = Path(spark.sparkContext.getConf().get("spark.eventLog.dir") or "")
    local = Path(spark.sparkContext.getConf().get("spark.local.dir") or "")
    kept = [p for f in (tmp_path, logs, local) for p in f.rglob("*") if p.is_file()]
    assert any("offsets" in p.parts for p in kept)
    events = b"".join(p.read_bytes() for p in logs.rglob("*") if p.is_file())
    assert b"SparkListenerJobStart" in events and b"rowferry" in events
    assert not readable(plans.encode())
    assert not [p for p in kept if readable(p.read_bytes())]


def test_partitions_hold_the_secret_sealed(spark: SparkSession, place: Place) -> None:
    """Tasks need not look it up: they may be on machines that cannot."""
    request = read_request(place.options, "one")
    found = spark.read.format("rowferry").options(**place.options).load()
    reader = TableReader(place.options, found.schema)
    parts = reader.partitions()
    assert parts and not [part for part in parts if readable(pickle.dumps(part.value))]
    texts = [part.value[0] for part in parts]
    assert all("sealed~" in text and str(place.file) not in text for text in texts)
    hidden = place.file.rename(place.file.with_name("elsewhere"))
    try:
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        assert sorted(row["id"] for row in rows) == [1, 2]
        with pytest.raises(SecretMissing, match=r"file:/.*/word: this file cannot be read"):
            request.present()
    finally:
        hidden.rename(place.file)


def test_without_a_key_the_reference_is_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that somebody else started: tasks look the secret up."""
    monkeypatch.delenv(TASK_KEY, raising=False)
    text = shipped_settings(read_request(place.options, "one").spec)
    assert not readable(text.encode()) and "word" in json.loads(text)["source"]
    assert source_of(unpacked(text)).probe(read_request(place.options, "one").decision())


@pytest.mark.parametrize("value", ["env:NOT_A_REFERENCE", "literal:x", "vault:a", "plain"])
def test_a_value_that_looks_like_a_reference_is_none(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_WORD", value)
    spec = ChangefeedSpec(
        "one",
        Uri.parse("mysql://u:env:THE_WORD@h:1/?", "source"),
        Uri.parse("s3://b/p?protocol=csv&secret-access-key=env:THE_WORD", "sink"),
        {"sink": {"kafka-config": {"sasl-password": "env:THE_WORD"}}},
    )
    fixed = NO_STORE.fixed(spec)
    monkeypatch.delenv("THE_WORD")
    whole = sources_of_environment().resolved(fixed)
    assert whole.source.password == value
    assert whole.sink.parameter("secret-access-key") == value
    assert whole.config["sink"]["kafka-config"]["sasl-password"] == value


def test_who_only_reads_needs_no_secret_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_WORD", "word")
    spec = ChangefeedSpec(
        "one",
        Uri.parse("none://none/", "source"),
        Uri.parse("s3://b/p?protocol=csv&secret-access-key=env:THE_WORD", "sink"),
        {"source": {"token": "env:OF_THE_SOURCE"}},
    )
    for found in (NO_STORE.resolved_sink(spec), NO_STORE.resolved_sink(NO_STORE.fixed_sink(spec))):
        assert found.sink.parameter("secret-access-key") == "word"
        assert found.config["source"] == {"token": "env:OF_THE_SOURCE"}


# --- rowferry table and verify -------------------------------------------------------------------


def test_a_comparison_sends_no_login_in_clear(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (open_side(place.uri, 100, secrets=SecretSources()) for _ in range(2))
    assert isinstance(a, DatabaseSide) and a.login.password == WORD
    sent = sent_by(spark, monkeypatch)
    names = Names.of([f"{DATABASE}.t"], [])
    (result,) = verify(a, b, VerifyRequest(names, (), 100), SparkVerifyRunner(spark))
    assert result.is_equal and result.rows == (2, 2)
    assert len(sent()) > 100 and not readable(sent())


def test_a_task_with_a_secret_is_sealed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = shipped(rebuild_table._MergeTask(WORD, WORD), spark)  # type: ignore[arg-type]
    data = pickle.dumps(task)
    assert not readable(data) and b"_MergeTask" not in data
    again: Any = pickle.loads(data).__self__
    assert again._task._plan == WORD
    other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    monkeypatch.setenv(TASK_KEY, other)
    with pytest.raises(EngineError, match="another ROWFERRY_TASK_SECRET"):
        pickle.loads(data)
