"""The options of commands that start Spark."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

import typer

from rowferry.errors import BadOption

_MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+"
)


def known_master(text: str) -> str:
    """Return a `--spark-master` that Spark knows; of others it says so only in its own log."""
    if not _MASTER.fullmatch(text):
        raise BadOption(f"--spark-master {text!r}: write local[*], spark://…, yarn or k8s://…")
    return text


SparkMaster: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Where Spark runs: local[*], spark://…, yarn, k8s://…", callback=known_master
    ),
]
SparkConf: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="Further Spark settings, key=value; may be repeated")
]


def read_settings(pairs: list[str]) -> dict[str, str]:
    """Return `--spark-conf` as a mapping."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadOption(f"--spark-conf {pair!r}: write key=value")
        found[key] = value
    return found
