"""Options of the `[sink]` section that codecs share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rowferry.errors import OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.option import Option, OptionShape, OptionTable, flag, one_of

_CRLF: Final = "\r\n"


def _terminator() -> OptionShape[str]:
    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {type(value).__name__}")
        return value or _CRLF

    return OptionShape("text; empty means CRLF", parse)


def one_of_or_empty(first: str, *others: str) -> OptionShape[str]:
    """One of these words, in any case; empty text means the first, which is the default."""
    words = one_of(first, *others)
    return replace(words, parse=lambda value: first if value == "" else words.parse(value))


TERMINATOR = Option(
    "terminator", _terminator(), _CRLF, "What ends each row in a data file; empty means CRLF."
)
ONLY_UPDATED = Option(
    "only-output-updated-columns",
    flag(),
    False,
    "An update's old values hold only the columns that changed.",
    uri=True,
)
DELETE_ONLY_HANDLE_KEY = Option(
    "delete-only-output-handle-key-columns",
    flag(),
    False,
    "A delete holds only the columns of the handle key.",
)
CONTENT_COMPATIBLE = Option(
    "content-compatible",
    flag(),
    False,
    "As Canal writes: full column types, and only changed columns in an update's old values.",
    uri=True,
)
TIDB_EXTENSION = Option(
    "enable-tidb-extension",
    flag(),
    False,
    "Add the `_tidb` field with the commit-ts, and send watermarks.",
    uri=True,
)
SINK = OptionTable(
    "sink",
    (TERMINATOR, ONLY_UPDATED, DELETE_ONLY_HANDLE_KEY, CONTENT_COMPATIBLE, TIDB_EXTENSION),
)

# Where TiCDC's file keeps settings of codecs; a parameter of the URI counts for both sections.
CODEC_SECTION: Final = "sink.kafka-config.codec-config"
CODEC_EXTENSION = OptionTable(CODEC_SECTION, (TIDB_EXTENSION,))


def tidb_extension(spec: ChangefeedSpec) -> bool:
    """Return whether messages have the `_tidb` extension, in whichever section that was said."""
    here, there = spec.options(SINK), spec.options(CODEC_EXTENSION)
    return here[TIDB_EXTENSION] or there[TIDB_EXTENSION]


def delete_only_handle_key(spec: ChangefeedSpec) -> bool:
    """Return whether a delete holds only the handle key's columns.

    Raises:
        OptionsConflict: tables without a handle key are wanted too.
    """
    wanted = spec.options(SINK)[DELETE_ONLY_HANDLE_KEY]
    if wanted and spec.options(FeedOptions).force_replicate:
        raise OptionsConflict(
            f"{SINK.path(DELETE_ONLY_HANDLE_KEY.key)} = true: a delete in a table without a key "
            f"would hold nothing; set it to false or remove {FeedOptions.force_replicate.key}"
        )
    return wanted
