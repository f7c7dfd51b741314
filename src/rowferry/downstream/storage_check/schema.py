"""Schema files: their JSON, their checksum, and what they say of columns."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rowferry.downstream.storage_check.layout import SchemaPath, TableFiles
from rowferry.downstream.storage_check.rules import Rule, StorageFindings

INTEGERS: Final = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
DECIMALS: Final = frozenset({"DECIMAL", "NUMERIC"})
TIMES: Final = frozenset({"TIME", "DATETIME", "TIMESTAMP"})
TEXTS: Final = frozenset({"CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"})
BINARIES: Final = frozenset(
    {"BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "VAR_STRING"}
)
_PLAIN: Final = frozenset({"DATE", "YEAR", "JSON", "ENUM", "SET", "BIT", "VECTOR"})
_UNSIGNED: Final = frozenset({*INTEGERS, *FLOATS, *DECIMALS})
_KEYS: Final = {
    "Table": str,
    "Schema": str,
    "Version": int,
    "TableVersion": int,
    "Query": str,
    "Type": int,
    "TableColumnsTotal": int,
}
_COLUMN_KEYS: Final = (
    "ColumnId",
    "ColumnName",
    "ColumnType",
    "ColumnDefault",
    "ColumnPrecision",
    "ColumnLength",
    "ColumnScale",
    "ColumnNullable",
    "ColumnIsPk",
    "ColumnElems",
)
# Numbers of DDLs that TiDB has given.
_TYPES: Final = frozenset({*range(66), *range(67, 78), 230, 231}) - {46, 58}
_HTML: Final = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"))
_LINES: Final = (("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column as a schema file describes it."""

    name: str
    type: str
    unsigned: bool
    size: int | None  # precision or length
    scale: int
    nullable: bool
    in_key: bool
    elements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableForm:
    """A table version as its schema file describes it."""

    version: int
    columns: tuple[ColumnForm, ...]


class _Number(str):
    """A JSON number as it is written: checksums cover its digits."""


def check_schema(
    content: bytes, at: SchemaPath, table: TableFiles, findings: StorageFindings
) -> TableForm | None:
    """Check a schema file; return its columns (a database has none), None if they are not known."""
    form = _read(content, at, findings)
    if form is None:
        return None
    own_names = (form["Schema"], form["Table"], int(form["TableVersion"]))
    if own_names != (table.database, table.table, at.version):
        words = f"it says {form['Schema']!r}, {form['Table']!r}, version {form['TableVersion']}"
        findings.add(Rule.SCHEMA_PLACE, at.path, words)
    columns = form["TableColumns"] or []
    if int(form["TableColumnsTotal"]) != len(columns):
        words = f"TableColumnsTotal is {form['TableColumnsTotal']}, columns are {len(columns)}"
        findings.add(Rule.SCHEMA_TOTAL, at.path, words)
    elif (checksum := _checksum(form, columns)) != at.checksum:
        findings.add(Rule.SCHEMA_CHECKSUM, at.path, f"the checksum is {checksum:010d}")
    kind = int(form["Type"])
    if kind not in _TYPES or (kind and not form["Query"]):
        findings.add(Rule.SCHEMA_TYPE, at.path, f"Type {kind} with Query {form['Query'][:60]!r}")
    read = [_column(c, at, findings) for c in columns]
    names = [c.name.lower() for c in read if c is not None]
    for name in sorted({n for n in names if names.count(n) > 1}):
        findings.add(Rule.SCHEMA_COLUMN, at.path, f"two columns are called {name!r}")
    if None in read:
        return None
    return TableForm(at.version, tuple(c for c in read if c is not None))


def _read(content: bytes, at: SchemaPath, findings: StorageFindings) -> dict[str, Any] | None:
    try:
        form = json.loads(content, parse_int=_Number, parse_float=_Number)
    except (ValueError, RecursionError):
        findings.add(Rule.SCHEMA_FORM, at.path, "not JSON")
        return None
    if not isinstance(form, dict):
        findings.add(Rule.SCHEMA_FORM, at.path, "not an object")
        return None
    wrong = [k for k, kind in _KEYS.items() if not _is(form.get(k), kind)]
    columns = form.get("TableColumns", 0)
    if columns is not None and not (
        isinstance(columns, list) and all(isinstance(c, dict) for c in columns)
    ):
        wrong.append("TableColumns")
    if not wrong and form["Version"] != "1":
        wrong.append("Version")
    wrong += sorted(form.keys() - _KEYS.keys() - {"TableColumns"})
    if wrong:
        words = f"missing, unknown or of the wrong type: {', '.join(wrong)}"
        findings.add(Rule.SCHEMA_FORM, at.path, words)
        return None
    return form


