"""What every codec promises; see `rowferry.flow.encode.contract`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from codec_harness import (
    PLANNED_AT_MS,
    QUEUE,
    TOPIC,
    TYPE_CASES,
    CodecHarness,
    Image,
    TypeCase,
    pairs,
    read_messages,
    rows_of,
    table_of,
)

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.errors import DecodeError, EncodeError
from rowferry.mysql.type_facts import TYPE_FACTS

WIDE = table_of(*(case.type for case in TYPE_CASES))


def wide(pick: str, key: int = 1) -> dict[str, Any]:
    """A row whose every column has its `value`, `least`, `most`, or NULL."""
    found: dict[str, Any] = {"id": key}
    for place, case in enumerate(TYPE_CASES):
        found[f"c{place}"] = None if pick == "null" else getattr(case, pick)
    return found


ALL_KINDS = [
    (Op.INSERT, None, wide("value")),
    (Op.UPDATE, wide("value"), wide("null")),
    (Op.UPDATE, wide("null"), wide("most")),
    (Op.DELETE, wide("most"), None),
    (Op.INSERT, None, wide("least", 2)),
]


def images(chunks: list[Rows], which: str) -> list[Image]:
    return [i for c in chunks for i in getattr(c, which).to_pylist()]


def assert_same(found: list[Rows], wanted: Rows, codec: CodecHarness) -> None:
    assert [int(o) for c in found for o in c.op] == wanted.op.tolist()
    after = [codec.seen(wanted.table, i) for i in wanted.after.to_pylist()]
    before = [codec.seen(wanted.table, i) for i in wanted.before.to_pylist()]
    assert images(found, "after") == after
    if not codec.carries_update_before:
        before = [None if o == Op.UPDATE else b for o, b in zip(wanted.op, before, strict=True)]
    if not codec.deletes_have_all:
        key = wanted.table.handle_key
        before = [b and {k: v for k, v in b.items() if k in key} for b in before]
    assert images(found, "before") == before
    if codec.carries_commit_ts:
        assert [int(t) for c in found for t in c.commit_ts] == wanted.commit_ts.tolist()


# --- round trips ----------------------------------------------------------------------------------


def test_every_column_type_has_a_case() -> None:
    assert {case.type.name for case in TYPE_CASES} == set(TYPE_FACTS)


@pytest.mark.parametrize("case", TYPE_CASES, ids=lambda case: case.type.sql[:30])
def test_every_type_comes_back(codec: CodecHarness, case: TypeCase) -> None:
    table = table_of(case.type)
    rows = [{"id": i, "c0": v} for i, v in enumerate([case.value, None, case.least, case.most])]
    changes: list[tuple[Op, Image, Image]] = [(Op.INSERT, None, r) for r in rows]
    changes += [(Op.DELETE, r, None) for r in rows]
    changes += [
        (Op.UPDATE, {"id": 9, "c0": old}, {"id": 9, "c0": new})
        for old, new in [(case.value, case.most), (None, case.least), (case.least, None)]
    ]
    wanted = rows_of(table, changes)
    one = codec.build()
    assert_same(codec.read_back(one, table, wanted), wanted, codec)


def test_all_types_side_by_side_come_back(codec: CodecHarness) -> None:
    wanted = rows_of(WIDE, ALL_KINDS)
    one = codec.build()
    assert_same(codec.read_back(one, WIDE, wanted), wanted, codec)


def test_many_chunks_come_back(codec: CodecHarness) -> None:
    one, wanted = codec.build(), rows_of(WIDE, ALL_KINDS * 3)
    cut = [wanted.take(np.arange(i, i + 5)) for i in (0, 5, 10)]
    assert_same(codec.read_back(one, WIDE, *cut), wanted, codec)


# --- bytes ----------------------------------------------------------------------------------------


def test_equal_input_gives_equal_bytes(
    codec: CodecHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process, at another time: the clock is not read."""
    first = codec.build().encode_rows(rows_of(WIDE, ALL_KINDS), PLANNED_AT_MS)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    again = codec.build().encode_rows(rows_of(WIDE, ALL_KINDS), PLANNED_AT_MS)
    assert again.values.equals(first.values)
    assert (again.keys is None) == (first.keys is None)


