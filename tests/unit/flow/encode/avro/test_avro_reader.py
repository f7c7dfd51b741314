from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from avro_cases import COMMIT_TS, TOPIC, avro, chunk, inserts, table

from rowferry.change.chunk import Op, Rows
from rowferry.change.table import Index, TableId
from rowferry.errors import DecodeError
from rowferry.flow.encode.avro.codec import Avro
from rowferry.flow.encode.avro.reader import BinaryCursor, record_reader
from rowferry.flow.encode.contract import Encoded
from rowferry.testing.registry_stub import RegistryStub, registry_stub


@pytest.fixture(scope="module")
def stub() -> Iterator[RegistryStub]:
    with registry_stub() as found:
        yield found


def read(codec: Avro, encoded: Encoded) -> list[Rows]:
    assert encoded.keys is not None
    pairs = zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True)
    found = [change for key, value in pairs for change in codec.decode_message(key, value)]
    assert all(isinstance(c, Rows) for c in found)
    return [c for c in found if isinstance(c, Rows)]


def test_the_table_is_what_the_schemas_tell(stub: RegistryStub) -> None:
    schema = table(
        "a bigint unsigned not null, b varchar(9), c decimal(9,3), d bit(10), e enum('x','y,z'), "
        "f datetime, g blob, h set('p'), i smallint unsigned, j vector(2), k json, `l-m` time"
    )
    row = {c.name: None for c in schema.columns} | {"id": 1, "a": 2}
    codec = avro(schema_registry=stub.url)
    first, second = read(codec, codec.encode_rows(inserts(schema, row, row), 0, TOPIC))
    found = first.table
    assert found is second.table
    assert (found.id, found.table_id, found.version) == (TableId("shop", "orders"), 0, 0)
    assert found.inferred and found.indexes == (Index(1, "PRIMARY", ("id",), True, True),)
    assert {c.name: (c.type.sql, c.nullable) for c in found.columns} == {
        "id": ("int", False),
        "a": ("bigint unsigned", False),
        "b": ("longtext", True),
        "c": ("decimal(9,3)", True),
        "d": ("bit(10)", True),
        "e": ("enum('x','y,z')", True),
        "f": ("datetime(6)", True),
        "g": ("longblob", True),
        "h": ("set('p')", True),
        "i": ("int unsigned", True),
        "j": ("vector", True),
        "k": ("json", True),
        "l_m": ("time(6)", True),
    }


def test_columns_named_like_fields_of_the_format_are_columns(stub: RegistryStub) -> None:
    schema = table(
        "_tidb_op varchar(9), _tidb_commit_ts bigint unsigned not null, _ticdc_before int, "
        "_tidb_corrupted json"
    )
    row = {
        "id": 1,
        "_tidb_op": "u",
        "_tidb_commit_ts": 7,
        "_ticdc_before": None,
        "_tidb_corrupted": "1",
    }
    codec = avro(schema_registry=stub.url)
    (found,) = read(codec, codec.encode_rows(inserts(schema, row), 0, TOPIC))
    assert found.after.to_pylist() == [row]
    assert (found.op.tolist(), found.commit_ts.tolist()) == ([Op.INSERT], [0])


def test_what_the_format_does_not_carry(stub: RegistryStub) -> None:
    schema = table("c int")
    old, new = {"id": 1, "c": 1}, {"id": 1, "c": 2}
    rows = chunk(schema, (Op.INSERT, None, old), (Op.UPDATE, old, new), (Op.DELETE, new, None))

    def seen(**parameters: Any) -> list[tuple[int, int, Any, Any]]:
        codec = avro(schema_registry=stub.url, **parameters)
        return [
            (int(p.op[0]), int(p.commit_ts[0]), p.before.to_pylist()[0], p.after.to_pylist()[0])
            for p in read(codec, codec.encode_rows(rows, 0, TOPIC))
        ]

    gone = {"id": 1}
    assert seen() == [(0, 0, None, old), (0, 0, None, new), (2, 0, gone, None)]
    dated = [(0, COMMIT_TS, None, old), (1, COMMIT_TS + 1, None, new)]
    assert seen(enable_tidb_extension="true") == [*dated, (2, 0, gone, None)]
    found = seen(enable_tidb_extension="true", avro_enable_watermark="true")
    assert found == [*dated, (2, COMMIT_TS + 2, gone, None)]


