"""The options of commands that start Spark."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from rowferry.errors import BadOption

SparkMaster: TypeAlias = Annotated[
    str, typer.Option(help="Where Spark runs: local[*], spark://…, yarn, k8s://…")
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
