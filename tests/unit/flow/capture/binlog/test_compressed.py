from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from rowferry.errors import CorruptLog, EventUnknown
from rowferry.flow.capture.binlog.frame import compressed
from rowferry.flow.capture.binlog.frame.compressed import (
    inflate_part,
    inflate_payload,
    inflate_query,
)
from rowferry.testing.slow_binlog import packed


def event(body: bytes) -> bytes:
    size = 19 + len(body)
    return b"\0" * 9 + size.to_bytes(4, "little") + b"\0" * 6 + body


def field(kind: int, value: int) -> bytes:
    return packed(kind) + packed(len(packed(value))) + packed(value)


def payload(plain: bytes, method: int = 0, plain_size: int | None = None) -> bytes:
    data = pa.compress(plain, "zstd", asbytes=True) if method == 0 else plain
    size = len(plain) if plain_size is None else plain_size
    return field(2, method) + field(3, size) + field(1, len(data)) + b"\0" + data


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[i : i + size] for i in range(0, len(body), size))


def inflated(body: bytes, size: int = 1 << 16) -> list[bytes]:
    return [block.tobytes() for block in inflate_payload(pieces(body, size))]


EVENTS = [event(bytes([i]) * i * 7) for i in range(60)]


@pytest.mark.parametrize("method", [0, 255])
@pytest.mark.parametrize("size", [1, 3, 100, 1 << 16])
def test_a_payload_in_any_pieces(method: int, size: int) -> None:
    assert b"".join(inflated(payload(b"".join(EVENTS), method), size)) == b"".join(EVENTS)


def test_blocks_hold_whole_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "_BLOCK", 300)
    blocks = inflated(payload(b"".join(EVENTS)), 7)
    assert b"".join(blocks) == b"".join(EVENTS)
    assert len(blocks) > 10
    borders = set(np.cumsum([len(e) for e in EVENTS]).tolist())
    assert set(np.cumsum([len(b) for b in blocks]).tolist()) <= borders


def test_a_payload_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "_BLOCK", 1000)
    random = np.random.default_rng(1)
    plain = b"".join(event(random.bytes(900)) for _ in range(2000))
    body, read = payload(plain), []

    def noted() -> Iterator[bytes]:
        for piece in pieces(body, 1000):
            read.append(len(piece))
            yield piece

    blocks = inflate_payload(noted())
    next(blocks)
    assert sum(read) < len(body) // 2
    assert sum(len(b) for b in blocks) > 0


def test_every_cut_payload_is_refused() -> None:
    body = payload(b"".join(EVENTS[:9]))
    for size in range(len(body)):
        with pytest.raises(CorruptLog, match="TRANSACTION_PAYLOAD_EVENT"):
            inflated(body[:size])


def test_damaged_payloads_are_refused() -> None:
    body = payload(b"".join(EVENTS[:9]))
    header = body.index(b"\x28\xb5\x2f\xfd")  # where zstd begins
    with pytest.raises(CorruptLog, match="cannot be decompressed"):
        inflated(body[:header] + b"no zstd" + body[header + 7 :])
    with pytest.raises(CorruptLog, match="ends inside an event"):
        inflated(payload(b"".join(EVENTS)[:-1]))
    with pytest.raises(CorruptLog, match="has not the 5 bytes"):
        inflated(payload(b"".join(EVENTS), plain_size=5))
    with pytest.raises(CorruptLog, match="shorter than its header at byte 19"):
        inflated(payload(EVENTS[0] + b"\0" * 30))
    with pytest.raises(CorruptLog, match="has not the"):
        inflated(body + b"more")


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(EventUnknown, match="method 7; known: 0"):
        inflated(payload(b"", 7))


def test_an_empty_payload_has_no_events() -> None:
    assert inflated(payload(b"")) == []


# --- MariaDB -------------------------------------------------------------------------------------


def squeezed(plain: bytes, size: int | None = None, first: int = 0x82) -> bytes:
    length = (len(plain) if size is None else size).to_bytes(first & 7, "big")
    return bytes([first]) + length + zlib.compress(plain)


def test_a_query_is_inflated() -> None:
    statement = b"INSERT INTO t VALUES (1)" * 20
    assert inflate_query(squeezed(statement)) == statement


def test_damaged_parts_are_refused() -> None:
    good = squeezed(b"text" * 50)
    for size in range(len(good)):
        with pytest.raises(CorruptLog, match="the event"):
            inflate_part(good[:size], "the event")
    with pytest.raises(CorruptLog, match="has not the 199 bytes"):
        inflate_part(squeezed(b"text" * 50, 199), "it")
    with pytest.raises(CorruptLog, match="has not the 201 bytes"):
        inflate_part(squeezed(b"text" * 50, 201), "it")
    with pytest.raises(EventUnknown, match="method 1"):
        inflate_part(squeezed(b"text", first=0x91), "it")
    with pytest.raises(CorruptLog, match="no compressed data"):
        inflate_part(b"SELECT 1", "it")
