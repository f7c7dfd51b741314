"""Canal-JSON files: one message for each row change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rowferry.downstream.storage_check.expected import ExpectedLayout
from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.downstream.storage_check.layout import TableFiles
from rowferry.downstream.storage_check.lines import Lines, RowFault
from rowferry.downstream.storage_check.rules import Rule
from rowferry.downstream.storage_check.schema import TableForm
from rowferry.downstream.storage_check.values import first_wrong

_BLOCK_ROWS = 20_000
_LOGICAL_BITS = 18
_TYPES: Final = ("INSERT", "UPDATE", "DELETE")
_KEYS: Final = {
    "id": int,
    "database": str,
    "table": str,
    "pkNames": list,
    "isDdl": bool,
    "type": str,
    "es": int,
    "ts": int,
    "sql": str,
    "sqlType": dict,
    "mysqlType": dict,
    "data": list,
}


def canal_lines(
    data: bytes, table: TableFiles, form: TableForm, expected: ExpectedLayout
) -> Iterator[Lines]:
    """Yield the rows of a file in blocks, with what is wrong with them."""
    end = expected.terminator
    if data and not data.endswith(end):
        words = "the file ends without a terminator"
        yield Lines(1, 0, faults=[RowFault(Rule.ROW_FIT, data.count(end) + 1, words)])
        return
    texts = data.split(end)[:-1]
    for first in range(0, len(texts), _BLOCK_ROWS):
        yield _block(texts[first : first + _BLOCK_ROWS], first + 1, table, form, expected)


def _block(
    texts: list[bytes], row: int, table: TableFiles, form: TableForm, expected: ExpectedLayout
) -> Lines:
    lines = Lines(row, len(texts))
    stamps: list[int] = []
    inserts: list[bool] = []
    images: list[tuple[int, dict[str, Any]]] = []
    for place, text in enumerate(texts, row):
        message, fault = _message(text, place, expected)
        if message is None:
            assert fault is not None
            lines.faults.append(fault)
            continue
        names = (message["database"], message["table"])
        if names != (table.database, table.table):
            words = f"it says {names[0]!r}, {names[1]!r}"
            lines.faults.append(RowFault(Rule.ROW_NAMES, place, words))
        exact = message["_tidb"]["commitTs"] if expected.carries_commit_ts else None
        inserts.append(message["type"] == "INSERT")
        stamps.append(message["es"] << _LOGICAL_BITS if exact is None else exact)
        if exact is not None and exact >> _LOGICAL_BITS != message["es"]:
            lines.faults.append(
                RowFault(Rule.ROW_FIT, place, "es is not the commit-ts's millisecond")
            )
        images += [(place, image) for image in message["data"]]
        images += [(place, image) for image in message.get("old") or ()]
    if len(stamps) == len(texts):
        lines.commit_ts = np.array(stamps, np.uint64)
        lines.inserts = np.array(inserts, bool)
    lines.faults += _wrong_images(images, form)
    return lines


def _message(
    text: bytes, row: int, expected: ExpectedLayout
) -> tuple[dict[str, Any] | None, RowFault | None]:
    def fault(words: str) -> tuple[None, RowFault]:
        return None, RowFault(Rule.ROW_FIT, row, words)

    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return fault("not JSON")
    if not isinstance(message, dict):
        return fault("not an object")
    wrong = [k for k, kind in _KEYS.items() if not isinstance(message.get(k), kind)]
    if wrong:
        return fault(f"missing or of the wrong type: {', '.join(wrong)}")
    if message["isDdl"] or message["type"] not in _TYPES:
        return fault(f"{message['type'][:20]!r} is no row change")
    old = message.get("old")
    if len(message["data"]) != 1 or not all(isinstance(d, dict) for d in message["data"]):
        return fault("data is not one row")
    if old is not None and (message["type"] != "UPDATE" or not _is_row(old)):
        return fault("old is there, and it is not the one old row of an update")
    extension = message.get("_tidb")
    if expected.carries_commit_ts and not (
        isinstance(extension, dict) and type(extension.get("commitTs")) is int
    ):
        return fault("no commitTs in _tidb, though enable-tidb-extension is set")
    return message, None


def _is_row(old: Any) -> bool:
    return isinstance(old, list) and len(old) == 1 and isinstance(old[0], dict)


def _wrong_images(images: list[tuple[int, dict[str, Any]]], form: TableForm) -> Iterator[RowFault]:
    """Yield what is wrong with row images: of each kind of fault the first."""
    known = {c.name for c in form.columns}
    for place, image in images:
        if not image.keys() <= known:
            names = ", ".join(sorted(image.keys() - known))
            yield RowFault(Rule.ROW_FIT, place, f"columns that the schema file has not: {names}")
            break
    for column in form.columns:
        there = [(p, i[column.name]) for p, i in images if column.name in i]
        odd = next((p for p, v in there if v is not None and not isinstance(v, str)), None)
        if odd is not None:
            yield RowFault(Rule.ROW_FIT, odd, f"column {column.name!r}: neither text nor null")
            continue
        texts = [None if v is None else v.encode("utf-8", "replace") for _, v in there]
        values = pa.array(texts, pa.large_binary())
        wrong = first_wrong(column, values, None, FileKind.CANAL_JSON, "")
        if wrong is not None:
            words = f"column {column.name!r}: {wrong[1]}"
            yield RowFault(Rule.ROW_FIT, there[wrong[0]][0], words)
