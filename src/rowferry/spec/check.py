"""Is everything that the user wrote known, and of the right type?

Nothing is dropped in silence: a key is read by someone, or has no effect and the user is told, or
is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rowferry.errors import BadOption, UnknownOption
from rowferry.spec.option import Option, OptionTable, parse_value, shown, unknown_words
from rowferry.spec.ticdc_keys import BROUGHT, BROUGHT_PARAMETERS, BroughtKey
from rowferry.spec.uri import Uri, is_secret_parameter


def check_config(
    config: Mapping[str, Any], tables: Iterable[OptionTable], readers: Collection[str] = ()
) -> list[str]:
    """Check a configuration's keys and values; return notices.

    Args:
        config: what the file holds.
        tables: what spec and the chosen stages read.
        readers: the sink's family and the protocol, which decide whether a key that no table
            declares would matter.

    Raises:
        UnknownOption: a key that nobody knows; lists the known ones of its section.
        BadOption: a wrong value, or a key whose feature does not exist yet.
    """
    checker = _Checker(tables, frozenset(readers))
    checker.walk(config, "")
    return checker.notices


def check_parameters(
    uri: Uri,
    what: str,
    tables: Iterable[OptionTable],
    readers: Collection[str] = (),
    forwards: bool = False,
) -> list[str]:
    """Check the parameters of a URI; return notices. Raises as `check_config` does.

    `forwards`: those that no table declares belong to the target.
    """
    tables = tuple(tables)
    options = {o.key: o for table in tables for o in table.options if o.uri}
    brought = {b.key: b for b in BROUGHT_PARAMETERS if what == "sink" and _concerns(b, readers)}
    notices: list[str] = []
    for key, value in uri.parameters:
        path = f"the {what} URI's parameter {key}"
        if key in options:
            notices += _value_notices(options[key], value, path, is_secret_parameter(key))
        elif forwards:
            notices += _forwarded_notices(key, path, tables)
        elif key in brought:
            notices += _brought_notices(brought[key], value, path, readers)
        else:
            words = unknown_words(key, {*options, *brought})
            words = words.replace("unknown option", "unknown parameter", 1)
            known = f"known for {uri.scheme}:"
            raise UnknownOption(f"the {what} URI: {words.replace('known here:', known, 1)}")
    return notices


def _forwarded_notices(key: str, path: str, tables: Iterable[OptionTable]) -> list[str]:
    """Tell where a parameter that goes to the target looks like an option of ours."""
    places = {o.key: table.path(o.key) for table in tables for o in table.options}
    near = difflib.get_close_matches(key, places, n=1, cutoff=0.8)
    if not near:
        return []
    return [f"{path} goes to the receiver as it is; the option {places[near[0]]} is another thing"]


def _same(value: Any, other: Any) -> bool:
    """Compare as a user would: `true` in a URI is true, words count in any case."""
    if isinstance(value, str | bool | int) and isinstance(other, str | bool | int):
        return str(value).lower() == str(other).lower()
    return bool(value == other)


# --- keys of the file ----------------------------------------------------------------------------


@dataclass
class _Checker:
    tables: Iterable[OptionTable]
    readers: frozenset[str]
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.declared: dict[str, dict[str, list[Option[Any]]]] = {}
        for table in self.tables:
            keys = self.declared.setdefault(table.section, {})
            for option in table.options:
                keys.setdefault(option.key, []).append(option)
        self.brought = {b.path: b for b in BROUGHT}
        named = {b.section for b in BROUGHT} | {b.path for b in BROUGHT if b.whole_section}
        self.sections: set[str] = set()
        for name in {*self.declared, *named}:
            parts = name.split(".")
            self.sections |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}

    def walk(self, content: Mapping[str, Any], section: str) -> None:
        for key, value in content.items():
            path = f"{section}.{key}" if section else key
            if not key or "." in key:  # read by nobody, also where it looks like a path
                raise UnknownOption(
                    f"unknown option {path!r}: a key is not empty and has no dot in it; what "
                    "stands behind a dot here is a key inside of that section"
                )
            if options := self.declared.get(section, {}).get(key):
                for option in options:
                    self.notices += _value_notices(option, value, path)
            elif path in self.sections:
                self._enter(value, path)
            elif path in self.brought:
                self.notices += _brought_notices(self.brought[path], value, path, self.readers)
            else:
                raise UnknownOption(unknown_words(path, self._names(section)))

    def _enter(self, value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            names = ", ".join(sorted(self._names(path)))
            raise BadOption(f"{path} must be a section with keys of its own: {names}")
        brought = self.brought.get(path)
        if brought and path not in self.declared and not _concerns(brought, self.readers):
            self.notices += _brought_notices(brought, value, path, self.readers)
        else:
            self.walk(value, path)

    def _names(self, section: str) -> set[str]:
        lead = f"{section}." if section else ""
        below = {p[len(lead) :] for p in {*self.sections, *self.brought} if p.startswith(lead)}
        return {p for p in below if p and "." not in p} | set(self.declared.get(section, {}))


def _value_notices(option: Option[Any], value: Any, path: str, secret: bool = False) -> list[str]:
    """Check one value; tell where it is not taken as written."""
    used = parse_value(replace(option, secret=option.secret or secret), value, path)
    if option.no_effect:
        return [f"{path} has no effect: {option.no_effect}"]
    if option.shape.clamps(value):
        allowed = option.shape.words
        return [f"{path} = {value} is not allowed ({allowed}): {shown(used)} is used"]
    return []


def _concerns(brought: BroughtKey, readers: Collection[str]) -> bool:
    return not brought.readers or not brought.readers.isdisjoint(readers)


def _brought_notices(
    brought: BroughtKey, value: Any, path: str, readers: Collection[str]
) -> list[str]:
    if not _concerns(brought, readers):
        if brought.default is not None and _same(value, brought.default):
            return []
        who = " and ".join(sorted(brought.readers))
        return [f"{path} has no effect: it concerns {who} only"]
    if brought.no_effect:
        if brought.shape:
            parse_value(Option(brought.key, brought.shape, None, ""), value, path)
        return [f"{path} has no effect: {brought.no_effect}"]
    if _same(value, brought.default):
        return []
    raise BadOption(f"{path} is not supported yet; leave it out or set it to {brought.default!r}")
