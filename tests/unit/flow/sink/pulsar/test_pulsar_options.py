"""Options of the Pulsar sink: TiCDC's keys, what they mean here, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rowferry.change.table import TableId
from rowferry.errors import (
    BadDispatchRule,
    BadOption,
    BadUri,
    NotAllowed,
    OptionsConflict,
    RowferryError,
)
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.sink.pulsar.options import PulsarSettings, read_settings
from rowferry.flow.sink.pulsar.sink import PulsarSink
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.reach import Reach

PLAIN = "pulsar://broker:6650/persistent://acme/shop/orders?protocol=canal-json"


def spec_of(uri: str = PLAIN, sink: dict[str, Any] | None = None, **config: Any) -> ChangefeedSpec:
    whole = {"sink": {**(sink or {}), "pulsar-config": config}}
    spec, _ = build_spec("range://h:1", uri, whole, tables=option_tables, sinks=sink_traits)
    return spec


def settings_of(uri: str = PLAIN, **config: Any) -> PulsarSettings:
    return read_settings(spec_of(uri, **config))


def sink_of(uri: str = PLAIN, sink: dict[str, Any] | None = None, **config: Any) -> PulsarSink:
    found = assemble(spec_of(uri, sink, **config)).sink
    assert isinstance(found, PulsarSink)
    return found


def test_every_key_that_ticdc_has(tmp_path: Path) -> None:
    for name in ("key", "cert", "ca"):
        (tmp_path / name).touch()
    found = settings_of(
        **{
            "tls-key-file-path": str(tmp_path / "key"),
            "tls-certificate-file": str(tmp_path / "cert"),
            "tls-trust-certs-file-path": str(tmp_path / "ca"),
            "pulsar-producer-cache-size": 10240,
            "pulsar-version": "v2.10.0",
            "compression-type": "lz4",
            "authentication-token": "abc",
            "connection-timeout": 5,
            "operation-timeout": 30,
            "batching-max-messages": 5000,
            "batching-max-publish-delay": 5000,
            "send-timeout": 30,
            "output-raw-change-event": True,
        }
    )
    options = found.options
    assert options.connection_timeout == timedelta(seconds=5)
    assert options.operation_timeout == options.send_timeout == timedelta(seconds=30)
    assert options.batching_max_publish_delay == timedelta(seconds=5)
    assert found.batch_messages == 1000
    assert found.token == "abc"
    assert "abc" not in repr(found)


@pytest.mark.parametrize(
    ("scheme", "service", "web"),
    [
        ("pulsar", "pulsar://broker:6650", ""),
        ("pulsar+ssl", "pulsar+ssl://broker:6650", ""),
        ("pulsar+http", "http://broker:6650", "http://broker:6650"),
        ("pulsar+https", "https://broker:6650", "https://broker:6650"),
    ],
)
def test_schemes(scheme: str, service: str, web: str) -> None:
    found = settings_of(PLAIN.replace("pulsar://", f"{scheme}://"))
    assert (found.service_url, found.web_url) == (service, web)
    assert found.uses_tls == (scheme in ("pulsar+ssl", "pulsar+https"))


@pytest.mark.parametrize(
    ("uri", "config", "kind", "words"),
    [
        (PLAIN, {"send-timeout": 0}, BadOption, "send-timeout"),
        (PLAIN, {"send-timeout": 10**15}, BadOption, "send-timeout.*too long a duration"),
        (f"{PLAIN}&connection-timeout={10**30}", {}, BadOption, "connection-timeout.*too long"),
        (PLAIN, {"compression-type": "rar"}, BadOption, "compression-type"),
        (PLAIN, {"basic-user-name": "u"}, OptionsConflict, "basic-password belong together"),
        (
            PLAIN,
            {"authentication-token": "a", "basic-user-name": "u", "basic-password": "p"},
            OptionsConflict,
            "are each a way to log in",
        ),
        (PLAIN, {"oauth2": {"oauth2-issuer-url": "http://i"}}, OptionsConflict, "private-key"),
        (PLAIN, {"token-from-file": "/no/such"}, BadOption, "there is no such file"),
        (PLAIN, {"deduplication": "required"}, OptionsConflict, "needs web-service-url"),
        ("pulsar://u:p@b:1/t?protocol=json", {}, OptionsConflict, "authentication-token"),
        ("pulsar:///t?protocol=json", {}, BadUri, "names no broker"),
        ("pulsar://b:1?protocol=json", {}, BadUri, "no topic is specified in sink-uri"),
        ("pulsar://b:1/non-persistent://a/b/c?protocol=json", {}, BadUri, "keeps nothing"),
        ("pulsar://b:1/a/b?protocol=json", {}, BadUri, "write it as persistent://tenant"),
        ("pulsar://b:1/t?protocol=parquet", {}, RowferryError, "parquet"),
    ],
)
def test_what_is_refused(uri: str, config: dict[str, Any], kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        sink_of(uri, **config)


@pytest.mark.parametrize(
    "protocol", ["canal", "canal-json", "debezium", "json", "open-protocol", "simple"]
)
def test_protocols_of_queues(protocol: str) -> None:
    sink_of(f"pulsar://b:1/t?protocol={protocol}")


def test_names_of_topics() -> None:
    rule = {"matcher": ["*.*"], "topic": "persistent://acme/{schema}/t_{table}"}
    sink = sink_of("pulsar://b:1/short?protocol=json", {"dispatchers": [rule]})
    assert sink._rules.default_topic == "persistent://public/default/short"
    assert sink._rules.topic_of(TableId("shop", "a b")) == "persistent://acme/shop/t_a_b"


@pytest.mark.parametrize(
    "topic",
    ["a/b", "persistent://a/b", "non-persistent://a/b/{table}", "persistent://a/b/c/{table}"],
)
def test_expressions_that_name_no_topic(topic: str) -> None:
    with pytest.raises(BadDispatchRule, match="topic"):
        sink_of(
            "pulsar://b:1/t?protocol=json", {"dispatchers": [{"matcher": ["*.*"], "topic": topic}]}
        )


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("pulsar+http://broker:8080/t?protocol=json", "broker:8080"),
        ("pulsar://b:1/t?protocol=json&web-service-url=http://broker:8080", "broker:8080"),
    ],
)
def test_who_is_asked_over_http_must_be_allowed(uri: str, allowed: str) -> None:
    spec = spec_of(uri)
    with pytest.raises(NotAllowed, match="--allow-host"):
        Reach(hosts=("other",)).check(spec, PulsarSink.TABLES)
    Reach(hosts=(allowed,)).check(spec, PulsarSink.TABLES)


def test_files_must_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    spec = spec_of(**{"token-from-file": str(tmp_path / "token")})
    with pytest.raises(NotAllowed, match="--allow-file"):
        Reach().check(spec, PulsarSink.TABLES)
    Reach(files=(str(tmp_path),)).check(spec, PulsarSink.TABLES)
