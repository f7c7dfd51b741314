"""Options: each declared once, with its key, type, default and meaning.

An `OptionTable` is one section of the configuration file (`sink.csv`, `filter`, or "" for the top
level). Reading refuses unknown keys and wrong types with one line that names the key and what is
allowed. A `Section` declares a table as a class: each option is an attribute, and so is its value.
Flags, URI parameters, the reference page and redaction are all derived from these tables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar, cast, overload

from rowferry.errors import BadOption, UnknownOption
from rowferry.spec.uri import WEB_FORM, is_web_address

T = TypeVar("T")
# What an option's text names outside of the changefeed: a file or an environment variable of the
# machine that runs it, a profile of AWS's own files there, an address that is talked to, a storage.
NamedKind: TypeAlias = Literal["", "path", "env", "profile", "url", "storage"]
ShapeKind: TypeAlias = Literal["text", "flag", "number", "choice", "texts", "other", "none"]


@dataclass(frozen=True, slots=True)
class OptionShape(Generic[T]):
    """How a raw value (from a file or URI text) becomes a T, and the words for what is allowed.

    `parse` raises ValueError with words that complete "option k: ...". `written` reads the value as
    the user wrote it, where `parse` moves it to the nearest bound (clamps): a difference is told.
    `kind` is what a form offers for it (`none`: there is nothing to choose), `choices` the words
    that it takes.
    """

    words: str
    parse: Callable[[Any], T]
    written: Callable[[Any], T] | None = None
    kind: ShapeKind = "other"
    choices: tuple[str, ...] = ()

    def clamps(self, value: Any) -> bool:
        """Return whether a value that `parse` takes is moved to the nearest bound."""
        return self.written is not None and self.written(value) != self.parse(value)


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option.

    Attributes:
        uri: it may also be given as a URI parameter (which wins over the file).
        secret: its value is never printed.
        alterable: a stored changefeed may change it.
        no_effect: why it changes nothing (it is read for compatibility); whoever sets it is told.
        names: what its text names outside of the changefeed; a server allows only some of that.
    """

    key: str
    shape: OptionShape[T]
    default: T
    doc: str
    uri: bool = False
    secret: bool = False
    alterable: bool = True
    no_effect: str = ""
    names: NamedKind = ""

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.key:
            object.__setattr__(self, "key", name.replace("_", "-"))

    @overload
    def __get__(self, values: None, owner: type) -> Self: ...
    @overload
    def __get__(self, values: Options, owner: type) -> T: ...
    def __get__(self, values: Options | None, owner: type) -> Self | T:
        return self if values is None else values[self]


def option(
    shape: OptionShape[T],
    default: T,
    doc: str,
    *,
    key: str = "",
    uri: bool = False,
    secret: bool = False,
    alterable: bool = True,
    no_effect: str = "",
    names: NamedKind = "",
) -> Option[T]:
    """Declare an option of a `Section`; its key is the attribute's name unless given."""
    return Option(key, shape, default, doc, uri, secret, alterable, no_effect, names)


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of one section of the configuration.

    Attributes:
        web_port: whoever has these options talks HTTP to the hosts of the sink URI, by this port
            where a host names none; a server allows only some hosts. 0: it does not.
    """

    section: str
    options: tuple[Option[Any], ...]
    web_port: int = 0

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


class Section(Options):
    """A table whose options are attributes: of the class the option, of an instance its value.

    class HttpOptions(Section, section="sink.http-config"):
        timeout = option(duration(), timedelta(seconds=10), "How long to wait.", uri=True)

    HttpOptions.timeout.key  # "timeout"
    spec.options(HttpOptions).timeout  # a timedelta
    """

    TABLE: ClassVar[OptionTable]

    def __init_subclass__(cls, section: str, web_port: int = 0) -> None:
        parts = [vars(part) for part in reversed(cls.__mro__)]
        declared = {n: o for part in parts for n, o in part.items() if isinstance(o, Option)}
        cls.TABLE = OptionTable(section, tuple(declared.values()), web_port)

    @classmethod
    def path(cls, option: Option[Any]) -> str:
        """Return an option's key as a user would write it, with its section."""
        return cls.TABLE.path(option.key)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """Check values and fill in defaults, as `read_options` does."""
        return cls(cls.TABLE, read_values(cls.TABLE, raw))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Its values alone: what parses them is code, which every process has.
        return _section_of, (type(self), self._values)


