"""A changefeed as the user asked for it: source, sink, settings. Frozen, with a JSON form."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, overload

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.errors import BadChangefeedId
from rowferry.spec.legacy import parse_protocol
from rowferry.spec.option import Options, OptionTable, Section, read_options
from rowferry.spec.uri import Uri

S = TypeVar("S", bound=Section)

# Stands for the source, or the sink, of a spec that only the other one's stages read.
NO_PLACE: Final = "none://none/"


@dataclass(frozen=True)
class ChangefeedSpec(JsonForm):
    """What to read, where to write, and how.

    `config` is the configuration file's content with TiCDC's key names, as nested mappings. Stages
    ask for their own section with `options(TABLE)`: the file's, overridden by URI parameters.
    """

    FORM = FormRules(
        brief=True,
        ways={
            "source": (Uri.reveal, lambda text: Uri.parse(text, "source")),
            "sink": (Uri.reveal, lambda text: Uri.parse(text, "sink")),
        },
    )

    changefeed_id: str
    source: Uri
    sink: Uri
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # it may hold secrets
    target_ts: int = 0  # it ends when everything up to here was delivered; 0: never
    managed_by: str = ""  # the owner of the file that declares it; empty: no file does

    @property
    def protocol(self) -> str:
        """Today's name of the protocol, from the sink URI or else `sink.protocol`; "" for none."""
        written = self.written(self.sink, "sink", "protocol")
        return parse_protocol(written) if isinstance(written, str) else ""

    @property
    def start_ts(self) -> int:
        """Begins in the log behind this commit-ts, without a snapshot; 0: elsewhere."""
        written = self.written(self.source, "source", "start-ts")
        return int(written) if str(written).isdecimal() else 0

    def section(self, path: str) -> Mapping[str, Any]:
        """Return the raw content of one section ("sink.csv"; "" is the top level)."""
        here: Any = self.config
        for part in path.split(".") if path else ():
            here = here.get(part, {}) if isinstance(here, Mapping) else {}
        return here if isinstance(here, Mapping) else {}

    def written(self, uri: Uri, section: str, key: str) -> Any:
        """Return a value as the user wrote it: the parameter of `uri`, else the file's, else None.

        A value that is empty, 0 or false was given, too: it is not the absence of one.
        """
        parameters = dict(uri.parameters)
        return parameters[key] if key in parameters else self.section(section).get(key)

    @overload
    def options(self, table: type[S], uri: Uri | None = None) -> S: ...
    @overload
    def options(self, table: OptionTable, uri: Uri | None = None) -> Options: ...
    def options(self, table: OptionTable | type[Section], uri: Uri | None = None) -> Options:
        """Return one table's values: defaults, then the file, then parameters of `uri`.

        `uri` is the sink's unless given.
        """
        declared = table if isinstance(table, OptionTable) else table.TABLE
        known = {o.key: o for o in declared.options}
        raw = {k: v for k, v in self.section(declared.section).items() if k in known}
        for key, value in (uri or self.sink).parameters:
            if key in known and known[key].uri:
                raw[key] = value
        return read_options(table, raw) if isinstance(table, OptionTable) else table.read(raw)


_RULE = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
_MOST = 128


def check_changefeed_id(text: str) -> str:
    """Return `text`, which may name a changefeed.

    Raises:
        BadChangefeedId: empty, longer than 128, or not letters and digits joined by single hyphens.
    """
    if len(text) > _MOST:
        raise BadChangefeedId(
            f"changefeed id has {len(text)} characters; at most {_MOST} are allowed"
        )
    if not _RULE.fullmatch(text):
        raise BadChangefeedId(
            f"changefeed id {text!r}: use letters a-z, A-Z, digits and single hyphens between them"
        )
    return text


def default_changefeed_id(source: Uri, sink: Uri) -> str:
    """Return a readable id that is always the same for the same source and sink.

    Only scheme, address and path count: a run with other parameters is the same changefeed, and no
    user, password or parameter shows in the name.
    """
    places = [f"{u.scheme}://{u.address}{u.path.rstrip('/')}" for u in (source, sink)]
    mark = hashlib.sha256("\n".join(places).encode()).hexdigest()[:8]
    words = "-to-".join(_slug(place)[:55].strip("-") for place in places)
    return check_changefeed_id(f"{words}-{mark}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-").lower()