def test_text_keys_can_be_indexed(stub: RegistryStub) -> None:
    schema = table("c int").at(9)
    schema = type(schema).from_json(
        {
            **schema.to_json(),
            "columns": [
                {"id": 1, "name": "a", "type": {"name": "varchar", "length": 9}, "nullable": False},
                {"id": 2, "name": "b", "type": {"name": "binary", "length": 9}, "nullable": False},
            ],
            "indexes": [{"id": 1, "name": "u", "columns": ["b", "a"], "unique": True}],
        }
    )
    codec = avro(schema_registry=stub.url)
    encoded = codec.encode_rows(inserts(schema, {"a": "x", "b": b"\0"}), 0, TOPIC)
    (found,) = read(codec, encoded)
    assert [c.type.sql for c in found.table.columns] == ["varchar(255)", "varbinary(255)"]
    assert found.table.handle_key == ("a", "b")
    assert found.after.to_pylist() == [{"a": "x", "b": b"\0"}]


def test_decimals_and_large_numbers_come_back_in_all_modes(stub: RegistryStub) -> None:
    texts = {"avro_decimal_handling_mode": "string", "avro_bigint_unsigned_handling_mode": "string"}
    row = {"id": 1, "b": (1 << 64) - 1, "d": "-1.50"}
    schema = table("b bigint unsigned, d decimal(9,2)")
    for modes in (texts, {}):
        codec = avro(schema_registry=stub.url, **modes)
        (found,) = read(codec, codec.encode_rows(inserts(schema, row), 0, TOPIC))
        assert found.after.to_pylist() == [row]


def test_elements_with_quotes_come_back(stub: RegistryStub) -> None:
    schema = table("e enum('a''b','c\\\\''d','e''''f')")
    codec = avro(schema_registry=stub.url)
    rows = [{"id": i, "e": i} for i in (1, 2, 3)]
    found = read(codec, codec.encode_rows(inserts(schema, *rows), 0, TOPIC))
    assert [p.after.to_pylist()[0] for p in found] == rows


def test_a_schema_is_asked_for_once(stub: RegistryStub) -> None:
    codec = avro(schema_registry=stub.url)
    encoded = codec.encode_rows(inserts(table("c date"), *[{"id": 1, "c": None}] * 5), 0, TOPIC)
    reader, before = avro(schema_registry=stub.url), len(stub.requests)
    assert len(read(reader, encoded)) == 5
    assert [method for method, _ in stub.requests[before:]] == ["GET", "GET"]


def test_every_cut_of_a_message_is_refused(stub: RegistryStub) -> None:
    codec = avro(schema_registry=stub.url, enable_tidb_extension="true")
    schema = table("a double, b decimal(9,2), c text, d enum('x'), e set('y'), f bit(9)")
    row = {"id": 1, "a": 0.5, "b": "1.00", "c": "ß", "d": 1, "e": 1, "f": 3}
    encoded = codec.encode_rows(inserts(schema, row), 0, TOPIC)
    key, value = encoded.keys.to_pylist()[0], encoded.values.to_pylist()[0]
    for size in range(len(value)):
        with pytest.raises(DecodeError):
            list(codec.decode_message(key, value[:size]))
    with pytest.raises(DecodeError, match="1 bytes are left"):
        list(codec.decode_message(key, value + b"\0"))
    for size in range(len(key)):
        with pytest.raises(DecodeError):
            list(codec.decode_message(key[:size], None))


@pytest.mark.parametrize(
    "binary",
    [b"\xff" * 11, b"\x01", b"\x04a", b"\x04\xff\xff", b"\x80"],
    ids=["long-number", "negative-size", "short-text", "no-utf8", "open-number"],
)
def test_malformed_text_is_refused(binary: bytes) -> None:
    assert BinaryCursor(b"\x04ab").text() == "ab"
    with pytest.raises(DecodeError):
        BinaryCursor(binary).text()


