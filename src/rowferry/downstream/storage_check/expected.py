"""What the changefeed's settings say of its files; what they leave open is not held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.flow.encode.csv import codec as csv
from rowferry.flow.encode.options import CodecOptions, tidb_extension
from rowferry.flow.sink.storage import options as storage
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Option


@dataclass(frozen=True, slots=True)
class ExpectedLayout:
    """The settings that decide how files look.

    Attributes:
        kind: of which protocol they are.
        date_separator, partitions, digits: None where nothing was said: any will do, if it is the
            same everywhere.
        carries_commit_ts: whether rows tell theirs exactly.
        whole_transactions: `transaction-atomicity` is `table`.
        quote, delimiter, null, packing, header, old_value: csv only.
    """

    kind: FileKind = FileKind.CSV
    date_separator: str | None = None
    partitions: bool | None = None
    digits: int | None = None
    zone: ZoneInfo = ZoneInfo("UTC")
    carries_commit_ts: bool = False
    whole_transactions: bool = False
    terminator: bytes = b"\r\n"
    quote: bytes = b'"'
    delimiter: bytes = b","
    null: bytes = b"\\N"
    packing: str = "base64"
    header: bool = False
    old_value: bool = False


def expected_of(spec: ChangefeedSpec) -> ExpectedLayout:
    """Read the settings of a changefeed.

    Raises:
        BadOption: a value of the wrong type or outside what is allowed.
        OptionsConflict: a protocol whose files are not checked.
    """
    kind = FileKind.of(spec.protocol)
    sink, line = spec.options(storage.LayoutOptions), spec.options(csv.CsvOptions)
    carries_commit_ts = {
        FileKind.CSV: line.include_commit_ts,
        FileKind.CANAL_JSON: tidb_extension(spec),
        FileKind.PARQUET: True,
    }

    def is_set(option: Option[Any]) -> bool:
        return spec.written(spec.sink, "sink", option.key) is not None

    return ExpectedLayout(
        kind=kind,
        date_separator=sink.date_separator
        if is_set(storage.LayoutOptions.date_separator)
        else None,
        partitions=(
            sink.enable_partition_separator
            if is_set(storage.LayoutOptions.enable_partition_separator)
            else None
        ),
        digits=sink.file_index_digit if is_set(storage.LayoutOptions.file_index_digit) else None,
        zone=sink.time_zone,
        carries_commit_ts=carries_commit_ts[kind],
        whole_transactions=sink.transaction_atomicity == "table",
        terminator=spec.options(CodecOptions).terminator.encode(),
        quote=line.quote.encode(),
        delimiter=line.delimiter.encode(),
        null=line.null.encode(),
        packing=line.binary_encoding_method,
        header=line.output_field_header,
        old_value=line.output_old_value,
    )
