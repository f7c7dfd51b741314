"""Prefixes of real object stores, reached directly or through a relay that misbehaves."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

from rowferry.flow.sink.storage.object_files import ObjectFiles
from rowferry.flow.sink.storage.options import read_settings
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import ObjectServer, Relay

SERVERS = ("s3", "gcs", "azure")


def sink_uri(server: ObjectServer, prefix: str, relay: Relay | None = None, **more: str) -> str:
    endpoint = urlsplit(server.parameters()["endpoint"])
    port = relay.port if relay else endpoint.port
    through = endpoint._replace(netloc=f"127.0.0.1:{port}").geturl()
    return server.uri(prefix, **{"protocol": "csv", "endpoint": through, **more})


def spec_of(uri: str) -> ChangefeedSpec:
    source = Uri.parse("range://127.0.0.1:1", "source")
    return ChangefeedSpec("feed", source, Uri.parse(uri, "sink"))


def files_at(uri: str, **attributes: Any) -> ObjectFiles:
    spec = spec_of(uri)
    sink = cast("type[StorageSink]", SINKS.load(spec.sink.scheme))
    found = sink.files_of(spec, read_settings(spec))
    assert isinstance(found, ObjectFiles)
    for name, value in attributes.items():
        setattr(found, name, value)
    return found
