"""Where the secrets of a changefeed stand, for those who put something else there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from rowferry.errors import BadInput
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Option, OptionTable
from rowferry.spec.uri import FOREIGN, Uri, is_secret_parameter

# Takes a secret and the text in which it stands: `source`, `sink`, or the option's whole key.
Change: TypeAlias = Callable[[str, str], str]
_HEADER: Final = re.compile(r"([^:]*:\s*)(.*\S)(\s*)", re.DOTALL)
_WITH_LOGIN: Final = ("url", "storage")  # options whose text is an address with its login in it


def with_secrets(
    spec: ChangefeedSpec,
    tables: Iterable[OptionTable],
    change: Change,
    as_written: bool = False,
) -> ChangefeedSpec:
    """Return a changefeed in which `change` has decided about every secret that is not empty.

    Secret are passwords of URIs, what an option table declares so, and what is declared nowhere and
    has a name like a secret's. An address keeps its form: only the login in it is a secret.

    Args:
        spec: the changefeed.
        tables: the option tables of its stages.
        change: returns what stands there instead.
        as_written: an address that could not be written again exactly as it is, is a secret as a
            whole if there is one in it.
    """
    tables = tuple(tables)
    in_uris = {o.key: o for table in tables for o in table.options if o.uri}
    in_files = {table.path(o.key): o for table in tables for o in table.options}
    return replace(
        spec,
        source=_uri(spec.source, in_uris, lambda one: change(one, "source"), as_written),
        sink=_uri(spec.sink, in_uris, lambda one: change(one, "sink"), as_written),
        config=_section(spec.config, "", in_files, change, as_written),
    )


def uri_with_secrets(uri: Uri, tables: Iterable[OptionTable], change: Callable[[str], str]) -> Uri:
    """Return a URI in which `change` has decided about every secret, as `with_secrets` does."""
    declared = {o.key: o for table in tables for o in table.options if o.uri}
    return _uri(uri, declared, change, as_written=False)


def _uri(
    uri: Uri,
    declared: Mapping[str, Option[Any]],
    change: Callable[[str], str],
    as_written: bool,
    inner: bool = False,
) -> Uri:
    def changed(key: str, value: str) -> str:
        option = declared.get(key)
        secret = option.secret if option else uri.scheme in FOREIGN
        if (secret or is_secret_parameter(key)) and not _is_address(option):
            return change(value) if value else value
        return _inside(value, change, as_written, inner)

    return replace(
        uri,
        password=change(uri.password) if uri.password else "",
        parameters=tuple((key, changed(key, value)) for key, value in uri.parameters),
    )


def _section(
    content: Mapping[str, Any],
    section: str,
    declared: Mapping[str, Option[Any]],
    change: Change,
    as_written: bool,
) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{section}.{key}" if section else str(key)
        if isinstance(value, Mapping):
            changed[key] = _section(value, path, declared, change, as_written)
        elif isinstance(value, list | tuple):
            changed[key] = [
                _section(one, path, declared, change, as_written)
                if isinstance(one, Mapping)
                else _value(one, path, str(key), declared, change, as_written, listed=True)
                for one in value
            ]
        else:
            changed[key] = _value(value, path, str(key), declared, change, as_written)
    return changed


def _value(
    value: Any,
    path: str,
    key: str,
    declared: Mapping[str, Option[Any]],
    change: Change,
    as_written: bool,
    listed: bool = False,
) -> Any:
    if not isinstance(value, str) or not value:
        return value
    option = declared.get(path)
    secret = option.secret if option else is_secret_parameter(key)
    if not secret or _is_address(option):
        return _inside(value, lambda secret: change(secret, path), as_written)
    header = _HEADER.fullmatch(value) if listed else None
    if header:  # its name is no secret
        return header[1] + change(header[2], path) + header[3]
    return change(value, path)


def _is_address(option: Option[Any] | None) -> bool:
    return option is not None and option.names in _WITH_LOGIN


def _inside(value: str, change: Callable[[str], str], as_written: bool, inner: bool = False) -> str:
    """Return a text in which the secrets of the URI that it may be were changed.

    `inner`: it stands inside of such a URI itself.
    """
    if "://" not in value:
        return value
    secrets: list[str] = []

    def note(secret: str) -> str:
        secrets.append(secret)
        return secret

    try:
        uri = Uri.parse(value, "")
        _uri(uri, {}, note, as_written, inner=True)
    except BadInput:
        return change(value)  # what it is cannot be told
    if not secrets:
        return value
    if as_written and (inner or uri.reveal() != value):
        return change(value)  # it could not be put together again as it was
    changed = _uri(uri, {}, change, as_written, inner=True)
    return value if changed == uri else changed.reveal()