def _section_of(kind: type[Section], values: Mapping[str, Any]) -> Section:
    return kind(kind.TABLE, values)


def read_options(table: OptionTable, raw: Mapping[str, Any]) -> Options:
    """Check `raw` against the table and fill in defaults.

    Raises:
        UnknownOption: a key that the table does not have; lists the known ones.
        BadOption: a value of the wrong type or outside what is allowed.
    """
    return Options(table, read_values(table, raw))


def read_values(table: OptionTable, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each key of the table, as `read_options` has them."""
    known = {o.key: o for o in table.options}
    for key in raw:
        if key not in known:
            raise UnknownOption(unknown_words(table.path(str(key)), known))
    return {
        key: parse_value(o, raw[key], table.path(key)) if key in raw else o.default
        for key, o in known.items()
    }


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


def shown(value: Any) -> str:
    """Return a value as a user would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return go_text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(f'"{v}"' for v in value) + "]"
    return str(value).replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def _kind(value: Any) -> str:
    """Return what a raw value is, in a user's words."""
    names = {bool: "true/false", int: "a whole number", float: "a number", str: "text"}
    names |= {list: "a list", tuple: "a list", dict: "a section"}
    return names.get(type(value), type(value).__name__)


# --- shapes --------------------------------------------------------------------------------------


def text() -> OptionShape[str]:
    """Any text."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {_kind(value)}")
        return value

    return OptionShape("text", parse, kind="text")


def matching(pattern: str, words: str) -> OptionShape[str]:
    """A text that fits a pattern as a whole, or none: for what reaches programs below us."""
    whole_text = re.compile(pattern, re.ASCII)

    def parse(value: Any) -> str:
        value_text = text().parse(value)
        if value_text and not whole_text.fullmatch(value_text):
            raise ValueError("has characters that it may not have")
        return value_text

    return OptionShape(words, parse, kind="text")


def web_address() -> OptionShape[str]:
    """The address of a web service, or none."""

    def parse(value: Any) -> str:
        address = text().parse(value)
        if address and not is_web_address(address):
            raise ValueError("no address of a web service")
        return address

    return OptionShape(f"the whole address, {WEB_FORM}", parse, kind="text")


def expression() -> OptionShape[str]:
    """A partition expression; the number of a partition is given as its text."""
    words = "an expression or the number of a partition"

    def parse(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"expected {words}, got {_kind(value)}")
        return str(value)

    return OptionShape(words, parse, kind="text")


_YES, _NO = ("true", "t", "1"), ("false", "f", "0")


def flag() -> OptionShape[bool]:
    """True or false; in a URI also the words `true` and `false`, or `1` and `0`."""

    def parse(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in (*_YES, *_NO):
            return value.lower() in _YES
        raise ValueError(f"expected true or false, got {_kind(value)}")

    return OptionShape("true or false", parse, kind="flag")


def whole(
    least: int | None = None, most: int | None = None, clamp: bool = False
) -> OptionShape[int]:
    """A whole number, also as decimal text (URI).

    A value outside the bounds is refused or, with `clamp`, moved to the nearest bound.
    """

    def written(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected a whole number, got {_kind(value)}")
        return value

    return _bounded("a whole number", written, least, most, clamp, str, "number")


_SIZE = re.compile(r"(-?[0-9]+)\s*([KMGT]i?B?|B)?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def size(
    least: int | None = None, most: int | None = None, clamp: bool = False
) -> OptionShape[int]:
    """A number of bytes, also with a unit (`64MiB`, `64M`: powers of 1024)."""

    def written(value: Any) -> int:
        if isinstance(value, str):
            match = _SIZE.fullmatch(value.strip())
            if not match:
                raise ValueError("not a number of bytes")
            letter = (match[2] or "").upper().rstrip("B").rstrip("I")
            return int(match[1]) << (10 * _POWER[letter])
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected a number of bytes, got {_kind(value)}")
        return value

    return _bounded("bytes as 67108864 or 64MiB", written, least, most, clamp, str)


_NANOS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> timedelta:
    """Read a duration as Go writes it: `5s`, `100ms`, `1h30m`, `-1.5h`.

    Anything finer than a microsecond is cut off. Raises ValueError with what is wrong.
    """
    rest = text.strip()
    sign = -1 if rest.startswith("-") else 1
    rest = rest[1:] if rest[:1] in ("+", "-") else rest
    if rest == "0":
        return timedelta(0)
    if re.fullmatch(r"[0-9.]+", rest):
        raise ValueError(f"a duration needs its unit: {rest}s, {rest}ms or {rest}m?")
    total, here = Fraction(0), 0
    while match := _DURATION_PART.match(rest, here):
        total += Fraction(match[1].rstrip(".")) * _NANOS[match[2]]
        here = match.end()
    if here != len(rest) or not rest:
        raise ValueError("not a duration")
    try:
        return timedelta(microseconds=sign * int(total / 1000))
    except OverflowError:
        raise ValueError("too long a duration") from None


def duration(
    least: timedelta | None = None, most: timedelta | None = None, clamp: bool = False
) -> OptionShape[timedelta]:
    """A duration with its unit: `5s`, `100ms`, `1h30m`.

    Plain numbers are refused, as they would be seconds to some and nanoseconds to others.
    """

    def written(value: Any) -> timedelta:
        if not isinstance(value, str):
            raise ValueError(f"expected a duration with its unit, got {_kind(value)}")
        return parse_duration(value)

    return _bounded("a duration such as 5s, 100ms or 1h30m", written, least, most, clamp, go_text)


def go_text(value: timedelta) -> str:
    """Return a duration as text with units; `parse_duration` reads it back."""
    micros = abs(value) // timedelta(microseconds=1)
    parts = []
    for unit, length in (("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)):
        count, micros = divmod(micros, length)
        if count:
            parts.append(f"{count}{unit}")
    if micros:
        parts.append(f"{micros}us")
    return ("-" if value < timedelta(0) else "") + ("".join(parts) or "0s")


def _bounded(
    what: str,
    written: Callable[[Any], Any],
    least: Any,
    most: Any,
    clamp: bool,
    show: Callable[[Any], str],
    kind: ShapeKind = "text",
) -> OptionShape[Any]:
    """Return the shape of an ordered value with optional bounds."""

    def parse(value: Any) -> Any:
        number = written(value)
        low = least is not None and number < least
        high = most is not None and number > most
        if (low or high) and not clamp:
            raise ValueError("out of range")
        return least if low else most if high else number

    words = what
    if least is not None or most is not None:
        words += f" from {'…' if least is None else show(least)}"
        words += f" to {'…' if most is None else show(most)}"
    return OptionShape(words, parse, written if clamp else None, kind)


def one_of(*allowed: str) -> OptionShape[str]:
    """One of these words, in any case."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {_kind(value)}")
        if value.lower() not in allowed:
            raise ValueError("not one of the allowed words")
        return value.lower()

    return OptionShape(" | ".join(allowed), parse, kind="choice", choices=allowed)


def texts() -> OptionShape[tuple[str, ...]]:
    """A list of texts."""

    def parse(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"expected a list of texts, got {_kind(value)}")
        return tuple(value)

    return OptionShape("a list of texts", parse, kind="texts")
