"""Bodies and statements that no client of ours sends: a clear refusal, never an error inside."""

from __future__ import annotations

import json

import pytest
from front_kit import Front

FEEDS = "/api/v2/changefeeds"
CHECK = "/api/rowferry/changefeeds/check"


def nested(depth: int) -> bytes:
    lead = b'{"sink_uri": "blackhole:///", "source_uri": "range://a:1", "replica_config": {"a": '
    return lead + b"[" * depth + b"]" * depth + b"}}"


@pytest.mark.parametrize("depth", [63, 800, 100_000])
@pytest.mark.parametrize("path", [FEEDS, CHECK, "/api/v2/verify_table", f"{FEEDS}/one"])
def test_json_that_is_too_deep(front: Front, path: str, depth: int) -> None:
    said = front.ask("PUT" if path.endswith("one") else "POST", path, nested(depth))
    assert said.status == 400 and said.words.startswith("[RF-1000] lists and objects of the body")


def test_what_is_deep_enough_is_read(front: Front) -> None:
    said = front.ask("POST", FEEDS, nested(62))
    assert said.status == 400 and "unknown" in said.words.lower()
    many = {"sink_uri": "x", "replica_config": {"filter": {"rules": [[]] * 1000}}}
    assert "stand in one another" not in front.ask("POST", FEEDS, many).words


@pytest.mark.parametrize("body", [b"[" * 200, b"{" * 200, b"\xff" * 99, b"null", b"[]" * 99, b'"'])
def test_what_is_no_json(front: Front, body: bytes) -> None:
    said = front.ask("POST", FEEDS, body)
    assert said.status == 400 and said.words.startswith("[RF-1")


def test_statements_of_many_and_of_deep_settings(front: Front) -> None:
    head = "CREATE CHANGEFEED FROM 'range://a:1' INTO 'blackhole:///' WITH ("
    many = ", ".join(f"a{n} = 1" for n in range(50_000))  # every pair was compared
    for statement, words in (
        (f"{head}{'.'.join('a' * 40)} = 1)", "more than 32 parts"),
        (f"{head}{many}, a7.b = 2)", "a7 and a7.b overlap"),
        (f"{head}a = {'[' * 900}{']' * 900})", "more than 32 deep"),
    ):
        said = front.ask("POST", "/api/rowferry/sql", json.dumps({"statement": statement}).encode())
        assert said.status == 400 and words in said.words
