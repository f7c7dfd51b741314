"""Bodies and statements that no client of ours sends: a clear refusal, never an error inside."""

from __future__ import annotations

import json

import pytest
from front_kit import Front

from rowferry.spec.config_file import parse_config

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


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text", [BOMB, "a: &a [*a]", "a: &a {b: *a}"], ids=["grows", "list", "map"]
)
def test_aliases_of_yaml_do_not_grow(front: Front, text: str) -> None:
    """Declarations come as YAML: a few lines would be billions of values."""
    said = front.ask("POST", "/api/rowferry/sql", {"statement": f"EXPLAIN APPLY '{text}'"})
    assert said.status == 400 and "aliases make more than" in said.words, said
    assert front.ask("GET", "/health").status == 200


def test_aliases_of_yaml_may_be_used() -> None:
    content = parse_config("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", "yaml", "f")
    assert content == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}
