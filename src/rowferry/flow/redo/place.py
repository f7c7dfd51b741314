"""Where the redo log of a changefeed is, and what of its settings is kept there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rowferry.errors import BadInput, BadOption
from rowferry.flow.named_storage import files_at
from rowferry.flow.redo.log import RedoLog
from rowferry.registry import SINKS
from rowferry.spec.active_active import ActiveActive
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.consistent import ConsistentOptions
from rowferry.spec.option import OptionTable
from rowferry.spec.secret_places import with_secrets
from rowferry.spec.uri import Uri

WHAT: Final = "a redo log"
_KEPT: Final = ("sink", ActiveActive.bdr_mode.key)  # what the sink reads of a file


def redo_log_of(spec: ChangefeedSpec, tables: Iterable[OptionTable]) -> RedoLog | None:
    """Return the redo log that a changefeed asks for; asks nobody. `tables` say what is secret.

    Raises:
        BadOption: its storage is none.
    """
    options = spec.options(ConsistentOptions)
    if not options.keeps:
        return None
    path = options.path(ConsistentOptions.storage)
    try:
        files = files_at(Uri.parse(options.storage, path), WHAT)
    except BadInput as err:
        raise BadOption(f"{path}: {err.words}") from None
    compression = None if options.compression in ("", "none") else options.compression
    kind = SINKS.load(spec.sink.scheme).TRAITS.kind
    kept = _kept_settings(spec, tables)
    return RedoLog(files, spec.changefeed_id, kind, kept, compression)


def _kept_settings(spec: ChangefeedSpec, tables: Iterable[OptionTable]) -> dict[str, Any]:
    """Return the sink's settings without their secrets, all as a file would have them.

    Parameters of the sink's URI are among them, unless they name something of the machine that
    runs the changefeed: whoever applies the log gives another URI.
    """
    tables = tuple(tables)
    bare = with_secrets(spec, tables, lambda secret, place: "")
    kept = {key: bare.config[key] for key in _KEPT if key in bare.config}
    given = dict(bare.sink.parameters)
    for table in tables:
        if table.section.split(".")[0] != "sink":
            continue
        for one in table.options:
            if one.key in given and one.uri and not (one.secret or one.names):
                kept = _with_value(kept, table.path(one.key), given[one.key])
    return kept


def _with_value(config: Mapping[str, Any], path: str, value: str) -> dict[str, Any]:
    """Return settings with another value at a path; sections that are missing are made."""
    key, _, rest = path.partition(".")
    return {**config, key: _with_value(config.get(key, {}), rest, value) if rest else value}
