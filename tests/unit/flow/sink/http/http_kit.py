"""An HTTP sink on a receiver that tests look into, without a changefeed around it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from codec_kit import codec_for
from rowferry.change.plan import Topic
from rowferry.flow.assemble import codec_name
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.http.sink import HttpSink
from rowferry.registry import CODECS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

FAST = "max-backoff=5ms&backoff=1ms"


def spec_of(uri: str, **config: Any) -> ChangefeedSpec:
    section = {"sink": {"http-config": {k.replace("_", "-"): v for k, v in config.items()}}}
    source = Uri.parse("range://127.0.0.1:1", "source")
    return ChangefeedSpec("feed", source, Uri.parse(uri, "sink"), section)


def sink_of(uri: str, **config: Any) -> HttpSink:
    spec = spec_of(uri, **config)
    return HttpSink(spec, codec_for(CODECS.load(codec_name(spec)), spec))


def packet(values: list[bytes], partition: int = 0, number: int = 0, **more: Any) -> Packet:
    messages = Encoded(pa.array(values, pa.large_binary()))
    return Packet(0, number, Topic("shop.orders", 4, 1 << 20), partition, messages, **more)
