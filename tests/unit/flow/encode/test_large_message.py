from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from encode_cases import INT_TEXT, chunk, inserts, spec, table

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import (
    BadOption,
    BadUri,
    DecodeError,
    EncodeError,
    MessageTooLarge,
    OptionsConflict,
    SinkUnavailable,
    SinkUnwritable,
)
from rowferry.flow.encode import claim_check
from rowferry.flow.encode.canal.codec import Canal
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.claim_check import FolderStore
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.encode.large_message import LargeMessageOptions, check_large_messages
from rowferry.flow.encode.open_protocol.codec import OpenProtocol
from rowferry.flow.encode.simple.codec import Simple
from rowferry.registry import CODECS

KAFKA = "kafka://broker/topic?enable-tidb-extension=true"
SMALL = Topic("few", 1, 700)
LONG = "é" * 400
DENSE = "".join(chr(0x4E00 + i * i * 7919 % 20011) for i in range(400))  # hardly compressible


def build(kind: type[Codec], **large: Any) -> Codec:
    keys = {k.replace("_", "-"): v for k, v in large.items()}
    return codec_for(kind, spec(KAFKA, **{"kafka-config": {"large-message-handle": keys}}))


def handled(kind: type[Codec], how: str, **more: Any) -> Codec:
    return build(kind, large_message_handle_option=how, **more)


def claimed(kind: type[Codec], folder: Path, **more: Any) -> Codec:
    return handled(kind, "claim-check", claim_check_storage_uri=f"file://{folder}/", **more)


def read(codec: Codec, encoded: Encoded, topic: Topic = SMALL) -> list[Any]:
    found = codec.batch(encoded, topic)
    values = found.values.to_pylist()
    keys = found.keys.to_pylist() if found.keys is not None else [None] * len(values)
    pairs = zip(keys, values, strict=True)
    return [change for pair in pairs for change in codec.decode_message(*pair)]


def mixed(long: str = LONG) -> Rows:
    """Rows of which the second and the fourth are large."""
    return chunk(
        INT_TEXT,
        (Op.INSERT, None, {"a": 1, "b": "x"}),
        (Op.INSERT, None, {"a": 2, "b": long}),
        (Op.UPDATE, {"a": 3, "b": "x"}, {"a": 3, "b": "y"}),
        (Op.UPDATE, {"a": 4, "b": long}, {"a": 4, "b": "y"}),
        (Op.DELETE, {"a": 5, "b": "x"}, None),
    )


BOTH = pytest.mark.parametrize("kind", [CanalJson, OpenProtocol], ids=["canal-json", "open"])


# Its key has a column that no codec writes: the other one names several rows.
HALF_WRITTEN = TableSchema(
    TableId("test", "t"),
    1,
    1,
    (
        Column(1, "a", SqlType("int"), nullable=False),
        Column(2, "v", SqlType("int"), nullable=False, generated="virtual"),
        Column(3, "b", SqlType("varchar", length=900)),
    ),
    (Index(1, "u", ("a", "v"), unique=True),),
)


# --- refused -------------------------------------------------------------------------------------


@BOTH
def test_by_default_a_row_that_does_not_fit_is_an_error_with_its_key(kind: type[Codec]) -> None:
    with pytest.raises(MessageTooLarge) as caught:
        codec_for(kind, spec(KAFKA)).encode_rows(mixed(), 5, SMALL)
    text = str(caught.value)
    assert "a row of test.t (a = 2) makes a message of " in text
    assert "topic few takes 700: raise max-message-bytes" in text
    assert "sink.kafka-config.large-message-handle.large-message-handle-option" in text


def test_a_long_key_is_shown_shortened() -> None:
    schema = table(SqlType("varchar"), SqlType("int"))
    rows = chunk(schema, (Op.DELETE, {"a": "k" * 900, "b": 1}, None))
    with pytest.raises(MessageTooLarge, match=r"\(a = 'k{39}…\)"):
        codec_for(CanalJson, spec(KAFKA)).encode_rows(rows, 5, SMALL)


