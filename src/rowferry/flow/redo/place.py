"""Where the redo log of a changefeed is, and what of its settings is kept there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rowferry.errors import BadInput, BadOption
from rowferry.flow.named_storage import files_at
from rowferry.flow.redo.log import RedoLog
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.consistent import ConsistentOptions
from rowferry.spec.option import OptionTable
from rowferry.spec.secret_places import with_secrets
from rowferry.spec.uri import Uri

WHAT: Final = "a redo log"
_KEPT: Final = "sink"  # the section of what the sink reads


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
    """Return the sink's settings of the file without their secrets."""
    bare = with_secrets(spec, tables, lambda secret, place: "")
    section = bare.config.get(_KEPT)
    return {_KEPT: section} if section else {}
