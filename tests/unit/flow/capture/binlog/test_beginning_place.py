"""Which texts name a place of the log."""

from __future__ import annotations

import pytest

from rowferry.errors import BadOption
from rowferry.flow.capture.binlog.options import BinlogOptions
from rowferry.flow.capture.binlog.snapshot.begin import Beginning
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def beginning(place: str) -> Beginning:
    source = Uri.parse("mysql://h:3306/", "source").with_parameter("start-position", place)
    spec = ChangefeedSpec("feed", source, Uri.parse("blackhole://", "sink"))
    return Beginning.of(spec.options(BinlogOptions, source), "")


@pytest.mark.parametrize(
    ("place", "file", "offset"),
    [
        ("binlog.000003:154", "binlog.000003", 154),
        ("binlog.000003", "binlog.000003", 4),
        ("log of mine.v2.1234567:9999999999", "log of mine.v2.1234567", 9999999999),
    ],
)
def test_a_file_with_its_number_and_an_offset(place: str, file: str, offset: int) -> None:
    found = beginning(place)
    assert (found.start_file, found.start_offset, found.snapshots) == (file, offset, False)


@pytest.mark.parametrize(
    "place", ["nowhere", "binlog:4", "binlog.000003:", "binlog.000003:x", ":4", ".000003", "b.١:4"]
)
def test_anything_else_is_refused(place: str) -> None:
    with pytest.raises(BadOption, match="is not FILE:OFFSET, like"):
        beginning(place)