@BOTH
@pytest.mark.parametrize("how", ["handle-key-only", "claim-check"])
def test_a_row_that_does_not_fit_even_then_is_an_error(
    kind: type[Codec], how: str, tmp_path: Path
) -> None:
    codec = handled(kind, how, claim_check_storage_uri=f"file://{tmp_path}")
    rows = inserts(table(SqlType("varchar"), SqlType("int")), ("k" * 900, 1))
    with pytest.raises(MessageTooLarge):
        codec.encode_rows(rows, 5, SMALL)


@BOTH
def test_a_table_without_a_key_cannot_be_shortened(kind: type[Codec]) -> None:
    keyless = TableSchema(INT_TEXT.id, 1, 1, INT_TEXT.columns)
    with pytest.raises(MessageTooLarge, match="the table has no key"):
        handled(kind, "handle-key-only").encode_rows(inserts(keyless, (1, LONG)), 5, SMALL)


@BOTH
def test_the_limit_counts_what_the_queue_adds(kind: type[Codec]) -> None:
    codec, rows = codec_for(kind, spec(KAFKA)), inserts(INT_TEXT, (1, "x"))
    raw = codec.encode_rows(rows, 5)
    length = raw.nbytes + 36
    if raw.keys is not None:
        length += len(raw.keys[0].as_py()) + 24
    assert codec.encode_rows(rows, 5, Topic("t", 1, length)).values.equals(raw.values)
    with pytest.raises(MessageTooLarge, match=f"of {length} bytes, and topic t takes {length - 1}"):
        codec.encode_rows(rows, 5, Topic("t", 1, length - 1))


# --- the key alone -------------------------------------------------------------------------------


@BOTH
def test_the_handle_key_alone(kind: type[Codec]) -> None:
    codec, rows = handled(kind, "handle-key-only"), mixed()
    encoded = codec.encode_rows(rows, 5, SMALL)
    found = read(codec, encoded)
    told = [(c.key_only, list(c.table.by_name), i) for c in found for i in range(len(c))]
    assert [(k, names) for k, names, _ in told] == [
        (False, ["a", "b"]),
        (True, ["a"]),
        (False, ["a", "b"]),
        (True, ["a"]),
        (False, ["a", "b"]),
    ]
    assert [a for c in found for a in c.after.to_pylist()] == [
        {"a": 1, "b": "x"},
        {"a": 2},
        {"a": 3, "b": "y"},
        {"a": 4},
        None,
    ]
    assert [b for c in found for b in c.before.to_pylist()][3] == {"a": 4}
    assert all(c.table.handle_key == ("a",) for c in found)


def test_how_it_looks() -> None:
    rows = inserts(INT_TEXT, (2, LONG))
    canal = handled(CanalJson, "handle-key-only").encode_rows(rows, 5, SMALL)
    message = json.loads(canal.values[0].as_py())
    assert (message["data"], message["mysqlType"]) == ([{"a": "2"}], {"a": "int"})
    assert message["_tidb"] == {"commitTs": 1 << 18, "onlyHandleKey": True}
    codec = handled(OpenProtocol, "handle-key-only")
    opened = codec.encode_rows(rows, 5, SMALL)
    assert opened.keys is not None
    assert opened.keys[0].as_py().endswith(b'"t":1,"ohk":true}')
    assert opened.values[0].as_py() == b'{"u":{"a":{"t":3,"h":true,"f":11,"v":2}}}'


# --- claim checks --------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4"])
@BOTH
def test_claim_checks_come_back_whole(kind: type[Codec], compression: str, tmp_path: Path) -> None:
    codec = claimed(kind, tmp_path / "claims", large_message_handle_compression=compression)
    rows = mixed(DENSE)
    encoded = codec.encode_rows(rows, 5, SMALL)
    files = sorted(os.listdir(tmp_path / "claims"))
    assert len(files) == 2 and all(len(f) == 41 for f in files)
    found = read(codec, encoded)
    assert [b for c in found for b in c.before.to_pylist()] == rows.before.to_pylist()
    assert [a for c in found for a in c.after.to_pylist()] == rows.after.to_pylist()
    assert [t for c in found for t in c.commit_ts.tolist()] == rows.commit_ts.tolist()
    assert not any(c.key_only for c in found)


