"""Words of strangers: no text makes a server slow, and none of a path comes back."""

from __future__ import annotations

import pytest
from front_kit import Front

from rowferry.face.json_log import redacted, redacted_whole
from rowferry.spec.uri import without_passwords

# Python's own patterns need hours for a megabyte of these.
SLOW = ("a", "a=", "://a:", "://a:b", "'a': ", '"a": \'', "a%3D", "ä", '://a:"', "-", "'", "=")


@pytest.mark.parametrize("word", SLOW)
def test_a_long_word_is_read_once(word: str) -> None:
    text = word * ((1 << 20) // len(word))
    assert redacted_whole(text + " token=x").endswith(" token=***")
    assert without_passwords(text + " a://u:x@h").endswith("@h")


def test_long_texts_are_cut_without_showing_a_secret() -> None:
    for lead in (65_500, 65_530, 65_536):
        shown = redacted("b" * (lead - 9) + " a://u:" + "secret" * 40 + "@h " + "c" * 70_000)
        assert "secretsecret" not in shown and len(shown) == 65_537 and shown.endswith("…")
    assert redacted("c" * 65_536) == "c" * 65_536


def test_texts_that_are_no_unicode_are_hidden_too() -> None:
    assert redacted("\ud800 a://u:\udcff@h pässword=1 'tökentoken': 'x'") == (
        "\ud800 a://u:***@h pässword=1 'tökentoken': '***'"
    )


def test_a_path_is_not_repeated(front: Front) -> None:
    long = "a" * 60_000
    for path in (f"/docs/{long}", f"/{long}", f"/web/{long}", f"/api/v2/{long}"):
        said = front.ask("GET", path)
        assert said.status == 404 and said.words.startswith("[RF-1000] there is no such path")
        assert b"aaaa" not in said.body
    said = front.ask("PATCH", "/api/v2/changefeeds?secret=word")
    assert said.status == 405 and b"word" not in said.body and b"PATCH" not in said.body
    assert front.ask("GET", "/health").status == 200
