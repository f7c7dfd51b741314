"""`[transform]`: columns whose values are masked, and columns that are computed.

This module reads the shape of the rules; what they mean for a table is the business of whoever
decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rowferry.errors import BadTransform
from rowferry.spec.option import OptionShape, Section, one_of, option, text
from rowferry.spec.rules.matched import matched_rules

NULL, CONSTANT, HASH, TRUNCATE = "null", "constant", "hash", "truncate"
KEEP_LAST, REGEX, EXPRESSION = "keep-last", "regex", "expression"
ACTIONS: Final = (NULL, CONSTANT, HASH, TRUNCATE, KEEP_LAST, REGEX, EXPRESSION)
# What an action needs besides, and what it may have.
NEEDED: Final = {
    NULL: (),
    CONSTANT: ("value",),
    HASH: (),
    TRUNCATE: ("length",),
    KEEP_LAST: ("length",),
    REGEX: ("pattern",),
    EXPRESSION: ("expression",),
}
ALLOWED: Final = {**NEEDED, REGEX: ("pattern", "replacement"), EXPRESSION: ("expression", "type")}
_LEAST_SALT: Final = 16


@dataclass(frozen=True, slots=True)
class MaskRule:
    """One mask; a text that was not given is empty.

    Attributes:
        place: its place in the list, from 0.
        matcher: which tables it is for, in the table filter's syntax.
        columns: which of their columns, in the column selectors' syntax.
        action: what becomes of their values, one of `ACTIONS`.
        value: of a constant.
        length: how many characters or bytes stay.
        pattern, replacement: of a regular expression.
        expression: in the language of event filters.
        type: of the expression's result; empty: the column's own.
    """

    place: int
    matcher: tuple[str, ...]
    columns: tuple[str, ...] = ()
    action: str = ""
    value: str | None = None
    length: int | None = None
    pattern: str = ""
    replacement: str = ""
    expression: str = ""
    type: str = ""

    def path(self, key: str = "") -> str:
        """Return the rule, or a key of it, as errors name it."""
        return f"transform.masks[{self.place}]" + (f".{key}" if key else "")


@dataclass(frozen=True, slots=True)
class ComputedRule:
    """One column that the source does not have: its value comes from the row's other columns."""

    place: int
    matcher: tuple[str, ...]
    column: str = ""
    type: str = ""
    expression: str = ""

    def path(self, key: str = "") -> str:
        """Return the rule, or a key of it, as errors name it."""
        return f"transform.computed[{self.place}]" + (f".{key}" if key else "")


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected text or a number")
    return str(value)


def _length(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError("expected a whole number from 0 to 2^31 - 1")
    return value


_MASKS: Final = matched_rules(
    "transform.masks",
    MaskRule,
    BadTransform,
    action=one_of(*ACTIONS),
    value=OptionShape("text or a number", _value),
    length=OptionShape("a whole number", _length),
)
_COMPUTED: Final = matched_rules("transform.computed", ComputedRule, BadTransform)


def _masks(value: Any) -> tuple[MaskRule, ...]:
    rules = _MASKS.parse(value)
    for rule in rules:
        if not rule.action:
            raise BadTransform(f"{rule.path()} has no action; known: {', '.join(ACTIONS)}")
        if not rule.columns:
            raise BadTransform(f"{rule.path()} is for no column: give it columns, as ['email']")
        given = {
            key: getattr(rule, key)
            for key in ("value", "length", "pattern", "replacement", "expression", "type")
        }
        for key in NEEDED[rule.action]:
            if given[key] in (None, ""):
                if key == "value" and given[key] == "":
                    continue  # an empty text is a constant, too
                raise BadTransform(f"{rule.path()}: action = {rule.action} needs a {key}")
        for key, content in given.items():
            if content not in (None, "") and key not in ALLOWED[rule.action]:
                raise BadTransform(
                    f"{rule.path(key)} has no meaning with action = {rule.action}; remove it"
                )
    return rules


def _computed(value: Any) -> tuple[ComputedRule, ...]:
    rules = _COMPUTED.parse(value)
    for rule in rules:
        for key in ("column", "type", "expression"):
            if not getattr(rule, key):
                raise BadTransform(f"{rule.path()} needs a {key}")
    return rules


def _salt(value: Any) -> str:
    salt = text().parse(value)
    if 0 < len(salt.encode()) < _LEAST_SALT and ":" not in salt:
        raise ValueError(f"it has less than {_LEAST_SALT} bytes, so that hashes could be guessed")
    return salt


class TransformOptions(Section, section="transform"):
    """What becomes of values on their way."""

    salt = option(
        OptionShape(f"a secret of at least {_LEAST_SALT} bytes, or a reference to one", _salt),
        "",
        "The secret with which `hash` makes its digits (HMAC-SHA-256). Who knows it can find out "
        "which value has which hash by trying; who loses it cannot go on with the same hashes.",
        secret=True,
    )
    salt_check = option(
        text(),
        "",
        "By what a changed salt is noticed. It is filled in when the changefeed is created.",
    )
    masks = option(
        OptionShape(_MASKS.words, _masks),
        (),
        "Columns whose values do not leave as they are: the first rule that fits a column counts. "
        "`columns` are patterns as in column selectors. `action` is `null`, `constant` (with "
        "`value`), `hash`, `truncate` or `keep-last` (with `length`), `regex` (with `pattern` and "
        "`replacement`) or `expression` (with `expression` and, if need be, `type`).",
        alterable=False,
    )
    computed = option(
        OptionShape(_COMPUTED.words, _computed),
        (),
        "Columns that the source does not have: `column` is the name, `type` its SQL type, "
        "`expression` says what is in it, in the language of event filters.",
        alterable=False,
    )
