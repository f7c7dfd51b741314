"""Lists of rules for tables by name, as users write them: one dataclass declares each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from rowferry.errors import BadInput, UnknownOption
from rowferry.spec.option import OptionShape, text, texts, unknown_words

R = TypeVar("R")


def matched_rules(
    path: str, rule: type[R], error: type[BadInput], **shapes: OptionShape[Any]
) -> OptionShape[tuple[R, ...]]:
    """Return the shape of a list of rules, each of which needs a matcher.

    The keys are the fields of `rule` behind its first, `place`: texts or lists of texts, unless
    `shapes` has another shape for a field.
    """
    hints = get_type_hints(rule)
    make: Any = rule
    keys: dict[str, Callable[[Any], Any]] = {}
    for field in fields(make)[1:]:
        plain = text() if hints[field.name] is str else texts()
        keys[field.name.replace("_", "-")] = shapes.get(field.name, plain).parse

    def read(place: int, written: Mapping[str, Any]) -> R:
        given: dict[str, Any] = {}
        for key, value in written.items():
            full = f"{path}[{place}].{key}"
            if key not in keys:
                raise UnknownOption(unknown_words(full, keys))
            try:
                given[key.replace("-", "_")] = keys[key](value)
            except ValueError as err:
                raise error(f"{full} = {value!r}: {err}") from None
        if not given.get("matcher"):
            raise error(
                f"{path}[{place}] is for no table: give it a matcher, such as matcher = ['db.*']"
            )
        rule: R = make(place, **given)
        return rule

    def parse(value: Any) -> tuple[R, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(r, Mapping) for r in value):
            raise ValueError("expected a list of rules")
        return tuple(read(place, written) for place, written in enumerate(value))

    return OptionShape(f"a list of rules, each with the keys {', '.join(keys)}", parse)


def has_matchers(value: object) -> bool:
    """Return whether an option's value is a list of such rules, and has one."""
    return isinstance(value, tuple) and any(hasattr(rule, "matcher") for rule in value)
