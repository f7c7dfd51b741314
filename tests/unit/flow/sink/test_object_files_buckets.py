"""From sink URIs to buckets: what is refused, where keys come from, and that none is shown."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from rowferry.errors import BadInput, BadOption, BadUri, OptionsConflict, UnknownOption
from rowferry.flow.assemble import sink_traits
from rowferry.flow.sink.storage import buckets
from rowferry.flow.sink.storage.buckets import azure_files, gcs_files, s3_files
from rowferry.flow.sink.storage.object_files import ObjectFiles
from rowferry.registry import SINKS
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

OPEN = {"s3": s3_files, "gcs": gcs_files, "gs": gcs_files, "azure": azure_files}
OPEN["azblob"] = azure_files


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the client library was told."""
    found: list[dict[str, Any]] = []

    def store(bucket: str, **settings: Any) -> object:
        found.append({"bucket": bucket, **settings})
        return object()

    for name in ("S3Store", "GCSStore", "AzureStore"):
        monkeypatch.setattr(buckets, name, store)
    return found


def files(uri: str, config: dict[str, Any] | None = None) -> ObjectFiles:
    sink = Uri.parse(uri, "sink")
    source = Uri.parse("range://127.0.0.1:1", "source")
    return OPEN[sink.scheme](ChangefeedSpec("feed", source, sink, config or {}), 3)


def test_every_parameter_of_s3(made: list[dict[str, Any]], tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("certificate")
    files(
        "s3://bucket/a/b?endpoint=https://here&region=eu-1&access-key=k1&secret-access-key=k2"
        f"&session-token=k3&force-path-style=false&sse=AES256&ca={ca}&request-timeout=9s"
    )
    (told,) = made
    config = told["config"]
    assert told["bucket"] == "bucket"
    assert (config["access_key_id"], config["secret_access_key"]) == ("k1", "k2")
    assert (config["session_token"], config["region"]) == ("k3", "eu-1")
    assert config["virtual_hosted_style_request"] is True
    assert config["server_side_encryption"] == "AES256"
    assert told["client_options"]["allow_http"] is False
    assert told["client_options"]["root_certificate"] == b"certificate"
    assert told["client_options"]["timeout"].total_seconds() == 9


def test_the_file_may_say_all_that_the_uri_may(made: list[dict[str, Any]]) -> None:
    section = {"endpoint": "http://localhost:1", "account-name": "me", "sas-token": "?sv=1&sig=2"}
    files("azure://box/p", {"sink": {"cloud-storage-config": section}})
    config = made[0]["config"]
    assert config == {
        "endpoint": "http://localhost:1",
        "account_name": "me",
        "sas_key": "sv=1&sig=2",
    }
    assert made[0]["client_options"]["allow_http"] is True


def test_gcs(made: list[dict[str, Any]]) -> None:
    files("gs://bucket/p?credentials-file=/key.json")
    files("gcs://bucket/p?anonymous=true&endpoint=http://127.0.0.1:1")
    assert made[0]["config"] == {"service_account": "/key.json"}
    assert made[1]["config"] == {"base_url": "http://127.0.0.1:1"}
    assert made[1]["credential_provider"]()["expires_at"] is None


def test_keys_of_a_profile(
    made: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["[default]", "aws_access_key_id=d", "aws_secret_access_key=e", "[work]"]
    lines += ["aws_access_key_id=w", "aws_secret_access_key=x", "aws_session_token=t"]
    (tmp_path / "credentials").write_text("\n".join(lines))
    (tmp_path / "config").write_text("[profile work]\nregion=eu-7\n")
    files("s3://b/p")
    files("s3://b/p?profile=work")
    monkeypatch.setenv("AWS_PROFILE", "work")
    files("s3://b/p")
    files("s3://b/p?access-key=o&secret-access-key=p")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from the environment")
    files("s3://b/p")
    found = [(m["config"].get("access_key_id"), m["config"].get("region")) for m in made]
    assert found == [("d", None), ("w", "eu-7"), ("w", "eu-7"), ("o", None), (None, None)]
    with pytest.raises(BadOption, match="profile = 'none'.*has no such profile"):
        files("s3://b/p?profile=none")


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        ("s3:///p", BadUri, "names no bucket; write s3://bucket"),
        ("s3://host:9000/p", BadUri, "endpoint=…"),
        ("s3://b/p?access-key=k", OptionsConflict, "go together"),
        ("s3://b/p?endpoint=http://far.example", OptionsConflict, "allow-http=true"),
        ("s3://b/p?endpoint=far.example", BadOption, "https://host"),
        ("s3://b/p?endpoint=http://127.0.0.1:65536", BadOption, "http://host:port"),
        ("s3://b/p?endpoint=https://", BadOption, "http://host:port"),
        ("s3://b/p?endpoint=https://a%20b", BadOption, "http://host:port"),
        ("gcs://b/p?endpoint=https://[::1", BadOption, "http://host:port"),
        ("s3://b/p?sse=none", BadOption, "aes256"),
        ("s3://b/p?ca=/none/ca.pem", BadOption, "ca = '/none/ca.pem' cannot be read"),
        ("azure://b/p?account-key=k&sas-token=s", OptionsConflict, "give one"),
        ("azure://b/p", BadOption, "cannot be used.*ccount"),
        ("azure://b/p?account-name=n&account-key=not-base64", BadOption, "cannot be used"),
        ("gcs://b/p?credentials-file=/none/key.json", BadOption, "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_told(uri: str, error: type[BadInput], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        files(uri)
    assert "not-base64" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_http_to_another_machine_when_it_is_meant(made: list[dict[str, Any]]) -> None:
    files("s3://b/p?endpoint=http://far.example&allow-http=true")
    assert made[0]["client_options"]["allow_http"] is True


def test_parameters_of_another_store_are_refused() -> None:
    for scheme, parameter in (("s3", "account-key"), ("azure", "access-key"), ("gcs", "region")):
        tables = SINKS.load(scheme).TABLES
        secret = secrets.token_hex(8)
        with pytest.raises(UnknownOption, match=f"{parameter}.*known for {scheme}") as raised:
            uri = f"{scheme}://b/p?protocol=csv&{parameter}={secret}"
            build_spec("range://127.0.0.1:1", uri, tables=tables, sinks=sink_traits)
        assert secret not in str(raised.value)


def test_no_secret_is_shown() -> None:
    keys = ("access-key", "secret-access-key", "session-token", "account-key", "sas-token")
    values = {key: secrets.token_hex(8) for key in keys}
    query = "&".join(f"{k}={v}" for k, v in values.items())
    shown = str(Uri.parse(f"s3://b/p?{query}", "sink"))
    spec = ChangefeedSpec(
        "f", Uri.parse("range://h:1", "source"), Uri.parse(f"s3://b/p?{query}", "sink")
    )
    for scheme in ("s3", "azure"):
        for table in SINKS.load(scheme).TABLES:
            shown += repr(spec.options(table))
    assert not [v for v in values.values() if v in shown]