def _is(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and not isinstance(value, _Number)
    return isinstance(value, _Number) and value.isdigit()


def _column(
    form: Mapping[str, Any], at: SchemaPath, findings: StorageFindings
) -> ColumnForm | None:
    name, words = form.get("ColumnName"), str(form.get("ColumnType", "")).split(" ")
    wrong = [k for k in form if k not in _COLUMN_KEYS]
    texts = ("ColumnPrecision", "ColumnLength", "ColumnScale")
    wrong += [k for k in texts if k in form and not _is_count(form[k])]
    for key in ("ColumnNullable", "ColumnIsPk"):
        if form.get(key, "true") not in ("true", "false"):
            wrong.append(key)
    wrong += _wrong_sizes(form, words[0])
    known = {*INTEGERS, *FLOATS, *DECIMALS, *TIMES, *TEXTS, *BINARIES, *_PLAIN}
    if words[0] not in known or words[1:] not in ([], ["UNSIGNED"]):
        wrong.append("ColumnType")
    elif words[1:] and words[0] not in _UNSIGNED:
        wrong.append("ColumnType")
    if not _is(name, str) or not name:
        wrong.append("ColumnName")
    elements = form.get("ColumnElems", [])
    if not isinstance(elements, list) or not all(_is(e, str) for e in elements):
        wrong.append("ColumnElems")
    if wrong:
        reasons = ", ".join(dict.fromkeys(wrong))
        findings.add(Rule.SCHEMA_COLUMN, at.path, f"column {name!r} ({words[0]}): {reasons}")
        return None
    size = form.get("ColumnPrecision") or form.get("ColumnLength")
    return ColumnForm(
        name=str(name),
        type=words[0],
        unsigned=words[1:] == ["UNSIGNED"],
        size=int(size) if size else None,
        scale=int(form.get("ColumnScale") or 0),
        nullable=form.get("ColumnNullable") != "false",
        in_key=form.get("ColumnIsPk") == "true",
        elements=tuple(elements),
    )


def _wrong_sizes(form: Mapping[str, Any], kind: str) -> list[str]:
    """Return the keys that a type must have and has not, or has and must not have."""
    needed: set[str] = set()
    allowed: set[str] = set()
    if kind in INTEGERS or kind == "BIT":
        needed = {"ColumnPrecision"}
    elif kind in DECIMALS:
        needed = {"ColumnPrecision", "ColumnScale"}
    elif kind in FLOATS:
        needed, allowed = {"ColumnPrecision"}, {"ColumnScale"}
    elif kind in TIMES:
        allowed = {"ColumnScale"}
    elif kind in TEXTS or kind in BINARIES:
        needed, allowed = {"ColumnLength"}, {"ColumnPrecision"}
    else:
        allowed = {"ColumnPrecision", "ColumnLength"}
    there = {k for k in ("ColumnPrecision", "ColumnLength", "ColumnScale") if k in form}
    keys = sorted((needed - there) | (there - needed - allowed))
    if kind in TIMES and _is_count(form.get("ColumnScale", "0")):
        keys += ["ColumnScale"] if int(form.get("ColumnScale", "0")) > 6 else []
    return keys


def _is_count(value: object) -> bool:
    return _is(value, str) and str(value).isdigit()


# --- the checksum --------------------------------------------------------------------------------


def _checksum(form: Mapping[str, Any], columns: list[dict[str, Any]]) -> int:
    """CRC-32 of names and columns as indented JSON; lengths of strings are no part of it."""
    hashed = [{k: v for k, v in c.items() if k != "ColumnLength"} for c in columns]
    hashed.sort(key=lambda c: str(c.get("ColumnName", "")).encode())
    whole = {
        "Table": form["Table"],
        "Schema": form["Schema"],
        "Version": _Number("0"),
        "TableColumns": hashed,
        "TableColumnsTotal": _Number(len(hashed)),
    }
    return zlib.crc32(_text(whole, "\n").encode())


def _text(value: Any, line: str) -> str:
    inner = line + "    "
    if isinstance(value, dict) and value:
        parts = [f"{_text(k, inner)}: {_text(v, inner)}" for k, v in value.items()]
        return "{" + inner + ("," + inner).join(parts) + line + "}"
    if isinstance(value, list) and value:
        parts = [_text(v, inner) for v in value]
        return "[" + inner + ("," + inner).join(parts) + line + "]"
    if isinstance(value, _Number):
        return str(value)
    text = json.dumps(value, ensure_ascii=False)
    for raw, escaped in _HTML + _LINES:
        text = text.replace(raw, escaped)
    return text
