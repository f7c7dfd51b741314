"""A long list of DDL: each statement, where it runs, and whether its text tells everything.

The statements are in `ddl_statements.txt`, one on a line. A line may begin with marks: `my` or
`maria` (runs on that server only), `?` (the definition must be asked for). All run one after the
other in a database of their own; names that begin with `_` are outside the filter.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    sql: str
    server: str  # "mysql", "mariadb" or "" for both
    told: bool


def cases(flavour: str) -> list[Case]:
    """Return the statements for one server."""
    lines = Path(__file__).with_suffix(".txt").read_text().split("\n")
    found = [_case(line) for line in lines if line.strip()]
    return [c for c in found if c.server in ("", flavour)]


def _case(line: str) -> Case:
    server, told, text = "", True, line.strip().replace("\\n", "\n")
    while text.split(" ", 1)[0] in ("my", "maria", "?"):
        mark, text = text.split(" ", 1)
        if mark == "?":
            told = False
        else:
            server = {"my": "mysql", "maria": "mariadb"}[mark]
    return Case(text, server, told)
