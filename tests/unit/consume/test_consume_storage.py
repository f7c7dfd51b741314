"""Schema files as a consumer's statements, also those that other writers left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.downstream.consume.consumer import ConsumeRequest, consume
from rowferry.downstream.consume.storage import storage_changes
from rowferry.errors import BadOption
from rowferry.flow.sink.storage.schema_file import SchemaDocument
from rowferry.registry import CODECS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def test_every_type_of_statement_is_handed_on(tmp_path: Path) -> None:
    """TiCDC numbers kinds of DDL that no source of ours has: 67 ends a table's time to live."""
    texts = {
        67: "ALTER TABLE t REMOVE TTL",
        14: "RENAME TABLE `d`.`s` TO `d`.`t`",
        4: "DROP TABLE `d`.`t`",
    }
    for version, (kind, query) in enumerate(texts.items(), 1):
        document = SchemaDocument("d", "t", version, query, kind)
        path = tmp_path / document.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.content())
    sink = Uri.parse(f"file://{tmp_path}?protocol=csv", "sink")
    codec = codec_for(
        CODECS.load("csv"), ChangefeedSpec("feed", Uri.parse("mysql://a@b/", "source"), sink)
    )
    found = [c for c in storage_changes(tmp_path, codec) if isinstance(c, SchemaChange)]
    kinds = [DdlKind.NONE, DdlKind.RENAME_TABLE, DdlKind.DROP_TABLE]
    assert [(c.kind, c.query) for c in found] == list(zip(kinds, texts.values(), strict=True))
    assert [c.previous for c in found] == [None, TableId("d", "s"), None]


@pytest.mark.parametrize(
    ("protocol", "words"),
    [("csv", "rows do not tell when they were committed"), ("canal-json", "262143 is the end of")],
)
def test_borders_that_rows_do_not_tell_are_refused(
    protocol: str, words: str, tmp_path: Path
) -> None:
    """Rows of the same millisecond would be left out, or rows above the border applied."""
    uri = f"file://{tmp_path}?protocol={protocol}"
    for option in ("after_ts", "until_ts"):
        with pytest.raises(BadOption, match=f"5: .*{words}"):
            consume(ConsumeRequest(uri, **{option: 5}), lambda _: [], threading.Event())


def test_borders_that_rows_tell(tmp_path: Path) -> None:
    for more, border in (("&enable-tidb-extension=true", 5), ("", (1 << 18) - 1)):
        uri = f"file://{tmp_path}?protocol=canal-json{more}"
        consume(ConsumeRequest(uri, None, border, until_ts=border), lambda _: [], threading.Event())
