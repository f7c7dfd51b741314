"""Old spellings and what they are called now. Whoever uses one is told, and served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rowferry.errors import BadDispatchRule, BadOption, OptionsConflict
from rowferry.names import protocols
from rowferry.spec.option import expression, unknown_words
from rowferry.spec.ticdc_keys import (
    PROTOCOL_ALIASES,
    PROTOCOLS_ELSEWHERE,
    RESERVED_PROTOCOLS,
)


def parse_protocol(text: str) -> str:
    """Return a protocol's name of today, from any case and old spelling; empty stays empty.

    Raises:
        BadOption: no such protocol; the text lists those that can be used.
    """
    name = text.strip().lower()
    if other := RESERVED_PROTOCOLS.get(name):
        raise BadOption(f"protocol {name!r} is reserved and cannot be used; use {other!r}")
    name = PROTOCOL_ALIASES.get(name, name)
    if name and name not in (*protocols(), *PROTOCOLS_ELSEWHERE):
        words = unknown_words(text, [*protocols(), *PROTOCOL_ALIASES])
        raise BadOption(
            words.replace(f"unknown option {text!r}", f"unknown {text!r} message protocol for sink")
        )
    return name


def protocol_notice(text: str) -> str | None:
    """Return a notice where `text` is an old name of a protocol."""
    new = PROTOCOL_ALIASES.get(text.strip().lower())
    return f"protocol {text!r} is an old name; it is now {new!r}" if new else None


# Keys of [sink.mysql-config] in TiCDC's files, where its URIs have other words for the same.
MYSQL_KEYS: Final = {
    "enable-batch-dml": "batch-dml-enable",
    "enable-multi-statement": "multi-stmt-enable",
    "enable-cache-prepared-statement": "cache-prep-stmts",
    "max-multi-update-row-count": "max-multi-update-row",
}


def modernise(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration in today's spelling, and a notice for each old one.

    Raises:
        OptionsConflict: both the old and the new name of something are given.
        BadDispatchRule: an old name has a value of the wrong type.
    """
    sink = config.get("sink")
    if not isinstance(sink, Mapping):
        return dict(config), []  # of another type: whoever reads it will say so
    modern = dict(sink)
    notices: list[str] = []
    if isinstance(rules := sink.get("dispatchers"), list | tuple):
        modern["dispatchers"], notices = _modern_rules(rules)
    if isinstance(mysql := sink.get("mysql-config"), Mapping):
        modern["mysql-config"] = _modern_mysql(mysql)
    return {**config, "sink": modern}, notices


def _modern_mysql(section: Mapping[str, Any]) -> dict[str, Any]:
    for old, new in MYSQL_KEYS.items():
        if old in section and new in section:
            raise OptionsConflict(f"sink.mysql-config gives both {old} and {new}; keep one")
    return {MYSQL_KEYS.get(key, key): value for key, value in section.items()}


def _modern_rules(rules: Sequence[Any]) -> tuple[list[Any], list[str]]:
    notices: list[str] = []
    renamed = []
    for place, rule in enumerate(rules):
        if isinstance(rule, Mapping) and "dispatcher" in rule:
            path = f"sink.dispatchers[{place}]"
            old, new = rule["dispatcher"], rule.get("partition", "")
            try:
                partition = expression().parse(old)
            except ValueError as err:
                raise BadDispatchRule(f"{path}.dispatcher = {old!r}: {err}") from None
            # Only the empty text says nothing: the number 0 is a partition.
            if partition != "" and new != "":
                words = "dispatcher and partition cannot be configured both"
                raise OptionsConflict(f"{path}: {words}; keep partition, the new name")
            rest = {k: v for k, v in rule.items() if k != "dispatcher"}
            rule = rest | {"partition": new if partition == "" else partition}
            notices.append(f"{path}.dispatcher is an old name; it is now partition")
        renamed.append(rule)
    return renamed, notices
