"""Schema files as a consumer's statements, also those that other writers left."""

from __future__ import annotations

from pathlib import Path

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.downstream.consume.storage import storage_changes
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
