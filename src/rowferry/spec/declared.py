"""Changefeeds declared in files: what should exist, under the name of who looks after it.

owner: shop
changefeeds:
orders:
source: mysql://ferry:env:SHOP_PASSWORD@db.example:3306/
sink: kafka://kafka.example:9092/orders?protocol=canal-json
config:
filter:
rules: ["shop.orders"]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rowferry.errors import BadConfigFile, BadInput, BadOption, UnknownOption
from rowferry.spec.changefeed import check_changefeed_id
from rowferry.spec.config_file import inline_rule_files, parse_config, read_config
from rowferry.spec.option import unknown_words
from rowferry.spec.uri import Uri

OWNER: Final = "owner"
CHANGEFEEDS: Final = "changefeeds"
_HEAD: Final = (OWNER, CHANGEFEEDS)
_FREE: Final = "x-"  # a key of the top that begins so is the writer's own, for anchors of YAML
_ENDINGS: Final = (".json", ".toml", ".yaml", ".yml")
_OWNER_RULE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_LATEST: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class DeclaredFeed:
    """One changefeed that should exist.

    Attributes:
        source, sink: URIs.
        config: the configuration with TiCDC's key names.
        start_ts: where it begins when it is created; 0: as the source URI says.
        target_ts: where it ends; 0: never.
        paused: whether it should stand still; None: nobody says so here.
    """

    id: str
    source: str = field(repr=False)
    sink: str = field(repr=False)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    start_ts: int = 0
    target_ts: int = 0
    paused: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form that a file has."""
        form: dict[str, Any] = {"source": self.source, "sink": self.sink}
        for key, value in (("start-ts", self.start_ts), ("target-ts", self.target_ts)):
            if value:
                form[key] = value
        if self.paused is not None:
            form["paused"] = self.paused
        if self.config:
            form["config"] = dict(self.config)
        return form


