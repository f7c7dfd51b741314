from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from encode_cases import INT_TEXT, chunk, inserts, spec, table, text

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadOption, DecodeError, EncodeError, OptionsConflict
from rowferry.flow.encode.csv import reader as csv_reader
from rowferry.flow.encode.csv.codec import Csv

OLD, NEW = {"a": 1, "b": "old"}, {"a": 1, "b": "new"}
HEAD = '"I","t","test",'


def read(codec: Csv, data: str | bytes, schema: TableSchema = INT_TEXT) -> list[Rows]:
    raw = data.encode() if isinstance(data, str) else data
    found = list(codec.decode(raw, schema))
    assert all(isinstance(part, Rows) for part in found)
    return found  # type: ignore[return-value]


def images(parts: list[Rows]) -> list[tuple[int, Any, Any]]:
    return [
        (int(op), before, after)
        for p in parts
        for op, before, after in zip(p.op, p.before.to_pylist(), p.after.to_pylist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delimiter": ""}, "sink.csv.delimiter = '': csv config delimiter cannot be empty"),
        ({"delimiter": "abcd"}, "csv config delimiter contains more than three characters"),
        ({"delimiter": "é€"}, "csv config delimiter contains more than three characters"),
        ({"delimiter": "a\n"}, "csv config delimiter contains line break characters"),
        ({"quote": "''"}, "sink.csv.quote = \"''\": csv config quote contains more than one"),
        ({"quote": "é"}, "csv config quote contains more than one character"),
        ({"quote": "\r"}, "csv config quote cannot be line break character"),
        (
            {"quote": "|", "delimiter": "[|]"},
            "csv config quote and delimiter has common characters",
        ),
        (
            {"quote": "E", "delimiter": "FE", "binary-encoding-method": ""},
            "csv config quote and delimiter has common characters",
        ),
        ({"binary-encoding-method": ""}, "csv config binary-encoding-method can only be hex"),
        ({"quote": "", "delimiter": "\\"}, "sink.csv.delimiter may not hold a backslash"),
        ({"binary-encoding-method": "oct"}, "csv config binary-encoding-method can only be hex"),
        ({"include-commit-ts": "maybe"}, "sink.csv.include-commit-ts = 'maybe'"),
    ],
)
def test_bad_options_name_the_key(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption) as caught:
        codec_for(Csv, spec(csv=options))
    assert words in str(caught.value)


def test_deletes_cannot_be_cut_down() -> None:
    with pytest.raises(OptionsConflict, match="CSV protocol always output all columns"):
        codec_for(Csv, spec(**{"delete-only-output-handle-key-columns": True}))


def test_an_empty_terminator_is_crlf() -> None:
    rows = inserts(INT_TEXT, (1, "x"))
    assert text(codec_for(Csv, spec(terminator="")).encode_rows(rows, 5)) == f'{HEAD}1,"x"\r\n'


def test_output_handle_key_has_no_effect() -> None:
    rows = inserts(INT_TEXT, (1, "x"))
    plain, with_key = codec_for(Csv, spec()), codec_for(Csv, spec(csv={"output-handle-key": True}))
    assert text(with_key.encode_rows(rows, 5)) == text(plain.encode_rows(rows, 5))


def test_messages_outside_files_have_no_terminator_at_their_end() -> None:
    codec = codec_for(Csv, spec("http://host/", csv={"output-old-value": True}))
    encoded = codec.encode_rows(chunk(INT_TEXT, (Op.UPDATE, OLD, NEW)), 5)
    assert text(encoded) == '"D","t","test",true,1,"old"\r\n"I","t","test",true,1,"new"'
    assert images(read(codec, text(encoded))) == [(Op.UPDATE, OLD, NEW)]


@pytest.mark.parametrize(
    ("delimiter", "value", "shown"),
    [
        ("||", "a|", r"a\|"),
        ("||", "a|||", r"a\|\|\|"),
        ("||", "|a", "|a"),
        ("|@|", "a|@", r"a\|@"),
        ("|@|", "a|", "a|"),
        ("|||", "a||", r"a\|\|"),
        ("|@", "a|", "a|"),
    ],
)
def test_a_text_does_not_make_a_delimiter_with_the_one_behind_it(
    delimiter: str, value: str, shown: str
) -> None:
    texts = replace(table(SqlType("text"), SqlType("int")), id=TableId("test", value))
    codec = codec_for(Csv, spec(csv={"quote": "", "delimiter": delimiter}))
    line = text(codec.encode_rows(inserts(texts, (value, 1)), 5))
    assert line == delimiter.join(["I", shown, "test", shown, "1"]) + "\r\n"
    assert images(read(codec, line, texts)) == [(Op.INSERT, None, {"a": value, "b": 1})]