@BOTH
def test_a_replay_writes_the_same_files(kind: type[Codec], tmp_path: Path) -> None:
    one = claimed(kind, tmp_path).encode_rows(mixed(), 5, SMALL)
    files = {f: os.stat(tmp_path / f).st_mtime_ns for f in os.listdir(tmp_path)}
    again = claimed(kind, tmp_path).encode_rows(mixed(), 5, SMALL)
    assert again.values.equals(one.values)
    assert {f: os.stat(tmp_path / f).st_mtime_ns for f in os.listdir(tmp_path)} == files
    assert len(files) == 2


def test_the_two_halves_of_a_key_change_have_files_of_their_own(tmp_path: Path) -> None:
    old, new = {"a": 1, "b": LONG}, {"a": 2, "b": LONG}
    rows = chunk(INT_TEXT, (Op.DELETE, old, None), (Op.INSERT, None, new))
    same = rows.batch.set_column(2, "seq", pa.array([7, 7], pa.int64()))
    same = same.set_column(1, "commit_ts", pa.array([9, 9], pa.uint64()))
    codec = claimed(OpenProtocol, tmp_path)
    found = read(codec, codec.encode_rows(Rows(INT_TEXT, same), 5, SMALL))
    assert [c.before.to_pylist() + c.after.to_pylist() for c in found] == [
        [old, None],
        [None, new],
    ]


def test_how_claim_checks_look(tmp_path: Path) -> None:
    rows = inserts(INT_TEXT, (2, LONG))
    codec = claimed(CanalJson, tmp_path)
    canal = codec.encode_rows(rows, 5, SMALL).values[0].as_py()
    extension = json.loads(canal)["_tidb"]
    (name,) = os.listdir(tmp_path)
    assert extension == {
        "commitTs": 1 << 18,
        "claimCheckLocation": f"file://{tmp_path}/{name}",
    }
    stored = json.loads((tmp_path / name).read_bytes())
    whole = codec.encode_rows(rows, 5).values[0].as_py()
    assert stored == {"key": None, "value": base64.b64encode(whole).decode()}
    os.unlink(tmp_path / name)

    opened = claimed(OpenProtocol, tmp_path).encode_rows(rows, 5, SMALL)
    (name,) = os.listdir(tmp_path)
    assert opened.keys is not None
    place = f"file://{tmp_path}/{name}".encode()
    assert opened.keys[0].as_py().endswith(b'"t":1,"ohk":true,"ohk":false,"ccl":"%s"}' % place)
    stored = json.loads((tmp_path / name).read_bytes())
    assert base64.b64decode(stored["key"])[:8] == bytes(7) + b"\x01"


def test_raw_values(tmp_path: Path) -> None:
    rows = inserts(INT_TEXT, (2, LONG))
    codec = claimed(CanalJson, tmp_path, claim_check_raw_value=True)
    encoded = codec.encode_rows(rows, 5, SMALL)
    (name,) = os.listdir(tmp_path)
    assert (tmp_path / name).read_bytes() == codec.encode_rows(rows, 5).values[0].as_py()
    (found,) = read(codec, encoded)
    assert found.after.equals(rows.after)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), (b"{", "damaged"), (b'{"key":null}', "damaged"), (b"3", "damaged")],
)
def test_what_is_missing_or_damaged_in_storage_is_an_error(
    content: bytes | None, words: str, tmp_path: Path
) -> None:
    codec = claimed(CanalJson, tmp_path)
    encoded = codec.encode_rows(inserts(INT_TEXT, (2, LONG)), 5, SMALL)
    (name,) = os.listdir(tmp_path)
    os.unlink(tmp_path / name)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DecodeError, match=words):
        read(codec, encoded)


def test_a_message_cannot_name_any_other_file(tmp_path: Path) -> None:
    codec = claimed(CanalJson, tmp_path)
    (tmp_path / "x.json").write_bytes(b'{"key":null,"value":"e30="}')
    for location in ("file:///etc/passwd", f"file://{tmp_path}/..", "x.json", 5):
        text = {"_tidb": {"claimCheckLocation": location}, "data": [{}]}
        with pytest.raises(DecodeError, match="it names no file of ours"):
            list(codec.decode_message(None, json.dumps(text).encode()))


