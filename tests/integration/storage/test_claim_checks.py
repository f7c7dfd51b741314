"""Rows that are too large for a message wait in a bucket, and are fetched from there."""

from __future__ import annotations

import pytest
from object_store_kit import files_at, sink_uri

from rowferry.errors import DecodeError, SinkUnavailable, SinkUnwritable
from rowferry.flow.encode.claim_check import ClaimChecks
from rowferry.flow.sink.storage import buckets
from rowferry.testing.servers import Minio, ObjectServer, Relay

KEY, VALUE = b"k", "ä" * 2_000_000


def claims(uri: str, raw: bool = False) -> ClaimChecks:
    return ClaimChecks(uri.replace("&protocol=csv", ""), "the option", raw, "feed")


def test_claim_checks_wait_in_a_bucket(server: ObjectServer, prefix: str) -> None:
    uri, value = sink_uri(server, prefix), VALUE.encode()
    for raw in (False, True):
        place = claims(uri, raw).leave(KEY, value, 5, 7)
        assert place == claims(uri, raw).leave(KEY, value, 5, 7)  # a replay
        # Messages are read by many: nothing of the login may stand in them.
        assert place.rpartition("/")[0] == uri.partition("?")[0]
        assert claims(uri, raw).fetch(place) == (None if raw else KEY, value)
    files = files_at(uri)
    assert len(list(files.paths(9))) == 2
    files.delete(place.rpartition("/")[2])
    with pytest.raises(DecodeError, match="cannot be read: there is no such object"):
        claims(uri, raw=True).fetch(place)


def test_a_bucket_that_cannot_be_had(
    s3_server: Minio, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(buckets.RETRIES, "max_retries", 0)
    missing = sink_uri(s3_server, prefix).replace("s3://rowferry", "s3://not-made")
    with pytest.raises(SinkUnwritable, match="not-made"):
        claims(missing).leave(KEY, b"x", 1, 1)
    with Relay(s3_server.client_port) as relay:
        away = claims(sink_uri(s3_server, prefix, relay))
        place = away.leave(KEY, b"x", 1, 1)
        relay.cut()
        for ask in (lambda: away.leave(KEY, b"y", 1, 2), lambda: away.fetch(place)):
            with pytest.raises(SinkUnavailable) as raised:
                ask()
            assert s3_server.password not in str(raised.value)
