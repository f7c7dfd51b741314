"""What the changefeed's settings say of its files; what they leave open is not held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.flow.encode.csv import codec as csv
from rowferry.flow.encode.options import SINK, TERMINATOR, tidb_extension
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
    sink, line = spec.options(storage.SINK_TABLE), spec.options(csv.CSV)
    told_in = {
        FileKind.CSV: line[csv.INCLUDE_COMMIT_TS],
        FileKind.CANAL_JSON: tidb_extension(spec),
        FileKind.PARQUET: True,
    }

    def told(option: Option[Any]) -> bool:
        return spec.written(spec.sink, "sink", option.key) is not None

    return ExpectedLayout(
        kind=kind,
        date_separator=sink[storage.DATE_SEPARATOR] if told(storage.DATE_SEPARATOR) else None,
        partitions=(
            sink[storage.PARTITION_SEPARATOR] if told(storage.PARTITION_SEPARATOR) else None
        ),
        digits=sink[storage.INDEX_DIGITS] if told(storage.INDEX_DIGITS) else None,
        zone=sink[storage.TIME_ZONE],
        carries_commit_ts=told_in[kind],
        whole_transactions=sink[storage.ATOMICITY] == "table",
        terminator=spec.options(SINK)[TERMINATOR].encode(),
        quote=line[csv.QUOTE].encode(),
        delimiter=line[csv.DELIMITER].encode(),
        null=line[csv.NULL].encode(),
        packing=line[csv.BINARY_ENCODING],
        header=line[csv.FIELD_HEADER],
        old_value=line[csv.OUTPUT_OLD_VALUE],
    )
