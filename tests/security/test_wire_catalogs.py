"""Catalogs of lake tables and the admin interface of queues, in the hands of somebody else."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from web_rogue_kit import Answer, Asked, Rogue, as_json, rogue

from rowferry.errors import (
    BadOption,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
    TargetUnfit,
    TopicRefused,
)
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.lake.iceberg import file_io, rest_catalog
from rowferry.flow.sink.pulsar import login
from rowferry.flow.sink.pulsar.admin import PulsarAdmin
from rowferry.flow.sink.pulsar.options import PulsarSettings
from rowferry.flow.sink.pulsar.options import read_settings as pulsar_settings
from rowferry.flow.sink.queue import amazon
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.spec.build import build_spec

MOST = 1 << 20
SECRET = "the-secret-of-the-client"
GRANTED = "a-token-that-was-granted"


def endless() -> Iterator[bytes]:
    for _ in range(256):
        yield b'{"defaults":"' + bytes(65536)


def bomb(_: Asked) -> Answer:
    return Answer([gzip.compress(bytes(32 << 20))], 200, {"Content-Encoding": "gzip"})


# --- Iceberg's REST catalogs ----------------------------------------------------------------------


def probe(url: str, folder: Path, **options: str) -> None:
    """Ask a sink whether its catalog answers, as the dry run of a changefeed does."""
    lake = {"sink": {"lake": {"catalog": f"{url}/", **options}}}
    sink = f"iceberg+file://{folder}/lake"
    spec, _ = build_spec(
        "range://127.0.0.1:1", sink, lake, "feed", tables=option_tables, sinks=sink_traits
    )
    flow = assemble(spec)
    try:
        flow.sink.probe(Owner("feed", 1))
    finally:
        flow.sink.close()


def configured(overrides: dict[str, Any], defaults: dict[str, Any] | None = None) -> Any:
    """Return a catalog without tables, whose configuration has these settings."""

    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/v1/config"):
            return as_json({"defaults": defaults or {}, "overrides": overrides})
        if "oauth/tokens" in asked.path:
            return as_json({"access_token": GRANTED, "token_type": "bearer"})
        return as_json({"identifiers": []})

    return answer


@pytest.mark.parametrize("where", ["overrides", "defaults"])
def test_a_catalog_names_no_program_of_ours(where: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": ["touch", mark]}}
    form = json.loads(json.dumps({"auth": program, "py-io-impl": "os.system"}, default=str))
    with rogue(configured(**{"overrides": {}, where: form})) as catalog:
        probe(catalog.url, tmp_path)
    time.sleep(0.3)  # a program that was begun would still be at work
    assert not mark.exists()
    assert [one.path.split("?")[0] for one in catalog.seen] == [
        "/v1/config",
        "/v1/namespaces/rowferry-probe/tables",
    ]


def test_a_catalog_does_not_say_who_gets_the_login(tmp_path: Path) -> None:
    with rogue(configured({})) as thief:
        moved = {"oauth2-server-uri": f"{thief.url}/tokens", "token": "x", "header.X": "y"}
        with rogue(configured(moved)) as catalog:
            probe(catalog.url, tmp_path, **{"catalog-credential": f"ann:{SECRET}"})
        with rogue(configured({"uri": f"{thief.url}/"})) as catalog:
            with pytest.raises(BadOption, match=r"sends its clients to another host"):
                probe(catalog.url, tmp_path, **{"catalog-credential": f"ann:{SECRET}"})
    assert thief.seen == []
    sent = parse_qs(catalog.seen[0].body.decode())
    assert sent["client_secret"] == [SECRET]  # whom it was meant for


def test_a_catalog_names_no_address_that_can_be_read_in_two_ways(tmp_path: Path) -> None:
    with rogue(configured({})) as thief:

        def answer(asked: Asked) -> Answer:
            there = f"{thief.url}\\@{asked.headers['Host']}/"
            return as_json({"defaults": {}, "overrides": {"uri": there}})

        with rogue(answer) as catalog:
            with pytest.raises(BadOption, match=r"sends its clients to another host"):
                probe(catalog.url, tmp_path, **{"catalog-token": SECRET})
            with pytest.raises(BadOption, match=r"catalog-token-uri = .*no address of a web"):
                there = f"{thief.url}\\@{catalog.url.removeprefix('http://')}/tokens"
                login = {"catalog-credential": f"ann:{SECRET}", "catalog-token-uri": there}
                probe(catalog.url, tmp_path, **login)
    assert thief.seen == []


def test_a_catalog_does_not_lead_elsewhere(tmp_path: Path) -> None:
    """What a server may reach is decided by --allow-host, not by whoever answers there."""
    with rogue(configured({})) as inner:
        away = lambda asked: Answer(status=307, headers={"Location": inner.url + asked.path})  # noqa: E731
        with rogue(away) as catalog:
            with pytest.raises(SinkUnavailable, match=r"answers 307 and leads to another address"):
                probe(catalog.url, tmp_path, **{"catalog-token": SECRET})
    assert inner.seen == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (bomb, "its answer is compressed .*, unasked"),
        (lambda _: Answer(endless()), f"its answer has more than {MOST} bytes"),
        (lambda _: Answer([b'{"defaults":' + b"[" * 5000]), "gave a strange answer"),
        (configured({"prefix": ["a"]}), "no text as prefix"),
    ],
    ids=["a bomb", "without end", "deep", "odd"],
)
def test_an_answer_of_a_catalog_is_bounded(
    answer: Callable[[Asked], Answer], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_catalog, "_MOST_BYTES", MOST)
    with rogue(answer) as catalog, pytest.raises(SinkUnavailable, match=words):
        probe(catalog.url, tmp_path)


def test_pages_of_a_catalog_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_catalog, "_MOST_BYTES", MOST)
    numbers = count()

    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/v1/config"):
            return as_json({"defaults": {}, "overrides": {}})
        names = [{"name": "x" * 1000, "namespace": ["rowferry-probe"]}] * 100
        return as_json({"identifiers": names, "next-page-token": str(next(numbers))})

    with rogue(answer) as catalog, pytest.raises(SinkUnavailable, match="its answer has more than"):
        probe(catalog.url, tmp_path)
    assert 5 < len(catalog.seen) < 20


def test_a_catalog_that_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_catalog, "_WITHIN_S", 0.0)
    with rogue(configured({})) as catalog:
        with pytest.raises(SinkUnavailable, match="takes longer than 0 s"):
            probe(catalog.url, tmp_path)


def forms(secret: str) -> list[str]:
    return [secret, base64.b64encode(f"ann:{secret}".encode()).decode()]


@pytest.mark.parametrize("status", [400, 401, 403, 500, 503])
def test_a_catalog_that_repeats_the_login(status: int, tmp_path: Path) -> None:
    """Also a token that it has given itself, of which the settings know nothing."""

    def answer(asked: Asked) -> Answer:
        if "oauth/tokens" in asked.path:
            return as_json({"access_token": GRANTED, "token_type": "bearer"})
        words = f"you sent {asked.headers['Authorization']}, {', '.join(forms(SECRET))}."
        return as_json({"error": {"message": words, "type": "X", "code": status}}, status)

    with rogue(answer) as catalog, pytest.raises(RowferryError, match=r"you sent Bearer \*\*\*"):
        try:
            probe(catalog.url, tmp_path, **{"catalog-credential": f"ann:{SECRET}"})
        except RowferryError as err:
            assert all(one not in str(err) for one in (GRANTED, *forms(SECRET))), err
            raise


def test_a_table_names_no_program_of_ours(tmp_path: Path) -> None:
    """Whoever writes to the bucket, or to the catalog's database, decides about its settings."""
    folder = tmp_path / "lake"
    folder.mkdir()
    made = SqlCatalog(
        "rowferry", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
    )
    made.create_namespace("shop")
    named = {"write.py-location-provider.impl": "pyiceberg.table.locations.SimpleLocationProvider"}
    table = made.create_table("shop.orders", Schema())
    with table.transaction() as change:
        change.set_properties(named)
    made.close()
    spec, _ = build_spec(
        *("range://127.0.0.1:1", f"iceberg+file://{folder}", {}, "feed"),
        tables=option_tables,
        sinks=sink_traits,
    )
    flow = assemble(spec)
    with pytest.raises(TargetUnfit, match="names a program .* is not run here"):
        flow.sink._catalog.load("shop/orders")  # type: ignore[attr-defined]
    flow.sink.close()


