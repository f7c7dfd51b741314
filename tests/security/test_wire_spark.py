"""Spark's doors: nobody is heard without the secret, nobody else reads its files."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from rowferry.errors import BadOption
from rowferry.spark.doors import authentication, is_hidden
from rowferry.spark.session import close_session, open_session
from rowferry.spark.shipping import TASK_KEY, has_key, packed, unpacked
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

SECRET_FILE = "spark.authenticate.secret.file"
FAILURE = 5  # the kind of Spark's message that says why a call was refused


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    session = open_session(
        "doors", folder / "work" / "logs", "local[1]", {"spark.x.secret": "swordfish"}
    )
    yield session
    close_session(session)


def stranger_calls(port: int) -> str:
    """Call Spark's RPC as somebody without a secret; returns the words of its refusal."""
    java = b"\xac\xed\x00\x05sr\x00\x0bno.such.Type" + bytes(8) + b"\x02\x00\x00xp"
    body = b"\0\0\0\x01x" + java  # no sender, no receiver, a name, then a Java object
    frame = struct.pack(">QBQI", 8 + 1 + 8 + 4 + len(body), 3, 77, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        plain.sendall(frame)
        stream = plain.makefile("rb")
        head = stream.read(21)
        size, kind, _, length = struct.unpack(">QBQI", head)
        assert kind == FAILURE, kind
        return stream.read(length).decode()


def test_nobody_is_heard_without_the_secret(spark: SparkSession) -> None:
    """No Java object of a stranger is read."""
    port = int(spark.sparkContext.getConf().get("spark.driver.port") or 0)
    said = stranger_calls(port)
    assert "Sasl" in said or "Auth" in said, said
    assert "ObjectInputStream" not in said and "no.such.Type" not in said


def test_spark_works_behind_its_doors(spark: SparkSession) -> None:
    found = spark.range(3).mapInArrow(lambda batches: batches, "id long").collect()
    assert sorted(row.id for row in found) == [0, 1, 2]


def test_tasks_open_secrets_with_a_key_that_is_not_sent(spark: SparkSession) -> None:
    """The key is in the environment of the workers, from their start."""
    spec = ChangefeedSpec(
        "web",
        Uri.parse("mysql://ann:a-word-of-the-source@127.0.0.1:1/", "source"),
        Uri.parse("blackhole://", "sink"),
    )
    context = spark.sparkContext
    assert has_key(context.getConf()) and TASK_KEY not in context.environment
    text = packed(spec, with_key=True)
    assert "a-word-of-the-source" not in text

    def passwords(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"word": [unpacked(text).source.password]})

    found = spark.range(1).mapInArrow(passwords, "word string").collect()
    assert [row.word for row in found] == ["a-word-of-the-source"]
    lines = [_command(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    assert not any(os.environ[TASK_KEY].encode() in line for line in lines)


def test_others_can_read_nothing(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    for key in ("spark.local.dir", "spark.python.unix.domain.socket.dir"):
        folder = Path(conf.get(key) or "")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and any(folder.iterdir()), key
    logs = Path((conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")).parent
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    for name in ("spark.log", "spark-process.log"):
        assert stat.S_IMODE((logs / name).stat().st_mode) == 0o600, name


def test_no_secret_stands_on_a_command_line(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.x.secret") == "swordfish"
    lines = [_command(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    ours = [line for line in lines if b"spark.driver.memory" in line]
    assert ours and not any(b"swordfish" in line for line in ours)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


# --- a cluster's secret ---------------------------------------------------------------------------


def test_a_cluster_wants_its_secret() -> None:
    with pytest.raises(BadOption, match=r"spark://h:7077: its secret is missing; .*secret\.file="):
        authentication("spark://h:7077", {})
    assert authentication("spark://h:7077", {"spark.authenticate": "false"}) == {}


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [(0o640, "s", "others can read it"), (0o600, " \n", "is empty"), (None, "", "cannot be read")],
)
def test_a_secrets_file_that_is_none(
    mode: int | None, text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    if mode is not None:
        file.write_text(text)
        os.chmod(file, mode)
    with pytest.raises(BadOption, match=words) as found:
        authentication("spark://h:7077", {SECRET_FILE: str(file)})
    assert str(file) in str(found.value)


def test_a_secret_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("swordfish\n")
    found = authentication("spark://h:7077", {SECRET_FILE: str(file)})
    assert found["spark.authenticate.secret"] == "swordfish" and not found[SECRET_FILE]
    assert found["spark.authenticate"] == found["spark.network.crypto.enabled"] == "true"
    assert is_hidden("spark.authenticate.secret") and not is_hidden(SECRET_FILE)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4,2]", "yarn", "k8s://https://h"])
def test_spark_makes_the_secret_itself(master: str) -> None:
    found = authentication(master, {})
    assert found["spark.authenticate"] == "true" and "spark.authenticate.secret" not in found


def test_each_cluster_of_a_process_has_a_secret_of_its_own() -> None:
    one, two = (authentication("local-cluster[1,1,512]", {}) for _ in range(2))
    assert len(one["spark.authenticate.secret"]) == 64
    assert one["spark.authenticate.secret"] != two["spark.authenticate.secret"]
