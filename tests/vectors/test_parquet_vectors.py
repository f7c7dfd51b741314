"""parquet, row by row: parquet/<case>/{change.json, rows.json, ORIGIN}.

The bytes of a file are its library's. What must hold is what another engine reads: `rows.json` has
the rows with their values as text.
"""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from change_file import rows_of, spec_of
from vector_cases import cases_of

from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.parquet.format import Parquet
from rowferry.mysql.ddl.statement import parse_create

CASES = cases_of("parquet")


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_rows_as_another_engine_reads_them(case: Path, tmp_path: Path) -> None:
    change = json.loads((case / "change.json").read_text("utf-8"))
    form = Parquet(spec_of(change["sink"], change.get("config")), sink_traits("file"))
    table = parse_create(change["ddl"], "test")
    path = tmp_path / "rows.parquet"
    with path.open("wb") as target:
        file = form.file(table, target.write)
        file.add(rows_of(table, change["changes"]))
        file.finish()
    with duckdb.connect() as engine:
        rows = engine.sql(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM '{path}'")
        found = [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()]
    assert found == json.loads((case / "rows.json").read_text("utf-8"))
