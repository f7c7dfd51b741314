from __future__ import annotations

import pytest

from rowferry.errors import BadChangefeedId
from rowferry.spec.changefeed import check_changefeed_id, default_changefeed_id
from rowferry.spec.uri import Uri


def made(source: str, sink: str) -> str:
    return default_changefeed_id(Uri.parse(source, "source"), Uri.parse(sink, "sink"))


def test_default_is_readable_and_stable() -> None:
    found = made("range://10.0.0.1:8010", "file:///data/out?protocol=csv")
    assert found == "range-10-0-0-1-8010-to-file-data-out-c3e42916"
    assert found == made(
        "range://10.0.0.1:8010/", "file:///data/out/?protocol=csv&flush-interval=1s"
    )


def test_default_shows_no_secret() -> None:
    found = made("range://bob:hunter2@h:1?password=hunter3", "mysql://eve:hunter4@h:2")
    assert "hunter" not in found and "bob" not in found and "eve" not in found


def test_other_places_give_other_ids() -> None:
    pairs = [
        ("range://h:1", "file:///a"),
        ("range://h:2", "file:///a"),
        ("range://h:1", "file:///b"),
        ("range://h:1", "file:///数据"),
        ("range://h:1", "file:///" + "x" * 300),
        ("range://h:1", "file:///" + "x" * 301),
        ("range://h:1", "blackhole://"),
    ]
    ids = [made(*pair) for pair in pairs]
    assert len(set(ids)) == len(pairs)
    for text in ids:
        assert check_changefeed_id(text) == text


@pytest.mark.parametrize("text", ["", "a_b", "a b", "-a", "a\n", "é", "a.b", "x" * 129])
def test_refused(text: str) -> None:
    with pytest.raises(BadChangefeedId):
        check_changefeed_id(text)
