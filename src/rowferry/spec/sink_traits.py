"""What a sink's class says about itself to everybody else; its settings are read by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rowferry.errors import BadOption, OptionsConflict
from rowferry.names import protocols
from rowferry.spec.legacy import parse_protocol
from rowferry.spec.ticdc_keys import PROTOCOLS_ELSEWHERE
from rowferry.spec.uri_form import EVERY_PART, UriForm


@dataclass(frozen=True, slots=True)
class PlaceKeys:
    """How a subscription says where to write; a whole `uri` wins over all of it.

    Attributes:
        keys: the keys of its configuration.
        needed: those without which there is no place.
        uri: makes the sink URI of their values; a key that is not given is "".
        takes_tables: it may say the target's database and table, too.
    """

    keys: tuple[str, ...]
    needed: tuple[str, ...]
    uri: Callable[[Mapping[str, str]], str]
    takes_tables: bool = False


@dataclass(frozen=True, slots=True)
class SinkTraits:
    """What settings and other stages may ask about a sink. What is not said is not so.

    Attributes:
        takes_files: it writes whole files: codecs end each value with the terminator.
        needs_shuffle: all changes of one lane must meet in one task: a LaneSink.
        counts_messages: it knows a lane's messages by their number in the micro-batch, so that all
            of them must come to one call, also where segments are carried out one by one.
        movable: the same target may get another address: what it keeps moves along.
        kind: the name of its kind, by which the keys of TiCDC's configuration know it.
        section: where the configuration file keeps its settings ("": nowhere).
        protocol: whether it needs a protocol, may have one, or has none.
        default_protocol: what it gets without one ("": nothing).
        atomicity: the levels of `transaction-atomicity` that it can keep, the default first.
        forwards_parameters: URI parameters that nobody declares belong to the target.
        takes_partial_rows: rows may come without columns that `column-selectors` exclude.
        takes_raw_changes: an update may change its key; else it comes as a delete and an insert.
        has_topics: dispatch rules say to which topic and partition rows go.
        writes_tables: rows go into the tables of a database.
        commits_versions: rows go into tables of which every commit is a version that can be read.
        keeps_newest: of two writes to a row the newer wins, whichever comes first: active-active.
        keeps_sync_points: it can note which of its moments holds the same as one of the source.
        keeps_redo: what it is given can be kept and given to it again: `consistent.level`.
        place_keys: how subscriptions name a place of this kind; None: they do not.
        vector_call_schemes: URI schemes whose server makes a VECTOR by a call, not of its text.
        keeps_rows: what it was given is somewhere afterwards; else there is nothing to look in.
        names_refused_rows: it can tell which row its target refuses, and go on with others.
        refuses_no_row: why not, as the end of a sentence, where it cannot.
        form: how people fill in its URI.
    """

    takes_files: bool
    needs_shuffle: bool
    counts_messages: bool = False
    movable: bool = False
    kind: str = ""
    section: str = ""
    protocol: Literal["needed", "allowed", "none"] = "needed"
    default_protocol: str = ""
    atomicity: tuple[str, ...] = ("none",)
    forwards_parameters: bool = False
    takes_partial_rows: bool = False
    takes_raw_changes: bool = False
    has_topics: bool = False
    writes_tables: bool = False
    commits_versions: bool = False
    keeps_newest: bool = False
    keeps_sync_points: bool = False
    keeps_redo: bool = False
    place_keys: PlaceKeys | None = None
    vector_call_schemes: tuple[str, ...] = ()
    keeps_rows: bool = True
    names_refused_rows: bool = False
    refuses_no_row: str = "cannot tell which row its target refuses"
    form: UriForm = EVERY_PART


# Returns the traits of the sink with this URI scheme; an unknown one raises BadUri.
SinkLookup: TypeAlias = Callable[[str], SinkTraits]


def check_protocol(sink: SinkTraits, scheme: str, text: str) -> str:
    """Return today's name of the protocol that a sink of this scheme was given ("" for none).

    Raises:
        BadOption: no such protocol here, or none given where one is needed.
        OptionsConflict: the sink takes no protocol.
    """
    if text and sink.protocol == "none":
        raise OptionsConflict(f"protocol {text} is incompatible with {scheme} scheme; leave it out")
    name = parse_protocol(text)
    if name in PROTOCOLS_ELSEWHERE:
        raise BadOption(
            f"protocol {name!r} is known to TiCDC and cannot be used here; use one of "
            f"{', '.join(protocols())}"
        )
    if not name and sink.protocol == "needed":
        raise BadOption(
            f"unknown '' message protocol for sink: a {scheme} sink needs a protocol (?protocol=… "
            "in the sink URI, or sink.protocol); "
            f"known: {', '.join(protocols())}"
        )
    return name


def check_atomicity(sink: SinkTraits, scheme: str, text: str) -> str:
    """Return the level of `transaction-atomicity` that holds for a sink of this scheme.

    Raises:
        BadOption: a level that the sink cannot keep; the text lists those that it can.
    """
    levels = sink.atomicity
    level = text.lower() or levels[0]
    if level not in levels:
        raise BadOption(
            f"transaction-atomicity: {text} level atomicity is not supported by {scheme} scheme; "
            f"allowed: {' | '.join(levels)}"
        )
    return level
