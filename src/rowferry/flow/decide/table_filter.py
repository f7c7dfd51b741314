"""Table filter rules in TiDB's syntax: which databases and tables are meant.

A rule is `database.table`; each part is a glob (`*`, `?`, `[a-z]`, `[!a-z]`; backslash escapes), a
quoted name ("…" or `…`), or a regular expression (/…/, RE2 syntax, matches anywhere). `!` in front
excludes, `#` begins a comment, `@file` imports a file of rules. The last rule that matches decides.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import re2

from rowferry.change.dialect import fold
from rowferry.change.remembered import Remembered
from rowferry.errors import BadFilterRule
from rowferry.spec.config_file import read_rule_file


class TableFilter:
    """An ordered list of rules; an empty one matches nothing. Answers are remembered per name."""

    def __init__(self, rules: Iterable[str], case_sensitive: bool = False) -> None:
        """Read the rules, and the files that they import.

        Raises:
            BadFilterRule: a syntax error; the text names the place and the rule.
            BadConfigFile: an imported file cannot be read.
        """
        self._case_sensitive = case_sensitive
        self._name: Callable[[str], str] = str if case_sensitive else fold
        # From the last to the first, so that the first match decides.
        self._rules = [*_parse_rules(rules, case_sensitive)][::-1]
        self._tables: Remembered[tuple[str, str], bool] = Remembered()
        self._databases: Remembered[str, bool] = Remembered()

    def matches_table(self, database: str, table: str) -> bool:
        """Return whether the last rule that fits this table is a positive one."""
        known = self._tables.get((database, table))
        if known is None:
            here, name = self._name(database), self._name(table)
            fit = (r for r in self._rules if r.database.matches(here) and r.table.matches(name))
            known = next((r.positive for r in fit), False)
            self._tables[database, table] = known
        return known

    def missing(self, present: Iterable[tuple[str, str]]) -> list[str]:
        """Return the tables that a rule names without a wildcard and that are not present.

        Names that a later rule excludes again are not asked for.
        """
        there = {(self._name(d), self._name(t)) for d, t in present}
        named = {
            (r.database.literal, r.table.literal)
            for r in self._rules
            if r.positive and r.database.literal is not None and r.table.literal is not None
        }
        lost = [n for n in named - there if self.matches_table(*n)]
        return sorted(f"{database}.{table}" for database, table in lost)

    def matches_database(self, database: str) -> bool:
        """Return whether some table of this database could match.

        A negative rule speaks about the whole database only when its table part is `*`.
        """
        known = self._databases.get(database)
        if known is None:
            here = self._name(database)
            spoken = (r for r in self._rules if r.positive or r.table.everything)
            known = next((r.positive for r in spoken if r.database.matches(here)), False)
            self._databases[database] = known
        return known

    def matches_in_some_database(self, table: str) -> bool:
        """Return whether a table of this name could match, whatever its database is."""
        name = self._name(table)
        spoken = (r for r in self._rules if r.positive or r.database.everything)
        return next((r.positive for r in spoken if r.table.matches(name)), False)

    def of_topics(self) -> TableFilter:
        """Return a filter for names as topics have them: with `_` for what topics cannot have."""
        cased = self._case_sensitive
        other = copy.copy(self)
        other._rules = [
            _Rule(r.positive, r.database.of_topics(cased), r.table.of_topics(cased))
            for r in self._rules
        ]
        other._tables, other._databases = Remembered(), Remembered()
        return other


def named_by(rule: str, case_sensitive: bool = False) -> tuple[str | None, str | None]:
    """Return the database and the table that a rule names; None for a part with a wildcard.

    Raises:
        BadFilterRule: a syntax error, or no rule at all.
    """
    rules = [*_parse_line(rule, "", case_sensitive)]
    if not rules:
        raise BadFilterRule(f"not a rule: {rule!r}; write DATABASE.TABLE")
    return rules[0].database.literal, rules[0].table.literal


# --- reading rules -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """One side of a rule: everything, one name, or a regular expression."""

    literal: str | None = None
    regex: Any = None

    @property
    def everything(self) -> bool:
        return self.literal is None and self.regex is None

    def matches(self, name: str) -> bool:
        if self.literal is not None:
            return name == self.literal
        return self.regex is None or self.regex.search(name) is not None

    def of_topics(self, case_sensitive: bool) -> _Part:
        if self.literal is not None:
            return _Part(literal=_FOREIGN.sub("_", self.literal))
        if self.regex is not None:
            with suppress(_Wrong):  # a range such as [a-ö] has no end then
                pattern = _FOREIGN_LITERAL.sub("_", self.regex.pattern)
                return _Part(regex=_compile(pattern, case_sensitive))
        return self


@dataclass(frozen=True, slots=True)
class _Rule:
    positive: bool
    database: _Part
    table: _Part


def _parse_rules(lines: Iterable[str], case_sensitive: bool) -> Iterator[_Rule]:
    for line in lines:
        text = line.strip(" \t")
        if text.startswith("@"):
            for place, inner in enumerate(read_rule_file(text[1:]), 1):
                yield from _parse_line(inner, f"at {text[1:]}:{place}: ", case_sensitive)
        else:
            yield from _parse_line(text, "at <cmdline>:1: ", case_sensitive)


def _parse_line(line: str, place: str, case_sensitive: bool) -> Iterator[_Rule]:
    text = line.strip(" \t")
    if not text or text.startswith("#"):
        return
    negative = text.startswith("!")
    try:
        database, rest = _parse_part(text[negative:], case_sensitive)
        if not rest:
            raise _Wrong("wrong table pattern")
        if not rest.startswith("."):
            raise _Wrong("syntax error: missing '.' between schema and table patterns")
        table, rest = _parse_part(rest[1:], case_sensitive)
        if rest:
            raise _Wrong("syntax error: stray characters after table pattern")
    except _Wrong as err:
        raise BadFilterRule(f"{place}{err} (rule {text!r})") from None
    yield _Rule(not negative, database, table)


class _Wrong(Exception):
    """What is wrong with a rule, without its place."""


# What no topic's name has, by itself and inside a regular expression.
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")
_FOREIGN_LITERAL = re.compile(r"\\[^A-Za-z0-9._-]|[ \u0080-\U0010ffff]")

_REGEX = re.compile(r"/(?:\\.|[^/])+/")
_QUOTED = {'"': re.compile(r'"(?:""|[^"])+"'), "`": re.compile(r"`(?:``|[^`])+`")}
_CLASS = re.compile(r"\[!?(?:\\[^0-9a-zA-Z]|[^\\\]])+\]")
_PLAIN = re.compile(r"[$_0-9A-Za-z\u0080-\U0010ffff]+")


def _parse_part(text: str, case_sensitive: bool) -> tuple[_Part, str]:
    """Read the pattern at the start of `text`; return it and what follows."""
    first = text[:1]
    if first in ("", "."):
        raise _Wrong("syntax error: missing pattern")
    if first == "/":
        match = _REGEX.match(text)
        if not match:
            raise _Wrong("syntax error: incomplete regexp")
        return _Part(regex=_compile(match[0][1:-1], case_sensitive)), text[match.end() :]
    if first in _QUOTED:
        match = _QUOTED[first].match(text)
        if not match:
            raise _Wrong("syntax error: incomplete quoted identifier")
        name = match[0][1:-1].replace(first * 2, first)
        return _literal(name, case_sensitive), text[match.end() :]
    return _parse_glob(text, case_sensitive)


def _parse_glob(text: str, case_sensitive: bool) -> tuple[_Part, str]:
    name: list[str] = []  # the literal text, valid while there is no wildcard
    regex: list[str] = []
    wild = False
    here = 0
    while here < len(text) and text[here] != ".":
        token, literal, pattern = _glob_token(text, here)
        here += len(token)
        name.append(literal)
        regex.append(pattern)
        wild = wild or not literal
    glob, rest = text[:here], text[here:]
    if glob == "*":
        return _Part(), rest
    if not wild:
        return _literal("".join(name), case_sensitive), rest
    return _Part(regex=_compile(f"(?s)^{''.join(regex)}$", case_sensitive)), rest


def _glob_token(text: str, here: int) -> tuple[str, str, str]:
    """Return the token at `here`, its literal text ("": a wildcard) and its regular expression."""
    char = text[here]
    if plain := _PLAIN.match(text, here):
        return plain[0], plain[0], re2.escape(plain[0])
    if char in "*?":
        return char, "", ".*" if char == "*" else "."
    if char == "[":
        match = _CLASS.match(text, here)
        if not match:
            raise _Wrong("syntax error: failed to parse character class")
        inner = match[0][1:-1]
        head = {"!": "^", "^": "\\^"}.get(inner[0], inner[0])
        return match[0], "", f"[{head}{inner[1:]}]"
    if char == "\\":
        escaped = text[here + 1 : here + 2]
        if not escaped:
            raise _Wrong("syntax error: cannot place \\ at end of line")
        if escaped.isascii() and escaped.isalnum():
            raise _Wrong(
                f"cannot escape a letter or number (\\{escaped}), "
                "it is reserved for future extension"
            )
        return char + escaped, escaped, re2.escape(escaped)
    raise _Wrong(f"unexpected special character '{char}'")


def _literal(name: str, case_sensitive: bool) -> _Part:
    return _Part(literal=name if case_sensitive else fold(name))


def _options(case_sensitive: bool) -> Any:
    options = re2.Options()
    options.log_errors = False  # the library would write to standard error
    options.case_sensitive = case_sensitive
    return options


_OPTIONS: Final = {case_sensitive: _options(case_sensitive) for case_sensitive in (True, False)}
# What users know these errors by, where the library words them otherwise.
_WORDS: Final = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
}


def _compile(pattern: str, case_sensitive: bool) -> Any:
    try:
        return re2.compile(pattern, _OPTIONS[case_sensitive])
    except re2.error as err:
        text = err.args[0].decode() if isinstance(err.args[0], bytes) else str(err.args[0])
        code, _, at = text.partition(": ")
        words = f"error parsing regexp: {_WORDS.get(code, code)}: `{at}`"
        raise _Wrong(f"invalid pattern: {words}") from None


def search_pattern(pattern: str) -> Callable[[str], bool]:
    """Return what searches a text for a pattern (RE2 syntax), in any case.

    Raises:
        ValueError: the pattern cannot be used; the text says why.
    """
    if why := bad_pattern(pattern):
        raise ValueError(why)
    compiled = _compile(pattern, case_sensitive=False)
    return lambda text: compiled.search(text) is not None


def bad_pattern(pattern: str) -> str:
    """Return why a regular expression cannot be used; empty text: it can."""
    try:
        _compile(pattern, case_sensitive=True)
    except _Wrong as err:
        return str(err)
    return ""


class NameFilter:
    """Rules over single names, e.g. of columns: as one part of a table filter's rule, any case."""

    def __init__(self, rules: Iterable[str]) -> None:
        """Read the rules.

        Raises:
            ValueError: a syntax error; the text names the rule.
        """
        self._rules: list[tuple[bool, _Part]] = []
        for line in rules:
            text = line.strip(" \t")
            if not text or text.startswith("#"):
                continue
            negative = text.startswith("!")
            try:
                part, rest = _parse_part(text[negative:], case_sensitive=False)
                if rest.startswith("."):
                    raise _Wrong("unexpected special character '.'")
                if rest:
                    raise _Wrong("syntax error: stray characters after column pattern")
            except _Wrong as err:
                raise ValueError(f"{err} (rule {text!r})") from None
            self._rules.append((not negative, part))
        self._rules.reverse()  # so that the first match decides

    def matches(self, name: str) -> bool:
        """Return whether the last rule that fits the name is a positive one."""
        folded = fold(name)
        return next((positive for positive, part in self._rules if part.matches(folded)), False)
