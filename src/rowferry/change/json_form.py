"""The JSON forms of dataclasses, made from their type hints: what is stored and sent to tasks.

A class that inherits `JsonForm` (or `ListForm`, for what there are many of) has `to_json` and
`from_json`. Both are compiled when they are first needed, into the code that one would write by
hand. Reading refuses keys that are not known and keys that are missing; only then is the form
looked at piece by piece, to name the place. What was stored once stays readable: a field that is
added later stands in `late`, or is not stored while it has its default (`brief`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    NoReturn,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Way: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # how to write, how to read
HEX: Final[Way] = (bytes.hex, bytes.fromhex)  # bytes are stored as base64 unless this is given
_FAULTS: Final = (KeyError, IndexError, TypeError, ValueError, AttributeError)


class BadForm(ValueError):
    """A JSON form is not what was written; the text begins with the place in it."""


@dataclass(frozen=True, slots=True)
class FormRules:
    """Where a class's form is not simply its fields, in their order, under their names.

    Attributes:
        order: the first fields of the form, where that is not the order of their declaration.
        brief: fields are not stored while they have their default.
        kept: those that are stored all the same.
        late: fields that forms from before they were there lack: they are read as their default.
        unstored: fields that are no part of the form.
        keys: stored names, by field.
        spread: fields of named tuples whose parts stand in the form itself.
        ways: of fields whose types do not say how they are stored.
    """

    order: tuple[str, ...] = ()
    brief: bool = False
    kept: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    unstored: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[str, ...] = ()
    ways: Mapping[str, Way] = field(default_factory=dict)


class JsonForm:
    """A dataclass with a JSON form: an object."""

    __slots__ = ()
    FORM: ClassVar[FormRules] = FormRules()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        form: dict[str, Any] = _way_of(self)[0](self)
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; raises BadForm with the place that is wrong."""
        value: Self = _read(cls, form)
        return value


class ListForm:
    """A dataclass whose JSON form is the list of its fields' values."""

    __slots__ = ()
    FORM: ClassVar[FormRules] = FormRules()

    def to_json(self) -> list[Any]:
        """Return the JSON form; `from_json` reads it back."""
        form: list[Any] = _way_of(self)[0](self)
        return form

    @classmethod
    def from_json(cls, form: list[Any]) -> Self:
        """Read what `to_json` wrote; raises BadForm with the place that is wrong."""
        value: Self = _read(cls, form)
        return value


@dataclass(frozen=True, slots=True)
class _Part:
    """One field as it is stored: under one key, or under several where it is spread."""

    name: str
    hint: Any
    keys: tuple[str, ...]
    default: Any
    brief: bool
    late: bool
    way: Way | None


@cache
def _parts(cls: Any) -> tuple[_Part, ...]:
    rules: FormRules = cls.FORM
    hints = get_type_hints(cls)
    parts: list[_Part] = []
    defaults = {f.name: f.default for f in fields(cls) if f.name not in rules.unstored}
    for name in dict.fromkeys((*rules.order, *defaults)):
        keys = hints[name]._fields if name in rules.spread else (rules.keys.get(name, name),)
        brief = rules.brief and defaults[name] is not MISSING and name not in rules.kept
        late, way = brief or name in rules.late, rules.ways.get(name)
        parts.append(_Part(name, hints[name], keys, defaults[name], brief, late, way))
    return tuple(parts)


def _way_of(one: Any) -> Way:
    cls: Any = type(one)
    return _class_way(cls)


@cache
def _class_way(cls: Any) -> Way:
    """Compile how a class is written and read."""
    code = _Code(cls)
    text = "\n".join((*code.writing(), *code.reading()))
    exec(compile(text, f"<the form of {cls.__name__}>", "exec"), code.names)
    return code.names["write"], code.names["read"]


