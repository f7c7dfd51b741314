"""A storage that an option names, beside the sink itself: its login is in the URI."""

from __future__ import annotations

from rowferry.errors import BadUri
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.options import read_settings
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.check import check_parameters
from rowferry.spec.uri import Uri


def storage_class(uri: Uri, what: str) -> type[StorageSink]:
    """Return the sink that writes to such a URI; `what` says in errors what it is to hold.

    Raises:
        BadUri: no storage has that scheme; the text lists the known ones.
    """
    sink = SINKS.load(uri.scheme) if uri.scheme in SINKS.names() else None
    if sink is None or not issubclass(sink, StorageSink):
        known = [name for name in SINKS.names() if issubclass(SINKS.load(name), StorageSink)]
        allowed = ", ".join(f"{name}://" for name in known)
        raise BadUri(f"{uri.scheme}:// cannot hold {what}; known: {allowed}")
    return sink


def files_at(uri: Uri, what: str) -> Files:
    """Return the place that a URI names, with the login that its parameters tell; asks nobody.

    Raises:
        BadInput: it is no storage, or a parameter cannot be used.
    """
    sink = storage_class(uri, what)
    own = [table for table in sink.TABLES if table not in StorageSink.TABLES]
    check_parameters(uri, f"storage of {what}", own)
    spec = ChangefeedSpec("", uri, uri)
    return sink.files_of(spec, read_settings(spec))
