"""Kafka Connect's schemas as Avro's, as Connect's Avro converters write them, and back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, Final

import numpy as np

from rowferry.errors import SchemaRefused
from rowferry.flow.encode.avro.datum import AvroSchema, names_of
from rowferry.flow.encode.avro.schema import avro_name
from rowferry.flow.encode.debezium.schema import DECIMAL, Schema

_AVRO: Final = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_CONNECT: Final = {"int": "int32", "long": "int64"}
_SHORT: Final = frozenset({"int8", "int16"})  # Avro has no such integers: they are told
_LOGICAL: Final = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
FIELD: Final = "connect.field"  # a column's own name, where Avro does not allow it
OWN_TYPE: Final = "tidb_type"


def full_name(name: str) -> str:
    """Return a schema's name with what Avro does not allow as `_`."""
    return ".".join(avro_name(part) for part in name.split("."))


def to_avro(schema: Schema) -> Any:
    """Return the Avro schema of a Connect schema that is not optional.

    Raises:
        SchemaRefused: two fields have one name in Avro.
    """
    return _Writer().type_of(schema)


class _Writer:
    """One schema on its way: a type that has a name is written out once."""

    def __init__(self) -> None:
        self._defined: set[str] = set()

    def type_of(self, schema: Schema) -> Any:
        kind = schema["type"]
        if kind == "struct":
            return self._record(schema)
        facts = _facts(schema)
        if kind == "array":
            items = self.type_of(schema["items"])
            return {"type": "array", "items": items, **facts}
        return {"type": _AVRO[kind], **facts} if facts else _AVRO[kind]

    def _record(self, schema: Schema) -> Any:
        name = full_name(schema["name"])
        if name in self._defined:
            return name
        self._defined.add(name)
        space, _, own = name.rpartition(".")
        members = [self._field(one) for one in schema["fields"]]
        _refuse_twins(name, schema["fields"], members)
        record = {"type": "record", "name": own, "namespace": space, "fields": members}
        return {**record, **_facts({**schema, "name": name})}

    def _field(self, schema: Schema) -> dict[str, Any]:
        own, inner = schema["field"], self.type_of(schema)
        name = avro_name(own)
        field: dict[str, Any] = {"name": name, "type": inner}
        if "default" in schema:
            field["default"] = _default(schema)
            if schema["optional"]:
                field["type"] = [inner, "null"]
        elif schema["optional"]:
            field |= {"type": ["null", inner], "default": None}
        if name != own:
            field[FIELD] = own
        if OWN_TYPE in schema:
            field[OWN_TYPE] = schema[OWN_TYPE]
        return field


def _facts(schema: Schema) -> dict[str, Any]:
    """Return what a type says beside Avro's own words."""
    facts: dict[str, Any] = {}
    for key in ("doc", "version", "parameters"):
        if key in schema:
            facts[f"connect.{key}"] = schema[key]
    if "default" in schema:
        facts["connect.default"] = _default(schema)
    name = schema.get("name")
    if name:
        facts["connect.name"] = name
    if schema["type"] in _SHORT:
        facts["connect.type"] = schema["type"]
    if name in _LOGICAL:
        facts["logicalType"] = _LOGICAL[name]
    if name == DECIMAL:
        parameters = schema["parameters"]
        facts["logicalType"] = "decimal"
        facts["precision"] = int(parameters["connect.decimal.precision"])
        facts["scale"] = int(parameters["scale"])
    return facts


def _default(schema: Schema) -> Any:
    """Return a default as Avro's JSON has it: bytes as the characters of the same numbers."""
    value = schema["default"]
    return b64decode(value).decode("latin-1") if schema["type"] == "bytes" else value


def _refuse_twins(name: str, fields: list[Schema], members: list[dict[str, Any]]) -> None:
    seen: dict[str, str] = {}
    for field, member in zip(fields, members, strict=True):
        twin = seen.setdefault(member["name"], field["field"])
        if twin != field["field"]:
            raise SchemaRefused(
                f"schema {name}: columns {twin!r} and {field['field']!r} would be the Avro field "
                f"{member['name']!r} both; rename one or leave it out by sink.column-selectors"
            )


# --- back -----------------------------------------------------------------------------------------


def to_connect(schema: AvroSchema) -> Schema:
    """Return the Connect schema of an Avro schema; each field has its Avro name as `written`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, RecursionError: it is none.
    """
    return _connect(schema, schema.form, "")


def _connect(schema: AvroSchema, form: Any, space: str) -> Schema:
    form = schema.resolved(form, space)
    if isinstance(form, list):
        (inner,) = (one for one in form if one != "null")
        return {**_connect(schema, inner, space), "optional": True}
    facts = form if isinstance(form, dict) else {"type": form}
    kind = facts["type"]
    made: Schema = {"type": facts.get("connect.type") or _CONNECT.get(kind, kind)}
    made |= {"optional": False, "name": facts.get("connect.name", "")}
    made["parameters"] = facts.get("connect.parameters") or {}
    if facts.get("logicalType") == "decimal" and not made["name"]:
        digits = {"scale": facts.get("scale", 0), "connect.decimal.precision": facts["precision"]}
        made |= {"name": DECIMAL, "parameters": {k: str(v) for k, v in digits.items()}}
    if kind == "array":
        made["items"] = _connect(schema, facts["items"], space)
    if kind == "record":
        space, _ = names_of(facts, space)
        made |= {"type": "struct", "fields": [_member(schema, f, space) for f in facts["fields"]]}
    return made


def _member(schema: AvroSchema, field: dict[str, Any], space: str) -> Schema:
    own = {"field": field.get(FIELD, field["name"]), "written": field["name"]}
    return {**_connect(schema, field["type"], space), **own, OWN_TYPE: field.get(OWN_TYPE, "")}


def payload_of(schema: Schema, value: Any) -> Any:
    """Return a decoded value as Connect's JSON converter would have written it."""
    if value is None:
        return None
    if schema["type"] == "struct":
        return {f["field"]: payload_of(f, value[f["written"]]) for f in schema["fields"]}
    if schema["type"] == "array":
        return [payload_of(schema["items"], one) for one in value]
    if isinstance(value, float) and schema["type"] == "float":
        # As few digits as tell it from its neighbours of 32 bits.
        return json.loads(str(np.float32(value)).removesuffix(".0"))
    return b64encode(value).decode() if isinstance(value, bytes) else value
