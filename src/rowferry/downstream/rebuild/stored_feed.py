"""A storage directory as its changefeed left it: settings, files, codec."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rowferry.downstream.consume.storage import is_storage, stored_files, written_spec
from rowferry.errors import BadOption, BadUri, OptionsConflict
from rowferry.flow.assemble import format_of
from rowferry.flow.encode.contract import StoredFormat
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.paths import parse_data_name
from rowferry.flow.sink.storage.reader import plain_name
from rowferry.registry import CODECS, ROW_FORMATS, SINKS, load_format
from rowferry.secrets.environment import sources_of_environment
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.config_file import read_config
from rowferry.spec.uri import Uri

_DEEPEST: Final = 6  # directories above a data file


@dataclass(frozen=True)
class StoredFeed:
    """What a changefeed wrote, and how it wrote it; the settings keep their references."""

    spec: ChangefeedSpec
    files: Files

    @property
    def codec(self) -> StoredFormat:
        """The format of its data files.

        Raises:
            OptionsConflict: tables cannot be rebuilt of it.
        """
        codec = format_of(self.spec)
        if not isinstance(codec, StoredFormat):
            raise OptionsConflict(
                f"protocol {self.spec.protocol}: no tables can be rebuilt of its files; known: "
                f"{', '.join(stored_protocols().values())}"
            )
        return codec


def stored_protocols() -> dict[str, str]:
    """Return the protocols of which tables can be rebuilt, by what names of data files end with."""
    by_suffix = {}
    for name in sorted([*CODECS.names(), *ROW_FORMATS.names()]):
        made = load_format(name)
        if made.TRAITS.file_suffix and hasattr(made, "commit_time"):
            by_suffix[made.TRAITS.file_suffix] = name
    return by_suffix


def open_storage(
    uri: str,
    config: Path | None = None,
    protocol: str = "",
    secrets: SecretSources = NO_STORE,
) -> StoredFeed:
    """Return the storage at a sink's URI; nothing is written.

    Args:
        uri: as the changefeed has it; parameters count as they do there.
        config: the changefeed's configuration file.
        protocol: one of `stored_protocols`, if neither of the others says so; "": the names of
            the data files tell.
        secrets: where the values of references come from.

    Raises:
        BadInput: the URI or the configuration cannot be understood, or nothing is there.
    """
    place = Uri.parse(uri, "storage")
    if not is_storage(place.scheme):
        schemes = ", ".join(SINKS.installed(is_storage))
        raise BadUri(f"{place.scheme}:// is no storage; known: {schemes}")
    place = place.absolute(os.getcwd(), "storage")
    configured = place.parameter("protocol") or _in_config(config)
    if protocol and configured and protocol != configured:
        raise BadOption(f"--protocol {protocol}: the changefeed's settings say {configured}")
    known = stored_protocols()
    if protocol and protocol not in known.values():
        raise BadOption(f"--protocol {protocol!r}: allowed: {' | '.join(known.values())}")
    if configured or protocol:
        return _opened(uri, config, "" if configured else protocol, secrets)
    options = SINKS.load(place.scheme).TABLES
    whole = secrets.resolved_uri(place, "the storage URI", options)
    guessed = _guessed(stored_files(ChangefeedSpec("", whole, whole)), known)
    return _opened(uri, config, guessed, secrets)


def reopen(spec: ChangefeedSpec, secrets: SecretSources | None = None) -> StoredFeed:
    """Return the same storage in another process; `spec` is what `StoredFeed` holds.

    `secrets` is where the values of references come from; None: the environment tells.

    Raises:
        SecretMissing: one cannot be had here.
        BadUri: no storage has such a scheme, or there is no such directory.
    """
    secrets = secrets or sources_of_environment()
    return StoredFeed(spec, stored_files(secrets.resolved_sink(spec)))


def _opened(uri: str, config: Path | None, protocol: str, secrets: SecretSources) -> StoredFeed:
    joined = "&" if "?" in uri else "?"
    whole = f"{uri}{joined}protocol={protocol}" if protocol else uri
    return reopen(written_spec(whole, config)[0], secrets)


def _in_config(config: Path | None) -> str:
    section = read_config(config).get("sink", {}) if config is not None else {}
    return str(section.get("protocol", "")) if isinstance(section, dict) else ""


def _guessed(files: Files, known: dict[str, str]) -> str:
    """Return the protocol of the first data file that is found; without one any will do.

    Raises:
        BadUri: it is of no protocol that is known.
    """
    for path in files.paths(_DEEPEST):
        named = parse_data_name(plain_name(path.rpartition("/")[2]))
        if named is not None:
            suffix = f".{named[1].split('.')[0]}"
            if suffix not in known:
                raise BadUri(
                    f"{files.shown(path)} is of no protocol that is known here; files end with: "
                    f"{', '.join(known)}"
                )
            return known[suffix]
    return next(iter(known.values()))
