"""What a sink's scheme alone says: which settings concern it, whether it takes a protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rowferry.errors import BadOption, BadUri, OptionsConflict
from rowferry.spec.legacy import PROTOCOLS, parse_protocol


@dataclass(frozen=True, slots=True)
class Family:
    """Schemes that share their settings.

    Attributes:
        section: where the configuration file keeps them ("" for none).
        protocol: whether a sink of this family needs a protocol, may have one, or has none.
        atomicity: the levels of `transaction-atomicity` that it can keep, the default first.
        default_protocol: what a sink without one gets ("": none).
        forwards_parameters: URI parameters that nobody declares belong to the target.
    """

    name: str
    schemes: tuple[str, ...]
    section: str
    protocol: str  # "needed", "allowed", "none"
    atomicity: tuple[str, ...]
    default_protocol: str = ""
    forwards_parameters: bool = False


FAMILIES: Final = (
    Family(
        "storage",
        ("file", "s3", "gcs", "gs", "azblob", "azure", "noop"),
        "sink.cloud-storage-config",
        "needed",
        ("none", "table"),
    ),
    Family("kafka", ("kafka", "kafka+ssl"), "sink.kafka-config", "needed", ("none",)),
    Family(
        "pulsar",
        ("pulsar", "pulsar+ssl", "pulsar+http", "pulsar+https"),
        "sink.pulsar-config",
        "needed",
        ("none",),
    ),
    Family(
        "mysql",
        ("mysql", "mysql+ssl", "tidb", "tidb+ssl"),
        "sink.mysql-config",
        "none",
        ("none", "table", "global"),
        default_protocol="sql-rows",
    ),
    Family(
        "http",
        ("http", "https"),
        "sink.http-config",
        "allowed",
        ("none",),
        default_protocol="json",
        forwards_parameters=True,
    ),
    Family("blackhole", ("blackhole",), "", "allowed", ("none", "table"), default_protocol="json"),
)
_BY_SCHEME: Final = {scheme: family for family in FAMILIES for scheme in family.schemes}


def family_of(scheme: str) -> Family:
    """Return the family of a sink's scheme.

    Raises:
        BadUri: nobody knows the scheme; the text lists the known ones.
    """
    family = _BY_SCHEME.get(scheme)
    if family is None:
        known = ", ".join(sorted(_BY_SCHEME))
        raise BadUri(f"the sink URI has the unknown scheme {scheme!r}; known: {known}")
    return family


def check_protocol(scheme: str, text: str) -> str:
    """Return today's name of the protocol that a sink of this scheme was given ("" for none).

    Raises:
        BadOption: no such protocol, or none given where one is needed.
        OptionsConflict: the sink takes no protocol.
    """
    family = family_of(scheme)
    if text and family.protocol == "none":
        raise OptionsConflict(f"protocol {text} is incompatible with {scheme} scheme; leave it out")
    name = parse_protocol(text)
    if not name and family.protocol == "needed":
        raise BadOption(
            f"unknown '' message protocol for sink: a {scheme} sink needs a protocol (?protocol=… "
            "in the sink URI, or sink.protocol); "
            f"known: {', '.join(PROTOCOLS)}"
        )
    return name


def check_atomicity(scheme: str, text: str) -> str:
    """Return the level of `transaction-atomicity` that holds for a sink of this scheme.

    Raises:
        BadOption: a level that the sink cannot keep; the text lists those that it can.
    """
    levels = family_of(scheme).atomicity
    level = text.lower() or levels[0]
    if level not in levels:
        raise BadOption(
            f"transaction-atomicity: {text} level atomicity is not supported by {scheme} scheme; "
            f"allowed: {' | '.join(levels)}"
        )
    return level
