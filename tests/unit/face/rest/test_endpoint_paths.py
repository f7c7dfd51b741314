"""Sources and sinks that are asked about on their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rowferry.control.operator.checks import endpoints as endpoint_checks
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SinkUnavailable
from rowferry.face.about import About
from rowferry.face.names import ServerNames
from rowferry.face.rest.app import create_app
from rowferry.face.rest.turns import Turns
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.http.sink import HttpSink
from rowferry.registry import SINKS
from rowferry.spec.reach import Reach
from rowferry.testing.receiver import HttpReceiver

OWN = "/api/rowferry"
PASSWORD = "correct-horse-battery"


def checks(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"{OWN}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_databases_and_tables_of_a_source(client: TestClient, source: str) -> None:
    found = checks(client, "source/tables", source_uri=source)
    assert found == {"databases": ["shop"], "tables": [], "more": False}
    found = checks(client, "source/tables", source_uri=source, database="shop")
    assert [t["name"] for t in found["tables"]] == ["items", "orders"]
    assert found["tables"][0]["rows"] is None  # such a source has no estimate
    rules = {"filter": {"rules": ["shop.orders"]}}
    same = checks(client, "source/tables", source_uri=source, database="shop", replica_config=rules)
    assert same == found  # the picker shows what there is, not what is chosen
    nobody = client.post(f"{OWN}/source/tables", json={"source_uri": "mysql://u@127.0.0.1:1"})
    assert nobody.status_code >= 400 and "[RF-3001]" in nobody.json()["error_msg"]


def test_lists_are_bounded(
    client: TestClient, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_checks, "MOST_TABLES", 1)
    found = checks(client, "source/tables", source_uri=source, database="shop")
    assert [t["name"] for t in found["tables"]] == ["items"] and found["more"] is True


def test_a_source_on_its_own(client: TestClient, source: str) -> None:
    sink_part = {"sink": {"csv": {"delimiter": ";"}}}  # nothing to do with a source
    found = checks(client, "source/check", source_uri=source, replica_config=sink_part)
    assert found["ok"] is True
    assert "2 are captured" in next(c["words"] for c in found["checks"] if c["check"] == "tables")
    wrong = checks(client, "source/check", source_uri=f"mysql://u:{PASSWORD}@127.0.0.1:1/")
    assert wrong["ok"] is False and wrong["checks"][-1]["cure"]
    assert "RF-3001" in wrong["checks"][-1]["words"] and PASSWORD not in str(wrong)
    odd = checks(client, "source/check", source_uri=f"{source}?nothing=1")
    assert odd["checks"][0]["check"] == "settings" and "RF-1001" in odd["checks"][0]["words"]


def test_a_sink_on_its_own(client: TestClient, tmp_path: Path) -> None:
    source_part = {"source": {"feed_level": "range"}}
    sink = f"file://{tmp_path}/out?protocol=csv"
    found = checks(client, "sink/check", sink_uri=sink, replica_config=source_part)
    assert found["ok"] is True and not (tmp_path / "out").exists()  # nothing was written
    (tmp_path / "file").write_text("")
    wrong = checks(client, "sink/check", sink_uri=f"file://{tmp_path}/file?protocol=csv")
    assert wrong["ok"] is False and wrong["checks"][-1]["cure"]
    none = checks(client, "sink/check", sink_uri=f"file://{tmp_path}/out")
    assert "needs a protocol" in none["checks"][0]["words"]


def test_a_sink_that_repeats_what_it_was_sent(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(sink: HttpSink, owner: Owner) -> None:
        raise SinkUnavailable(f"hooks.example does not know {PASSWORD}")

    monkeypatch.setattr(HttpSink, "probe", probe)
    uri = f"https://ann:{PASSWORD}@hooks.example/?protocol=json"
    found = checks(client, "sink/check", sink_uri=uri)
    assert found["checks"][-1]["words"] == "[RF-4001] hooks.example does not know ***"
    assert PASSWORD not in str(found)


def stored(operations: Operations, client: TestClient, source: str, sink: str) -> None:
    body = {"changefeed_id": "one", "source_uri": source, "sink_uri": sink}
    answer = client.post("/api/v2/changefeeds", json=body)
    assert answer.status_code == 200, answer.text


def test_a_stored_secret_is_used_where_it_belongs_and_nowhere_else(
    client: TestClient, operations: Operations, source: str
) -> None:
    with HttpReceiver() as receiver, HttpReceiver() as thief:
        hidden = "//ann:{}@".format
        sink = receiver.uri.replace("//", hidden(PASSWORD))
        stored(operations, client, source, sink)
        shown = sink.replace(PASSWORD, "***")
        found = checks(client, "sink/check", sink_uri=shown, changefeed_id="one")
        assert found["ok"] is True, found
        moved = thief.uri.replace("//", hidden("***"))
        refused = checks(client, "sink/check", sink_uri=moved, changefeed_id="one")
        assert refused["ok"] is False and "write its secrets out" in refused["checks"][0]["words"]
    unknown = client.post(f"{OWN}/sink/check", json={"sink_uri": shown, "changefeed_id": "nobody"})
    assert unknown.status_code == 400 and "there is no changefeed" in unknown.text


def test_only_what_the_operator_allowed_is_asked(empty_meta: Path, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/own.db")
    about = About("127.0.0.1:8300", "0.1.0", 1.0, "here")
    names = ServerNames.read(["testserver:80"])
    limited = Reach(roots=(str(tmp_path / "allowed"),), hosts=("hooks.example",))
    client = TestClient(create_app(Operations(store, reach=limited), about, names=names))
    with HttpReceiver() as receiver:
        found = checks(client, "sink/check", sink_uri=receiver.uri)
        assert "does not talk to" in found["checks"][0]["words"]
    local = [name for name in SINKS.names() if name.rpartition("+")[2] == "file"]
    assert len(local) > 1
    for name in local:  # tables of a lake in a directory, too
        query = "?protocol=csv" if SINKS.load(name).TRAITS.protocol == "needed" else ""
        for place in ("/etc", "/etc/x", f"{tmp_path}/allowed/../x"):
            found = checks(client, "sink/check", sink_uri=f"{name}://{place}{query}")
            assert "--allow-root" in found["checks"][0]["words"], name
    for path in ("source/check", "source/tables"):
        body = {"source_uri": "mysql://u:env:HOME@127.0.0.1:1/"}
        answer = client.post(f"{OWN}/{path}", json=body)
        assert "--allow-env" in answer.text
    store.close()


def test_who_comes_when_all_turns_are_taken_is_told_so(operations: Operations, source: str) -> None:
    about = About("127.0.0.1:8300", "0.1.0", 1.0, "here")
    names = ServerNames.read(["testserver:80"])
    client = TestClient(create_app(operations, about, names=names, turns=Turns(acting=0)))
    for path in ("source/check", "source/tables"):
        answer = client.post(f"{OWN}/{path}", json={"source_uri": source})
        assert answer.status_code == 429 and answer.headers["retry-after"]
    assert client.get(f"{OWN}/form").status_code == 200
