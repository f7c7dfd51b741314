"""Which patterns and texts are replaced by compiled code, and which are left to RE2."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rowferry.flow.decide import pattern_automaton
from rowferry.flow.decide.pattern_automaton import automaton_of
from rowferry.flow.decide.pattern_kernels import CompiledReplacement, compiled_replacement
from rowferry.flow.decide.table_filter import bad_pattern

TEXTS = [
    *("", "a", "aa", "ab", "ba", "abab", "xaay", "ada@example.org", "4111 1111 1111 1111", "é"),
    *("éa", "aé漢😀a", "a\nb\n", "\n", "a.b-c_d", " a  b ", "[a-z]{2}", "\x00\x7f", None, "+49 30"),
]


def replacement(pattern: str, new: str = "x") -> CompiledReplacement:
    assert bad_pattern(pattern) == ""
    compiled = compiled_replacement(pattern, new)
    assert compiled is not None, pattern
    return compiled


def by_re2(texts: pa.Array, pattern: str, new: str = "x") -> pa.Array:
    return pc.replace_substring_regex(texts, pattern=pattern, replacement=new)


@pytest.mark.parametrize(
    "pattern",
    ["^[^@]+", r"@.*$", r"\d", r"\d{4}", r"\b\d{2,}\b", "[a-z0-9]+", "a|ab", "ab|a", "a*", "a*?"]
    + ["a+?", "(|a)", "(a|b)*", "^", "$", r"\A", r"\z", "^$", r"\b", "", "|", "a|", "()", "(?:)"]
    + ["x*$", "^a*", ".", "(?s).", "(?s)^.*$", ".+", "[^a]", "[-a]", "[a-]", "[^-a]", r"[\d-]"]
    + [
        r"[\]\[^]",
        "[é-漢]",
        "[^é]",
        "😀+",
        "é|漢",
        r"\W+",
        r"\S",
        r"[^\w@]",
        r"\.",
        r"\n",
        "[.*+?]",
    ]
    + ["a{0}", "a{0,0}b", "a{2}", "a{1,}", "a{0,2}?b", "(?:ab)+", "(a+b?)+", "a$|ab", "a^", "$a"]
    + ["^a|b", r"\ba", r"a\b", r"(?:\b|a)a", "a.c", "((((a))))", r"[a-z.]+@[a-z]+\.org"],
)
@pytest.mark.parametrize("new", ["", "x", "<é>", "a longer text than all that it comes for"])
def test_replaced_as_by_re2(pattern: str, new: str) -> None:
    texts = pa.array(TEXTS * 3, pa.large_utf8())
    compiled = replacement(pattern, new)
    for part in (texts, texts.slice(3, 20), texts.slice(5, 0), texts.filter(texts.is_valid())):
        result = compiled.of(part)
        assert result is not None
        result.validate(full=True)
        assert result.to_pylist() == by_re2(part, pattern, new).to_pylist()


@pytest.mark.parametrize("pattern", [".", r"\w", r"\s", r"\D", "[^a]", "[é-漢]", "[ -\U0001f600]"])
def test_every_character_is_in_a_class_or_not(pattern: str) -> None:
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    texts = pa.array(map(chr, points), pa.large_utf8())
    result = replacement(pattern).of(texts)
    assert result is not None and result.equals(by_re2(texts, pattern))


@pytest.mark.parametrize(
    "pattern",
    # Flags, names of classes and groups, and letters that mean something.
    ["(?i)a", "(?m)^a", "(?U)a+", "(?s:.)", "a(?s).", "(?P<n>a)", "(?<n>a)", "[[:alpha:]]", r"\pL"]
    + [r"\PL", r"\p{Greek}", r"[\pL]", r"\x41", r"\x{e9}", r"\141", r"\Qa.b\E", r"\C", r"\B", r"\a"]
    + [r"\f", r"\v", r"\_"]
    # What may be empty and is repeated.
    + ["(a*)*", "(a*)+", "(|a)*", "(a|b?)+", "(?:^)*", r"(?:\b)+", "(?:a?){2}", "(?:a*)?", "$*"]
    # What looks like something else.
    + ["a{,2}", "a{01}", "a{", "}", "]", "[]a]", "[^]a]", "[a[]", "[a-c-z]", "[--a]", "{"]
    # No character, too deep, and too large.
    + [r"[^\d\D]", "(" * 25 + "a" + ")" * 25, "(?:.{9}){30}", "(a|b)*a(a|b){9}", "[é-漢]{900}"],
)
def test_other_patterns_are_left_to_re2(pattern: str) -> None:
    assert bad_pattern(pattern) == ""
    assert compiled_replacement(pattern, "x") is None


@pytest.mark.parametrize("new", [r"\0", r"\1", "\\\\"])
def test_replacements_with_groups_are_left_to_re2(new: str) -> None:
    assert compiled_replacement("(a)", new) is None


@pytest.mark.parametrize("pattern", ["(", "a)", "[a", "a**", "*a", "a{3,2}", "\\", "a\\", "[b-a]"])
def test_what_is_no_pattern_is_left_to_re2(pattern: str) -> None:
    assert bad_pattern(pattern) != ""
    assert automaton_of(pattern) is None


def test_half_a_character_in_a_pattern_is_left_to_re2() -> None:
    assert automaton_of("\ud800") is None and automaton_of("[a-\udfff]") is None


@pytest.mark.parametrize("limit", ["_MOST_WORK", "_MOST_NODES", "_MOST_STATES"])
def test_making_a_table_ends(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = "[a-z]{3,5}x"
    assert automaton_of.__wrapped__(pattern) is not None
    monkeypatch.setattr(pattern_automaton, limit, 5)
    assert automaton_of.__wrapped__(pattern) is None


def test_other_columns_are_left_to_re2() -> None:
    compiled = replacement("a")
    whole = pa.array(["a"], pa.large_utf8())
    assert compiled.of(pa.chunked_array([whole, whole])) is None
    assert compiled.of(pa.array(["a"], pa.utf8())) is None


def test_texts_that_are_no_utf8_are_left_to_re2() -> None:
    compiled = replacement(".")
    raw = pa.array([b"a\xc3", b"b"], pa.large_binary())
    broken = pa.LargeStringArray.from_buffers(2, *raw.buffers()[1:])
    assert compiled.of(broken) is None


def test_searches_that_take_the_square_of_a_texts_length_are_left_to_re2() -> None:
    compiled = replacement("a+b")
    short = pa.array(["aaab"] * 1000, pa.large_utf8())
    assert compiled.of(short) is not None
    assert compiled.of(pa.array(["a" * 1000], pa.large_utf8())) is None
    again = replacement("a+b|a")  # it matches at once, and reads on to the end each time
    assert again.of(pa.array(["a" * 1000], pa.large_utf8())) is None


def test_nothing_of_a_text_below_a_null_is_kept() -> None:
    texts = pa.array(["secret", "open"], pa.large_utf8())
    hidden = pa.LargeStringArray.from_buffers(
        2, texts.buffers()[1], texts.buffers()[2], pa.py_buffer(b"\x02"), 1
    )
    result = replacement("p").of(hidden)
    assert result is not None and result.to_pylist() == [None, "oxen"]
    assert result.buffers()[2].to_pybytes() == b"oxen"