def test_storage_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SinkUnwritable, match="claim-check storage"):
        FolderStore(tmp_path / "file").put("a.json", b"1")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claim_check.os, "fsync", full)
    with pytest.raises(SinkUnavailable, match="No space left"):
        FolderStore(tmp_path / "folder").put("a.json", b"1")
    assert os.listdir(tmp_path / "folder") == []


# --- compression ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["snappy", "lz4"])
@BOTH
def test_values_are_compressed(kind: type[Codec], compression: str) -> None:
    codec = build(kind, large_message_handle_compression=compression)
    rows = mixed()
    encoded = codec.encode_rows(rows, 5, Topic("t", 1, 1 << 20))
    plain = codec_for(kind, spec(KAFKA)).encode_rows(rows, 5)
    assert encoded.nbytes < plain.nbytes
    found = read(codec, encoded, Topic("t", 1, 1 << 20))
    assert [a for c in found for a in c.after.to_pylist()] == rows.after.to_pylist()
    first = encoded.values[0].as_py()
    if compression == "lz4":
        assert first[:4] == b"\x04\x22\x4d\x18"  # an lz4 frame
    else:
        size = len(plain.values[0].as_py())
        length = bytes([size & 127 | 128, size >> 7]) if size > 127 else bytes([size])
        assert first.startswith(length)  # a snappy block


@pytest.mark.parametrize("compression", ["snappy", "lz4"])
def test_canal_json_notes_are_compressed(compression: str) -> None:
    codec = build(CanalJson, large_message_handle_compression=compression)
    change = SchemaChange(1 << 18, DdlKind.DROP_TABLE, "drop table t", TableId("test", "t"))
    for encoded in (codec.encode_schema_change(change, 5), codec.encode_watermark(Watermark(7), 5)):
        assert encoded is not None
        with pytest.raises(ValueError):
            json.loads(encoded.values[0].as_py())
        (found,) = codec.decode_message(None, encoded.values[0].as_py())
        assert found in (change, Watermark(7))


def test_files_are_never_compressed() -> None:
    section = {"large-message-handle": {"large-message-handle-compression": "lz4"}}
    codec = codec_for(CanalJson, spec(**{"kafka-config": section}))
    json.loads(codec.encode_rows(mixed(), 5).values[0].as_py())


@pytest.mark.parametrize("junk", [b"", b"\xff" * 9, b"\x80", b"\xff\xff\xff\xff\x0f12", b"{}"])
@pytest.mark.parametrize("compression", ["snappy", "lz4"])
def test_values_that_are_not_compressed_are_refused(compression: str, junk: bytes) -> None:
    codec = build(CanalJson, large_message_handle_compression=compression)
    with pytest.raises(DecodeError):
        list(codec.decode_message(None, junk))


