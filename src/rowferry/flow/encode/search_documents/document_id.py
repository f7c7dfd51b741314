"""The ids of documents: a row's handle key as one text, different for different keys.

Values stand in table order with a comma between them. In each, `%` is `%25` and a comma is `%2c`.
An id that would be empty is `%`; one that is longer than servers take is `%h` and a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, element_text, float_text, one_zero

MOST_BYTES: Final = 512
_TEXT: Final = pa.large_utf8()


def document_ids(table: TableSchema, key: Sequence[Field]) -> pa.LargeStringArray:
    """Return the id of each row; `key` has the columns of the handle key."""
    parts = [_escaped(_key_text(table, field)) for field in key]
    ids = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _scalar(","))
    if pc.any(pc.equal(ids, "")).as_py():
        ids = pc.if_else(pc.equal(ids, ""), _scalar("%"), ids)
    return _shortened(ids)


def key_texts(document_id: str) -> list[str] | None:
    """Return the values that an id stands for; None: it is a digest."""
    if document_id.startswith("%h"):
        return None
    if document_id == "%":
        return [""]
    return [part.replace("%2c", ",").replace("%25", "%") for part in document_id.split(",")]


def _key_text(table: TableSchema, field: Field) -> pa.LargeStringArray:
    kind, values = field.column.type.kind, field.values
    if kind is Kind.BINARY:
        return kernels_render.base64_text(values)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return float_text(one_zero(values), kernels_float.GENERAL)
    if kind in (Kind.ENUM, Kind.SET):
        return element_text(table, field)
    return values.cast(_TEXT)


def _escaped(words: pa.LargeStringArray) -> pa.LargeStringArray:
    if not pc.any(pc.match_substring_regex(words, "[%,]")).as_py():
        return words
    return pc.replace_substring(pc.replace_substring(words, "%", "%25"), ",", "%2c")


def _shortened(ids: pa.LargeStringArray) -> pa.LargeStringArray:
    long = pc.greater(pc.binary_length(ids), MOST_BYTES)
    if not pc.any(long).as_py():
        return ids
    # Such keys are rare: only these rows are looked at one by one.
    places = np.flatnonzero(pc.fill_null(long, False).to_numpy(zero_copy_only=False))
    digests = [
        f"%h{hashlib.sha256(ids[int(place)].as_py().encode()).hexdigest()}" for place in places
    ]
    return pc.replace_with_mask(ids, long, pa.array(digests, _TEXT))


def _scalar(word: str) -> pa.Scalar:
    return pa.scalar(word, _TEXT)