def test_metadata_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library inflates whatever has such a name."""
    monkeypatch.setattr(file_io, "_MOST_METADATA", MOST)
    io = file_io.FilesIO(LocalFiles(tmp_path), f"file://{tmp_path}")
    stored = io.new_input(io.location("v1.gz.metadata.json"))
    (tmp_path / "v1.gz.metadata.json").write_bytes(gzip.compress(bytes(32 << 20)))
    with pytest.raises(ValueError, match=f"grows to more than {MOST} bytes"):
        FromInputFile.table_metadata(stored)
    (tmp_path / "v1.gz.metadata.json").write_bytes(small := gzip.compress(bytes(MOST)))
    assert stored.open().read() == small


# --- Amazon's queues and streams ------------------------------------------------------------------


def ask_amazon(scheme: str, url: str) -> None:
    """Ask a sink whether its service answers, as the dry run of a changefeed does."""
    keys = f"access-key=an-id&secret-access-key={SECRET}&timeout=5s"
    uri = f"{scheme}://eu-central-1/orders?protocol=canal-json&endpoint={url}&{keys}"
    spec, _ = build_spec(
        "range://127.0.0.1:1", uri, {}, "feed", tables=option_tables, sinks=sink_traits
    )
    flow = assemble(spec)
    try:
        flow.sink.probe(Owner("feed", 1))
    finally:
        flow.sink.close()


@pytest.mark.parametrize("scheme", ["sqs", "kinesis"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (bomb, "its answer is compressed .*, unasked"),
        (lambda _: Answer(endless()), f"its answer has more than {MOST} bytes"),
    ],
    ids=["a bomb", "without end"],
)
def test_an_answer_of_an_amazon_service_is_bounded(
    scheme: str,
    answer: Callable[[Asked], Answer],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amazon, "_MOST_ANSWER", MOST)
    with rogue(answer) as service, pytest.raises(SinkUnavailable, match=words):
        ask_amazon(scheme, service.url)
    assert service.seen[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("scheme", ["sqs", "kinesis"])
def test_an_amazon_service_does_not_lead_elsewhere(scheme: str) -> None:
    with rogue(lambda _: as_json({})) as inner:
        away = lambda asked: Answer(status=307, headers={"Location": inner.url + asked.path})  # noqa: E731
        with rogue(away) as service:
            with pytest.raises(SinkUnavailable, match=r"answers 307 and leads to another address"):
                ask_amazon(scheme, service.url)
    assert inner.seen == []


# --- Pulsar's admin interface ---------------------------------------------------------------------


def settings(url: str, folder: Path, **more: Any) -> PulsarSettings:
    sink = "pulsar://127.0.0.1:1/persistent://a/b/c?protocol=canal-json"
    config = {"sink": {"pulsar-config": {"web-service-url": url, **more}}}
    spec, _ = build_spec(
        "range://127.0.0.1:1", sink, config, "feed", tables=option_tables, sinks=sink_traits
    )
    return pulsar_settings(spec)


def by_oauth(issuer: str, folder: Path) -> dict[str, Any]:
    file = folder / "client.json"
    file.write_text(json.dumps({"client_id": "ann", "client_secret": SECRET}))
    return {"oauth2": {"oauth2-issuer-url": issuer, "oauth2-private-key": str(file)}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (bomb, "its answer is compressed .*, unasked"),
        (lambda _: Answer(endless()), f"its answer has more than {MOST} bytes"),
        (lambda _: Answer([b"[" * 100_000]), "the answer is none of Pulsar's"),
        (lambda _: as_json([]), "the answer is none of Pulsar's"),
        (lambda _: as_json({"partitions": None}), "the answer is none of Pulsar's"),
    ],
    ids=["a bomb", "without end", "deep", "a list", "no number"],
)
def test_an_answer_of_an_admin_interface_is_bounded(
    answer: Callable[[Asked], Answer], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "MOST_ANSWER", MOST)
    with rogue(answer) as brokers:
        admin = PulsarAdmin(settings(brokers.url, tmp_path))
        with pytest.raises(SinkUnavailable, match=words):
            admin.facts("persistent://a/b/c")
        admin.close()


@pytest.mark.parametrize("way", ["a file", "OAuth 2", "a password"])
def test_an_admin_interface_that_repeats_the_login(way: str, tmp_path: Path) -> None:
    """Of a token in a file, or that somebody gave, the settings know nothing."""

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("openid-configuration"):
            return as_json({"token_endpoint": f"http://{asked.headers['Host']}/token"})
        if asked.path == "/token":
            return as_json({"access_token": GRANTED, "expires_in": 1e300})
        return as_json({"reason": f"you sent {asked.headers['Authorization']} {SECRET}."}, 409 - 1)

    file = tmp_path / "token"
    file.write_text(GRANTED)
    with rogue(answer) as brokers:
        given: dict[str, Any] = {
            "a file": {"token-from-file": str(file)},
            "OAuth 2": by_oauth(brokers.url, tmp_path),
            "a password": {"basic-user-name": "ann", "basic-password": SECRET},
        }[way]
        admin = PulsarAdmin(settings(brokers.url, tmp_path, **given))
        with pytest.raises(TopicRefused, match=r"you sent B\w+ \*\*\*") as said:
            admin.create("persistent://a/b/c", 1)
        admin.close()
    packed = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    assert GRANTED not in str(said.value) and packed not in str(said.value)
    assert way == "a file" or SECRET not in str(said.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"token_endpoint": "file:///etc/passwd"}, "names no address that begins with https://"),
        ({"token_endpoint": ["x"]}, "does not answer with token_endpoint"),
        ({}, "does not answer with token_endpoint"),
        ([], "does not answer with token_endpoint"),
    ],
)
def test_whoever_gives_tokens_is_not_believed(said: Any, words: str, tmp_path: Path) -> None:
    with rogue(lambda _: as_json(said)) as brokers:
        admin = PulsarAdmin(settings(brokers.url, tmp_path, **by_oauth(brokers.url, tmp_path)))
        with pytest.raises((SinkUnavailable, SinkUnwritable), match=words):
            admin.facts("persistent://a/b/c")
        admin.close()


def test_a_bomb_from_whoever_gives_tokens(tmp_path: Path) -> None:
    with rogue(bomb) as issuer:
        admin = PulsarAdmin(settings(issuer.url, tmp_path, **by_oauth(issuer.url, tmp_path)))
        with pytest.raises(SinkUnavailable, match="is compressed"):
            admin.facts("persistent://a/b/c")
        admin.close()


def test_no_secret_is_asked_for_in_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The discovery of an https:// issuer must not lead to http://, where others listen."""
    with rogue(lambda _: as_json({"access_token": GRANTED})) as listener:
        found = json.dumps({"token_endpoint": f"{listener.url}/token"}).encode()
        made = settings(listener.url, tmp_path, **by_oauth("https://127.0.0.1:1", tmp_path))
        admin = PulsarAdmin(made)
        monkeypatch.setattr(login.WebLogin, "asked", lambda *_: (200, found))
        with pytest.raises(SinkUnwritable, match="begins with https://"):
            admin.facts("persistent://a/b/c")
        admin.close()
        assert _requests(listener) == []


def _requests(server: Rogue) -> list[str]:
    return [one.path for one in server.seen]
