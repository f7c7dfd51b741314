"""Settings as they may be shown: without passwords, keys and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rowferry.control.operator.operation_forms import ChangedSettings
from rowferry.errors import BadInput, BadUri, SecretsNeeded
from rowferry.flow.assemble import secret_tables
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.secrets import HIDDEN, secrets_of_config, secrets_of_uri
from rowferry.spec.uri import Uri, is_secret_parameter, without_passwords


def redacted_config(spec: ChangefeedSpec) -> dict[str, Any]:
    """Return a changefeed's configuration with every secret value replaced by `***`.

    Secret is what an option table declares so, what is declared nowhere and has a name like a
    secret's, and what stands for a password or a secret parameter inside a URI.
    """
    declared = {table.path(o.key): o.secret for table in _tables(spec) for o in table.options}
    return _shown(spec.config, "", declared)


def _tables(spec: ChangefeedSpec) -> tuple[OptionTable, ...]:
    """Return the option tables of a spec; those of stages that cannot be found are left out."""
    try:
        return secret_tables(spec)
    except BadInput:
        return ()


def _shown(
    content: Mapping[str, Any], section: str, declared: Mapping[str, bool]
) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{section}.{key}" if section else str(key)
        secret = declared.get(path, is_secret_parameter(str(key)))
        shown[key] = HIDDEN if secret and value not in ("", None) else _value(value, path, declared)
    return shown


def _value(value: Any, path: str, declared: Mapping[str, bool]) -> Any:
    if isinstance(value, Mapping):
        return _shown(value, path, declared)
    if isinstance(value, list | tuple):
        return [_value(one, path, declared) for one in value]
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    """Return a text with the secrets of the URI that it may be hidden."""
    if "://" not in value:
        return value
    try:
        return str(Uri.parse(value, "")) if "?" in value else without_passwords(value)
    except BadInput:
        return without_passwords(value)


def restored(config: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in which `***` stands for what is stored under the same key."""
    whole: dict[str, Any] = {}
    for key, value in config.items():
        before = stored.get(key)
        if isinstance(value, Mapping):
            value = restored(value, before if isinstance(before, Mapping) else {})
        elif before is not None and (value == HIDDEN or value == _value(before, "", {})):
            value = before
        whole[key] = value
    return whole


def restored_uri(text: str | None, stored: Uri) -> str:
    """Return a URI's text in which `***` stands for what is stored; None: all that is stored.

    Raises:
        BadUri: it hides a secret and has another scheme, address or user: secrets go only to
            where they were meant for.
    """
    if text is None or text == str(stored):
        return stored.reveal()
    uri = Uri.parse(text, "new")
    before = dict(stored.parameters)
    hidden = [key for key, value in uri.parameters if value == HIDDEN and key in before]
    login = uri.password == HIDDEN
    if (login or hidden) and _login_of(uri) != _login_of(stored):
        raise BadUri(
            f"{uri} has another scheme, address or user: write its secrets out instead of {HIDDEN}"
        )
    for key in hidden:
        uri = uri.with_parameter(key, before[key])
    return replace(uri, password=stored.password if login else uri.password).reveal()


def refuse_moved_secrets(
    old: ChangefeedSpec, new: ChangefeedSpec, changed: ChangedSettings
) -> None:
    """Refuse new settings by which a stored secret would go to another address.

    Whoever may change settings need not know the secrets: an address that is theirs would get them.

    Raises:
        SecretsNeeded: an address is another, and a secret was not written out in the request.
    """
    tables = _tables(new)
    for side in ("source", "sink"):
        moved = sorted(_places(new, side, tables) - _places(old, side, tables))
        if not moved:
            continue
        given = changed.source_uri if side == "source" else changed.sink_uri
        given_secrets = set(
            _secrets(side, given and Uri.parse(given, side), changed.config or {}, tables)
        )
        was, now = (
            set(_secrets(side, spec.source if side == "source" else spec.sink, spec.config, tables))
            for spec in (old, new)
        )
        if (was & now) - given_secrets:
            raise SecretsNeeded(
                f"{moved[0][0]} is another: write all secrets of the {side} out in the same "
                f"request instead of {HIDDEN}"
            )


def _login_of(uri: Uri) -> tuple[str, str, str]:
    return uri.scheme, uri.address, uri.user


def _is_of(table: OptionTable, side: str) -> bool:
    return (table.section.split(".")[0] == "source") == (side == "source")


def _places(spec: ChangefeedSpec, side: str, tables: Iterable[OptionTable]) -> set[tuple[str, ...]]:
    """Return whom the secrets of a side are sent to, each with its name for people."""
    uri = spec.source if side == "source" else spec.sink
    places: set[tuple[str, ...]] = {(f"the {side} URI's address", *_login_of(uri))}
    for table in tables:
        if not _is_of(table, side):
            continue
        values = spec.options(table, uri)
        for option in table.options:
            if option.names in ("url", "storage") and (value := str(values[option] or "")):
                place = Uri.parse(value, option.key)
                endpoint = place.parameter("endpoint")
                places.add((option.key, place.scheme, place.address, endpoint))
    return places


def _secrets(
    side: str, uri: Uri | str | None, config: Mapping[str, Any], tables: Iterable[OptionTable]
) -> Iterator[str]:
    own = [table for table in tables if _is_of(table, side)]
    if isinstance(uri, Uri):
        yield from (s for s in secrets_of_uri(uri, own) if s)
    part = {k: v for k, v in config.items() if (k == "source") == (side == "source")}
    yield from (s for s in secrets_of_config(part, own) if s)
