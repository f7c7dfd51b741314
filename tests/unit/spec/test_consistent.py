"""The redo log's options: what is taken, what is refused, and what has no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rowferry.errors import BadOption, OptionsConflict, SinkUnwritable
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec

MYSQL = "mysql://root:aSecret77@localhost:3306/"


def built(sink: str, consistent: dict[str, Any], **more: Any) -> tuple[ChangefeedSpec, list[str]]:
    config = {"consistent": consistent, **more}
    return build_spec(MYSQL, sink, config, "feed", tables=option_tables, sinks=sink_traits)


def test_the_keys_of_ticdc_are_taken() -> None:
    keys = {
        "level": "eventual",
        "storage": "file:///redo",
        "max-log-size": 64,
        "flush-interval": 2000,
        "meta-flush-interval": 200,
        "encoding-worker-num": 16,
        "flush-worker-num": 8,
        "use-file-backend": False,
        "compression": "",
        "flush-concurrency": 1,
        "event-collector-batch-count": 0,
        "memory-usage": {"memory-quota-percentage": 50},
    }
    spec, notices = built(MYSQL, keys)
    assert assemble(spec).redo is not None
    assert len([n for n in notices if "has no effect" in n]) == 9
    spec, notices = built(MYSQL, {"level": "none", "storage": ""})
    assert assemble(spec).redo is None and notices == []
    assert assemble(built(MYSQL, {})[0]).redo is None


@pytest.mark.parametrize(
    ("sink", "consistent", "more", "error", "words"),
    [
        ("file:///x?protocol=csv", {}, {}, OptionsConflict, "a file sink writes none"),
        ("kafka://h/t?protocol=simple", {}, {}, OptionsConflict, "a kafka sink writes none"),
        (MYSQL, {"storage": ""}, {}, BadOption, "needs consistent.storage"),
        (MYSQL, {"level": "strong"}, {}, BadOption, "consistent.level = 'strong'"),
        (MYSQL, {"compression": "zip"}, {}, BadOption, "consistent.compression"),
        (MYSQL, {"flush-interval": 49}, {}, BadOption, "consistent.flush-interval = 49"),
        (MYSQL, {}, {"on-bad-row": "quarantine"}, OptionsConflict, "parked rows are in no"),
        (
            MYSQL,
            {},
            {"enable-active-active": True, "bdr-mode": True},
            OptionsConflict,
            "incompatible with redo log",
        ),
    ],
)
def test_what_is_refused(
    sink: str,
    consistent: dict[str, Any],
    more: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        built(sink, {"level": "eventual", "storage": "file:///redo", **consistent}, **more)


def test_a_place_that_is_no_storage() -> None:
    for place, words in (
        ("kafka://h/t", "kafka:// cannot hold a redo log; known: .*file://"),
        ("file://host/redo", "has the host 'host'"),
        ("s3://b/p?colour=red", "unknown parameter 'colour'"),
    ):
        spec, _ = built(MYSQL, {"level": "eventual", "storage": place})
        with pytest.raises(BadOption, match=rf"consistent\.storage: .*{words}"):
            assemble(spec)


def test_a_place_that_cannot_be_written_is_told_at_creation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    place = f"file://{tmp_path}/file/redo"
    redo = assemble(built(MYSQL, {"level": "eventual", "storage": place})[0]).redo
    assert redo is not None
    with pytest.raises(SinkUnwritable, match=r"the redo log, consistent\.storage: .*file"):
        redo.probe()
    assert not (tmp_path / "redo").exists()
