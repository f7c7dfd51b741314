"""open-protocol and the settings of large messages against published expectations."""

from __future__ import annotations

from typing import Any

import pytest
from change_file import rows_of, spec_of
from outside import cases

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.table import TableId
from rowferry.errors import BadInput
from rowferry.flow.encode.contract import Encoded, LargeRows
from rowferry.flow.encode.large_message import LargeMessageOptions, check_large_messages
from rowferry.flow.encode.open_protocol.codec import OpenProtocol
from rowferry.mysql.ddl.statement import parse_create
from rowferry.registry import CODECS


def by_id(area: str) -> Any:
    """Parametrize over an area; without its vectors there is no test at all."""
    found = cases(area)
    if not found:
        return lambda _test: None
    return pytest.mark.parametrize("case", found, ids=lambda c: c["id"])


def codec_of(given: dict[str, Any]) -> OpenProtocol:
    sink: dict[str, Any] = {
        key.replace("_", "-"): True
        for key in ("only_output_updated_columns", "delete_only_output_handle_key_columns")
        if given.get(key)
    }
    if handling := given.get("large_message"):
        section = {"large-message-handle-option": handling}
        sink["kafka-config"] = {"large-message-handle": section}
    return codec_for(OpenProtocol, spec_of("kafka://broker/topic", {"sink": sink}))


def changes_of(given: dict[str, Any]) -> list[dict[str, Any]]:
    commit_ts = given["commit_ts"]
    if "rows" in given:
        return [{"op": "insert", "commit_ts": commit_ts, "after": r} for r in given["rows"]]
    op = "insert" if "pre" not in given else "update" if "row" in given else "delete"
    images = {"before": given.get("pre"), "after": given.get("row")}
    return [{"op": op, "commit_ts": commit_ts, **images}]


def note_of(codec: OpenProtocol, given: dict[str, Any]) -> Encoded:
    """A case without rows: a DDL where there is a statement, else a watermark."""
    stamp = next(v for k, v in given.items() if k == "ts" or k.endswith("_ts"))
    query = given.get("query") or given.get("ddl")
    if query:
        name = (given["schema"], given["table"]) if "table" in given else parse_create(query).id
        kind = DdlKind(given.get("ddl_type") or given.get("type") or DdlKind.CREATE_TABLE)
        found = codec.encode_schema_change(SchemaChange(stamp, kind, query, TableId(*name)), 0)
    else:
        found = codec.encode_watermark(Watermark(stamp), 0)
    assert found is not None
    return found


@by_id("open-protocol")
def test_open_protocol(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    codec = codec_of(given)
    if not {"row", "rows", "pre"} & set(given):
        note = note_of(codec, given)
        assert note.keys is not None
        assert note.keys[0].as_py().hex() == expected["key_hex"]
        assert note.values[0].as_py().hex() == expected["value_hex"]
        return
    rows = rows_of(parse_create(given["ddl"]), changes_of(given))
    # Just too small for the whole row of a case about large messages, and for nothing else.
    topic = Topic("topic", 1, 155 if "large_message" in given else 1 << 20)
    single = codec.encode_rows(rows, 0, topic)
    joined = codec.batch(single, topic)
    assert single.keys is not None and joined.keys is not None
    if "key_json" in expected:
        assert single.keys[0].as_py().decode() == expected["key_json"]
        assert single.values[0].as_py().decode() == expected["value_json"]
    assert [k.hex() for k in joined.keys.to_pylist()] == [expected["key_hex"]]
    assert [v.hex() for v in joined.values.to_pylist()] == [expected["value_hex"]]


@by_id("large-message-config")
def test_large_message_config(case: dict[str, Any]) -> None:
    given = case["input"]
    settings = {
        "large-message-handle-option": given["option"],
        "large-message-handle-compression": given["compression"],
        "claim-check-storage-uri": given["claim_check_storage_uri"],
        "claim-check-raw-value": given["claim_check_raw_value"],
    }

    def check() -> None:
        options = LargeMessageOptions.read(settings)
        name, extension = given["protocol"], given["enable_tidb_extension"]
        # Of all protocols only `simple` is not here; it has a form for large rows without needs.
        here = name in CODECS.names()
        form = CODECS.load(name).TRAITS.large_rows if here else LargeRows()
        check_large_messages(options, name, form, extension)

    if case["expected"].get("ok"):
        check()
        return
    with pytest.raises(BadInput):
        check()
