"""Places of a log without GTIDs, in their order."""

from __future__ import annotations

import pytest

from rowferry.flow.capture.binlog.client.server import passed
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.mysql.session import Flavour


@pytest.mark.parametrize(
    ("file", "offset", "is_passed"),
    [
        ("binlog.999998", 900, False),
        ("binlog.999999", 99, False),
        ("binlog.999999", 100, True),
        ("binlog.1000000", 4, True),  # as a text it comes before
    ],
)
def test_log_files_are_in_the_order_of_their_numbers(
    file: str, offset: int, is_passed: bool
) -> None:
    place = {"file": "binlog.999999", "offset": 100, "gtid": ""}
    assert passed(LogPosition(Flavour.MYSQL, "s", file, offset), place) is is_passed
