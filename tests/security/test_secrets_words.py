"""What others say, and what is said in SQL: no secret comes back, no text becomes a statement."""

from __future__ import annotations

import base64
import io
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from rowferry.change.chunk import Op, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.downstream.verify.repair import RepairFile
from rowferry.errors import BadUri, RowferryError, SinkUnavailable
from rowferry.face.json_log import JsonFormatter, PlainFormatter
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.encode.avro.registry import RegistryAddress, SchemaRegistry
from rowferry.flow.encode.sql_rows.codec import SqlRows
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.encode.sql_rows.reader import read_frame
from rowferry.flow.sink.http.client import Receiver
from rowferry.flow.sink.http.options import read_settings
from rowferry.flow.sink.mysql.sink import MySqlSink
from rowferry.flow.sink.postgresql.names import literal
from rowferry.mysql.guarded_client import GuardedClient
from rowferry.mysql.session import connected, rows
from rowferry.refstore.cluster import LocalCluster
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.secrets import Hiding
from rowferry.spec.uri import Uri
from rowferry.testing.receiver import HttpReceiver, Refusal
from rowferry.testing.servers import Postgres, Server

TOKEN, WORD = "tok/en+of&mine=1", "pa:ss wörd%1"


def _spec(uri: str, config: dict[str, object] | None = None) -> ChangefeedSpec:
    source = "range://127.0.0.1:1"
    return build_spec(source, uri, config, "feed", tables=option_tables, sinks=sink_traits)[0]


def _forms(secret: str) -> list[str]:
    packed = base64.b64encode(secret.encode()).decode()
    return [
        secret,
        quote(secret, safe=""),
        quote(secret, safe="").lower(),
        packed,
        packed.strip("="),
    ]


LOGIN = base64.b64encode(f"ann:{WORD}".encode()).decode()


@pytest.mark.parametrize("status", [400, 429, 500, 301])
def test_a_receiver_that_repeats_the_request(status: int) -> None:
    with HttpReceiver() as receiver:
        where = f"127.0.0.1:{receiver.port}/?protocol=canal-json&max-retry=0"
        spec = _spec(f"http://ann:{quote(WORD, safe='')}@{where}&token={quote(TOKEN, safe='')}")
        sending = Receiver(read_settings(spec, ()))
        for form in [*_forms(TOKEN), *_forms(WORD), f"Basic {LOGIN}"]:
            to = {"Location": "/" + (form if form.isascii() else "*" * 3)}
            receiver.faults.append(Refusal(status, to, f"you sent {form}.".encode()))
            with pytest.raises(RowferryError) as said:
                sending.send(b"[]", {})
            assert form.strip('"') not in str(said.value) and "***" in str(said.value)
        sending.close()


def test_a_secret_is_hidden_before_words_are_cut() -> None:
    token = "z" * 40
    with HttpReceiver() as receiver:
        config: dict[str, object] = {"sink": {"http-config": {"bearer-token": token}}}
        spec = _spec(f"http://127.0.0.1:{receiver.port}/?protocol=canal-json", config)
        receiver.faults.append(Refusal(400, {}, b"." * 180 + token.encode()))
        sending = Receiver(read_settings(spec, ()))
        with pytest.raises(RowferryError, match=r"\.\*\*\*") as said:
            sending.send(b"[]", {})
        sending.close()
    assert "zz" not in str(said.value)


def test_a_registry_that_repeats_the_login() -> None:
    with HttpReceiver() as receiver:
        receiver.faults.append(Refusal(400, {}, f"{WORD} {LOGIN}".encode()))
        registry = SchemaRegistry(RegistryAddress(f"http://127.0.0.1:{receiver.port}", "ann", WORD))
        with pytest.raises(RowferryError) as said:
            registry.register("s", "{}")
    assert WORD not in str(said.value) and LOGIN not in str(said.value)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[str]:
    with LocalCluster(tmp_path / "store", 1) as cluster:
        with cluster.store() as store:
            store.ddl("CREATE DATABASE shop")
            store.ddl("CREATE TABLE shop.t (id bigint PRIMARY KEY)")
        yield f"range://{cluster.master_address}"


