"""Masked columns on a real MySQL: their clear values are in nothing that a feed leaves anywhere."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mask_kit import SALT, MaskedFeed, SecretRows, config, meta_dump

from rowferry.errors import BadTransform, MaskLost, RowferryError
from rowferry.testing.harness import RunProcess
from rowferry.testing.receiver import HttpReceiver
from rowferry.testing.servers import Kafka, MySql


@pytest.fixture
def rows(mysql_server: MySql, request: pytest.FixtureRequest) -> SecretRows:
    name = "m" + str(abs(hash(request.node.name)) % 10**9)
    return SecretRows(mysql_server, name)


@pytest.fixture
def opened(tmp_path: Path, rows: SecretRows) -> Iterator[Any]:
    feeds: list[MaskedFeed] = []

    def start(address: str, query: str = "", **more: Any) -> MaskedFeed:
        feeds.append(MaskedFeed(rows, tmp_path, address, config(rows.database, **more), query))
        return feeds[-1]

    yield start
    for feed in feeds:
        feed.close()


def digits(value: str) -> str:
    return hmac.new(SALT.encode(), value.encode(), "sha256").hexdigest()


def live(rows: SecretRows, feed: MaskedFeed) -> tuple[str, str]:
    """Let a table be read and changed in every way; returns a key that stays, and one that went."""
    kept, gone = rows.insert(1), rows.insert(2)
    rows.insert(3)
    feed.catch_up()
    rows.update(kept)
    rows.delete(gone)
    kept = rows.rename(kept)
    rows.insert(4)
    feed.catch_up()
    rows.server.script(f"ALTER TABLE {rows.database}.t MODIFY c_num BIGINT NOT NULL, ADD x INT")
    rows.server.script(f"CREATE TABLE {rows.database}.later LIKE {rows.database}.t")
    rows.server.script(
        f"INSERT INTO {rows.database}.later SELECT * FROM {rows.database}.t WHERE n = 4"
    )
    feed.catch_up()
    return kept, gone


@pytest.mark.parametrize("form", ["canal-json", "csv", "parquet"])
def test_files(form: str, rows: SecretRows, opened: Any, tmp_path: Path) -> None:
    feed = opened(f"file://{tmp_path}/out?protocol={form}&fsync=false")
    kept, _ = live(rows, feed)
    feed.nothing_is_told()
    if form == "csv":
        text = "".join(p.read_text() for p in (tmp_path / "out").rglob("*.csv"))
        assert digits(kept) in text and '"q' in text
        schemas = [json.loads(p.read_text()) for p in (tmp_path / "out").rglob("schema_*.json")]
        types = {c["ColumnName"]: c for s in schemas for c in s.get("TableColumns") or ()}
        assert (types["id"]["ColumnType"], types["id"]["ColumnLength"]) == ("CHAR", "64")
        assert types["twice"]["ColumnType"] == "BIGINT"


def test_a_lake(rows: SecretRows, opened: Any, tmp_path: Path) -> None:
    feed = opened(f"delta+file://{tmp_path}/lake?fsync=false")
    live(rows, feed)
    feed.nothing_is_told()


def test_topics_claim_checks_and_too_large_messages(
    rows: SecretRows, opened: Any, tmp_path: Path, kafka_broker: Kafka
) -> None:
    large = {
        "large-message-handle-option": "claim-check",
        "claim-check-storage-uri": f"file://{tmp_path}/claims",
    }
    uri = f"kafka://{kafka_broker.bootstrap}/{rows.database}?protocol=canal-json"
    dispatch = [{"matcher": ["*.*"], "partition": "columns", "columns": ["id"]}]
    feed = opened(
        f"{uri}&enable-tidb-extension=true&max-message-bytes=1100&partition-num=3",
        sink={"kafka-config": {"large-message-handle": large}, "dispatchers": dispatch},
    )
    rows.insert(9, "long " * 60)
    kept, gone = live(rows, feed)
    assert [*tmp_path.glob("claims/*")]
    messages = kafka_broker.read_all(rows.database)
    texts = [b"\n".join((m.key or b"", m.value or b"")) for m in messages]
    feed.nothing_is_told(*texts)
    # A key's changes are in one partition, by its hash.
    for key in (kept, gone):
        places = {m.partition for m in messages if digits(key).encode() in (m.value or b"")}
        assert len(places) == 1


def test_a_message_that_is_refused_for_its_size(
    rows: SecretRows, opened: Any, kafka_broker: Kafka
) -> None:
    uri = f"kafka://{kafka_broker.bootstrap}/{rows.database}?protocol=canal-json"
    feed = opened(f"{uri}&max-message-bytes=600")
    rows.insert(1, "long " * 60)
    with pytest.raises(RowferryError, match="max-message-bytes"):
        feed.catch_up()
    feed.nothing_is_told()


def test_requests(rows: SecretRows, opened: Any) -> None:
    with HttpReceiver() as receiver:
        feed = opened(f"{receiver.uri}/x?protocol=json")
        live(rows, feed)
        feed.nothing_is_told(*(r.body for r in receiver.seen))
        assert sum(len(r.body) for r in receiver.taken) > 1000


def test_a_database_and_its_refusals(rows: SecretRows, opened: Any, mysql_server: MySql) -> None:
    copy = f"{rows.database}_copy"
    route = [{"matcher": ["*.*"], "target-schema": copy}]
    mysql_server.script(f"DROP DATABASE IF EXISTS {copy}")
    uri = f"{mysql_server.uri}?create-tables=true&meta-database={copy}_meta"
    feed = opened(uri, sink={"dispatchers": route})
    kept, gone = live(rows, feed)
    database = rows.database
    found = mysql_server.execute(f"SELECT id, c_null, c_const, c_cut, n, twice FROM {copy}.t")
    theirs = mysql_server.execute(f"SELECT id, c_cut, n FROM {database}.t")
    wanted = {
        (digits(str(i)), None, "-", str(c)[:2], n, str(int(str(n)) * 2)) for i, c, n in theirs
    }
    assert set(found) == wanted and digits(kept) in {i for i, *_ in found}
    assert digits(gone) not in {i for i, *_ in found}
    later = mysql_server.execute(f"SELECT id FROM {copy}.later")
    assert later == [
        (digits(str(i)),) for (i,) in mysql_server.execute(f"SELECT id FROM {database}.later")
    ]
    kind = "SELECT COLUMN_TYPE, IS_NULLABLE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s"
    asked = mysql_server.execute(f"{kind} AND TABLE_NAME='t' AND COLUMN_NAME='c_num'", copy)
    assert asked == [("char(64)", "NO")]
    # The row is refused downstream: the words of the server are about what it was sent.
    mysql_server.script(f"ALTER TABLE {copy}.t MODIFY plain VARCHAR(2), MODIFY c_hash CHAR(3)")
    rows.insert(5)
    with pytest.raises(RowferryError):
        for _ in range(5):
            feed.loop.step()
    with pytest.raises(RowferryError) as refused:
        feed.loop.step()
    shown = [
        repr(row).encode()
        for base in (copy, f"{copy}_meta")
        for (name,) in mysql_server.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", base
        )
        for row in mysql_server.execute(f"SELECT * FROM {base}.{name}")
    ]
    feed.nothing_is_told(str(refused.value).encode(), *shown)


def test_a_rename_stops_the_feed_before_a_row_of_it_goes_out(
    rows: SecretRows, opened: Any, tmp_path: Path
) -> None:
    feed = opened(f"file://{tmp_path}/out?protocol=canal-json&fsync=false")
    rows.insert(1)
    feed.catch_up()
    rows.server.script(f"ALTER TABLE {rows.database}.t RENAME COLUMN c_null TO c_open")
    rows.insert(2, renamed=("c_null", "c_open"))
    for _ in range(2):  # also when it is started again
        with pytest.raises(MaskLost, match=r"c_null .* is masked, and is .*\.c_open now"):
            feed.catch_up()
    feed.nothing_is_told()


@pytest.mark.parametrize(
    "alter",
    [
        "DROP COLUMN c_hash, CHANGE c_null c_open TEXT",
        # c_null is masked as before, and is another column.
        "CHANGE c_null c_open TEXT, CHANGE plain c_null VARCHAR(300)",
    ],
)
def test_a_copy_that_a_tool_makes_shows_no_masked_column(
    alter: str, rows: SecretRows, opened: Any, tmp_path: Path
) -> None:
    filter_ = {"rules": [f"{rows.database}.t"]}
    feed = opened(f"file://{tmp_path}/out?protocol=canal-json&fsync=false", filter=filter_)
    rows.insert(1)
    feed.catch_up()
    renamed = f"RENAME TABLE {rows.database}.t TO {rows.database}._t_del"
    rows.server.script(
        f"CREATE TABLE {rows.database}._t_gho LIKE {rows.database}.t",
        f"ALTER TABLE {rows.database}._t_gho {alter}",
        f"{renamed}, {rows.database}._t_gho TO {rows.database}.t",
        f"INSERT INTO {rows.database}.t (id, uk, c_open) VALUES ('1', 1, '{rows.word()}')",
    )
    with pytest.raises(MaskLost, match="c_open, which no rule"):
        feed.catch_up()
    feed.nothing_is_told()


def test_tables_that_trade_names_by_one_that_is_not_captured(
    rows: SecretRows, opened: Any, tmp_path: Path
) -> None:
    name = rows.database
    mask = {"matcher": [f"{name}.a"], "columns": ["email"], "action": "null"}
    rows.server.script(
        f"CREATE TABLE {name}.a (id INT PRIMARY KEY, email VARCHAR(60))",
        f"CREATE TABLE {name}.b LIKE {name}.a",
        f"INSERT INTO {name}.a VALUES (1, '{rows.word()}')",
    )
    feed = opened(
        f"file://{tmp_path}/out?protocol=canal-json&fsync=false",
        filter={"rules": [f"{name}.a", f"{name}.b"]},
        transform={"masks": [mask]},
    )
    feed.catch_up()
    rows.server.script(
        f"RENAME TABLE {name}.a TO {name}.tmp, {name}.b TO {name}.a, {name}.tmp TO {name}.b",
        f"INSERT INTO {name}.b VALUES (2, '{rows.word()}')",
    )
    for _ in range(2):
        with pytest.raises(MaskLost, match=r"email of .*\.a is masked, and is .*\.b\.email now"):
            feed.catch_up()
    feed.nothing_is_told()


def test_a_value_that_does_not_fit_is_not_told(
    rows: SecretRows, opened: Any, tmp_path: Path
) -> None:
    rule = {"matcher": ["*.*"], "columns": ["c_num"], "action": "expression"}
    own = config(rows.database)
    own["transform"]["masks"].insert(0, {**rule, "expression": "c_num", "type": "int"})
    feed = opened(f"file://{tmp_path}/out?protocol=csv&fsync=false", transform=own["transform"])
    rows.insert(1)
    with pytest.raises(BadTransform, match="not shown"):
        feed.catch_up()
    feed.nothing_is_told()


def test_a_command_with_spark(rows: SecretRows, tmp_path: Path, kafka_broker: Kafka) -> None:
    """The command's own folder, Spark's temporary files, its event log and its logs."""
    for n in range(6):
        rows.insert(n)
    for folder in ("spark", "events"):
        (tmp_path / folder).mkdir()
    settings = tmp_path / "feed.json"
    settings.write_text(json.dumps(config(rows.database)))
    uri = f"kafka://{kafka_broker.bootstrap}/{rows.database}?protocol=canal-json&partition-num=2"
    conf = {
        "spark.local.dir": f"{tmp_path}/spark",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{tmp_path}/events",
        "spark.shuffle.compress": "false",
    }
    given = [word for key, value in conf.items() for word in ("--spark-conf", f"{key}={value}")]
    arguments = ["--source", rows.server.uri, "--sink-uri", uri, "--config", str(settings)]
    arguments += ["--until", "caught-up"]
    found: list[Any] = []
    for turn in range(2):
        for n in range(4 * turn):
            rows.insert(100 + n)
        how = ["--spark-only", "--spark-master", "local[2]"]
        with RunProcess([*arguments, *given, *how], tmp_path) as run:
            while run.alive:
                found += _seen_in(rows, tmp_path)
                time.sleep(2)  # files come and go: a look at some moments
            assert run.wait(60) == 0, run.printed()
    found += rows.traces_in(tmp_path)
    assert not found, found[:3]
    assert any((tmp_path / "events").rglob("*"))
    metas = [*tmp_path.rglob("*.db")]
    assert metas and not any(rows.traces(meta_dump(meta)) for meta in metas)
    messages = kafka_broker.read_all(rows.database)
    assert len(messages) >= 10
    assert not any(rows.traces(m.value or b"") for m in messages)


def _seen_in(rows: SecretRows, folder: Path) -> list[Any]:
    """Look at files that come and go."""
    try:
        return rows.traces_in(folder)
    except OSError:
        return []