def test_schema_changes_and_watermarks_are_not_written() -> None:
    codec = codec_for(Csv, spec())
    change = SchemaChange(1, DdlKind.CREATE_TABLE, "create table t (a int)", TableId("test", "t"))
    assert codec.encode_schema_change(change, 5) is None
    assert codec.encode_watermark(Watermark(1), 5) is None


def test_old_values_need_old_rows() -> None:
    rows = chunk(INT_TEXT, (Op.UPDATE, None, NEW))
    assert text(codec_for(Csv, spec()).encode_rows(rows, 5)) == '"U","t","test",1,"new"\r\n'
    with pytest.raises(EncodeError, match="sink.csv.output-old-value needs old rows"):
        codec_for(Csv, spec(csv={"output-old-value": True})).encode_rows(rows, 5)


def test_an_absent_column_is_refused() -> None:
    rows = chunk(INT_TEXT, (Op.INSERT, None, {"a": 1}), kind=pa.struct([pa.field("a", pa.int64())]))
    with pytest.raises(EncodeError, match="csv cannot leave columns out; missing: b"):
        codec_for(Csv, spec()).encode_rows(rows, 5)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(SqlType("enum", elements=("x", "y")), 3), (SqlType("set", elements=("x", "y")), 4)],
)
def test_a_value_without_an_element_is_refused(kind: SqlType, value: int) -> None:
    rows = inserts(table(SqlType("int"), kind), (1, value))
    with pytest.raises(EncodeError, match=rf"test\.t\.b: value {value} has no element"):
        codec_for(Csv, spec()).encode_rows(rows, 5)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (SqlType("inet6"), "::1", '"::1"'),
        (SqlType("uuid"), "123e4567-e89b-12d3-a456-426655440000", None),
        (SqlType("vector"), "[1,2.5]", '"[1,2.5]"'),
        (SqlType("geometry"), b"\0\1", '"AAE="'),
        (SqlType("enum", elements=("x", 'y"')), 2, '"y"""'),
        (SqlType("enum", elements=("x", "y")), 0, '""'),
        (SqlType("datetime", scale=6), "2020-01-01 00:00:00.000001", None),
        (SqlType("timestamp", scale=1), "2020-01-01 00:00:00.5", '"2020-01-01 00:00:00.500000"'),
        (SqlType("time", scale=3), "00:00:00.500", '"00:00:00.500"'),
    ],
)
def test_more_types(kind: SqlType, value: Any, shown: str | None) -> None:
    schema, codec = table(SqlType("int"), kind), codec_for(Csv, spec())
    line = text(codec.encode_rows(inserts(schema, (1, value)), 5))
    assert line == f"{HEAD}1,{shown or chr(34) + value + chr(34)}\r\n"
    assert images(read(codec, line, schema)) == [(Op.INSERT, None, {"a": 1, "b": value})]


def test_reading_gives_each_kind_of_change() -> None:
    codec = codec_for(Csv, spec(csv={"include-commit-ts": True}))
    data = '"I","t","test",7,1,"old"\r\n"U","t","test",8,1,"new"\r\n"D","t","test",9,1,\\N\r\n'
    parts = read(codec, data)
    gone = {"a": 1, "b": None}
    assert images(parts) == [(0, None, OLD), (1, None, NEW), (2, gone, None)]
    assert parts[0].commit_ts.tolist() == [7, 8, 9]
    assert parts[0].batch.column("seq").to_pylist() == [0, 1, 2]
    assert codec_for(Csv, spec()).encode_rows(parts[0], 0).values  # and it can be written again


def test_without_commit_ts_it_is_zero() -> None:
    assert read(codec_for(Csv, spec()), f'{HEAD}1,"x"\r\n')[0].commit_ts.tolist() == [0]


