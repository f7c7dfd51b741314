"""copy-rows, line by line: copy_rows/<case>/{change.json, rows.json, ORIGIN}.

`rows.json` has a pair for each change: the line of its key, and that of its row (null for a
delete).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from change_file import rows_of, spec_of
from vector_cases import cases_of

from codec_kit import codec_for
from rowferry.change.plan import Topic
from rowferry.flow.encode.copy_rows.codec import CopyRows
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.mysql.ddl.statement import parse_create

CASES = cases_of("copy-rows")


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_lines(case: Path) -> None:
    change = json.loads((case / "change.json").read_text("utf-8"))
    codec = codec_for(CopyRows, spec_of("postgresql://me@h/d"))
    rows = rows_of(parse_create(change["ddl"], "test"), change["changes"])
    sent = codec.batch(codec.encode_rows(rows, 0), Topic("t", 1, 1))
    assert sent.keys is not None and len(sent.values) == 1
    frame = RowFrame.from_message(sent.keys[0].as_py(), sent.values[0].as_py())
    found = [
        [k.decode(), r and r.decode()]
        for k, r in zip(frame.keys.to_pylist(), frame.rows.to_pylist(), strict=True)
    ]
    assert found == json.loads((case / "rows.json").read_text("utf-8"))
    assert frame.commit_ts.tolist() == rows.commit_ts.tolist()
