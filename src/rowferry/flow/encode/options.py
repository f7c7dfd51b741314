"""Options of the `[sink]` section that codecs share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rowferry.errors import OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.option import OptionShape, Section, flag, one_of, option

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


class CodecOptions(Section, section="sink"):
    """What codecs share in the section of the sink."""

    terminator = option(
        _terminator(), _CRLF, "What ends each row in a data file; empty means CRLF."
    )
    only_output_updated_columns = option(
        flag(), False, "An update's old values hold only the columns that changed.", uri=True
    )
    delete_only_output_handle_key_columns = option(
        flag(), False, "A delete holds only the columns of the handle key."
    )
    content_compatible = option(
        flag(),
        False,
        "As Canal writes: full column types, and only changed columns in an update's old values.",
        uri=True,
    )
    enable_tidb_extension = option(
        flag(),
        False,
        "Add the `_tidb` field with the commit-ts, and send watermarks.",
        uri=True,
    )


EXTENSION: Final = CodecOptions.enable_tidb_extension.key  # as errors name it
# Where TiCDC's file keeps settings of codecs; a parameter of the URI counts for both sections.
CODEC_SECTION: Final = "sink.kafka-config.codec-config"


class ExtensionOptions(Section, section=CODEC_SECTION):
    """The option of the section above that TiCDC's file also has among those of codecs."""

    enable_tidb_extension = CodecOptions.enable_tidb_extension


def tidb_extension(spec: ChangefeedSpec) -> bool:
    """Return whether messages have the `_tidb` extension, in whichever section that was said."""
    here, there = spec.options(CodecOptions), spec.options(ExtensionOptions)
    return here.enable_tidb_extension or there.enable_tidb_extension


def delete_only_handle_key(spec: ChangefeedSpec) -> bool:
    """Return whether a delete holds only the handle key's columns.

    Raises:
        OptionsConflict: tables without a handle key are wanted too.
    """
    wanted = spec.options(CodecOptions).delete_only_output_handle_key_columns
    if wanted and spec.options(FeedOptions).force_replicate:
        path = CodecOptions.path(CodecOptions.delete_only_output_handle_key_columns)
        raise OptionsConflict(
            f"{path} = true: a delete in a table without a key "
            f"would hold nothing; set it to false or remove {FeedOptions.force_replicate.key}"
        )
    return wanted
