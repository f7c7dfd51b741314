from __future__ import annotations

import numpy as np
import pytest

from rowferry.errors import SourceUnsupported
from rowferry.mysql.charsets import (
    _COLLATIONS,
    charset_of,
    decoded,
    longest_character,
    to_utf8,
)

ALL = sorted(set(_COLLATIONS) - {"binary"})


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (8, "latin1"),
        (33, "utf8mb3"),
        (45, "utf8mb4"),
        (46, "utf8mb4"),
        (63, "binary"),
        (255, "utf8mb4"),
        (309, "utf8mb4"),
        (323, "utf8mb4"),
        (248, "gb18030"),
        (1024 + 8, "latin1"),
        (1024 + 46, "utf8mb4"),
        (2048, "utf8mb3"),
        (2304, "utf8mb4"),
        (3271, "utf32"),
        (0, ""),
        (17, ""),
        (999, ""),
        (9999, ""),
    ],
)
def test_collations_have_charsets(number: int, name: str) -> None:
    assert charset_of(number) == name


@pytest.mark.parametrize(
    ("charset", "given", "wanted"),
    [
        ("latin1", b"\x80\xe9\x81\x8d", "€é\x81\x8d"),
        ("swe7", b"[\\]{|}x", "ÄÖÅäöåx"),
        ("dec8", b"\xa8\xd7\xf7\xff", "¤Œœ?"),
        ("armscii8", b"\xa2\xb2\xb3", "§Աա"),
        ("geostd8", b"\xc0\xfd\xfe", "ა№?"),
        ("keybcs2", b"\x80\xab\xe1\xff", "ČŔß\u00a0"),
        ("greek", b"\xa1\xa4\xe1", "ʽ?α"),
        ("sjis", b"\x93\xfa\xb1\x5c\x81\x5f", "日ｱ\\\\"),
        ("cp932", b"\x87\x40\xf0\x40", "①\ue000"),
        ("ujis", b"\xc6\xfc\x8e\xb1\x8f\xb0\xa1\xf5\xa1\x8f\xf5\xa1", "日ｱ丂\ue000\ue3ac"),
        ("eucjpms", b"\xad\xa1\x8f\xf3\xf3\x8f\xf4\xfe", "①ⅰ黑"),
        ("big5", b"\xa4\xa4\xf9\xd6\xa1\x5a", "中碁\ufffd"),
        ("gbk", b"\xd6\xd0\x80a", "中?a"),
        ("gb18030", b"\xd6\xd0\x81\x39\xee\x39\x94\x39\xda\x33", "中㐀💩"),
        ("gb18030", b"\xa8\xbc\x81\x35\xf4\x37", "ḿ\ue7c7"),
        ("euckr", b"\x81\x41\xc7\xd1", "갂한"),
        ("ucs2", "é中".encode("utf-16-be"), "é中"),
        ("utf16", "é😀".encode("utf-16-be"), "é😀"),
        ("utf16le", "é😀".encode("utf-16-le"), "é😀"),
        ("utf32", "é😀".encode("utf-32-be"), "é😀"),
        ("utf8", "é中".encode(), "é中"),
        ("utf8mb4", "é😀".encode(), "é😀"),
    ],
)
def test_characters_are_the_servers(charset: str, given: bytes, wanted: str) -> None:
    assert decoded(charset, [b"", given, b"", given]) == ("", wanted, "", wanted)


@pytest.mark.parametrize(
    ("charset", "given", "wanted"),
    [
        ("utf8mb4", b"a\xffb", "a?b"),
        ("utf8mb4", b"\xc3", "?"),  # what follows belongs to the next value
        ("utf8mb4", b"\xed\xa0\x80", "???"),
        ("utf8mb4", b"\xc0\x80\xf4\x90\x80\x80", "??????"),
        ("ascii", b"a\xc3\xa9", "a??"),
        ("utf16", b"\xd8\x00\x00a", "?a"),
        ("utf16", b"\xdc\x00", "?"),
        ("utf16", b"\x00a\x00", "a?"),
        ("utf32", b"\x00\x11\x00\x00", "?"),
        ("utf32", b"\x7f\xff\xff\xff", "?"),
        ("gbk", b"a\x81", "a?"),
        ("gbk", b"\xa1\x40", "?"),
        ("gbk", b"\x81\x20", "? "),
        ("gb18030", b"\x81\x30\x81", "?0?"),
        ("gb18030", b"\xff\x30\x81\x30", "?0?0"),
        ("gb18030", b"\xfe\x39\xfe\x39", "?"),
        ("ujis", b"\x8f\xa1", "??"),
        ("ujis", b"\x8f\xa1\xa1", "?"),
    ],
)
def test_what_is_no_character_becomes_a_question_mark(
    charset: str, given: bytes, wanted: str
) -> None:
    assert decoded(charset, [given, b"\x00a\x00b"])[0] == wanted


@pytest.mark.parametrize("charset", ALL)
def test_any_bytes_become_well_formed_text(charset: str) -> None:
    random = np.random.default_rng(7)
    given = [random.integers(0, 256, size, np.uint8).tobytes() for size in (0, 1, 2, 3, 5, 400)]
    assert len(decoded(charset, given)) == len(given)  # decodes strictly


@pytest.mark.parametrize("charset", sorted(set(ALL) - {"ucs2", "utf16", "utf16le", "utf32"}))
def test_plain_text_is_not_copied(charset: str) -> None:
    data = np.frombuffer(b"plain text", np.uint8)
    found, _ = to_utf8(charset, data, np.array([0, 10]))
    assert np.shares_memory(found, data) == (charset != "swe7")


def test_lengths() -> None:
    assert [longest_character(c) for c in ("latin1", "gbk", "utf8", "ujis", "utf8mb4")] == [
        1,
        2,
        3,
        3,
        4,
    ]


def test_an_unknown_set_is_named() -> None:
    with pytest.raises(SourceUnsupported, match="'klingon'"):
        decoded("klingon", [b"x"])
