"""Settings as a command line gives them: a file, standard input, and single ones beside it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final

from rowferry.errors import BadConfigFile, BadOption
from rowferry.spec.config_file import parse_config, read_config

STANDARD_INPUT: Final = "-"


def given_config(
    config: str | None,
    kind: str | None = None,
    settings: Iterable[str] = (),
    rules: Iterable[str] = (),
) -> Path | dict[str, Any] | None:
    """Return the settings: those of a file, and over them single ones and filter rules.

    Args:
        config: a file; `-` is standard input, of the type `kind`.
        kind: `toml`, `yaml` or `json`.
        settings: `key=value`, the key as the file's sections and keys with dots between them.
        rules: filter rules; they stand in the place of the file's.

    Raises:
        BadConfigFile: the file cannot be read, or is wrong.
        BadOption: a setting without `=`, or one inside of a plain value.
    """
    singles, wanted = list(settings), list(rules)
    if config == STANDARD_INPUT:
        if not kind:
            raise BadOption("--config - needs --config-type: toml, yaml or json")
        content = parse_config(_standard_input(), kind, "standard input")
    elif kind:
        raise BadOption(
            f"--config-type {kind}: only for --config -; a file's ending tells its type"
        )
    elif not singles and not wanted:
        return Path(config) if config else None
    else:
        content = read_config(config) if config else {}
    for text in singles:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadOption(f"--set {text!r}: write it as key=value, such as sink.protocol=csv")
        _put(content, key.strip(), _value(value.strip()))
    if wanted:
        _put(content, "filter.rules", wanted)
    return content


def table_rules(tables: Iterable[str], filters: Iterable[str]) -> list[str]:
    """Return the filter rules for tables that were named, and for rules that were given.

    Raises:
        BadOption: a table that is not `DATABASE.TABLE`.
    """
    named = []
    for table in tables:
        database, dot, name = table.partition(".")
        if not (database and dot and name) or table.startswith("!"):
            raise BadOption(f"--table {table!r}: write it as database.table")
        named.append(table)
    return [*filters, *named]


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise BadConfigFile("standard input: not UTF-8 text") from None


def _value(text: str) -> Any:
    """Return a value as TOML writes it: a number, true, a list; anything else is a text."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = document["value"] if len(document) == 1 else text
    return text if isinstance(value, date | datetime | time) else value


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    here = config
    for name in path:
        inner = here.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadOption(f"--set {key}: {name} holds a value, and no further keys")
        here = inner
    here[last] = value
