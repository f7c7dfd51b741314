"""Kerberos settings become a command that a shell runs: nothing of it is the user's to write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rowferry.errors import BadOption, OptionsConflict
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.sink.kafka.options import read_settings
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec

KEYTAB = "/etc/rowferry/feed.keytab"
SINK = "kafka://127.0.0.1:1/topic?protocol=canal-json&sasl-mechanism=gssapi"


def made(sink: str = SINK, **more: str) -> ChangefeedSpec:
    wanted = {
        "sasl-gssapi-service-name": "kafka",
        "sasl-gssapi-keytab-path": KEYTAB,
        "sasl-gssapi-user": "ferry/host.example",
        "sasl-gssapi-realm": "EXAMPLE.COM",
        **more,
    }
    config: dict[str, Any] = {"sink": {"kafka-config": wanted}}
    return build_spec(
        "range://127.0.0.1:1", sink, config, "feed", tables=option_tables, sinks=sink_traits
    )[0]


@pytest.mark.parametrize(
    "text",
    ["a; touch FILE #", "a$(touch FILE)", "a`touch FILE`", "a|touch FILE", "a\ntouch FILE"]
    + ["-c FILE", "a b", 'a"b', "a%{broker.name}", "a\\", "ü", "a>FILE", "a&touch FILE"],
)
@pytest.mark.parametrize(
    "key",
    ["sasl-gssapi-user", "sasl-gssapi-realm", "sasl-gssapi-keytab-path"]
    + ["sasl-gssapi-service-name"],
)
def test_no_character_of_a_shell_passes(key: str, text: str) -> None:
    value = f"/{text}" if key.endswith("path") else text
    with pytest.raises(BadOption, match=key):
        made(**{key: value})


def test_the_command_has_only_what_was_named(tmp_path: Path) -> None:
    """The command is run as the client library does it; `kinit` is one that tells its words."""
    found = read_settings(made()).connection
    told = tmp_path / "told"
    program = tmp_path / "kinit"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$#" "$@" >> {told}\nexit 1\n')
    program.chmod(0o755)
    command = found["sasl.kerberos.kinit.cmd"]
    assert "%{" not in command
    subprocess.run(["/bin/sh", "-c", command], env={**os.environ, "PATH": str(tmp_path)})
    words = ["-t", KEYTAB, "-k", "ferry/host.example@EXAMPLE.COM"]
    assert told.read_text().split("\n") == ["5", "-R", *words, "4", *words, ""]


def test_two_realms_are_refused() -> None:
    with pytest.raises(OptionsConflict, match="names a realm already"):
        assemble(made(**{"sasl-gssapi-user": "a@B.C"}))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://a\\@b/", "ldap://h/", "http:///x"])
def test_tokens_come_from_web_addresses_only(url: str) -> None:
    with pytest.raises(BadOption, match="sasl-oauth-token-url"):
        made(**{"sasl-oauth-token-url": url})


@pytest.mark.parametrize("scope", ["a&grant_type=password", "a b", "a=b"])
def test_a_scope_is_no_part_of_a_form(scope: str) -> None:
    with pytest.raises(BadOption, match="sasl-oauth-scopes"):
        made(**{"sasl-oauth-scopes": scope})


@pytest.mark.parametrize(
    ("sink", "key"),
    [
        ("s3://b/p?protocol=csv&region=evil.example%2F%23", "region"),
        ("azure://b/p?protocol=csv&account-name=evil.example%2F%23", "account-name"),
        ("mysql://u@127.0.0.1:1/?time-zone=%5C", "time-zone"),
    ],
)
def test_what_becomes_part_of_a_name_or_a_statement_is_checked(sink: str, key: str) -> None:
    with pytest.raises(BadOption, match=key):
        build_spec("range://127.0.0.1:1", sink, None, "f", tables=option_tables, sinks=sink_traits)
