"""Codecs for the sink that a spec names."""

from __future__ import annotations

from typing import TypeVar

from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.contract import Codec
from rowferry.spec.changefeed import ChangefeedSpec

C = TypeVar("C", bound=Codec)


def codec_for(codec: type[C], spec: ChangefeedSpec) -> C:
    """Return a codec of that class that writes for the spec's sink."""
    return codec(spec, sink_traits(spec.sink.scheme))
