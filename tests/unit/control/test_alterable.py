"""Which places a changefeed may have, and which of a stored one may be replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operations_kit import table

from rowferry.change.table import TableId
from rowferry.control.prepare import check_alterable, refuse_circle
from rowferry.control.ticdc_codes import ticdc_code
from rowferry.errors import OptionsConflict, SpecChanged
from rowferry.flow.assemble import assemble, option_tables
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec

SOURCE = "mysql://cdc@db:3306/"
KAFKA = "kafka://one:9092/changes?protocol=canal-json"
PROXY = "https://one/in?protocol=canal-json"


def spec(sink: str, source: str = SOURCE) -> ChangefeedSpec:
    return build_spec(source, sink, None, "feed", tables=option_tables)[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (KAFKA, KAFKA.replace("one", "two")),
        (PROXY, PROXY.replace("one", "two")),
        ("mysql://cdc@one:3306/", "mysql://cdc@two:3307/"),  # a replica that was promoted
        ("mysql://cdc@one:3306/", "mysql+ssl://cdc@one:3306/"),
    ],
)
def test_the_same_target_at_another_address(old: str, new: str) -> None:
    wanted = spec(new)
    check_alterable(spec(old), wanted, assemble(wanted))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (KAFKA, KAFKA.replace("changes", "others")),
        (KAFKA, KAFKA.replace("canal-json", "open-protocol")),
        (KAFKA, "mysql://cdc@one:3306/"),
        ("file:///here?protocol=csv", "file:///there?protocol=csv"),
        ("s3://here/a?protocol=csv", "s3://there/a?protocol=csv"),
    ],
)
def test_another_target(old: str, new: str) -> None:
    wanted = spec(new)
    with pytest.raises(SpecChanged, match="make a new changefeed"):
        check_alterable(spec(old), wanted, assemble(wanted))


def test_a_table_is_not_written_onto_itself() -> None:
    seen = [table("shop.orders")]
    here, there = "mysql://cdc@127.0.0.1:3306/", "mysql://cdc@127.0.0.1:3307/"
    for sink in (here, "mysql+ssl://other@localhost/"):
        with pytest.raises(OptionsConflict, match=r"shop\.orders would be written") as told:
            refuse_circle(spec(sink, here), seen)
        assert ticdc_code(told.value) == (400, "CDC:ErrSameUpstreamDownstream")
    routed = [replace(seen[0], target=TableId("copy", "orders"))]
    refuse_circle(spec(here, here), routed)
    refuse_circle(spec(there, here), seen)
    refuse_circle(spec(KAFKA, here), seen)
