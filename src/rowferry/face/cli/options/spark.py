"""The options of commands that start Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from rowferry.errors import BadOption

if TYPE_CHECKING:
    from rowferry.secrets.sources import SecretSources

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
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadOption(f"--spark-conf {pair!r}: write key=value")
        settings[key] = value
    return settings


def settings_with_secrets(settings: Mapping[str, str], secrets: SecretSources) -> dict[str, str]:
    """Return Spark's settings; where a secret refers to one that is elsewhere, with its value.

    Raises:
        SecretMissing, BadOption: it cannot be had, or is no reference.
    """
    from rowferry.spark.doors import holds_secret

    return {
        key: secrets.value(value, f"--spark-conf {key}") if holds_secret(key) else value
        for key, value in settings.items()
    }
