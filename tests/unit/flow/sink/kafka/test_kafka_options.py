"""What each option of the Kafka sink amounts to, and which cannot be used together."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import Any

import pytest

from codec_kit import codec_for
from rowferry.errors import BadInput, BadOption, BadUri, OptionsConflict
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.flow.encode.open_protocol.codec import OpenProtocol
from rowferry.flow.sink.kafka.options import KafkaSettings, read_settings
from rowferry.flow.sink.kafka.sender import Sender
from rowferry.flow.sink.kafka.sink import KafkaSink
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def spec_of(query: str = "", scheme: str = "kafka", **kafka: Any) -> ChangefeedSpec:
    told = {key.replace("_", "-"): value for key, value in kafka.items()}
    source = Uri.parse("range://127.0.0.1:1", "source")
    sink = Uri.parse(f"{scheme}://b1:1,b2:2/topic?{query}", "sink")
    return ChangefeedSpec("feed", source, sink, {"sink": {"kafka-config": told}})


def settings(query: str = "", scheme: str = "kafka", **kafka: Any) -> KafkaSettings:
    return read_settings(spec_of(query, scheme, **kafka))


def test_defaults() -> None:
    found = settings()
    assert (found.topic, found.partitions, found.options.replication_factor) == ("topic", None, 1)
    assert (
        found.options.auto_create_topic,
        found.options.max_message_bytes,
        found.options.required_acks,
    ) == (True, 10 << 20, -1)
    assert found.connection == {
        "bootstrap.servers": "b1:1,b2:2",
        "client.id": "rowferry_feed",
        "socket.connection.setup.timeout.ms": 10_000,
        "socket.timeout.ms": 10_000,
        "broker.address.family": "any",
        "reconnect.backoff.max.ms": 1000,
        "security.protocol": "plaintext",
    }
    assert found.producing == {
        "acks": "all",
        "compression.type": "none",
        "request.timeout.ms": 10_000,
        "retries": 5,
        "retry.backoff.ms": 100,
        "delivery.report.only.error": True,
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
    }


def test_the_uri_wins_over_the_file() -> None:
    found = settings(
        "partition-num=4&max-retry=9&kafka-client-id=me&auto-create-topic=false&compression=zstd",
        partition_num=5,
        max_message_bytes="1MiB",
        replication_factor=3,
        write_timeout="2s",
    )
    assert (
        found.partitions,
        found.options.replication_factor,
        found.options.auto_create_topic,
    ) == (4, 3, False)
    assert found.options.max_message_bytes == 1 << 20
    assert found.connection["client.id"] == "me"
    assert found.producing["retries"] == 9
    assert found.producing["request.timeout.ms"] == 2000
    assert found.producing["compression.type"] == "zstd"


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acknowledgements_go_without_idempotence(acks: int) -> None:
    found = settings(f"required-acks={acks}&max-retry=0").producing
    assert found["acks"] == str(acks)
    assert found["retries"] == 0
    assert found["max.in.flight.requests.per.connection"] == 1
    assert "enable.idempotence" not in found


@pytest.mark.parametrize(
    ("uri", "words"), [("kafka:///topic", "names no broker"), ("kafka://b:1", "no topic")]
)
def test_uris_that_name_too_little(uri: str, words: str) -> None:
    source = Uri.parse("range://127.0.0.1:1", "source")
    spec = ChangefeedSpec("feed", source, Uri.parse(uri, "sink"))
    with pytest.raises(BadUri, match=words):
        KafkaSink(spec, codec_for(OpenProtocol, spec))


# --- security ------------------------------------------------------------------------------------


def test_logins_with_a_password() -> None:
    word = secrets.token_hex(8)
    asked = f"sasl-user=me&sasl-password={word}&sasl-mechanism=Scram-Sha-256"
    for scheme, protocol in (("kafka", "sasl_plaintext"), ("kafka+ssl", "sasl_ssl")):
        found = settings(asked, scheme)
        assert found.connection["security.protocol"] == protocol
        assert found.connection["sasl.mechanism"] == "SCRAM-SHA-256"
        assert found.connection["sasl.username"] == "me"
        assert found.connection["sasl.password"] == word
        assert word not in repr(found)
        assert word not in repr(spec_of(asked))


def test_tokens() -> None:
    word = secrets.token_hex(8)
    found = settings(
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_client_id="me",
        sasl_oauth_client_secret=base64.b64encode(word.encode()).decode(),
        sasl_oauth_token_url="http://tokens/",
        sasl_oauth_scopes=["a", "b"],
    ).connection
    assert found["sasl.oauthbearer.client.secret"] == word
    assert found["sasl.oauthbearer.scope"] == "a b"
    assert found["sasl.oauthbearer.token.endpoint.url"] == "http://tokens/"


def test_kerberos() -> None:
    asked = "sasl-mechanism=gssapi&sasl-gssapi-service-name=kafka&sasl-gssapi-user=me"
    found = settings(f"{asked}&sasl-gssapi-keytab-path=/k&sasl-gssapi-realm=R").connection
    assert found["sasl.kerberos.principal"] == "me@R"
    assert found["sasl.kerberos.keytab"] == "/k"
    assert found["sasl.kerberos.service.name"] == "kafka"


def test_certificates(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("")
    files = "&".join(f"{name}={tmp_path / name}" for name in ("ca", "cert", "key"))
    found = settings(files).connection
    assert found["security.protocol"] == "ssl"
    assert found["ssl.key.location"] == str(tmp_path / "key")
    assert found["enable.ssl.certificate.verification"] is True
    found = settings("insecure-skip-verify=true", "kafka+ssl").connection
    assert found["enable.ssl.certificate.verification"] is False
    assert "ssl.ca.location" not in found
    with pytest.raises(OptionsConflict, match=r"kafka\+ssl encrypts connections, but 'enable-tls'"):
        settings("enable-tls=false", "kafka+ssl")
    assert settings("enable-tls=false").connection["security.protocol"] == "plaintext"


SECRET = "sasl_oauth_client_secret"


@pytest.mark.parametrize(
    ("kafka", "kind", "words"),
    [
        ({"partition_num": 0}, BadOption, "invalid partition num 0"),
        ({"partition_num": 1 << 31}, BadOption, "invalid partition num 2147483648"),
        ({"replication_factor": 1 << 15}, BadOption, "invalid replication-factor 32768"),
        ({"dial_timeout": "500ms"}, BadOption, "dial-timeout must be from 1s to 596h"),
        ({"write_timeout": "15m1ms"}, BadOption, "write-timeout must be from 1us to 15m"),
        ({"read_timeout": "6m"}, BadOption, "read-timeout must be from 1us to 5m"),
        ({"read_timeout": "0s"}, BadOption, "read-timeout must be greater than zero"),
        ({"sasl_user": "me"}, OptionsConflict, "a user without sasl-mechanism"),
        ({"sasl_mechanism": "plain", "sasl_user": "me"}, OptionsConflict, "needs sasl-user and"),
        ({"sasl_oauth_client_id": "me"}, OptionsConflict, "needs sasl-mechanism=oauthbearer"),
        ({"sasl_mechanism": "oauthbearer"}, OptionsConflict, "needs sasl-oauth-client-id"),
        ({"sasl_mechanism": "gssapi"}, OptionsConflict, "needs sasl-gssapi-service-name"),
        (
            {"sasl_mechanism": "gssapi", "sasl_gssapi_auth_type": "user"},
            BadOption,
            "is not supported: use keytab",
        ),
        ({"sasl_gssapi_password": "x"}, BadInput, "use a keytab"),
        ({"sasl_oauth_audience": "x"}, BadInput, "is not supported"),
        ({"sasl_oauth_grant_type": "password"}, BadInput, "client_credentials"),
        ({"enable_tls": "false", "ca": "/nowhere"}, OptionsConflict, "remove one"),
        ({"cert": "/nowhere"}, OptionsConflict, "should all be supplied"),
        ({"ca": "/nowhere"}, BadOption, "ca = '/nowhere': there is no such file"),
    ],
)
def test_refusals(kafka: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        settings(**kafka)


def test_a_secret_that_is_not_base64_is_not_shown() -> None:
    word = "%" + secrets.token_hex(8)
    with pytest.raises(BadOption, match="client secret is not base64") as caught:
        settings(
            sasl_mechanism="oauthbearer",
            sasl_oauth_client_id="me",
            sasl_oauth_token_url="http://tokens/",
            **{SECRET: word},
        )
    assert word not in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        "write-timeout=15m&read-timeout=5m&dial-timeout=596h",
        "write-timeout=1us&read-timeout=1us&dial-timeout=1s",
        "max-message-bytes=5GiB&max-retry=99999999999",
        "max-message-bytes=1&max-retry=0",
    ],
)
def test_the_client_takes_every_value_that_is_taken(asked: str) -> None:
    found = settings(asked)
    Sender(found, found.options.max_message_bytes).give_up()
    assert found.producing["retries"] in (1, 5, (1 << 31) - 1)


def test_a_message_that_no_client_could_send_is_told() -> None:
    _, notices = build_spec(
        "range://h:1",
        "kafka://b/t?protocol=open-protocol&max-message-bytes=1GiB",
        tables=option_tables,
        sinks=sink_traits,
    )
    (told,) = notices
    assert told.endswith("(bytes from 1 to 999999872, as 1048576 or 1MiB): 999999872 is used")


def test_an_unknown_compression_is_told() -> None:
    _, notices = build_spec(
        "range://h:1",
        "kafka://b/t?protocol=open-protocol&compression=brotli&kafka-version=2.4.0",
        tables=option_tables,
        sinks=sink_traits,
    )
    assert any("compression" in notice and "none" in notice for notice in notices)
    assert any("kafka-version" in notice for notice in notices)