def test_a_slice_is_written_like_its_part_of_the_whole(codec: CodecHarness) -> None:
    one, whole = codec.build(), rows_of(WIDE, ALL_KINDS)
    wanted = one.encode_rows(whole, PLANNED_AT_MS).values.to_pylist()
    for start in range(len(whole) + 1):
        for length in range(len(whole) + 1 - start):
            part = Rows(WIDE, whole.batch.slice(start, length))
            found = one.encode_rows(part, PLANNED_AT_MS).values.to_pylist()
            assert found == wanted[start : start + length]


def test_columns_with_an_offset_of_their_own(codec: CodecHarness) -> None:
    """A struct may be sliced apart from its children, or the other way round."""
    whole = rows_of(WIDE, ALL_KINDS)
    children = [c.slice(1, 3) for c in whole.after.flatten()]
    mask = pc_is_null(whole.after).slice(1, 3)
    after = pa.StructArray.from_arrays(children, fields=list(WIDE.image), mask=mask)
    names = ["op", "commit_ts", "seq", "before"]
    columns = [whole.batch.column(n).slice(1, 3) for n in names]
    part = Rows(WIDE, pa.RecordBatch.from_arrays([*columns, after], names=[*names, "after"]))
    one = codec.build()
    wanted = one.encode_rows(whole, PLANNED_AT_MS).values.to_pylist()[1:4]
    assert one.encode_rows(part, PLANNED_AT_MS).values.to_pylist() == wanted


def pc_is_null(array: pa.Array) -> pa.BooleanArray:
    return array.is_null()


def test_encoded_counts_its_rows_and_bytes(codec: CodecHarness) -> None:
    encoded = codec.build().encode_rows(rows_of(WIDE, ALL_KINDS), PLANNED_AT_MS)
    assert encoded.row_count == len(ALL_KINDS)
    assert encoded.nbytes == len(encoded.value_bytes())
    assert bytes(encoded.value_bytes()) == b"".join(v or b"" for v in encoded.values.to_pylist())
    assert encoded.keys is None or len(encoded.keys) == len(encoded.values)


def test_an_empty_chunk_is_nothing(codec: CodecHarness) -> None:
    encoded = codec.build().encode_rows(rows_of(WIDE, []), PLANNED_AT_MS)
    assert (encoded.row_count, encoded.nbytes, bytes(encoded.value_bytes())) == (0, 0, b"")


def test_an_empty_file_has_no_rows(codec: CodecHarness) -> None:
    one = codec.build()
    if not codec.in_files:
        assert one.file_head(WIDE) == b""
        with pytest.raises(DecodeError, match=codec.name):
            list(one.decode(b"", WIDE))
        return
    assert list(one.decode(b"", WIDE)) == []
    assert [c for c in one.decode(one.file_head(WIDE), WIDE) if isinstance(c, Rows)] == []


@pytest.mark.parametrize("terminator", ["\r\n", "\n", "|end|"])
def test_values_end_with_the_terminator_in_files_only(codec: CodecHarness, terminator: str) -> None:
    section, rows = {**codec.all_on, "terminator": terminator}, rows_of(WIDE, ALL_KINDS)
    in_file = codec.build(section).encode_rows(rows, PLANNED_AT_MS).values.to_pylist()
    end = terminator.encode() if codec.in_files else b""
    assert all((v or end).endswith(end) for v in in_file)
    queued = codec.build(section, QUEUE).encode_rows(rows, PLANNED_AT_MS).values.to_pylist()
    assert [v and v + end for v in queued] == in_file


# --- traits ---------------------------------------------------------------------------------------


def test_before_images_are_carried_as_the_traits_say(codec: CodecHarness) -> None:
    """With the default settings: a trait is a promise, not a possibility."""
    one = codec.build({})
    rows = rows_of(WIDE, [(Op.UPDATE, wide("value"), wide("most"))])
    (found,) = images(codec.read_back(one, WIDE, rows), "before")
    assert found == (codec.seen(WIDE, wide("value")) if one.TRAITS.carries_before_image else None)