def test_a_length_that_no_snappy_block_can_have_is_not_believed() -> None:
    codec = build(CanalJson, large_message_handle_compression="snappy")
    with pytest.raises(DecodeError, match="its length cannot be right"):
        list(codec.decode_message(None, b"\xff\xff\xff\xff\x0f12"))


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "protocol", "extension", "error", "words"),
    [
        ({"large-message-handle-option": "handle-key-only"}, "avro", True, OptionsConflict, "avro"),
        ({"large-message-handle-option": "claim-check"}, "csv", True, OptionsConflict, "csv"),
        (
            {"large-message-handle-option": "handle-key-only"},
            "canal-json",
            False,
            OptionsConflict,
            "enable-tidb-extension=true",
        ),
        (
            {"large-message-handle-option": "claim-check"},
            "open-protocol",
            False,
            BadOption,
            "needs sink.kafka-config.large-message-handle.claim-check-storage-uri",
        ),
        (
            {
                "large-message-handle-option": "claim-check",
                "claim-check-storage-uri": "file:///x",
                "claim-check-raw-value": True,
            },
            "open-protocol",
            False,
            OptionsConflict,
            "claim-check-raw-value",
        ),
    ],
)
def test_settings_that_a_protocol_cannot_keep(
    settings: dict[str, Any], protocol: str, extension: bool, error: type[Exception], words: str
) -> None:
    form = CODECS.load(protocol).TRAITS.large_rows
    with pytest.raises(error, match=words):
        check_large_messages(LargeMessageOptions.read(settings), protocol, form, extension)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"large_message_handle_compression": "zstd"}, BadOption, "none | snappy | lz4"),
        ({"large_message_handle_option": "drop"}, BadOption, "none | claim-check"),
        ({"claim_check_storage_uri": "blackhole://x"}, BadOption, "cannot hold claim checks; kn"),
        (
            {"claim_check_storage_uri": "ftp://x/y"},
            BadOption,
            "-uri: ftp:// cannot hold claim",
        ),
        ({"claim_check_storage_uri": "s3:///x"}, BadOption, "names no bucket"),
        ({"claim_check_storage_uri": "s3://b/x?sas-token=1"}, BadOption, "unknown parameter"),
        ({"claim_check_storage_uri": "s3://b/x?file-size=9"}, BadOption, "unknown parameter"),
        (
            {"claim_check_storage_uri": "gs://b/x?endpoint=http://far"},
            BadOption,
            "in plain text to another machine",
        ),
        ({"claim_check_storage_uri": "file://here"}, BadOption, "file:///some/directory"),
        ({"claim_check_storage_uri": "file:///"}, BadOption, "file:///some/directory"),
        ({"claim_check_storage_uri": "/tmp"}, BadUri, "the claim-check storage URI has no scheme"),
    ],
)
def test_values_that_are_refused(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        build(OpenProtocol, **settings)
    assert words in str(caught.value)


def test_an_empty_text_is_the_default() -> None:
    keys = ("large-message-handle-option", "large-message-handle-compression")
    assert LargeMessageOptions.read(dict.fromkeys(keys, "")) == LargeMessageOptions.read({})


@pytest.mark.parametrize("kind", [CanalJson, OpenProtocol, Simple])
@pytest.mark.parametrize("how", ["handle-key-only", "claim-check"])
def test_a_row_is_not_shortened_to_a_part_of_its_key(
    kind: type[Codec], how: str, tmp_path: Path
) -> None:
    codec = handled(kind, how, claim_check_storage_uri=f"file://{tmp_path}")
    with pytest.raises(MessageTooLarge):
        codec.encode_rows(inserts(HALF_WRITTEN, (1, 2, LONG)), 5, SMALL)


@pytest.mark.parametrize("kind", [CanalJson, OpenProtocol, Canal])
def test_a_delete_does_not_hold_a_part_of_its_key(kind: type[Codec]) -> None:
    wish = spec("kafka://broker/topic", **{"delete-only-output-handle-key-columns": True})
    rows = chunk(HALF_WRITTEN, (Op.DELETE, {"a": 1, "v": 2, "b": "x"}, None))
    with pytest.raises(EncodeError, match=r"test\.t: a change has no column to write"):
        codec_for(kind, wish).encode_rows(rows, 5)


@pytest.mark.parametrize("kind", [CanalJson, OpenProtocol])
def test_deletes_need_a_handle_key_where_they_hold_nothing_else(kind: type[Codec]) -> None:
    wish = spec("kafka://broker/topic", **{"delete-only-output-handle-key-columns": True})
    codec_for(kind, wish)
    with pytest.raises(OptionsConflict, match="remove force-replicate"):
        codec_for(kind, replace(wish, config={**wish.config, "force-replicate": True}))


def test_the_extension_can_be_set_in_the_codec_section() -> None:
    section = {"codec-config": {"enable-tidb-extension": True}}
    codec = codec_for(CanalJson, spec("kafka://broker/topic", **{"kafka-config": section}))
    assert codec.encode_watermark(Watermark(1), 5) is not None
    off = "kafka://broker/topic?enable-tidb-extension=false"
    assert (
        codec_for(CanalJson, spec(off, **{"kafka-config": section})).encode_watermark(
            Watermark(1), 5
        )
        is None
    )
