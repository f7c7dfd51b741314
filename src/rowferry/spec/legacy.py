"""Old spellings and what they are called now. Whoever uses one is told, and served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rowferry.errors import BadOption, OptionsConflict
from rowferry.spec.option import unknown_words

_PROTOCOL_ALIASES: Final = {"default": "open-protocol", "flat-avro": "avro"}
# Every name that TiCDC's users write; which of them have a codec here is the registry's business.
PROTOCOLS: Final = (
    "avro",
    "canal",
    "canal-json",
    "craft",
    "csv",
    "debezium",
    "debezium-avro",
    "json",
    "maxwell",
    "open-protocol",
    "simple",
)


def parse_protocol(text: str) -> str:
    """Return a protocol's name of today, from any case and old spelling; empty stays empty.

    Raises:
        BadOption: no such protocol; the text lists the known ones.
    """
    name = text.strip().lower()
    if name == "rich-avro":
        raise BadOption("protocol 'rich-avro' is reserved and cannot be used; use 'avro'")
    name = _PROTOCOL_ALIASES.get(name, name)
    if name and name not in PROTOCOLS:
        words = unknown_words(text, [*PROTOCOLS, *_PROTOCOL_ALIASES])
        raise BadOption(words.replace("unknown option", "unknown protocol", 1))
    return name


def protocol_notice(text: str) -> str | None:
    """Return a notice where `text` is an old name of a protocol."""
    new = _PROTOCOL_ALIASES.get(text.strip().lower())
    return f"protocol {text!r} is an old name; it is now {new!r}" if new else None


def modernise(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration in today's spelling, and a notice for each change.

    Raises:
        OptionsConflict: a dispatch rule gives both the old and the new name.
    """
    sink = config.get("sink")
    rules = sink.get("dispatchers") if isinstance(sink, Mapping) else None
    if not isinstance(sink, Mapping) or not isinstance(rules, list):
        return dict(config), []  # of another type: whoever reads it will say so
    notices: list[str] = []
    renamed = []
    for place, rule in enumerate(rules):
        if isinstance(rule, Mapping) and "dispatcher" in rule:
            path = f"sink.dispatchers[{place}]"
            if "partition" in rule:
                words = "dispatcher and partition cannot be configured both"
                raise OptionsConflict(f"{path}: {words}; keep partition, the new name")
            rule = {("partition" if k == "dispatcher" else k): v for k, v in rule.items()}
            notices.append(f"{path}.dispatcher is an old name; it is now partition")
        renamed.append(rule)
    return {**config, "sink": {**sink, "dispatchers": renamed}}, notices
