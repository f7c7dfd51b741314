"""The option reference as a Markdown page, from the tables themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rowferry.spec.option import Option, OptionTable, shown
from rowferry.spec.ticdc_keys import BROUGHT


def option_reference(tables: Iterable[OptionTable]) -> str:
    """Return Markdown: one table per section with every key, then the keys that are not used.

    Sections come in alphabetic order, the top level first; a key that several tables declare is
    listed once.
    """
    sections: dict[str, dict[str, Option[Any]]] = {}
    for table in tables:
        known = sections.setdefault(table.section, {})
        for option in table.options:
            known.setdefault(option.key, option)
    parts = [_section(name, sections[name]) for name in sorted(sections)]
    declared = {f"{s}.{k}" if s else k for s, keys in sections.items() for k in keys}
    parts += [_not_used(declared)]
    return "\n\n".join(parts) + "\n"


def _section(name: str, options: dict[str, Option[Any]]) -> str:
    lines = [f"## `[{name}]`" if name else "## Top level", ""]
    lines += ["| key | allowed | default | in the URI | meaning |", "|---|---|---|---|---|"]
    for key in sorted(options):
        option = options[key]
        cells = [
            f"`{key}`",
            option.shape.words,
            _default(option),
            "yes" if option.uri else "no",
            _meaning(option),
        ]
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
    return "\n".join(lines)


def _not_used(declared: set[str]) -> str:
    rest = [b for b in BROUGHT if b.path not in declared and not b.whole_section]
    lines = ["## Keys of TiCDC that are accepted without effect", ""]
    lines += ["The changefeed is created and a notice tells about the key.", ""]
    lines += [f"- `{b.path}`: {b.no_effect}" for b in rest if b.no_effect]
    lines += ["", "## Keys of TiCDC that are not supported yet", ""]
    lines += ["Any value but the default is refused where the key would matter.", ""]
    lines += [f"- `{b.path}` (default `{b.default!r}`)" for b in rest if not b.no_effect]
    return "\n".join(lines)


def _meaning(option: Option[Any]) -> str:
    text = option.doc
    text += "" if option.alterable else " Fixed when the changefeed is created."
    return text + (f" No effect: {option.no_effect}." if option.no_effect else "")


def _default(option: Option[Any]) -> str:
    hidden = option.secret or option.default in ("", None, ())
    return "none" if hidden else f"`{shown(option.default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
