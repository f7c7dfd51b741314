"""Messages written by hand, and a changefeed from a database to Kafka in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from codec_kit import codec_for
from rowferry.change.chunk import Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.store.sql_store import open_store
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.registry import CODECS
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import Kafka

Image = dict[str, Any]


def codec_of(sink_uri: str) -> Codec:
    source, sink = Uri.parse("mysql://a@b/", "source"), Uri.parse(sink_uri, "sink")
    spec = ChangefeedSpec("by-hand", source, sink)
    return codec_for(CODECS.load(spec.protocol), spec)


def inserts(table: TableSchema, stamp: int, *images: Image) -> Rows:
    return _rows(table, Op.INSERT, stamp, [None] * len(images), list(images))


def updates(table: TableSchema, stamp: int, before: Image, after: Image) -> Rows:
    return _rows(table, Op.UPDATE, stamp, [before], [after])


def deletes(table: TableSchema, stamp: int, *images: Image) -> Rows:
    return _rows(table, Op.DELETE, stamp, list(images), [None] * len(images))


def _rows(
    table: TableSchema,
    op: Op,
    stamp: int,
    before: list[Image | None],
    after: list[Image | None],
) -> Rows:
    count = len(before)
    return make_rows(
        table,
        pa.array([op] * count, pa.int8()),
        pa.array([stamp] * count, pa.uint64()),
        pa.array(range(count), pa.int64()),
        pa.array(before, table.image),
        pa.array(after, table.image),
    )


class Writer:
    """Writes changes to partitions of a topic, in any order."""

    def __init__(self, broker: Kafka, codec: Codec, topic: str) -> None:
        self._producer = Producer(broker.client_settings())
        self._refused: list[object] = []
        self._codec, self._topic = codec, Topic(topic, 1, 1 << 20)

    def write(self, partition: int, *changes: Rows | SchemaChange | Watermark) -> None:
        for change in changes:
            for key, value in self._messages(change):
                self._producer.produce(
                    self._topic.name, value, key, partition, on_delivery=self._note
                )
        assert self._producer.flush(30) == 0
        assert not self._refused

    def _note(self, error: object, _: object) -> None:
        if error is not None:
            self._refused.append(error)

    def _messages(
        self, change: Rows | SchemaChange | Watermark
    ) -> Iterable[tuple[bytes | None, bytes | None]]:
        match change:
            case Rows():
                single = self._codec.encode_rows(change, 0, self._topic)
                alike = np.zeros(len(change), np.int32)
                found: Encoded | None = self._codec.batch(
                    replace(single, partitions=alike), self._topic
                )
            case SchemaChange():
                found = self._codec.encode_schema_change(change, 0)
            case Watermark():
                found = self._codec.encode_watermark(change, 0)
        assert found is not None
        values = found.values.to_pylist()
        keys = found.keys.to_pylist() if found.keys is not None else [None] * len(values)
        return zip(keys, values, strict=True)


class Changefeed:
    """A changefeed that runs when it is told to."""

    def __init__(self, folder: Path, name: str, source: str, sink: str, config: Path) -> None:
        ready = service.prepare(source, sink, config, name)
        self._store = open_store(f"sqlite:///{folder}/{name}.db")
        self._store.create_changefeed(ready.spec, 0)
        claim = self._store.claim(name, Holder.here(), time.time(), 3600)
        now_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        self._loop = Loop(name, ready.flow, self._store, claim, InProcessRunner(), now_ms)

    def catch_up(self) -> None:
        """Deliver all that was committed so far."""
        while not self._loop.step().caught_up:
            pass

    def close(self) -> None:
        self._loop.close()
        self._store.close()
