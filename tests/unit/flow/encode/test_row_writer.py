from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from encode_cases import INT_TEXT, chunk, inserts, spec, text

from codec_kit import codec_for
from rowferry.change.chunk import Op, Rows
from rowferry.columnar import render as kernels_render
from rowferry.errors import DecodeError, EncodeError
from rowferry.flow.encode.canal_json.codec import CanalJson, json_text
from rowferry.flow.encode.contract import Codec
from rowferry.flow.encode.csv.codec import Csv
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.layout import Cell, Layout

CODECS = [Csv, CanalJson]


def written(array: pa.Array, mode: int, mark: bytes = b"", wrap: int = 0) -> list[bytes]:
    layout = Layout(mark)
    layout.program([Cell(layout.slot(array, mode, wrap))])
    found: list[bytes] = layout.run(np.zeros(len(array), np.int8)).to_pylist()
    return found


@pytest.mark.parametrize("kind", CODECS)
def test_a_slice_is_written_like_a_copy(kind: type[Codec]) -> None:
    values = [(i, None if i % 3 == 0 else f"text {i}") for i in range(20)]
    rows = inserts(INT_TEXT, *values)
    part = Rows(INT_TEXT, rows.batch.slice(7, 9))
    codec = codec_for(kind, spec())
    whole = codec.encode_rows(rows, 5).values.to_pylist()
    assert codec.encode_rows(part, 5).values.to_pylist() == whole[7:16]


@pytest.mark.parametrize("kind", CODECS)
def test_no_rows_give_no_values(kind: type[Codec]) -> None:
    encoded = codec_for(kind, spec()).encode_rows(inserts(INT_TEXT), 5)
    assert len(encoded.values) == 0 and encoded.nbytes == 0


def test_values_are_contiguous() -> None:
    encoded = codec_for(CanalJson, spec()).encode_rows(inserts(INT_TEXT, (1, "a"), (2, "b")), 5)
    assert bytes(encoded.value_bytes()) == b"".join(encoded.values.to_pylist())


def test_the_buffer_grows_when_escapes_need_it() -> None:
    values = ["<" * 3000] * 50
    found = written(pa.array(values, pa.large_utf8()), kernels.JSON)
    assert found == [b"\\u003c" * 3000] * 50


def test_text_outside_its_buffer_is_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 99, 4], np.int64))
    array = pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(b"abcd"))
    with pytest.raises(EncodeError, match="row 0 .* outside its buffer"):
        written(array, kernels.JSON)


@pytest.mark.parametrize("offsets", [[0, 99, 4], [0, -8, 4], [0, 3, 1]])
def test_renderers_refuse_text_outside_its_buffer(offsets: list[int]) -> None:
    where = pa.py_buffer(np.array(offsets, np.int64))
    array = pa.Array.from_buffers(pa.large_binary(), 2, [None, where, pa.py_buffer(b"abcd")])
    with pytest.raises(EncodeError, match="outside its buffer"):
        kernels_render.base64_text(array)


@pytest.mark.parametrize("size", [*range(20), 200])
@pytest.mark.parametrize(
    "char", ['"', "\\", "<", ">", "&", "\x00", "\x1f", "\n", "é", "\u2028", "😀"]
)
def test_json_escapes_at_every_place(char: str, size: int) -> None:
    values = ["a" * i + char + "b" * (size - i) for i in range(size + 1)]
    wanted = [json_text(v) for v in values]
    assert written(pa.array(values, pa.large_utf8()), kernels.JSON, wrap=34) == wanted