def test_columns_are_left_out_as_the_traits_say(codec: CodecHarness) -> None:
    """An absent column is not NULL: it is missing, or the codec says that it cannot do that."""
    one = codec.build({})
    partial = pa.struct([WIDE.image.field("id"), WIDE.image.field("c0")])
    rows = rows_of(WIDE, [(Op.INSERT, None, {"id": 1, "c0": 7})], partial)
    if not one.TRAITS.can_omit_columns:
        with pytest.raises(EncodeError, match=r"shop\.orders.*c1"):
            one.encode_rows(rows, PLANNED_AT_MS)
        return
    (found,) = images(codec.read_back(one, WIDE, rows), "after")
    assert found == {"id": 1, "c0": 7}


def test_schema_changes_have_a_form_as_the_traits_say(codec: CodecHarness) -> None:
    one = codec.build(sink=QUEUE)
    at = 1_700_000_000_000 << 18
    query = 'ALTER TABLE `orders` ADD COLUMN `c"` int'
    change = SchemaChange(at, DdlKind.ADD_COLUMN, query, WIDE.id, WIDE)
    encoded = one.encode_schema_change(change, PLANNED_AT_MS)
    if one.TRAITS.schema_change_goes_to == "nowhere":
        assert encoded is None
        return
    assert encoded is not None
    (found,) = read_messages(one, encoded)
    assert isinstance(found, SchemaChange)
    assert (found.query, found.table, found.commit_ts) == (query, WIDE.id, at)


def test_a_watermark_that_has_a_form_comes_back(codec: CodecHarness) -> None:
    one = codec.build(sink=QUEUE)
    mark = Watermark(1_700_000_000_000 << 18)
    encoded = one.encode_watermark(mark, PLANNED_AT_MS)
    if encoded is not None:
        assert read_messages(one, encoded) == [mark]
        again = codec.build(sink=QUEUE).encode_watermark(mark, PLANNED_AT_MS)
        assert again is not None
        assert again.values.equals(encoded.values)


def test_the_suffix_is_one_of_a_file(codec: CodecHarness) -> None:
    suffix = codec.build().TRAITS.file_suffix
    if not codec.in_files:
        assert suffix == ""
        return
    assert suffix.startswith(".")
    assert suffix[1:].isalnum()


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [(Op.INSERT, wide("value"), None), (Op.UPDATE, None, None), (Op.DELETE, None, wide("value"))],
)
def test_a_row_without_the_image_that_it_needs_is_refused(
    codec: CodecHarness, op: Op, before: Image, after: Image
) -> None:
    with pytest.raises(EncodeError, match=r"shop\.orders"):
        codec.build().encode_rows(rows_of(WIDE, [(op, before, after)]), PLANNED_AT_MS)


@pytest.mark.parametrize("junk", [b"\x00", b"{", b'"', b"I,\xff\xfe\r\n", b"\r\n\r\n", b"[1]\r\n"])
def test_bytes_of_something_else_are_refused_with_their_place(
    codec: CodecHarness, junk: bytes
) -> None:
    if codec.in_files:
        with pytest.raises(DecodeError, match="row 1"):
            list(codec.build().decode(junk, WIDE))
    for key, value in ((junk, junk), (None, junk), (junk, None), (None, None)):
        with pytest.raises(DecodeError):
            list(codec.build().decode_message(key, value))


def test_a_torn_message_is_refused(codec: CodecHarness) -> None:
    one = codec.build(sink=QUEUE)
    rows = rows_of(WIDE, ALL_KINDS[:2])
    for key, value in pairs(one.batch(one.encode_rows(rows, PLANNED_AT_MS, TOPIC), TOPIC)):
        assert value is not None
        with pytest.raises(DecodeError):
            list(one.decode_message(key, value[:-3]))


def test_a_torn_file_is_refused(codec: CodecHarness) -> None:
    one = codec.build()
    if not codec.in_files:
        with pytest.raises(DecodeError, match=codec.name):
            list(one.decode(b"{}", WIDE))
        return
    whole = bytes(one.encode_rows(rows_of(WIDE, ALL_KINDS[:2]), PLANNED_AT_MS).value_bytes())
    with pytest.raises(DecodeError, match="row " if codec.in_files else codec.name):
        list(one.decode(whole[:-3], WIDE))
