"""The first pass: find where each row has each column's bytes, in its value or in its key."""

from __future__ import annotations

from rowferry.columnar.packed import Bytes, Longs, compiled, decimal_bytes, i64, le16, le32
from rowferry.flow.capture.range_log.kv_bytes import (
    ABSENT,
    BAD_HANDLE,
    BAD_OFFSETS,
    BAD_VERSION,
    BYTES_FLAG,
    CHECKSUM,
    CUT_SHORT,
    DECIMAL_FLAG,
    GROUP,
    IDS_UNSORTED,
    KEY,
    LARGE,
    NOT_A_RECORD_KEY,
    NULL,
    OUTSIDE,
    RECORD_PREFIX,
    ROW_V2,
    TRAILING_BYTES,
    VALUE,
    fault,
)


@compiled
def locate_values(
    raw: Bytes,
    value_at: Longs,
    value_len: Longs,
    ids: Longs,
    order: Longs,
    at: Longs,
    size: Longs,
    form: Bytes,
) -> int:
    """Fill `at`, `size`, `form` [column, row] from the rows' values.

    `ids` are the wanted column ids, ascending; `order` the columns that they belong to. Columns
    that a row does not mention keep their form; ids of dropped columns are passed over.
    """
    columns = len(ids)
    for row in range(len(value_at)):
        start, length = value_at[row], value_len[row]
        if length < 0:
            for c in range(columns):
                form[order[c], row] = NULL
            continue
        if start < 0 or start > len(raw) - length:
            return fault(row, OUTSIDE)
        if length < 6:
            return fault(row, CUT_SHORT)
        if raw[start] != ROW_V2:
            return fault(row, BAD_VERSION)
        flags = raw[start + 1]
        present, nulls = le16(raw, start + 2), le16(raw, start + 4)
        id_size, offset_size = (4, 4) if flags & LARGE else (1, 2)
        id_at = start + 6
        offset_at = id_at + (present + nulls) * id_size
        data_at = offset_at + present * offset_size
        room = start + length - data_at
        if room < 0:
            return fault(row, CUT_SHORT)
        used, c, last = i64(0), 0, i64(-1)
        for i in range(present):
            if id_size == 1:
                column_id = i64(raw[id_at + i])
                end = le16(raw, offset_at + 2 * i)
            else:
                column_id = le32(raw, id_at + 4 * i)
                end = le32(raw, offset_at + 4 * i)
            if column_id <= last:
                return fault(row, IDS_UNSORTED)
            if end < used or end > room:
                return fault(row, BAD_OFFSETS)
            last = column_id
            while c < columns and ids[c] < column_id:
                c += 1
            if c < columns and ids[c] == column_id:
                at[order[c], row] = data_at + used
                size[order[c], row] = end - used
                form[order[c], row] = VALUE
            used = end
        c, last = 0, i64(-1)
        for i in range(present, present + nulls):
            column_id = i64(raw[id_at + i]) if id_size == 1 else le32(raw, id_at + 4 * i)
            if column_id <= last:
                return fault(row, IDS_UNSORTED)
            last = column_id
            while c < columns and ids[c] < column_id:
                c += 1
            if c < columns and ids[c] == column_id:
                form[order[c], row] = NULL
        rest = room - used
        if rest != 0 and not (flags & CHECKSUM and (rest == 5 or rest == 9)):
            return fault(row, TRAILING_BYTES)
    return 0


@compiled
def _datum_end(raw: Bytes, p: int, end: int, flag: int) -> int:
    """Return where the datum at `p` ends, or -1 if it does not end before `end`."""
    if flag == BYTES_FLAG:
        while p + GROUP < end:
            marker = raw[p + GROUP]
            p += GROUP + 1
            if marker != 0xFF:
                pad = 0xFF - i64(marker)
                if pad > GROUP:
                    return -1
                for i in range(pad):
                    if raw[p - 2 - i] != 0:
                        return -1
                return p
        return -1
    if flag == DECIMAL_FLAG:
        if p + 2 > end or raw[p + 1] > raw[p]:
            return -1
        scale = i64(raw[p + 1])
        p += 2 + decimal_bytes(i64(raw[p]) - scale) + decimal_bytes(scale)
    else:
        p += 8
    return p if p <= end else -1


@compiled
def locate_keys(
    raw: Bytes,
    key_at: Longs,
    key_len: Longs,
    flags: Bytes,
    order: Longs,
    at: Longs,
    size: Longs,
    form: Bytes,
) -> int:
    """Fill the absent handle columns of `at`, `size`, `form` [column, row] from the rows' keys.

    `flags` are the type flags of a common handle's datums, in key order; none: the handle is one
    integer, of the column `order[0]` if there is one.
    """
    for row in range(len(key_at)):
        start, length = key_at[row], key_len[row]
        if start < 0 or length < 0 or start > len(raw) - length:
            return fault(row, OUTSIDE)
        p, end = start + RECORD_PREFIX, start + length
        if p > end or raw[start] != 0x74 or raw[p - 2] != 0x5F or raw[p - 1] != 0x72:
            return fault(row, NOT_A_RECORD_KEY)
        if len(flags) == 0:
            if end - p != 8:
                return fault(row, BAD_HANDLE)
            if len(order) and form[order[0], row] == ABSENT:
                at[order[0], row] = p
                size[order[0], row] = 8
                form[order[0], row] = KEY
            continue
        handle = p
        for d in range(len(flags)):
            if p >= end or raw[p] != flags[d]:
                return fault(row, BAD_HANDLE)
            stop = _datum_end(raw, p + 1, end, i64(flags[d]))
            if stop < 0:
                return fault(row, BAD_HANDLE)
            if form[order[d], row] == ABSENT:
                at[order[d], row] = p + 1
                size[order[d], row] = stop - p - 1
                form[order[d], row] = KEY
            p = stop
        # A short handle is filled up with zeros to nine bytes, so that it is no integer's length.
        if p != end and end - handle != 9:
            return fault(row, BAD_HANDLE)
        for i in range(p, end):
            if raw[i] != 0:
                return fault(row, BAD_HANDLE)
    return 0