@pytest.mark.parametrize("byte", range(256))
def test_each_byte_as_latin1(byte: int) -> None:
    wanted = json_text(bytes([byte, 65]).decode("latin-1"))
    found = written(pa.array([bytes([byte, 65])], pa.large_binary()), kernels.LATIN1, wrap=34)
    assert found == [wanted]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a\xffb", rb"a\ufffdb"),
        (b"\xc3", rb"\ufffd"),
        (b"\xc0\x80", rb"\ufffd\ufffd"),
        (b"\xe2\x80", rb"\ufffd\ufffd"),
        (b"\xed\xa0\x80", rb"\ufffd\ufffd\ufffd"),
        (b"\xf0\x9f\x98", rb"\ufffd\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", rb"\ufffd" * 4),
        (b"\xf4\x8f\xbf\xbf", b"\xf4\x8f\xbf\xbf"),
        (b"\xe0\x9f\xbf", rb"\ufffd" * 3),
    ],
)
def test_invalid_utf8_becomes_the_replacement_character(raw: bytes, shown: bytes) -> None:
    assert written(pa.array([raw], pa.large_binary()), kernels.JSON) == [shown]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 30])
def test_quotes_are_doubled_at_every_place(size: int) -> None:
    values = ["x" * i + "'" + "y" * (size - i) for i in range(size + 1)]
    wanted = [b"'" + v.replace("'", "''").encode() + b"'" for v in values]
    assert written(pa.array(values, pa.large_utf8()), kernels.DOUBLED, wrap=39) == wanted


def test_integers_of_every_length() -> None:
    signed = [0, -1, *(s * d for i in range(19) for s in (1, -1) for d in (10**i, 10**i - 1))]
    signed += [2**63 - 1, -(2**63)]
    assert written(pa.array(signed, pa.int64()), kernels.RAW) == [b"%d" % v for v in signed]
    unsigned = [2**64 - 1, 2**63, *(10**i for i in range(20))]
    assert written(pa.array(unsigned, pa.uint64()), kernels.RAW) == [b"%d" % v for v in unsigned]


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        (Op.INSERT, {"a": 1, "b": "x"}, None),
        (Op.UPDATE, {"a": 1, "b": "x"}, None),
        (Op.DELETE, None, {"a": 1, "b": "x"}),
    ],
)
def test_a_change_without_its_image_is_refused(
    kind: type[Codec], op: Op, before: dict[str, object] | None, after: dict[str, object] | None
) -> None:
    rows = chunk(INT_TEXT, (op, before, after))
    with pytest.raises(EncodeError, match="test.t: row 0 .* lacks the image"):
        codec_for(kind, spec()).encode_rows(rows, 5)


@pytest.mark.parametrize("kind", CODECS)
def test_a_change_without_columns_is_refused(kind: type[Codec]) -> None:
    other = pa.struct([pa.field("unknown", pa.int64())])
    rows = chunk(INT_TEXT, (Op.INSERT, None, {"unknown": 1}), kind=other)
    with pytest.raises(EncodeError, match="test.t"):
        codec_for(kind, spec()).encode_rows(rows, 5)


def test_values_of_another_arrow_type_are_cast_or_refused() -> None:
    narrow = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])
    rows = chunk(INT_TEXT, (Op.INSERT, None, {"a": 1, "b": "x"}), kind=narrow)
    assert text(codec_for(Csv, spec()).encode_rows(rows, 5)) == '"I","t","test",1,"x"\r\n'
    wrong = pa.struct([pa.field("a", pa.string()), pa.field("b", pa.string())])
    rows = chunk(INT_TEXT, (Op.INSERT, None, {"a": "one", "b": "x"}), kind=wrong)
    with pytest.raises(EncodeError, match=r"test\.t\.a: "):
        codec_for(Csv, spec()).encode_rows(rows, 5)


def test_warm_compiles_everything() -> None:
    script = Path(__file__).with_name("warm_script.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


@pytest.mark.parametrize("kind", CODECS)
def test_reading_never_looks_past_the_end(kind: type[Codec]) -> None:
    # in memory the terminator stands right behind what is given: a read past the end would find it
    codec = codec_for(kind, spec())
    data = memoryview(bytes(codec.encode_rows(inserts(INT_TEXT, (1, "x")), 5).value_bytes()))
    for cut in (1, 2):
        with pytest.raises(DecodeError, match="row 1: "):
            list(codec.decode(data[:-cut], INT_TEXT))  # type: ignore[arg-type]
