"""JSON of others that is nested thousands deep, or holds a number without end, is an error of ours.

Python's reader gives up with a RecursionError, which is no ValueError.
"""

from __future__ import annotations

import gzip
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from rowferry.change.sqltype import SqlType
from rowferry.control.operator.resnapshots import _values
from rowferry.control.store.backup import _lines
from rowferry.downstream.verify.comparison import _json_text
from rowferry.errors import RowferryError
from rowferry.face import bearer
from rowferry.face.bearer import TokenIssuer, _jwks_uri, _key_set
from rowferry.face.cli.remote.client import Access, Client
from rowferry.flow.capture.range_log import catalog
from rowferry.flow.decide.typed_result import Unfit, constant_of
from rowferry.flow.sink.kafka.ledger import DRIVER, LedgerTopic
from rowferry.flow.sink.lake.layout import Progress
from rowferry.flow.sink.pulsar.login import credentials_of
from rowferry.flow.sink.queue.amazon import _parsed
from rowferry.flow.sink.storage.paths import parse_path
from rowferry.flow.sink.storage.schema_file import read_document

DEEP = "[" * 100_000
ENDLESS = json.dumps(
    {
        "Schema": "d",
        "Table": "t",
        "TableVersion": float("inf"),
        "Query": "",
        "Type": 0,
        "TableColumns": [],
        "TableColumnsTotal": 0,
    }
)
# The key of an example in RFC 8037.
KEY = {
    "kty": "OKP",
    "crv": "Ed25519",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
}
SCHEMA_FILE = parse_path("d/t/meta/schema_1_0000000001.json")


def _progress_without_end() -> object:
    form = Progress(1, 2, 3, 4, 5).content().replace(b"2", b"1e999")
    return Progress.read(form, "x")


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (lambda: _key_set(DEEP, "x"), "RF-1002"),
        (lambda: _values(DEEP, 1), "RF-1038"),
        (lambda: Client(Access())._judged(200, DEEP.encode()), "RF-8000"),
        (lambda: Progress.read(DEEP.encode(), "x"), "RF-4005"),
        (_progress_without_end, "RF-4005"),
        (lambda: catalog.read_table(catalog._TABLE, DEEP.encode(), 1), "RF-3004"),
        (lambda: catalog.read_ddl(catalog._DDL, DEEP.encode(), 1), "RF-3004"),
        (lambda: read_document(ENDLESS.encode(), SCHEMA_FILE, "x"), "RF-4005"),  # type: ignore[arg-type]
    ],
)
def test_it_is_an_error_of_ours(read: Callable[[], Any], code: str) -> None:
    with pytest.raises(RowferryError) as caught:
        read()
    assert caught.value.code.startswith(code)


def _part(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


@pytest.mark.parametrize("head", [b'{"alg":"Ed25519"}', DEEP[:5000].encode()])
def test_a_token_of_it_is_nobodys(tmp_path: Path, head: bytes) -> None:
    """Whoever sends it has not logged in yet."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{k: v for k, v in KEY.items() if k != "d"}]}))
    signed = _part(head) + b"." + _part(DEEP[:5000].encode())
    sign = _part(OKPKey.import_key(KEY).private_key.sign(signed))
    assert TokenIssuer("https://i", "a", str(keys)).who((signed + b"." + sign).decode()) is None


def test_a_file_of_a_login(tmp_path: Path) -> None:
    file = tmp_path / "login.json"
    file.write_text(DEEP)
    settings: Any = SimpleNamespace(oauth=SimpleNamespace(oauth2_private_key=str(file)))
    with pytest.raises(RowferryError, match="must be a file of JSON"):
        credentials_of(settings)


def test_an_issuer_that_answers_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer, "_got", lambda url: DEEP)
    with pytest.raises(RowferryError, match="no OpenID Connect configuration"):
        _jwks_uri("https://i")


def test_a_ledger_of_it_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Read(LedgerTopic):
        def __init__(self) -> None:
            self.topic = "t"
            self._troubles = type("At", (), {"at": "h"})()  # type: ignore[assignment]

    for data in (DEEP, '{"floor": [1]}', '{"floor": [1, 2], "changefeed": "f", "epoch": 1e999}'):
        monkeypatch.setattr(Read, "_last", lambda self, wanted, d=data: {DRIVER: d.encode()})
        with pytest.raises(RowferryError, match="something else than this changefeed's ledger"):
            Read().owner()


def test_a_service_that_answers_so_has_said_nothing() -> None:
    assert _parsed(DEEP.encode()) == _parsed(b"[1]") == _parsed(b"") == {}
    assert _parsed(b'{"a": 1}') == {"a": 1}


def test_values_are_compared_as_texts() -> None:
    assert _json_text(DEEP) == DEEP


def test_a_constant_of_it() -> None:
    with pytest.raises(Unfit, match="is not a value of json"):
        constant_of(SqlType("json"), DEEP)


def test_a_backup_of_it(tmp_path: Path) -> None:
    file = tmp_path / "backup.gz"
    whole = gzip.compress(f'{{"a": "{"x" * 99}"}}\n'.encode())
    for content in (gzip.compress(DEEP.encode()), whole[:12] + b"\xff\xff\xff" + whole[15:]):
        file.write_bytes(content)
        with pytest.raises(RowferryError, match="cannot be read as a backup"):
            list(_lines(file))
