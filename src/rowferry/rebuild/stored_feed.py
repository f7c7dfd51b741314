"""A storage directory as its changefeed left it: settings, files, codec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rowferry.errors import BadOption, BadUri
from rowferry.flow.assemble import codec_name
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.flow.sink.storage.paths import parse_data_name
from rowferry.registry import CODECS, SINKS, SOURCES
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.config_file import read_config
from rowferry.spec.option import OptionTable
from rowferry.spec.uri import Uri

_NO_SOURCE: Final = "mysql://none@none/"  # what was written does not depend on it
_PROTOCOLS: Final = {"csv": "csv", "json": "canal-json"}


@dataclass(frozen=True)
class StoredFeed:
    """What a changefeed wrote, and how it wrote it."""

    spec: ChangefeedSpec
    files: Files

    @property
    def codec(self) -> Codec:
        """The format of its data files."""
        return CODECS.load(codec_name(self.spec))(self.spec)


def open_storage(uri: str, config: Path | None = None, protocol: str = "") -> StoredFeed:
    """Return the storage at a sink's URI; nothing is written.

    Args:
        uri: as the changefeed has it; parameters count as they do there.
        config: the changefeed's configuration file.
        protocol: `csv` or `canal-json`, if neither of the others says so; "": the names of the data
            files tell.

    Raises:
        BadInput: the URI or the configuration cannot be understood, or nothing is there.
    """
    place = Uri.parse(uri, "storage")
    told = place.parameter("protocol") or _in_config(config)
    if protocol and told and protocol != told:
        raise BadOption(f"--protocol {protocol}: the changefeed's settings say {told}")
    if protocol and protocol not in _PROTOCOLS.values():
        raise BadOption(f"--protocol {protocol!r}: allowed: csv | canal-json")
    if not told:
        found = protocol or _guessed(open_files(place))
        uri += ("&" if place.parameters else "?") + f"protocol={found}"
    spec, _ = build_spec(_NO_SOURCE, uri, config, tables=_tables)
    return StoredFeed(spec, open_files(spec.sink))


def reopen(spec: ChangefeedSpec) -> StoredFeed:
    """Return the same storage in another process."""
    return StoredFeed(spec, open_files(spec.sink))


def open_files(uri: Uri) -> Files:
    """Return the files at a URI.

    Raises:
        BadUri: there is no such directory, or the scheme cannot be read.
    """
    if uri.scheme != "file":
        raise BadUri(f"{uri.scheme}:// cannot be read back; known: file")
    root = Path(uri.absolute(str(Path.cwd()), "storage").path)
    if not root.is_dir():
        raise BadUri(f"{root} is not there; check the storage URI")
    return LocalFiles(root)


def _in_config(config: Path | None) -> str:
    section = read_config(config).get("sink", {}) if config is not None else {}
    return str(section.get("protocol", "")) if isinstance(section, dict) else ""


def _guessed(files: Files) -> str:
    """Return the protocol of the first data file."""
    for extension in _extensions(files, "", 0):
        return _PROTOCOLS.get(extension.split(".")[0], "csv")
    return "csv"


def _extensions(files: Files, directory: str, depth: int) -> Iterator[str]:
    for entry in files.entries(directory):
        path = f"{directory}/{entry.name}" if directory else entry.name
        if entry.is_directory and depth < 6:
            yield from _extensions(files, path, depth + 1)
        elif (named := parse_data_name(entry.name)) is not None:
            yield named[1]


def _tables(spec: ChangefeedSpec) -> list[OptionTable]:
    """Return the tables of all that a configuration may speak of, whatever the source was."""
    told = [table for name in SOURCES.names() for table in SOURCES.load(name).TABLES]
    told += [*Decisions.TABLES, *CODECS.load(codec_name(spec)).TABLES]
    told += SINKS.load(spec.sink.scheme).TABLES
    return list(dict.fromkeys(told))
