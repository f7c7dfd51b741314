from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowferry.change.dialect import fold
from rowferry.errors import BadConfigFile, BadFilterRule
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.mysql.dialect import MYSQL_DIALECT


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("db", "wrong table pattern"),
        (".t", "syntax error: missing pattern"),
        ("!", "syntax error: missing pattern"),
        ("db..", "syntax error: missing pattern"),
        ("/a/b.c", "syntax error: missing '.' between schema and table patterns"),
        ('"a"b.c', "syntax error: missing '.' between schema and table patterns"),
        ("db.`t", "syntax error: incomplete quoted identifier"),
        ("db./a", "syntax error: incomplete regexp"),
        ("db.a b", "unexpected special character ' '"),
        ("/a(/.b", "invalid pattern: error parsing regexp: missing closing ): `a(`"),
        (r"/a\8/.b", r"invalid pattern: error parsing regexp: invalid escape sequence: `\8`"),
    ],
)
def test_error_texts(rule: str, words: str) -> None:
    with pytest.raises(BadFilterRule) as caught:
        TableFilter(["*.*", rule])
    assert str(caught.value) == f"[RF-1005] at <cmdline>:1: {words} (rule {rule!r})"


@pytest.mark.parametrize(
    ("rule", "names", "expected"),
    [
        ('"a""b".t', ['a"b', 'a""b'], [True, False]),
        ("`a``b`.t", ["a`b", "ab"], [True, False]),
        ("`a.b*`.t", ["a.b*", "a.bc"], [True, False]),
        (r"a\.b.t", ["a.b", "axb"], [True, False]),
        ("/b/.t", ["abc", "ac"], [True, False]),
        (r"/a\/b/.t", ["a/b", "ab"], [True, False]),
        ("a?c.t", ["a\nc", "abc", "ac", "aäc"], [True, True, False, True]),
        ("a*.t", ["a", "a\n\n", "ba"], [True, True, False]),
        ("[a-c]x.t", ["ax", "dx"], [True, False]),
        (r"[\]]x.t", ["]x", "\\x"], [True, False]),
        ("ÄÖ*.t", ["äöx", "ÄÖ"], [True, True]),
        ("ΑΣ.t", ["ας", "ασ", "ΑΣ"], [False, True, True]),
    ],
)
def test_forms_of_a_part(rule: str, names: list[str], expected: list[bool]) -> None:
    rules = TableFilter([rule])
    assert [rules.matches_table(name, "t") for name in names] == expected


def test_answers_are_remembered_and_stay_right() -> None:
    rules = TableFilter(["a.*", "!a.b"])
    for _ in range(2):
        assert rules.matches_table("a", "c")
        assert not rules.matches_table("a", "b")
        assert rules.matches_database("a")
        assert not rules.matches_database("b")


def test_rules_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_text("# ours\n\n  a.*\n!a.secret\n", encoding="utf-8")
    rules = TableFilter(["z.*", f" @{file}"])
    assert rules.matches_table("a", "x") and rules.matches_table("z", "x")
    assert not rules.matches_table("a", "secret")


def test_only_line_ends_part_the_rules_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_bytes('a."x\u2028y"\r\n# note\x85*.*\n/\x0c/.*'.encode())
    rules = TableFilter([f"@{file}"])
    assert rules.matches_table("a", "x\u2028y") and rules.matches_table("\x0c", "t")
    assert not rules.matches_table("b", "t")


def test_place_of_an_error_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_text("a.*\na.b.c\n", encoding="utf-8")
    with pytest.raises(BadFilterRule) as caught:
        TableFilter([f"@{file}"])
    assert f"at {file}:2: syntax error: stray characters after table pattern" in str(caught.value)


def test_files_do_not_import_files(tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_text("a.*\n@other.txt\n", encoding="utf-8")
    with pytest.raises(BadFilterRule) as caught:
        TableFilter([f"@{file}"])
    words = f"at {file}:2: importing filter files recursively is not allowed"
    assert str(caught.value) == f"[RF-1005] {words}"


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfigFile, match="nowhere.txt.*cannot be read: No such file"):
        TableFilter([f"@{tmp_path}/nowhere.txt"])