def test_updates_with_old_rows_survive_block_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reader, "_LEAST", 1)
    monkeypatch.setattr(csv_reader, "_MOST", 4)
    codec = codec_for(Csv, spec(csv={"output-old-value": True}))
    wanted = [(Op.UPDATE, {"a": i, "b": "o"}, {"a": i, "b": "n"}) for i in range(9)]
    wanted.insert(0, (Op.INSERT, None, {"a": 0, "b": "o"}))
    wanted.append((Op.DELETE, {"a": 8, "b": "n"}, None))
    parts = read(codec, text(codec.encode_rows(chunk(INT_TEXT, *wanted), 5)))
    assert len(parts) > 3 and images(parts) == wanted
    assert [s for p in parts for s in p.batch.column("seq").to_pylist()] == list(range(11))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f'{HEAD}1,"x"\r\n{HEAD}2\r\n', "row 2: it has fewer columns"),
        (f'{HEAD}1,"x",3\r\n', "row 1: it has more columns"),
        (f'{HEAD}1,"x\r\n', "row 1: a quoted field is not closed"),
        (f'{HEAD}1,"x"y\r\n', "row 1: something follows a quoted field"),
        (f'{HEAD}1,"x"\r\n{HEAD}1,"x"', "row 2: it does not end with the terminator"),
        (f'{HEAD}1,"x"\r\n{HEAD}', "row 2: it has fewer columns"),
        (f'{HEAD}1,"x"\r\n{HEAD}1x,"x"\r\n', "row 2, column 'a': '1x' is no whole number of int"),
        (f'{HEAD}99999999999999999999,"x"\r\n', "row 1, column 'a'"),
        (f'{HEAD},"x"\r\n', "row 1, column 'a': '' is no whole number"),
        ('"X","t","test",1,"x"\r\n', "row 1, column 'operation': 'X' is not in"),
        (b'"I","t","test",1,"\xff"\r\n', "row 1, column 'b': '\ufffd' is not UTF-8"),
    ],
)
def test_malformed_lines_are_errors_with_a_place(lines: str | bytes, words: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read(codec_for(Csv, spec()), lines)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "shown", "words"),
    [
        (SqlType("double"), "1.x", "'1.x' is no number"),
        (SqlType("enum", elements=("x",)), '"z"', "is not in enum('x')"),
        (SqlType("set", elements=("x", "y")), '"x,z"', "'x,z' is not in set('x','y')"),
        (SqlType("blob"), '"AAA"', "is no base64 text"),
        (SqlType("blob"), '"A=AA"', "is no base64 text"),
        (SqlType("blob"), '"AA*="', "is no base64 text"),
        (SqlType("bigint", unsigned=True), "-1", "'-1' is no whole number of bigint unsigned"),
        (SqlType("bigint"), "9223372036854775808", "is no whole number of bigint"),
    ],
)
def test_malformed_values_are_errors_with_a_place(kind: SqlType, shown: str, words: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read(
            codec_for(Csv, spec()),
            f"{HEAD}1,\\N\r\n{HEAD}1,{shown}\r\n",
            table(SqlType("int"), kind),
        )
    assert "row 2, column 'b'" in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize("shown", ['"0g"', '"000"'])
def test_malformed_hexadecimal_is_an_error(shown: str) -> None:
    codec = codec_for(Csv, spec(csv={"binary-encoding-method": "hex"}))
    with pytest.raises(DecodeError, match="is no hex text"):
        read(codec, f"{HEAD}1,{shown}\r\n", table(SqlType("int"), SqlType("blob")))


@pytest.mark.parametrize(
    "lines",
    [
        '"D","t","test",true,1,"x"\r\n',
        '"I","t","test",true,1,"x"\r\n',
        '"D","t","test",true,1,"x"\r\n"I","t","test",false,1,"x"\r\n',
        '"U","t","test",true,1,"x"\r\n',
    ],
)
def test_half_an_update_is_an_error(lines: str) -> None:
    with pytest.raises(DecodeError, match="row [12]: an update is not a delete line followed by"):
        read(codec_for(Csv, spec(csv={"output-old-value": True})), lines)


def test_every_cut_of_a_file_is_an_error_or_fewer_rows() -> None:
    for quote in ('"', ""):
        codec = codec_for(Csv, spec(csv={"quote": quote}))
        rows = inserts(INT_TEXT, (1, 'a"b\\'), (2, None), (3, "é\r\n"))
        data = bytes(codec.encode_rows(rows, 5).value_bytes())
        whole = {0} | {int(x) for x in _ends(codec, rows)}
        for cut in range(len(data)):
            if cut in whole:
                read(codec, data[:cut])
                continue
            with pytest.raises(DecodeError, match="row [123]"):
                read(codec, data[:cut])


def _ends(codec: Csv, rows: Rows) -> list[int]:
    sizes = [len(v) for v in codec.encode_rows(rows, 5).values.to_pylist()]
    return [sum(sizes[: i + 1]) for i in range(len(sizes))]


def test_names_are_the_routed_ones() -> None:
    routed = replace(INT_TEXT, target=TableId("there", "x"))
    line = text(codec_for(Csv, spec()).encode_rows(inserts(routed, (1, "y")), 5))
    assert line == '"I","x","there",1,"y"\r\n'


def test_lines_are_no_messages() -> None:
    with pytest.raises(DecodeError, match="csv is a format of files"):
        codec_for(Csv, spec()).decode_message(None, b'"I","t","test",1,"y"\r\n')


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"quote": "", "null": "NULL"}, "NULL"),
        ({"quote": "", "null": ""}, ""),
        ({"quote": "", "null": "\\nil"}, "\nil"),
    ],
)
def test_a_text_that_readers_take_for_null_is_told(options: dict[str, Any], written: str) -> None:
    codec = codec_for(Csv, spec(csv=options))
    assert len(codec.advice([])) == 1
    line = codec.encode_rows(inserts(INT_TEXT, (1, written)), 0).value_bytes()
    assert images(read(codec, bytes(line)))[0][2] == {"a": 1, "b": None}


