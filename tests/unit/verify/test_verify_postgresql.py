"""What PostgreSQL sends of a table, read as rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowferry.downstream.verify.postgresql import _parsed


@pytest.mark.parametrize(
    ("sent", "rows"),
    [
        ('1\n\n""\n\n', [("1",), (None,), ("",), (None,)]),
        ('1,2\n,\n"",x\n', [("1", "2"), (None, None), ("", "x")]),
        ("", []),
    ],
)
def test_a_row_that_is_null_is_a_row(
    tmp_path: Path, sent: str, rows: list[tuple[str | None, ...]]
) -> None:
    file = tmp_path / "sent.csv"
    file.write_text(sent)
    names = ["v", "w"][: len(rows[0]) if rows else 1]
    found = [
        tuple(row.values()) for batch in _parsed(str(file), names) for row in batch.to_pylist()
    ]
    assert found == rows
