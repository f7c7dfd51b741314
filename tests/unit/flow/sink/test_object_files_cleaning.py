"""Old objects are removed by the day in their path, when the clock says so, and no others."""

from __future__ import annotations

from datetime import UTC, datetime

from object_kit import Bucket, rows_in, sink_on
from obstore.store import MemoryStore
from storage_kit import EMPLOYEE, OWNER, Feed, name, numbers, segment, slice_of, ts

SLICE = slice_of(EMPLOYEE)
DAYS = {"sink": {"cloud-storage-config": {"file-expiration-days": 2}}}


def test_days_before_the_checkpoint_expire_at_the_hour() -> None:
    store = MemoryStore()
    now = [datetime(2023, 5, 12, 1, 59, tzinfo=UTC)]
    feed = Feed(sink_on(Bucket(store), now=lambda: now[0], config=DAYS))
    feed.sink.open(OWNER, None)
    for day in (8, 9, 10, 11):
        moment = ts(f"2023-05-{day:02}T12:00:00")
        feed.run(segment(0, SLICE, at=moment), content=b"%d\n" % day, watermark=moment)
    assert rows_in(store) == [b"8\n", b"9\n", b"10\n", b"11\n"]
    now[0] = datetime(2023, 5, 12, 2, 1, tzinfo=UTC)
    # The clock is days ahead of the checkpoint, which alone decides what is old.
    feed.run(watermark=ts("2023-05-11T13:00:00"))
    assert rows_in(store) == [b"9\n", b"10\n", b"11\n"]
    left = set(Bucket(store).paths(9))
    assert "metadata" in left
    assert any("/meta/schema_" in path for path in left)
    assert not [path for path in left if "2023-05-08" in path]
    late = feed.plan(segment(0, SLICE, at=ts("2023-05-08T13:00:00")))
    assert numbers(late) == [1]
    feed.publish(late, feed.write(late, b"late\n"))
    assert rows_in(store)[0] == b"late\n"
    assert Bucket(store).exists(f"hr/employee/100/2023-05-08/{name(1)}")