class _Code:
    """The source of the two functions of a class, and the objects that it names."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.names: dict[str, Any] = {"cls": cls, "refuse": _refuse}

    def name(self, what: Any) -> str:
        self.names[f"_{len(self.names)}"] = what
        return f"_{len(self.names) - 1}"

    def writing(self) -> Iterator[str]:
        always: list[tuple[str, str]] = []
        briefly: list[str] = []
        for part in _parts(self.cls):
            value = f"self.{part.name}"
            if len(part.keys) > 1:
                always += [(key, f"{value}.{key}") for key in part.keys]
                continue
            key, written = part.keys[0], self.value(part.hint, part.way, value, 0)
            if part.brief:
                differs = "is not" if part.default is None else "!="
                briefly.append(f" if {value} {differs} {self.name(part.default)}:")
                briefly.append(f"  form[{key!r}] = {written}")
            else:
                always.append((key, written))
        listed = f"[{', '.join(written for _, written in always)}]"
        keyed = f"{{{', '.join(f'{key!r}: {written}' for key, written in always)}}}"
        yield "def write(self):"
        yield f" form = {listed if issubclass(self.cls, ListForm) else keyed}"
        yield from (*briefly, " return form")

    def reading(self) -> Iterator[str]:
        keys = [key for part in _parts(self.cls) for key in part.keys]
        yield "def read(form):"
        if issubclass(self.cls, ListForm):
            yield f" if form.__class__ is not list or len(form) != {len(keys)}: refuse()"
            places = {key: f"form[{place}]" for place, key in enumerate(keys)}
        else:
            yield f" if not form.keys() <= {self.name(frozenset(keys))}: refuse()"
            places = {key: f"form[{key!r}]" for key in keys}
        yield " return cls("
        for part in _parts(self.cls):
            own = [places[key] for key in part.keys]
            if len(own) > 1:
                read = f"{self.name(part.hint)}({', '.join(own)})"
            else:
                read = self.value(part.hint, part.way, own[0], 1)
            default = f" if {part.keys[0]!r} in form else {self.name(part.default)}"
            yield f"  {part.name}={read}{default if part.late else ''},"
        yield " )"

    def value(self, hint: Any, way: Way | None, value: str, reading: int) -> str:
        """Return the expression that writes a value (0), or reads it (1)."""
        kind, inner = ("", None) if way else _kind(hint)
        if kind == "optional":
            inner_code = self.value(inner, None, value, reading)
            return (
                inner_code
                if inner_code == value
                else f"(None if {value} is None else {inner_code})"
            )
        if kind == "tuple":
            inner_code, whole = self.value(inner, None, "one", reading), value
            if reading:
                whole = f"({value} if {value}.__class__ is list else refuse())"
            many = whole if inner_code == "one" else f"[{inner_code} for one in {whole}]"
            return f"tuple({many})" if reading else f"list({many})" if many == whole else many
        way = way or (_class_way(hint) if kind == "class" else _leaf_way(kind, hint))
        return f"{self.name(way[reading])}({value})" if way else value


def _refuse() -> NoReturn:
    raise TypeError("not the form")


def _kind(hint: Any) -> tuple[str, Any]:
    """Return what a type is to its form, and the type inside it; refuses what has no form."""
    origin, inner = get_origin(hint), [one for one in get_args(hint) if one is not NoneType]
    if origin in (Union, UnionType) and len(inner) == 1:
        return "optional", inner[0]
    if origin is tuple and inner[1:] == [...]:
        return "tuple", inner[0]
    if origin in (dict, Mapping) or hint in (int, float, str, bool, Any):
        return "mapping" if origin is Mapping else "plain", None
    kinds: dict[str, Any] = {"class": JsonForm | ListForm, "enum": Enum, "bytes": bytes}
    for kind, base in kinds.items():
        if isinstance(hint, type) and issubclass(hint, base):
            return kind, None
    if hasattr(hint, "_make"):
        return "named", None
    raise TypeError(f"{hint} has no JSON form")


def _leaf_way(kind: str, hint: Any) -> Way | None:
    if kind == "named":
        return list, hint._make
    if kind == "enum":
        return attrgetter("_value_"), {one.value: one for one in hint}.__getitem__
    if kind == "bytes":
        return lambda value: b64encode(value).decode(), b64decode
    return (dict, dict) if kind == "mapping" else None


def _read(cls: Any, form: Any) -> Any:
    try:
        return _class_way(cls)[1](form)
    except _FAULTS:
        _explain(cls, form, "", None)
        raise


def _explain(hint: Any, form: Any, place: str, way: Way | None) -> None:
    """Raise BadForm for the first place where a form is not one of this type."""
    kind, inner = ("", None) if way else _kind(hint)
    if kind == "class":
        _explain_class(hint, form, f"{place}." if place else "")
    elif kind == "optional" and form is not None:
        _explain(inner, form, place, None)
    elif kind == "tuple" and isinstance(form, list):
        for number, one in enumerate(form):
            _explain(inner, one, f"{place}[{number}]", None)
    elif kind == "tuple":
        raise BadForm(f"{place}: a list is expected")
    elif way := way or _leaf_way(kind, hint):
        try:
            way[1](form)
        except _FAULTS as err:
            raise BadForm(f"{place}: {err!r}") from None


def _explain_class(cls: Any, form: Any, place: str) -> None:
    parts = _parts(cls)
    keys = [key for part in parts for key in part.keys]
    if issubclass(cls, ListForm) and isinstance(form, list):
        if len(form) != len(keys):
            raise BadForm(f"{place}{cls.__name__} has {len(keys)} values, not {len(form)}")
        form = dict(zip(keys, form, strict=True))
    if not isinstance(form, Mapping):
        raise BadForm(f"{place}{cls.__name__} has another form")
    for key in form:
        if key not in keys:
            raise BadForm(f"{place}{key}: {cls.__name__} has no such field")
    for part in parts:
        for key in part.keys:
            if key in form and len(part.keys) == 1:
                _explain(part.hint, form[key], place + key, part.way)
            elif key not in form and not part.late:
                raise BadForm(f"{place}{key}: this field of {cls.__name__} is missing")
