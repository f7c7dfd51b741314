"""Options: each declared once, with its key, type, default and meaning.

An `OptionTable` is one section of the configuration file (`sink.csv`, `filter`, or "" for the top
level). Reading refuses unknown keys and wrong types with one line that names the key and what is allowed.
Flags, URI parameters, the reference page and redaction are all derived from these tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from rowferry.errors import BadOption, UnknownOption

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """How a raw value (from a file or URI text) becomes a T, and the words for what is allowed.

    `parse` raises ValueError with words that complete "option k: ...".
    """

    words: str
    parse: Callable[[Any], T]


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option.

    Attributes:
        uri: it may also be given as a URI parameter (which wins over the file).
        secret: its value is never printed.
        alterable: a stored changefeed may change it.
    """

    key: str
    shape: Shape[T]
    default: T
    doc: str
    uri: bool = False
    secret: bool = False
    alterable: bool = True


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of one section of the configuration."""

    section: str
    options: tuple[Option[Any], ...]

    def names(self) -> list[str]:
        """Return the keys, sorted."""
        return sorted(o.key for o in self.options)

    def path(self, key: str) -> str:
        """Return the key as a user would write it, with its section."""
        return f"{self.section}.{key}" if self.section else key


class Options:
    """Values of one table; `options[DELIMITER]` has the option's type."""

    def __init__(self, table: OptionTable, values: Mapping[str, Any]) -> None:
        self.table = table
        self._values = dict(values)

    def __getitem__(self, option: Option[T]) -> T:
        return cast(T, self._values[option.key])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._values == other._values

    def __repr__(self) -> str:
        secret = {o.key for o in self.table.options if o.secret}
        shown = {k: "***" if k in secret else v for k, v in self._values.items()}
        return f"Options({self.table.section!r}, {shown})"


def read_options(table: OptionTable, raw: Mapping[str, Any]) -> Options:
    """Check `raw` against the table and fill in defaults.

    Raises:
        UnknownOption: a key that the table does not have; lists the known ones.
        BadOption: a value of the wrong type or outside what is allowed.
    """
    known = {o.key: o for o in table.options}
    for key in raw:
        if key not in known:
            raise UnknownOption(unknown_words(table.path(str(key)), known))
    values: dict[str, Any] = {}
    for option in table.options:
        if option.key not in raw:
            values[option.key] = option.default
            continue
        values[option.key] = parse_value(option, raw[option.key], table.path(option.key))
    return Options(table, values)


def parse_value(option: Option[T], value: Any, path: str) -> T:
    """Return the typed value, or raise BadOption naming `path` and what is allowed."""
    shown = "***" if option.secret else repr(value)
    try:
        return option.shape.parse(value)
    except (ValueError, TypeError) as err:
        why = str(err) or f"expected {option.shape.words}"
        raise BadOption(f"{path} = {shown}: {why}; allowed: {option.shape.words}") from None


def unknown_words(path: str, known: Iterable[str]) -> str:
    """Return the text for an unknown key: the nearest known one, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(path.rsplit(".", 1)[-1], names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown option {path!r}{hint}; known here: {', '.join(names)}"


# --- shapes --------------------------------------------------------------------------------------


def text() -> Shape[str]:
    """Any text."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {type(value).__name__}")
        return value

    return Shape("text", parse)


def flag() -> Shape[bool]:
    """True or false; in a URI also the words `true` and `false`."""

    def parse(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ValueError(f"expected true or false, got {type(value).__name__}")

    return Shape("true or false", parse)


def whole(least: int | None = None, most: int | None = None) -> Shape[int]:
    """A whole number, also as decimal text (URI), within bounds."""
    bounds = f"{least if least is not None else '…'} to {most if most is not None else '…'}"
    words = "a whole number" + (f" from {bounds}" if least is not None or most is not None else "")

    def parse(value: Any) -> int:
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected a whole number, got {type(value).__name__}")
        if (least is not None and value < least) or (most is not None and value > most):
            raise ValueError("out of range")
        return value

    return Shape(words, parse)


def one_of(*allowed: str) -> Shape[str]:
    """One of these words, in any case."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {type(value).__name__}")
        if value.lower() not in allowed:
            raise ValueError("not one of the allowed words")
        return value.lower()

    return Shape(" | ".join(allowed), parse)


def texts() -> Shape[tuple[str, ...]]:
    """A list of texts."""

    def parse(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"expected a list of texts, got {type(value).__name__}")
        return tuple(value)

    return Shape("a list of texts", parse)
