"""search-documents, item by item: search_documents/<case>/{change.json, items.json, ORIGIN}.

`items.json` has a pair for each change: the document's id, and the lines of a bulk request.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from change_file import rows_of, spec_of
from vector_cases import cases_of

from codec_kit import codec_for
from rowferry.change.plan import Topic
from rowferry.flow.encode.search_documents.codec import SearchDocuments
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.mysql.ddl.statement import parse_create

CASES = cases_of("search-documents")
TOPIC = Topic("shop-orders", 1, 1 << 20)


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_items(case: Path) -> None:
    change = json.loads((case / "change.json").read_text("utf-8"))
    codec = codec_for(SearchDocuments, spec_of("es://h/"))
    rows = rows_of(parse_create(change["ddl"], "test"), change["changes"])
    sent = codec.batch(codec.encode_rows(rows, 0, TOPIC), TOPIC)
    assert sent.keys is not None and len(sent.values) == 1
    frame = RowFrame.from_message(sent.keys[0].as_py(), sent.values[0].as_py())
    ids, items = frame.keys.to_pylist(), frame.rows.to_pylist()
    found = [[i.decode(), item.decode()] for i, item in zip(ids, items, strict=True)]
    assert found == json.loads((case / "items.json").read_text("utf-8"))
    assert frame.commit_ts.tolist() == rows.commit_ts.tolist()
