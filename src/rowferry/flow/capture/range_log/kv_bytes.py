"""What all key and row kernels share: faults, flags, and where a value may stand.

A kernel never trusts a length that it has not compared with the bytes at hand. It returns 0, or a
fault: the row and the reason in one number, which `kv` turns into an error that names the place.
"""

from __future__ import annotations

from typing import Final

from rowferry.columnar.packed import compiled

# Where a row has a column's value.
NULL: Final = 0  # nowhere: it is NULL
VALUE: Final = 1  # in the row's value
KEY: Final = 2  # in the row's key
ABSENT: Final = 3  # nowhere: the column was added later

# Type flags of the datums in a common handle.
BYTES_FLAG: Final = 1
INT_FLAG: Final = 3
UINT_FLAG: Final = 4
FLOAT_FLAG: Final = 5
DECIMAL_FLAG: Final = 6
DURATION_FLAG: Final = 7

RECORD_PREFIX: Final = 11  # "t", table id, "_r"
GROUP: Final = 8  # bytes of a memcomparable group; a marker follows each
ROW_V2: Final = 128
LARGE: Final = 1
CHECKSUM: Final = 2
MAX_DECIMAL_DIGITS: Final = 65
MAX_DECIMAL_SCALE: Final = 30
MAX_TIME_SECONDS: Final = 838 * 3600 + 59 * 60 + 59
NANOS: Final = 1_000_000_000

# Why a row cannot be read; below 64, because a fault holds it in six bits.
OUTSIDE: Final = 1
NOT_A_RECORD_KEY: Final = 2
BAD_HANDLE: Final = 3
BAD_VERSION: Final = 4
CUT_SHORT: Final = 5
IDS_UNSORTED: Final = 6
BAD_OFFSETS: Final = 7
TRAILING_BYTES: Final = 8
BAD_SIZE: Final = 9
BAD_DECIMAL: Final = 10
BAD_TIME: Final = 11
BAD_FLOAT: Final = 12
BAD_JSON: Final = 13
JSON_TOO_DEEP: Final = 14
BAD_VECTOR: Final = 15
WORDS: Final[dict[int, str]] = {
    OUTSIDE: "its place lies outside the bytes at hand",
    NOT_A_RECORD_KEY: "the key is not a record key",
    BAD_HANDLE: "the key's handle does not fit the primary key",
    BAD_VERSION: "the value is not in row format 2",
    CUT_SHORT: "the value is cut short",
    IDS_UNSORTED: "the value's column ids are not in order",
    BAD_OFFSETS: "the value's offsets do not fit its data",
    TRAILING_BYTES: "the value has bytes after its data",
    BAD_SIZE: "the number of bytes does not fit the type",
    BAD_DECIMAL: "the bytes are not a decimal of this type",
    BAD_TIME: "the bytes are not a date or time",
    BAD_FLOAT: "the bytes are not a number of this type",
    BAD_JSON: "the bytes are not binary JSON",
    JSON_TOO_DEEP: "the JSON document is nested too deeply",
    BAD_VECTOR: "the bytes are not a vector",
}


def record_span(physical_id: int) -> tuple[bytes, bytes]:
    """Return the first key that a row of a table or partition can have, and the one behind all."""
    table = b"t" + (physical_id + (1 << 63)).to_bytes(8, "big")
    return table + b"_r", table + b"_s"


@compiled
def fault(row: int, why: int) -> int:
    """Return row and reason as one number; never 0."""
    return row * 64 + why
