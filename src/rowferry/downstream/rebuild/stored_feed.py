"""A storage directory as its changefeed left it: settings, files, codec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rowferry.downstream.consume.storage import is_storage, storages, stored_files, written_spec
from rowferry.errors import BadOption, BadUri
from rowferry.flow.assemble import format_of
from rowferry.flow.encode.contract import Format
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.paths import parse_data_name
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.config_file import read_config
from rowferry.spec.uri import Uri

_PROTOCOLS: Final = {"csv": "csv", "json": "canal-json", "parquet": "parquet"}
_DEEPEST: Final = 6  # directories above a data file


@dataclass(frozen=True)
class StoredFeed:
    """What a changefeed wrote, and how it wrote it."""

    spec: ChangefeedSpec
    files: Files

    @property
    def codec(self) -> Format:
        """The format of its data files."""
        return format_of(self.spec)


def open_storage(uri: str, config: Path | None = None, protocol: str = "") -> StoredFeed:
    """Return the storage at a sink's URI; nothing is written.

    Args:
        uri: as the changefeed has it; parameters count as they do there.
        config: the changefeed's configuration file.
        protocol: `csv`, `canal-json` or `parquet`, if neither of the others says so; "": the names
            of the data files tell.

    Raises:
        BadInput: the URI or the configuration cannot be understood, or nothing is there.
    """
    place = Uri.parse(uri, "storage")
    if not is_storage(place.scheme):
        known = ", ".join(storages())
        raise BadUri(f"{place.scheme}:// is no storage; known: {known}")
    told = place.parameter("protocol") or _in_config(config)
    if protocol and told and protocol != told:
        raise BadOption(f"--protocol {protocol}: the changefeed's settings say {told}")
    if protocol and protocol not in _PROTOCOLS.values():
        raise BadOption(f"--protocol {protocol!r}: allowed: {' | '.join(_PROTOCOLS.values())}")
    if told or protocol:
        return _opened(uri, config, "" if told else protocol)
    found = _guessed(_opened(uri, None, "csv").files)
    return _opened(uri, config, found)


def reopen(spec: ChangefeedSpec) -> StoredFeed:
    """Return the same storage in another process.

    Raises:
        BadUri: no storage has such a scheme, or there is no such directory.
    """
    return StoredFeed(spec, stored_files(spec))


def _opened(uri: str, config: Path | None, protocol: str) -> StoredFeed:
    joined = "&" if "?" in uri else "?"
    whole = f"{uri}{joined}protocol={protocol}" if protocol else uri
    return reopen(written_spec(whole, config)[0])


def _in_config(config: Path | None) -> str:
    section = read_config(config).get("sink", {}) if config is not None else {}
    return str(section.get("protocol", "")) if isinstance(section, dict) else ""


def _guessed(files: Files) -> str:
    """Return the protocol of the first data file that is found."""
    for path in files.paths(_DEEPEST):
        named = parse_data_name(path.rpartition("/")[2])
        if named is not None:
            return _PROTOCOLS.get(named[1].split(".")[0], "csv")
    return "csv"