def test_what_a_sink_raises_is_hidden_at_the_door(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a stage does with foreign words, the operator's verbs let no secret out."""
    store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    with HttpReceiver() as receiver:
        url = f"http://ann:{quote(WORD, safe='')}@127.0.0.1:{receiver.port}/?protocol=canal-json"

        def repeats(*_: object) -> None:
            raise SinkUnavailable(f"it said {WORD}") from OSError(WORD)

        monkeypatch.setattr(Receiver, "connect", repeats)
        with pytest.raises(SinkUnavailable) as said:
            Operations(store).create(Wanted(source, url, "feed"))
    store.close()
    assert "it said ***" in str(said.value)
    assert said.value.__cause__ is None


def test_ordinary_words_stay() -> None:
    hiding = Hiding(["shop", "long-secret"])
    assert hiding.hide("shopping in workshop: xlong-secrety") == "shopping in workshop: x***y"
    assert hiding.hide("at shop.") == "at ***."
    flow = assemble(_spec("http://127.0.0.1:1/?protocol=canal-json&timeout=3s"))
    assert flow.hiding.hide("canal-json timeout 3s") == "canal-json timeout 3s"


@pytest.mark.parametrize("formatter", [PlainFormatter, JsonFormatter])
def test_every_form_of_log_hides_logins(formatter: type[logging.Formatter]) -> None:
    out = io.StringIO()
    lines = logging.StreamHandler(out)
    lines.setFormatter(formatter())
    log = logging.Logger("x")
    log.addHandler(lines)
    try:
        raise ValueError("kafka://u:secret-one@h/")
    except ValueError:
        log.exception("mysql://u:%s@h/ sasl-password=secret-three", "secret-two")
    assert "secret-" not in out.getvalue() and "mysql://u:***@h/" in out.getvalue()


# --- SQL -----------------------------------------------------------------------------------------

TEXTS = ["\\' OR 1=1; -- ", "\\", "a\\nb", "it's", "'';\\", "plain", "", "ü\\", "\\\\''"]


def _table() -> TableSchema:
    columns = (Column(1, "id", SqlType("bigint")), Column(2, "v", SqlType("text")))
    index = Index(1, "PRIMARY", ("id",), True, True)
    return TableSchema(TableId("modes", "t"), 0, 0, columns, (index,))


def _frame() -> tuple[RowFrame, list[bytes]]:
    table, count = _table(), len(TEXTS)
    kinds = [pa.field(c.name, c.type.arrow) for c in table.columns]
    after = pa.StructArray.from_arrays(
        [pa.array(range(count), pa.int64()), pa.array(TEXTS, pa.large_utf8())], fields=kinds
    )
    op = np.full(count, int(Op.INSERT), np.int8)
    chunk = make_rows(
        table,
        pa.array(op),
        pa.array(np.ones(count, np.uint64)),
        pa.array(np.arange(count)),
        pa.nulls(count, after.type),
        after,
    )
    uris = Uri.parse("mysql://u@h/", "source"), Uri.parse("mysql://h/", "sink")
    texts = SqlRows(ChangefeedSpec("f", *uris), MySqlSink.TRAITS).encode_rows(chunk, 0)
    assert texts.keys is not None
    stamps, numbers = np.ones(count, np.uint64), np.arange(count)
    frame = RowFrame(table, op, stamps, numbers, texts.keys, texts.values)
    return frame, texts.values.to_pylist()


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES"])
def test_a_text_means_the_same_in_every_mode(source_server: Server, mode: str) -> None:
    _, texts = _frame()
    login = source_server.login
    source_server.script("DROP DATABASE IF EXISTS modes", "CREATE DATABASE modes")
    with connected(login) as connection:
        rows(connection, login, "CREATE TABLE modes.t (id BIGINT PRIMARY KEY, v TEXT)")
        assert isinstance(connection, GuardedClient)
        connection.set_mode(mode)
        joined = b"".join(texts).decode().rstrip(",")
        rows(connection, login, f"INSERT INTO modes.t VALUES {joined}".replace("%", "%%"))
        found = rows(connection, login, "SELECT v FROM modes.t ORDER BY id")
    assert [v for (v,) in found] == TEXTS


@pytest.mark.parametrize("plain", ["on", "off"])
def test_a_text_means_the_same_in_postgresql_too(postgres_server: Postgres, plain: str) -> None:
    with psycopg.connect(postgres_server.url("postgres")) as connection:
        connection.execute(f"SET standard_conforming_strings = {plain}")
        for text in TEXTS:
            query = f"SELECT {literal(text)}"
            assert connection.execute(query.encode()).fetchone() == (text,)


def test_such_texts_are_read_back() -> None:
    frame, _ = _frame()
    after = read_frame(frame).batch.column("after")
    assert after.field("v").to_pylist() == TEXTS


def test_repair_statements_are_their_owner_s_alone(tmp_path: Path) -> None:
    RepairFile(tmp_path / "repair.sql").close()
    assert stat.S_IMODE((tmp_path / "repair.sql").stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["s3:b/p?endpoint=http://x", "mysql:x?a=b://c", "file:out?x=://"])
def test_an_address_follows_the_scheme_at_once(text: str) -> None:
    with pytest.raises(BadUri, match="scheme"):
        Uri.parse(text, "sink")
