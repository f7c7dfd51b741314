"""The sql_mode of a DDL: what of it decides what becomes of rows, and how another server is told.

A strict session only refuses more than a lenient one: whoever runs a statement that was accepted
once need not be strict. But in other modes a server makes other values of the rows that are there.
"""

from __future__ import annotations

from typing import Final

from rowferry.mysql.flavour import Flavour

# By their bit in the log, which is the same for MySQL and MariaDB. Double quotes are names in no
# text that is handed on, and backslashes are what they are without NO_BACKSLASH_ESCAPES.
_MODES: Final = {
    "REAL_AS_FLOAT": 1 << 0,
    "PIPES_AS_CONCAT": 1 << 1,
    "IGNORE_SPACE": 1 << 3,
    "NO_UNSIGNED_SUBTRACTION": 1 << 6,
    "NO_AUTO_VALUE_ON_ZERO": 1 << 19,
    "ALLOW_INVALID_DATES": 1 << 25,
    "HIGH_NOT_PRECEDENCE": 1 << 29,
    "PAD_CHAR_TO_FULL_LENGTH": 1 << 31,
}
# A strict session refuses such days; these modes bend them in a lenient one.
_BENDING: Final = {"NO_ZERO_IN_DATE": 1 << 23, "NO_ZERO_DATE": 1 << 24}
_STRICT: Final = 1 << 21 | 1 << 22
_CUTS: Final = "TIME_TRUNCATE_FRACTIONAL"  # MySQL's: digits of a second that do not fit
_ROUNDS: Final = "TIME_ROUND_FRACTIONAL"  # MariaDB's
_CUTS_BIT, _ROUNDS_BIT = 1 << 32, 1 << 34


def modes_of(bits: int, flavour: Flavour) -> str:
    """Return what counts of a session's sql_mode, as the log of a server has it.

    It is in MySQL's words: without `TIME_TRUNCATE_FRACTIONAL` digits of a second were rounded.
    """
    named = _MODES if bits & _STRICT else _MODES | _BENDING
    modes = [name for name, bit in named.items() if bits & bit]
    is_maria = flavour is Flavour.MARIADB
    cuts = not bits & _ROUNDS_BIT if is_maria else bool(bits & _CUTS_BIT)
    return ",".join([*modes, _CUTS] if cuts else modes)


def without_seconds(modes: str) -> str:
    """Return what `modes_of` gave without what is done to digits of a second."""
    return ",".join(name for name in modes.split(",") if name != _CUTS)


def cuts_seconds(modes: str) -> bool:
    """Return whether digits of a second that do not fit were cut off, by what `modes_of` gave."""
    return _CUTS in modes.split(",")


def mode_for_seconds(modes: str, flavour: Flavour) -> str:
    """Return the mode in which a server does with digits of a second what the source has done.

    Args:
        modes: what `modes_of` gave.
        flavour: of the server, and not TiDB, which only rounds; empty is what it does by itself.
    """
    cuts = cuts_seconds(modes)
    if flavour is Flavour.MARIADB:
        return "" if cuts else _ROUNDS
    return _CUTS if cuts else ""
