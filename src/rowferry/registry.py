"""Loads the classes of sources, codecs and sinks by their names."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from rowferry import names
from rowferry.errors import MissingLibrary, UnknownName

if TYPE_CHECKING:
    from rowferry.flow.capture.contract import Source
    from rowferry.flow.encode.contract import Codec, Format, RowFormat
    from rowferry.flow.sink.contract import Sink

T = TypeVar("T")

# Libraries that come with an extra: the name under which each is imported, and the extra.
EXTRAS: Final = {
    "amqp": "rabbitmq",
    "confluent_kafka": "kafka",
    "fastapi": "server",
    "joserfc": "server",
    "nats": "nats",
    "obstore": "object-storage",
    "prometheus_client": "server",
    "psycopg": "postgres",
    "pulsar": "pulsar",
    "pyiceberg": "iceberg",
    "pymysql": "mysql",
    "redis": "redis",
    "uvicorn": "server",
}


@contextmanager
def extras_named(what: str) -> Iterator[None]:
    """Run a block that imports; a library of an extra that is missing is told by that extra.

    Raises:
        MissingLibrary: with the line that installs it; `what` is the part that needs it.
    """
    try:
        yield
    except ModuleNotFoundError as err:
        library = (err.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise MissingLibrary(
            f"{what} needs the library {library}, which is not installed here; run: "
            f"pip install 'rowferry[{EXTRAS[library]}]'"
        ) from err


class Registry(Generic[T]):
    """Names to classes, imported when first asked for."""

    def __init__(self, what: str, *places: dict[str, str]) -> None:
        self.what = what
        self._places = ChainMap(*places)

    def installed(self, fits: Callable[[str], bool]) -> list[str]:
        """Return the names of which something is true, as far as their libraries are there."""
        fitting = []
        for name in self.names():
            with suppress(MissingLibrary):
                fitting += [name] if fits(name) else []
        return fitting

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._places)

    def load(self, name: str) -> type[T]:
        """Return the class of that name.

        Raises:
            UnknownName: nothing of that name; the text lists the known ones.
            MissingLibrary: its library comes with an extra and is not installed.
        """
        place = self._places.get(name)
        if place is None:
            known = ", ".join(self.names())
            raise UnknownName(f"unknown {self.what} {name!r}; known: {known}")
        module, _, attribute = place.partition(":")
        with extras_named(f"{self.what} {name}"):
            return cast("type[T]", getattr(import_module(module), attribute))


SOURCES: Registry[Source] = Registry("source", names.SOURCES)
CODECS: Registry[Codec] = Registry("protocol", names.CODECS, names.OWN_CODECS)
ROW_FORMATS: Registry[RowFormat] = Registry("protocol", names.ROW_FORMATS)
SINKS: Registry[Sink] = Registry("sink", names.SINKS)


def load_format(name: str) -> type[Format]:
    """Return the class of a protocol, of messages or of rows.

    Raises:
        UnknownName: nothing of that name; the text lists the known ones.
    """
    return ROW_FORMATS.load(name) if name in ROW_FORMATS.names() else CODECS.load(name)
