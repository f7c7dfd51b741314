"""Iceberg's metadata through the same access to a storage as everything else that we write."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4
from weakref import WeakValueDictionary

from pyiceberg.io import FileIO, InputFile, OutputFile

from rowferry.columnar.inflate import inflated
from rowferry.errors import TargetUnfit
from rowferry.flow.sink.lake.iceberg.avro_decoder import use_checked_decoder
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_KEY: Final = "rowferry.place"
_COMPRESSED: Final = ".gz.metadata.json"
_MOST_METADATA: Final = 256 << 20  # bytes, inflated


class FilesIO(FileIO):
    """Objects below one prefix, by their whole locations.

    Args:
        files: the prefix.
        base: its location, without a slash at the end.
    """

    def __init__(self, files: Files, base: str) -> None:
        super().__init__()
        use_checked_decoder()
        self.files = files
        self.base = base
        self._name = uuid4().hex
        _PLACES[self._name] = self

    @property
    def settings(self) -> dict[str, str]:
        """What makes the library use this place wherever it makes an access to files by itself."""
        return {"py-io-impl": f"{LentIO.__module__}.{LentIO.__name__}", _KEY: self._name}

    def path(self, location: str) -> str:
        """Return the path of a location below the prefix.

        Raises:
            TargetUnfit: it is somewhere else.
        """
        # Hadoop writes file:/dir for file:///dir.
        plain = location.replace("file:/", "file:///", 1) if _is_short(location) else location
        if not plain.startswith(self.base + "/"):
            raise TargetUnfit(
                f"{location} is not below {self.base}, where this changefeed keeps its tables; "
                "remove write.data.path, write.metadata.path and the like from the table, or give "
                "its files the place where they were"
            )
        return plain[len(self.base) + 1 :]

    def location(self, path: str) -> str:
        """Return the location of a path."""
        return f"{self.base}/{path}"

    def new_input(self, location: str) -> InputFile:
        """Return what reads an object."""
        return _Input(self, location)

    def new_output(self, location: str) -> OutputFile:
        """Return what writes an object, whole, when its stream is closed."""
        return _Output(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove an object; a missing one is fine."""
        moment("delete iceberg metadata")
        self.files.delete(self.path(location if isinstance(location, str) else location.location))


_PLACES: WeakValueDictionary[str, FilesIO] = WeakValueDictionary()


class LentIO(FilesIO):
    """The same place, found by its name among the settings that the library hands on."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        known = _PLACES[properties[_KEY]]
        super().__init__(known.files, known.base)


def _is_short(location: str) -> bool:
    return location.startswith("file:/") and not location.startswith("file://")


class _Input(InputFile):
    def __init__(self, owner: FilesIO, location: str) -> None:
        super().__init__(location)
        self._owner = owner

    def _content(self) -> bytes:
        moment("read iceberg metadata")
        stored = self._owner.files.get(self._owner.path(self.location))
        if stored is None:
            raise FileNotFoundError(self.location)
        return stored.data

    def __len__(self) -> int:
        return len(self._content())

    def exists(self) -> bool:
        """Return whether there is such an object."""
        moment("look for iceberg metadata")
        return self._owner.files.exists(self._owner.path(self.location))

    def open(self, seekable: bool = True) -> Any:
        """Return a stream over the whole object.

        Raises:
            ValueError: the library would inflate it to more than any metadata have.
        """
        content = self._content()
        if self.location.endswith(_COMPRESSED):
            inflated(content, "gzip", _MOST_METADATA)
        return io.BytesIO(content)


class _Output(OutputFile):
    def __init__(self, owner: FilesIO, location: str) -> None:
        super().__init__(location)
        self._owner = owner
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def exists(self) -> bool:
        """Return whether there is such an object."""
        moment("look for iceberg metadata to write")
        return self._owner.files.exists(self._owner.path(self.location))

    def to_input_file(self) -> InputFile:
        """Return what reads the same object."""
        return _Input(self._owner, self.location)

    def create(self, overwrite: bool = False) -> Any:
        """Return a stream whose content becomes the object when it is closed."""
        return _Growing(self)

    def put(self, content: bytes) -> None:
        """Write the object."""
        self._size = len(content)
        moment("put iceberg metadata")
        self._owner.files.overwrite(self._owner.path(self.location), content)


class _Growing(io.BytesIO):
    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and not self.closed:
            self.close()

    def close(self) -> None:
        """Write what was gathered, once."""
        if not self.closed:
            self._output.put(self.getvalue())
        super().close()
