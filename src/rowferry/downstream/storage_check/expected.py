"""What the changefeed's settings say of its files; what they leave open is not held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from rowferry.errors import OptionsConflict
from rowferry.flow.encode.csv import codec as csv
from rowferry.flow.encode.options import SINK, TERMINATOR, tidb_extension
from rowferry.flow.sink.storage import options as storage
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Option


@dataclass(frozen=True, slots=True)
class Expected:
    """The settings that decide how files look.

    Attributes:
        protocol: `csv` or `canal-json`.
        date_separator, partitions, digits: None where nothing was said: any will do, if it is the
            same everywhere.
        carries_commit_ts: whether rows tell theirs exactly.
        whole_transactions: `transaction-atomicity` is `table`.
        quote, delimiter, null, packing, header, old_value: csv only.
    """

    protocol: str = "csv"
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

    @property
    def extension(self) -> str:
        """What names of data files end with, before what tells the compression."""
        return "csv" if self.protocol == "csv" else "json"


def expected_of(spec: ChangefeedSpec) -> Expected:
    """Read the settings of a changefeed.

    Raises:
        BadOption: a value of the wrong type or outside what is allowed.
        OptionsConflict: a protocol whose files are not checked.
    """
    if spec.protocol == "parquet":
        raise OptionsConflict(
            "protocol parquet: its files are not checked here, they tell their own columns; read "
            "them by rowferry table or rowferry consume"
        )
    sink, line = spec.options(storage.SINK_TABLE), spec.options(csv.CSV)
    is_csv = spec.protocol == "csv"

    def told(option: Option[Any]) -> bool:
        return spec.written(spec.sink, "sink", option.key) is not None

    return Expected(
        protocol=spec.protocol,
        date_separator=sink[storage.DATE_SEPARATOR] if told(storage.DATE_SEPARATOR) else None,
        partitions=(
            sink[storage.PARTITION_SEPARATOR] if told(storage.PARTITION_SEPARATOR) else None
        ),
        digits=sink[storage.INDEX_DIGITS] if told(storage.INDEX_DIGITS) else None,
        zone=sink[storage.TIME_ZONE],
        carries_commit_ts=line[csv.INCLUDE_COMMIT_TS] if is_csv else tidb_extension(spec),
        whole_transactions=sink[storage.ATOMICITY] == "table",
        terminator=spec.options(SINK)[TERMINATOR].encode(),
        quote=line[csv.QUOTE].encode(),
        delimiter=line[csv.DELIMITER].encode(),
        null=line[csv.NULL].encode(),
        packing=line[csv.BINARY_ENCODING],
        header=line[csv.FIELD_HEADER],
        old_value=line[csv.OUTPUT_OLD_VALUE],
    )