def test_bad_regular_expression_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadFilterRule):
        TableFilter(["/(?=a)/.*"])
    os.sync()
    assert capfd.readouterr() == ("", "")


def test_system_databases() -> None:
    is_system = MYSQL_DIALECT.is_system_database
    assert all(map(is_system, ["mysql", "MySQL", "tidb_cdc", "INFORMATION_SCHEMA"]))
    assert not any(map(is_system, ["metric_schema", "shop", "", "mysql2"]))


def test_fold_never_changes_the_length() -> None:
    assert fold("AbÇİΣ") == "abçiσ"


# --- against a slow oracle -----------------------------------------------------------------------
# A rule is generated as a list of tokens, so the oracle reads no rule text and uses no regular
# expression: it tries every way to lay the tokens over the name.

LETTERS = "abAB9_ä$"
CLASS_LETTERS = "abcAB9"


def token() -> st.SearchStrategy[tuple[str, str]]:
    letter = st.sampled_from(LETTERS).map(lambda c: ("is", c))
    escaped = st.sampled_from(".*?[]!-\\").map(lambda c: ("escaped", c))
    star, any_one = st.just(("star", "")), st.just(("any", ""))
    members = st.text(CLASS_LETTERS, min_size=1, max_size=3)
    inside = members.map(lambda m: ("in", m))
    outside = members.map(lambda m: ("out", m))
    return st.one_of(letter, letter, escaped, star, any_one, inside, outside)


def rule_text(tokens: list[tuple[str, str]]) -> str:
    forms = {"is": "{}", "escaped": "\\{}", "star": "*", "any": "?", "in": "[{}]", "out": "[!{}]"}
    return "".join(forms[kind].format(text) for kind, text in tokens)


def fits(tokens: list[tuple[str, str]], name: str, fold_case: bool) -> bool:
    if not tokens:
        return not name
    (kind, text), rest = tokens[0], tokens[1:]
    if kind == "star":
        return any(fits(rest, name[n:], fold_case) for n in range(len(name) + 1))
    if not name:
        return False
    have = {name[0], name[0].lower(), name[0].upper()} if fold_case else {name[0]}
    inside = bool(have & set(text))
    hit = {"any": True, "is": inside, "escaped": inside, "in": inside, "out": not inside}[kind]
    return hit and fits(rest, name[1:], fold_case)


PART = st.lists(token(), min_size=1, max_size=5)
RULE = st.tuples(st.booleans(), PART, PART)
NAME = st.text(LETTERS + ".*?[]!-\\ c", max_size=5)


Rule = tuple[bool, list[tuple[str, str]], list[tuple[str, str]]]


def compare(rules: list[Rule], tables: list[tuple[str, str]], case_sensitive: bool) -> None:
    texts = [("" if yes else "!") + f"{rule_text(d)}.{rule_text(t)}" for yes, d, t in rules]
    found = TableFilter(texts, case_sensitive)
    for database, table in tables:
        wanted = wanted_database = False
        for positive, d, t in rules:
            if fits(d, database, not case_sensitive):
                if fits(t, table, not case_sensitive):
                    wanted = positive
                if positive or t == [("star", "")]:
                    wanted_database = positive
        assert found.matches_table(database, table) is wanted, (texts, database, table)
        assert found.matches_database(database) is wanted_database, (texts, database)


@settings(max_examples=150, deadline=None)
@given(st.lists(RULE, max_size=4), st.lists(st.tuples(NAME, NAME), max_size=6), st.booleans())
def test_globs_against_the_oracle(
    rules: list[Rule], tables: list[tuple[str, str]], case_sensitive: bool
) -> None:
    compare(rules, tables, case_sensitive)


@settings(max_examples=150, deadline=None)
@given(st.lists(RULE, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_names_made_from_the_rules(rules: list[Rule], case_sensitive: bool, swap: bool) -> None:
    """Names made from the rules themselves, so that matches are not rare."""
    plain = {"is": "{}", "escaped": "{}", "star": "ab", "any": "b", "in": "{}", "out": "ä"}
    parts = [part for _, d, t in rules for part in (d, t)]
    names = ["".join(plain[k].format(x[:1]) for k, x in part) for part in parts]
    names = [n.swapcase() if swap else n for n in names]
    compare(rules, [(a, b) for a in names for b in names], case_sensitive)
