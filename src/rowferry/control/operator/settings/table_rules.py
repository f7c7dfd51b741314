"""The filter rules after tables were added or dropped: as short as a person would write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rowferry.errors import BadFilterRule, OptionsConflict
from rowferry.flow.decide.table_filter import TableFilter, named_by
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.config_file import RULE_KEYS
from rowferry.spec.rules.filter import FilterOptions

EVERYTHING: Final = "*.*"
_KEYS: Final = (*RULE_KEYS, "columns")


def filter_rules(spec: ChangefeedSpec) -> tuple[str, ...]:
    """Return the filter rules in force."""
    written = spec.options(FilterOptions).rules
    return written or FilterOptions.rules.default


def with_tables(
    rules: Sequence[str], patterns: Iterable[str], case_sensitive: bool = False
) -> tuple[str, ...]:
    """Return the rules under which these tables are captured, too.

    A rule that had only taken them out goes away; where that is not enough, one is appended.

    Raises:
        BadFilterRule: a pattern that is not `DATABASE.TABLE`.
    """
    kept = list(rules) or [EVERYTHING]
    for pattern in _plain(patterns, case_sensitive):
        kept = [rule for rule in kept if rule.strip() != f"!{pattern}"]
        if not _takes_all(kept, pattern, case_sensitive):
            kept.append(pattern)
    return tuple(kept)


def without_tables(
    rules: Sequence[str], patterns: Iterable[str], case_sensitive: bool = False
) -> tuple[str, ...]:
    """Return the rules under which these tables are captured no more.

    A rule that had only brought them goes away; where that is not enough, an excluding one is
    appended.

    Raises:
        BadFilterRule: a pattern that is not `DATABASE.TABLE`.
        OptionsConflict: no rule would be left that captures anything.
    """
    kept = list(rules) or [EVERYTHING]
    for pattern in _plain(patterns, case_sensitive):
        kept = [rule for rule in kept if rule.strip() != pattern]
        if _may_take(kept, pattern, case_sensitive):
            kept.append(f"!{pattern}")
    if not any(_brings(rule) for rule in kept):
        raise OptionsConflict(
            "without these tables nothing would be captured; pause or remove the changefeed instead"
        )
    return tuple(kept)


def deciding_rule(
    rules: Iterable[str], database: str, table: str, case_sensitive: bool = False
) -> str | None:
    """Return the rule that decides about a table: the last one that fits; None: none does."""
    for rule in reversed([*rules]):
        bare = rule.strip().removeprefix("!")
        if TableFilter([bare], case_sensitive).matches_table(database, table):
            return rule
    return None


def with_rules(spec: ChangefeedSpec, rules: Sequence[str]) -> ChangefeedSpec:
    """Return settings with these filter rules."""
    section = {**spec.section(FilterOptions.TABLE.section), FilterOptions.rules.key: list(rules)}
    return replace(spec, config={**spec.config, FilterOptions.TABLE.section: section})


def refuse_rule_files(config: Mapping[str, Any]) -> None:
    """Refuse rules that import a file: a server must not read files at a stranger's request.

    Raises:
        BadFilterRule: names the rule.
    """
    for key, value in config.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Mapping):
                refuse_rule_files(one)
            elif key in _KEYS and isinstance(one, str) and one.strip().startswith("@"):
                raise BadFilterRule(f"{key}: {one!r} names a file; write its rules out instead")


def _plain(patterns: Iterable[str], case_sensitive: bool) -> list[str]:
    """Return the patterns, each without spaces around it, once, and able to stand in a rule."""
    plain = list(dict.fromkeys(pattern.strip() for pattern in patterns))
    if not plain:
        raise BadFilterRule("no table is named; write DATABASE.TABLE, with * for any name")
    for pattern in plain:
        if pattern[:1] in ("!", "@", "#"):
            raise BadFilterRule(
                f"{pattern!r} is not a table; write DATABASE.TABLE, with * for any name"
            )
        named_by(pattern, case_sensitive)
    return plain


def _brings(rule: str) -> bool:
    return rule.strip()[:1] not in ("", "!", "#")


def _takes_all(rules: list[str], pattern: str, case_sensitive: bool) -> bool:
    """Return whether certainly every table of a pattern is captured."""
    database, table = named_by(pattern, case_sensitive)
    if database is not None and table is not None:
        return TableFilter(rules, case_sensitive).matches_table(database, table)
    for rule in reversed(rules):
        if rule.strip() in (pattern, EVERYTHING):
            return True
        if not _brings(rule):
            return False  # it may take some of them out
    return False


def _may_take(rules: list[str], pattern: str, case_sensitive: bool) -> bool:
    """Return whether perhaps some table of a pattern is captured."""
    database, table = named_by(pattern, case_sensitive)
    if database is not None and table is not None:
        return TableFilter(rules, case_sensitive).matches_table(database, table)
    for rule in reversed(rules):
        if rule.strip() == f"!{pattern}":
            return False
        if _brings(rule) and _meet(named_by(rule, case_sensitive), (database, table)):
            return True
    return False


def _meet(one: tuple[str | None, str | None], other: tuple[str | None, str | None]) -> bool:
    """Return whether a table may fit both; a part with a wildcard is None."""
    return all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))
