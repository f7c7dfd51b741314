"""Lines of the log: JSON, with the changefeed's id and the error's code, without secrets."""

from __future__ import annotations

import io
import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from rowferry.control.feed.running import current_changefeed
from rowferry.errors import SinkUnavailable
from rowferry.face.json_log import log_json, redacted

WORD = secrets.token_hex(8)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    levels = {n: logging.getLogger(n).level for n in ("py4j", "alembic", "uvicorn", "httpx")}
    root.handlers = []  # what pytest reads with must not be closed
    out = io.StringIO()
    log_json(out)
    yield out
    root.handlers = before
    root.setLevel(level)
    for name, was in levels.items():
        logging.getLogger(name).setLevel(was)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_a_line_says_what_when_and_whose(lines: io.StringIO) -> None:
    log = logging.getLogger("rowferry.some.part")
    log.info("one %s", "thing")
    log.debug("nobody reads this")
    kept = current_changefeed.set("orders-copy")
    try:
        log.warning("[RF-4001] it is away\nfor now: %s", f"http://me:{WORD}@far/?token={WORD}&a=b")
        try:
            raise SinkUnavailable(f"kafka://me:{WORD}@far")
        except SinkUnavailable:
            log.exception("gave up")
    finally:
        current_changefeed.reset(kept)
    log.error("of another", extra={"changefeed": "other"})
    first, second, third, fourth = read(lines)
    assert set(first) == {"ts", "level", "logger", "message"}
    assert first["message"] == "one thing" and first["level"] == "info"
    assert first["logger"] == "rowferry.some.part" and first["ts"].endswith("Z")
    assert second["changefeed"] == "orders-copy" and second["code"] == "RF-4001"
    assert second["message"].endswith("http://me:***@far/?token=***&a=b")
    assert third["code"] == "RF-4001" and "SinkUnavailable" in third["trace"]
    assert fourth["changefeed"] == "other"
    assert WORD not in lines.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a://u:{}@h/p", "a://u:***@h/p"),
        ("a://u:x@{}@h/p", "a://u:***@h/p"),
        ("x?secret-access-key={}&y=1", "x?secret-access-key=***&y=1"),
        ("{{'password': '{}', 'user': 'me'}}", "{{'password': '***', 'user': 'me'}}"),
        ('{{"sasl-password": "{}"}}', '{{"sasl-password": "***"}}'),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert redacted(text.format(WORD)) == shown.format()


@pytest.mark.parametrize("text", ["a://h:1/p?x=1", "12:30@noon", "sasl-mechanism is wrong", "k=v"])
def test_other_text_stays(text: str) -> None:
    assert redacted(text) == text
