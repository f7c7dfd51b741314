"""XA transaction names, equal for the PREPARE event and the statements that end it."""

from __future__ import annotations

import re

from rowferry.errors import CorruptLog, EventUnknown

_TEXT = re.compile(
    r"XA\s+\w+\s+X'([0-9A-Fa-f]*)'\s*(?:,\s*X'([0-9A-Fa-f]*)')?\s*(?:,\s*(\d+))?", re.IGNORECASE
)


def statement_xid(sql: str) -> str:
    """Return the name in `XA COMMIT X'…',X'…',1`.

    Raises:
        EventUnknown: the statement has another form.
    """
    found = _TEXT.match(sql.strip())
    if not found:
        raise EventUnknown(f"the statement {sql!r} names no XA transaction that is understood")
    gtrid, bqual, number = found[1].lower(), (found[2] or "").lower(), found[3] or "1"
    return f"{gtrid},{bqual},{number}"


def prepared_xid(body: bytes) -> tuple[bool, str]:
    """Return whether a XA_PREPARE event commits at once, and the transaction's name."""
    if len(body) < 13:
        raise CorruptLog(f"a XA_PREPARE_LOG_EVENT of {len(body)} bytes is too short")
    number = int.from_bytes(body[1:5], "little")
    first, second = int.from_bytes(body[5:9], "little"), int.from_bytes(body[9:13], "little")
    if len(body) < 13 + first + second or first > 64 or second > 64:
        raise CorruptLog("a XA_PREPARE_LOG_EVENT has a name of a wrong length")
    gtrid, bqual = body[13 : 13 + first], body[13 + first : 13 + first + second]
    return bool(body[0]), f"{gtrid.hex()},{bqual.hex()},{number}"
