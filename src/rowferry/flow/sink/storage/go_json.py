"""JSON text as Go's `json.MarshalIndent` writes it: schema files' checksums cover every byte."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

_HTML = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
_PLAIN = re.compile(r"[\w .,:/()-]*", re.ASCII)  # nothing that is escaped


def marshal_indent(value: Any, indent: str = "    ") -> str:
    """Return `value` as indented JSON; mappings keep their order."""
    return _write(value, indent, "\n")


class Raw(str):
    """Text of a value inside a form, as `marshal_inside` gave it."""


def marshal_inside(value: Any, indent: str = "    ") -> Raw:
    """Return `value` as it is written as a value of the outermost mapping."""
    return Raw(_write(value, indent, "\n" + indent))


def _write(value: Any, indent: str, line: str) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, str):
        return _text(value)
    inner = line + indent
    if isinstance(value, dict):
        parts = [f"{_text(str(k))}: {_write(v, indent, inner)}" for k, v in value.items()]
        return "{" + inner + ("," + inner).join(parts) + line + "}" if parts else "{}"
    if isinstance(value, list | tuple):
        parts = [_write(v, indent, inner) for v in value]
        return "[" + inner + ("," + inner).join(parts) + line + "]" if parts else "[]"
    if isinstance(value, float):
        return _float(value)
    return json.dumps(value)


@lru_cache(maxsize=8192)
def _text(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return f'"{value}"'
    text = json.dumps(value, ensure_ascii=False)
    for raw, escaped in _HTML.items():
        text = text.replace(raw, escaped)
    return text


def _float(value: float) -> str:
    """Shortest digits; with an exponent only below 1e-6 and from 1e21."""
    if not math.isfinite(value):
        raise ValueError(f"{value} has no JSON form")
    if value != 0 and not 1e-6 <= abs(value) < 1e21:
        digits, _, exponent = repr(value).partition("e")
        power = int(exponent)
        return f"{digits.removesuffix('.0')}e{'-' if power < 0 else '+'}{abs(power)}"
    plain = format(Decimal(repr(value)), "f")
    return plain.rstrip("0").removesuffix(".") if "." in plain else plain
