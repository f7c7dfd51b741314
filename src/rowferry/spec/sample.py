"""A sample configuration with every key, its default and what it means, from the tables."""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rowferry.spec.option import Option, OptionTable, shown

_WIDTH: Final = 92
_NO_DEFAULT: Final = "…"
_HEAD: Final = """\
# Settings of a changefeed, for `--config` of `rowferry run` and `rowferry changefeed create`.
# Each key stands here with its default, or with … where it has none: take the # away in front of
# those that you change.
# What each one means, and which may stand in a URI instead: docs/options.md.
"""


def sample_config(tables: Iterable[OptionTable], given: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a TOML text in which all keys are commented out but those that are `given`.

    `given` has values by section and key. Every key of the tables stands in it once.
    """
    sections: dict[str, dict[str, Option[Any]]] = {"": {}}
    for table in tables:
        known = sections.setdefault(table.section, {})
        for option in table.options:
            if not option.no_effect:
                known.setdefault(option.key, option)
    parts = [_HEAD]
    for name in sorted(sections):
        if sections[name]:
            parts.append(_section(name, sections[name], given.get(name, {})))
    return "\n".join(parts)


def _section(name: str, options: Mapping[str, Option[Any]], given: Mapping[str, Any]) -> str:
    lines = [f"[{name}]"] if name else []
    for key in sorted(options):
        option = options[key]
        words = f"{option.doc} Allowed: {option.shape.words}."
        lines += ["", *_comment(words)]
        if key in given:
            lines.append(f"{key} = {_literal(given[key])}")
        else:
            lines.append(f"# {key} = {_default(option)}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _comment(words: str) -> list[str]:
    """Return words as lines of a comment; names with hyphens stay whole."""
    return textwrap.wrap(
        words, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def _default(option: Option[Any]) -> str:
    """Return the default as one writes it, where there is one that can be written."""
    if option.secret or option.default in ("", None, ()):
        return _NO_DEFAULT
    text = _literal(option.default)
    try:
        option.shape.parse(tomllib.loads(f"value = {text}")["value"])
    except (ValueError, TypeError):
        return _NO_DEFAULT
    return text


def _literal(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(one) for one in value) + "]"
    text = value if isinstance(value, str) else shown(value)
    return json.dumps(text, ensure_ascii=False)
