"""What a person may have meant whose filter rules fit no table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from rowferry.change.table import TableId
from rowferry.control.operator.settings.table_rules import EVERYTHING, filter_rules, with_rules
from rowferry.errors import RowferryError
from rowferry.flow.assemble import assemble
from rowferry.spec.changefeed import ChangefeedSpec

LOG = logging.getLogger(__name__)
_MOST_NAMES: Final = 3
_MOST_DATABASES: Final = 12
_LIKE: Final = 0.6


def nothing_matches(spec: ChangefeedSpec) -> str:
    """Return words for filter rules that fit no table: near misses, and the databases there."""
    rules = filter_rules(spec)
    words = f"filter.rules = {', '.join(rules)}: no table of the source matches"
    return words + hint(spec, rules)


def hint(spec: ChangefeedSpec, rules: Sequence[str]) -> str:
    """Return what comes after words about names that do not exist; empty: nothing helps.

    Asks the source for all its tables. One that does not answer is no second error.
    """
    try:
        every = assemble(with_rules(spec, [EVERYTHING]))
        tables = [table.id for table in every.capture.probe(every.decide)]
    except RowferryError as err:
        LOG.info("the source's tables could not be listed: %s", err)
        return ""
    if not tables:
        return "; the source has no tables, or none that this login may see"
    words = ""
    if near := near_misses(rules, tables):
        words = f"; did you mean {' or '.join(near)}?"
    databases = sorted({t.database for t in tables})
    more = len(databases) - _MOST_DATABASES
    listed = ", ".join(databases[:_MOST_DATABASES]) + (f" and {more} more" if more > 0 else "")
    return f"{words} (databases there: {listed})"


def near_misses(rules: Iterable[str], tables: Sequence[TableId]) -> list[str]:
    """Return names, or patterns, that look like the rules and fit something."""
    databases = {t.database.lower(): t.database for t in tables}
    names = {str(t).lower(): str(t) for t in tables}
    candidates: list[str] = []
    for rule in rules:
        text = rule.strip().replace("`", "").lower()
        database, _, table = text.partition(".")
        if text.startswith(("!", "/", "@")) or not table:
            continue
        if "*" in table or "?" in table:
            pattern = rule.strip().replace("`", "").partition(".")[2]
            for near in get_close_matches(database, databases, _MOST_NAMES, _LIKE):
                if near != database:
                    candidates.append(f"{databases[near]}.{pattern}")
        else:
            candidates += [names[n] for n in get_close_matches(text, names, _MOST_NAMES, _LIKE)]
    return list(dict.fromkeys(candidates))[:_MOST_NAMES]
