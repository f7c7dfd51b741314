"""The protocols whose data files are checked; the check has its own names for what it reads."""

from __future__ import annotations

from enum import Enum

from rowferry.errors import OptionsConflict


class FileKind(Enum):
    """A protocol of data files, and what their names end with before the compression."""

    CSV = ("csv", "csv")
    CANAL_JSON = ("canal-json", "json")
    PARQUET = ("parquet", "parquet")

    def __init__(self, protocol: str, extension: str) -> None:
        self.protocol = protocol
        self.extension = extension

    @classmethod
    def of(cls, protocol: str) -> FileKind:
        """Return the kind of a protocol's files.

        Raises:
            OptionsConflict: its files are not checked; the text lists those that are.
        """
        for kind in cls:
            if kind.protocol == protocol:
                return kind
        known = ", ".join(kind.protocol for kind in cls)
        raise OptionsConflict(f"protocol {protocol}: its files are not checked; known: {known}")