@pytest.mark.parametrize("null", ["0", "-1", "1.5e3", "a,b", '"', "a\nb"])
def test_a_null_that_values_look_like_is_refused(null: str) -> None:
    with pytest.raises(BadOption, match="sink.csv.null = .* could not tell it from values"):
        codec_for(Csv, spec(csv={"null": null}))


def test_a_null_that_begins_texts_without_quotes_is_refused() -> None:
    """A text that begins with the delimiter has a backslash before it."""
    with pytest.raises(BadOption, match="sink.csv.null = .* could not tell it from values"):
        codec_for(Csv, spec(csv={"quote": "", "null": "\\"}))
    codec_for(Csv, spec(csv={"null": "\\"}))


@pytest.mark.parametrize("null", ["\\N", "\\x", "NULL"])
def test_nothing_is_told_where_no_text_looks_like_null(null: str) -> None:
    codec = codec_for(Csv, spec(csv={"quote": '"' if null == "NULL" else "", "null": null}))
    assert codec.advice([]) == []


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"csv": {"delimiter": "-"}}, "sink.csv.delimiter"),
        ({"csv": {"delimiter": "."}}, "sink.csv.delimiter"),
        ({"csv": {"delimiter": "e+"}}, "sink.csv.delimiter"),
        ({"csv": {"delimiter": "0"}}, "sink.csv.delimiter"),
        ({"csv": {"quote": "1"}}, "sink.csv.quote"),
        ({"csv": {"quote": "-"}}, "sink.csv.quote"),
        ({"terminator": "5"}, "sink.terminator"),
        ({"csv": {"delimiter": "ru", "output-old-value": True}}, "sink.csv.delimiter"),
        ({"csv": {"delimiter": "l", "output-old-value": True}}, "sink.csv.delimiter"),
        ({"terminator": '"'}, "sink.terminator"),
        ({"terminator": '"\n'}, "sink.terminator"),
        ({"terminator": ";", "csv": {"quote": ""}}, "sink.terminator"),
        ({"terminator": "\\\n", "csv": {"quote": ""}}, "sink.terminator"),
    ],
)
def test_marks_that_readers_find_in_values_are_refused(config: dict[str, Any], path: str) -> None:
    with pytest.raises(BadOption, match=f"{path} = "):
        codec_for(Csv, spec(**config))


@pytest.mark.parametrize(
    "config",
    [
        {"csv": {"delimiter": "ru"}},
        {"csv": {"delimiter": "FE"}},
        {"csv": {"delimiter": "-|"}},
        {"csv": {"delimiter": "I", "quote": ""}},
        {"csv": {"quote": "I"}},
        {"csv": {"quote": "U", "output-old-value": True}},
        {"terminator": ";"},
        {"terminator": ";\n", "csv": {"quote": ""}},
    ],
)
def test_unusual_marks_are_read_back(config: dict[str, Any]) -> None:
    schema = table(SqlType("double"), SqlType("int"), SqlType("text"))
    values: list[tuple[Any, ...]] = [(-1.5e-7, -105, "FE;-|I"), (1e21, 0, ""), (None, None, None)]
    rows = inserts(schema, *values)
    codec = codec_for(Csv, spec(**config))
    expected = [(Op.INSERT, None, dict(zip("abc", v, strict=True))) for v in values]
    assert images(read(codec, text(codec.encode_rows(rows, 5)), schema)) == expected


def test_lines_with_another_terminator_are_refused_without_quotes() -> None:
    """Else the rest of theirs would be the end of the last text."""
    rows = inserts(INT_TEXT, (1, "x"), (2, "y"))
    written = text(codec_for(Csv, spec(csv={"quote": ""})).encode_rows(rows, 5))
    with pytest.raises(DecodeError, match="another terminator"):
        read(codec_for(Csv, spec(terminator="\n", csv={"quote": ""})), written)
