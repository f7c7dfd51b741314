"""Writes the pages that come from the code: `docs/errors.md` and `docs/options.md`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from rowferry.errors import BY_CODE, RowferryError, Verdict
from rowferry.flow.decide.decisions import Decisions
from rowferry.registry import CODECS, ROW_FORMATS, SINKS, SOURCES
from rowferry.spec.feed_options import own_tables
from rowferry.spec.option import OptionTable
from rowferry.spec.reference import option_reference

HERE = Path(__file__).parent
_NOTE = "<!-- Made by `make docs` from the code; changes by hand are lost. -->"
_DONE = {
    Verdict.RETRY: "tried again, with growing pauses",
    Verdict.STOP: "the changefeed stops",
    Verdict.REPLAN: "the recorded plan is discarded and made anew",
}


def errors_page() -> str:
    """Return the page of all error codes."""
    lines = ["# Errors", "", _NOTE, ""]
    lines += ["Every error is one line, `[code] words`. Codes are never used again.", ""]
    lines += ["| code | name | meaning | what happens | what to do |", "|---|---|---|---|---|"]
    for code, error in sorted(BY_CODE.items()):
        happens = _DONE[error.verdict]
        lines.append(
            f"| {code} | {error.__name__} | {_first_line(error)} | {happens} | {error.cure} |"
        )
    return "\n".join(lines) + "\n"


def _first_line(error: type[RowferryError]) -> str:
    text = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def options_page() -> str:
    """Return the page of all options."""
    intro = (
        "Options stand in the configuration file (`--config`, as TOML, YAML or JSON) under their\n"
        "section. Those marked so may also be parameters of the URI, which win over the file."
    )
    return f"# Options\n\n{_NOTE}\n\n{intro}\n\n{option_reference(_tables())}"


def _tables() -> list[OptionTable]:
    found = list(Decisions.TABLES)
    for name in SINKS.names():
        found += own_tables(SINKS.load(name).TRAITS)
        found += SINKS.load(name).TABLES
    for name in CODECS.names():
        found += CODECS.load(name).TABLES
    for name in ROW_FORMATS.names():
        found += ROW_FORMATS.load(name).TABLES
    for name in SOURCES.names():
        found += SOURCES.load(name).TABLES
    return found


PAGES = {"errors.md": errors_page, "options.md": options_page}


def main() -> int:
    """Write all pages and name them."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