@pytest.mark.parametrize(
    "schema",
    ["", "[]", "{}", '{"fields":[{"name":"a","type":"int"}]}', '{"type":"string"}']
    + ['{"name":"t","namespace":"d.s","fields":[{"name":"a","type":{"type":"map"}}]}'],
)
def test_a_schema_of_something_else_is_refused(schema: str) -> None:
    with pytest.raises(DecodeError, match="not one of this format"):
        record_reader(schema)


def test_values_that_the_type_has_not_are_refused(stub: RegistryStub) -> None:
    codec = avro(schema_registry=stub.url)
    encoded = codec.encode_rows(
        inserts(table("e enum('abc') not null"), {"id": 1, "e": 1}), 0, TOPIC
    )
    key, value = encoded.keys.to_pylist()[0], encoded.values.to_pylist()[0]
    with pytest.raises(DecodeError, match="field 'e': 'abx' is not one of abc"):
        list(codec.decode_message(key, value.replace(b"abc", b"abx")))
    union = codec.encode_rows(inserts(table("e int").at(8), {"id": 1, "e": 1}), 0, TOPIC)
    value = union.values.to_pylist()[0]
    with pytest.raises(DecodeError, match="no branch 3"):
        list(codec.decode_message(union.keys.to_pylist()[0], value[:-2] + b"\x06\x02"))
    assert pa.types.is_large_binary(union.values.type)


def test_fields_that_only_ticdc_writes_are_read(stub: RegistryStub) -> None:
    """Old rows, checksums and single-precision floats: what its settings can add to a value."""

    whole = {"type": "int", "connect.parameters": {"tidb_type": "INT"}}
    real = {"type": "float", "connect.parameters": {"tidb_type": "FLOAT"}}
    ids: list[dict[str, Any]] = [{"name": "id", "type": whole}]
    columns = [*ids, {"default": None, "name": "f", "type": ["null", real]}]
    key = {"type": "record", "name": "t", "namespace": "default.d", "fields": ids}
    before = {"type": "record", "name": "t_before", "namespace": "default.d", "fields": columns}
    own = {"_tidb_op": "string", "_tidb_commit_ts": "long", "_tidb_commit_physical_time": "long"}
    own |= {"_tidb_row_level_checksum": "string", "_tidb_corrupted": "boolean"}
    own["_tidb_checksum_version"] = "int"
    fields = [*columns, {"default": None, "name": "_ticdc_before", "type": ["null", before]}]
    fields += [{"name": name, "type": kind} for name, kind in own.items()]
    value = {**key, "fields": fields}
    codec = avro(schema_registry=stub.url, enable_tidb_extension="true")
    registry = codec._registry
    numbers = [registry.register(f"d_t-{w}", json.dumps(s)) for w, s in (("k", key), ("v", value))]

    def written(number: int, schema: Any, record: dict[str, Any]) -> bytes:
        made = io.BytesIO()
        fastavro.schemaless_writer(made, fastavro.parse_schema(schema), record)
        return struct.pack(">bI", 0, number) + made.getvalue()

    def change(op: str, old: Any, new: dict[str, Any]) -> Any:
        told = {**dict.fromkeys(own, 0), "_tidb_op": op, "_tidb_row_level_checksum": "7"}
        told |= {"_tidb_commit_ts": 5, "_tidb_corrupted": False, "_ticdc_before": old}
        pair = (written(numbers[0], key, {"id": 1}), written(numbers[1], value, {**new, **told}))
        (found,) = codec.decode_message(*pair)
        assert isinstance(found, Rows)
        return found.batch.to_pylist()[0]

    old, new = {"id": 1, "f": 0.5}, {"id": 1, "f": None}
    facts = {"commit_ts": 5, "seq": 0}
    assert change("c", None, new) == {"op": Op.INSERT, "before": None, "after": new, **facts}
    assert change("u", old, new) == {"op": Op.UPDATE, "before": old, "after": new, **facts}
    assert change("d", old, old) == {"op": Op.DELETE, "before": old, "after": None, **facts}