@dataclass(frozen=True, slots=True)
class Declaration:
    """All changefeeds that one owner wants.

    Attributes:
        owner: the name that changefeeds keep, so that only he removes them.
        feeds: by id.
    """

    owner: str
    feeds: tuple[DeclaredFeed, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the form that a file has."""
        return {OWNER: self.owner, CHANGEFEEDS: {f.id: f.to_json() for f in self.feeds}}


def check_owner(name: Any, where: str = "") -> str:
    """Return a name that may own changefeeds.

    Raises:
        BadOption: it may not; `where` says whose it is.
    """
    if not isinstance(name, str) or not _OWNER_RULE.fullmatch(name):
        lead = f"{where}: " if where else ""
        raise BadOption(
            f"{lead}{OWNER} = {name!r}: write a name of letters, digits and . _ - between them, "
            "at most 128; changefeeds remember by it who looks after them"
        )
    return name


def read_declaration(content: Mapping[str, Any], where: str) -> Declaration:
    """Return what a file's content declares.

    Raises:
        BadInput: one line that names the file, the changefeed and the key at fault.
    """
    for key in content:
        if key not in _HEAD and not str(key).startswith(_FREE):
            raise UnknownOption(f"{where}: {unknown_words(str(key), _HEAD)}")
    if OWNER not in content:
        raise BadOption(
            f"{where}: the key {OWNER} is missing; it is the name by which changefeeds remember "
            "who looks after them, such as the folder's or the team's"
        )
    owner = check_owner(content[OWNER], where)
    declared = content.get(CHANGEFEEDS)
    if not isinstance(declared, Mapping):
        raise BadOption(
            f"{where}: {CHANGEFEEDS} must hold a section for each changefeed, under its id"
            + ("" if declared is None else f", not {type(declared).__name__}")
        )
    return Declaration(owner, tuple(_feed(str(k), v, where) for k, v in sorted(declared.items())))


_KEYS: Final = ("source", "sink", "config", "start-ts", "target-ts", "paused")


def _feed(name: str, form: Any, where: str) -> DeclaredFeed:
    place = f"{where}: {CHANGEFEEDS}.{name}"
    try:
        check_changefeed_id(name)
    except BadInput as err:
        raise type(err)(f"{where}: {err.words}") from None
    if not isinstance(form, Mapping):
        raise BadOption(f"{place} must be a section with {', '.join(_KEYS[:3])}")
    for key in form:
        if key not in _KEYS:
            raise UnknownOption(f"{place}: {unknown_words(str(key), _KEYS)}")
    source, sink = _uri(form, "source", place), _uri(form, "sink", place)
    config = form.get("config", {})
    if not isinstance(config, Mapping):
        raise BadOption(f"{place}.config must be a section, as in a configuration file")
    paused = form.get("paused")
    if paused is not None and not isinstance(paused, bool):
        raise BadOption(f"{place}.paused = {paused!r}; allowed: true, false")
    return DeclaredFeed(
        name,
        source,
        sink,
        config=config,
        start_ts=_commit_ts(form, "start-ts", place),
        target_ts=_commit_ts(form, "target-ts", place),
        paused=paused,
    )


def _uri(form: Mapping[str, Any], key: str, place: str) -> str:
    value = form.get(key)
    if not isinstance(value, str) or not value:
        raise BadOption(f"{place}: {key} is missing; write the {key}'s URI")
    try:
        Uri.parse(value, key)
    except BadInput as err:
        raise type(err)(f"{place}: {err.words}") from None
    return value


def _commit_ts(form: Mapping[str, Any], key: str, place: str) -> int:
    value = form.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LATEST:
        raise BadOption(f"{place}.{key} = {value!r}: not a commit-ts; allowed: 0 to 2^63 - 1")
    return value


# --- files ---------------------------------------------------------------------------------------


def declared_files(places: Iterable[Path]) -> list[Path]:
    """Return the files that are named, and those in folders that are named, by name.

    Raises:
        BadConfigFile: there is no such file or folder, or a folder has none.
    """
    paths: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(p for p in place.iterdir() if p.suffix.lower() in _ENDINGS)
            if not inside:
                raise BadConfigFile(
                    f"{place}: the folder holds no file that ends in {', '.join(_ENDINGS)}"
                )
            paths += [p for p in inside if p.is_file()]
        else:
            paths.append(place)
    return list(dict.fromkeys(paths))


def read_declared(files: Sequence[Path], folder: str) -> list[Declaration]:
    """Return what files declare, one declaration for each owner.

    Files of table filter rules that a configuration imports are put in, and relative `file` URIs
    begin at `folder`: whoever carries it out has other files.

    Raises:
        BadInput: one line that names the file, the changefeed and the key at fault.
    """
    by_file = [(str(file), read_declaration(read_config(file), str(file))) for file in files]
    return _joined(by_file, folder)


def parse_declared(text: str, kind: str, name: str, folder: str) -> list[Declaration]:
    """Return what a text declares; `kind` is `toml`, `yaml` or `json`. Raises as the other does."""
    return _joined([(name, read_declaration(parse_config(text, kind, name), name))], folder)


def _joined(by_file: Sequence[tuple[str, Declaration]], folder: str) -> list[Declaration]:
    owners: dict[str, list[DeclaredFeed]] = {}
    places: dict[str, str] = {}
    for file, declaration in by_file:
        feeds = owners.setdefault(declaration.owner, [])
        for feed in declaration.feeds:
            if feed.id in places:
                raise BadOption(
                    f"changefeed {feed.id} is declared in {places[feed.id]} and in {file}; leave "
                    "it in one of them"
                )
            places[feed.id] = file
            feeds.append(_anywhere(feed, folder, file))
    return [Declaration(owner, tuple(feeds)) for owner, feeds in owners.items()]


def _anywhere(feed: DeclaredFeed, folder: str, file: str) -> DeclaredFeed:
    """Return a changefeed that means the same wherever it is read."""
    try:
        source, sink = (
            _absolute(uri, what, folder)
            for what, uri in (("source", feed.source), ("sink", feed.sink))
        )
        config = inline_rule_files(feed.config)
    except BadInput as err:
        raise type(err)(f"{file}: {CHANGEFEEDS}.{feed.id}: {err.words}") from None
    return DeclaredFeed(feed.id, source, sink, config, feed.start_ts, feed.target_ts, feed.paused)


def _absolute(text: str, what: str, folder: str) -> str:
    uri = Uri.parse(text, what)
    absolute = uri.absolute(folder, what)
    return text if absolute == uri else absolute.reveal()
