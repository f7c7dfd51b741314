"""Character sets of MySQL and MariaDB: collation numbers, and conversion to UTF-8.

Bytes that are no character of their set become `?`, one for each character or stray byte: the
server does the same when it converts for a client. So a snapshot and the log agree, and a value
that some old client stored wrongly cannot stop a changefeed.

Both servers map the sets alike. Python's codecs differ from them in few places, which are listed
here; five sets that Python lacks are written out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np

from rowferry.columnar.addresses import Bytes, Ints, Longs, frozen
from rowferry.errors import SourceUnsupported
from rowferry.mysql import charset_kernels as kernels

# Character set -> first and last numbers of its collations, below 1024.
_COLLATIONS: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "big5": ((1, 1), (84, 84)),
    "latin2": ((2, 2), (9, 9), (21, 21), (27, 27), (77, 77)),
    "dec8": ((3, 3), (69, 69)),
    "cp850": ((4, 4), (80, 80)),
    "latin1": ((5, 5), (8, 8), (15, 15), (31, 31), (47, 49), (94, 94)),
    "hp8": ((6, 6), (72, 72)),
    "koi8r": ((7, 7), (74, 74)),
    "swe7": ((10, 10), (82, 82)),
    "ascii": ((11, 11), (65, 65)),
    "ujis": ((12, 12), (91, 91)),
    "sjis": ((13, 13), (88, 88)),
    "cp1251": ((14, 14), (23, 23), (50, 52)),
    "hebrew": ((16, 16), (71, 71)),
    "tis620": ((18, 18), (89, 89)),
    "euckr": ((19, 19), (85, 85)),
    "latin7": ((20, 20), (41, 42), (79, 79)),
    "koi8u": ((22, 22), (75, 75)),
    "gb2312": ((24, 24), (86, 86)),
    "greek": ((25, 25), (70, 70)),
    "cp1250": ((26, 26), (34, 34), (44, 44), (66, 66), (99, 99)),
    "gbk": ((28, 28), (87, 87)),
    "cp1257": ((29, 29), (58, 59)),
    "latin5": ((30, 30), (78, 78)),
    "armscii8": ((32, 32), (64, 64)),
    "utf8mb3": ((33, 33), (76, 76), (83, 83), (192, 223), (576, 578)),
    "ucs2": ((35, 35), (90, 90), (128, 159), (640, 642)),
    "cp866": ((36, 36), (68, 68)),
    "keybcs2": ((37, 37), (73, 73)),
    "macce": ((38, 38), (43, 43)),
    "macroman": ((39, 39), (53, 53)),
    "cp852": ((40, 40), (81, 81)),
    "utf8mb4": ((45, 46), (224, 247), (255, 323), (608, 610)),
    "utf16": ((54, 55), (101, 124), (672, 674)),
    "utf16le": ((56, 56), (62, 62)),
    "cp1256": ((57, 57), (67, 67)),
    "utf32": ((60, 61), (160, 183), (736, 738)),
    "binary": ((63, 63),),
    "geostd8": ((92, 93),),
    "cp932": ((95, 96),),
    "eucjpms": ((97, 98),),
    "gb18030": ((248, 250),),
}
_NO_PAD: Final = 1024  # MariaDB adds it to a collation's number for its NO PAD twin
# MariaDB's UCA 14.0.0 collations: the numbers of each character set begin 256 after the last one's.
_UCA1400_FIRST: Final = 2048
_UCA1400: Final = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_BY_NUMBER: Final = {
    number: name
    for name, spans in _COLLATIONS.items()
    for first, last in spans
    for number in range(first, last + 1)
}
_LONGEST: Final = {
    **dict.fromkeys(("big5", "sjis", "euckr", "gb2312", "gbk", "ucs2", "cp932"), 2),
    **dict.fromkeys(("ujis", "eucjpms", "utf8mb3"), 3),
    **dict.fromkeys(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"), 4),
}
_UTF8: Final = frozenset({"utf8mb4", "utf8mb3", "ascii"})
# Unit bytes, and whether the low byte comes first.
_WIDE: Final = {"ucs2": (2, False), "utf16": (2, False), "utf16le": (2, True), "utf32": (4, False)}

# Python's name where it differs, and the bytes that the servers map otherwise (None: no character).
_CODECS: Final = {
    "hp8": "hp_roman8",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "hebrew": "iso8859_8",
    "greek": "iso8859_7",
    "tis620": "tis_620",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "keybcs2": "cp437",
    "armscii8": "latin_1",
    "dec8": "latin_1",
    "geostd8": "latin_1",
    "swe7": "ascii",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "sjis": "shift_jis",
    "euckr": "cp949",
}
_GONE: Final = None
_ELSEWHERE: Final[dict[str, dict[bytes, str | None]]] = {
    "latin1": {bytes([b]): chr(b) for b in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "hebrew": {b"\xaf": "\u203e"},
    "koi8u": {b"\x95": "\u2022"},
    "greek": {b"\xa1": "\u02bd", b"\xa2": "\u02bc", b"\xa4": _GONE, b"\xa5": _GONE, b"\xaa": _GONE},
    "cp866": {b"\xfc": "\u207f", b"\xfd": "\u00b2"},
    "cp1256": {bytes([b]): _GONE for b in b"\x8a\x8f\x98\x9a\x9f\xaa\xc0\xff"},
    "tis620": {bytes([b]): "\ufffd" for b in b"\xa0\xdb\xdc\xdd\xde\xfc\xfd\xfe\xff"},
    "dec8": {
        **{bytes([b]): _GONE for b in b"\xa4\xa6\xac\xad\xae\xaf\xb4\xb8\xbe\xd0\xde\xf0\xfe\xff"},
        b"\xa8": "\xa4",
        b"\xd7": "\u0152",
        b"\xdd": "\u0178",
        b"\xf7": "\u0153",
        b"\xfd": "\xff",
    },
    "swe7": {
        **{bytes([b]): c for b, c in zip(b"@[\\]^`{|}~", "ÉÄÖÅÜéäöåü", strict=True)},
        b"\x7f": _GONE,
    },
    "big5": {
        **dict.fromkeys(
            (b"\xa1\x5a", b"\xa1\xc3", b"\xa1\xc5", b"\xa1\xfe", b"\xa2\x40", b"\xa2\xcc"), "\ufffd"
        ),
        b"\xa2\xce": "\ufffd",
        **{bytes([0xF9, 0xD6 + i]): c for i, c in enumerate("碁銹裏墻恒粧嫺")},
    },
    "sjis": {b"\x81\x5f": "\\"},
    "ujis": {b"\xa1\xc0": "\\"},
    "cp932": {bytes([b]): _GONE for b in b"\x80\xa0\xfd\xfe\xff"},
    "eucjpms": {b"\x8f\xa2\xb7": "\uff5e", b"\x8f\xa2\xc3": "\uffe4"},
    "gb18030": {b"\xa8\xbc": "\u1e3f", b"\x81\x35\xf4\x37": "\ue7c7"},
}
_ARMENIAN: Final = (
    "\u2741\xa7\u0589)(\xbb\xab\u2014.\u055d,-\u055f\u2026\u055c\u055b\u055e"
    + "".join(chr(0x531 + i) + chr(0x561 + i) for i in range(38))
    + "\u2019'"
)
_GEORGIAN: Final = (
    "\u20ac?\u201a?\u201e\u2026\u2020\u2021?\u2030?\u2039?????\u2018\u2019\u201c\u201d\u2022\u2013"
    "\u2014???\u203a????" + "".join(map(chr, range(0xA0, 0xC0))) + "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძ"
    "წჭხჴჯჰჵ" + "?" * 23 + "\u2116??"
)
_KAMENICKY: Final = "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ"  # 0x80 to 0xAB; then as cp437

_LAST_LEAD: Final = {"sjis": 0xFC, "euckr": 0xFE}  # where the last ones have no characters
_PRIVATE: Final = 0xE000  # where user-defined characters of EUC-JP go, 94 a row
_ROW: Final = 94


def charset_of(collation: int) -> str:
    """Return the character set of a collation number; empty text: the number is not known."""
    if collation >= _UCA1400_FIRST:
        place = (collation - _UCA1400_FIRST) >> 8
        return _UCA1400[place] if place < len(_UCA1400) else ""
    return _BY_NUMBER.get(collation % _NO_PAD, "")


def plain_name(charset: str) -> str:
    """Return a character set's name in one spelling: lower case, `utf8` as `utf8mb3`."""
    name = charset.lower()
    return "utf8mb3" if name == "utf8" else name


def longest_character(charset: str) -> int:
    """Return how many bytes one character can have."""
    return _LONGEST.get(plain_name(charset), 1)


def decoded(charset: str, texts: Iterable[bytes]) -> tuple[str, ...]:
    """Return a few texts (ENUM and SET elements) as Python's."""
    given = list(texts)
    offsets = np.cumsum([0, *map(len, given)], dtype=np.int64)
    data, begins = to_utf8(charset, np.frombuffer(b"".join(given), np.uint8), offsets)
    whole = data.tobytes()
    return tuple(whole[a:b].decode() for a, b in zip(begins[:-1], begins[1:], strict=True))


def to_utf8(charset: str, data: Bytes, offsets: Longs) -> tuple[Bytes, Longs]:
    """Convert a column of strings to well-formed UTF-8.

    Returns the arrays that came in where nothing is to be done, else new ones. Bytes that are no
    character become `?`.

    Raises:
        SourceUnsupported: nobody knows this character set.
    """
    name = plain_name(charset)
    data, offsets = frozen(data), frozen(offsets)
    if name not in _COLLATIONS or name == "binary":
        raise SourceUnsupported(f"character set {charset!r} is not known; convert the column")
    begins = np.empty(len(offsets), np.int64)
    if name in _WIDE:
        out = np.empty(2 * len(data), np.uint8)
        kernels.from_wide(data, offsets, *_WIDE[name], out, begins)
        return out, begins
    if name != "swe7" and kernels.is_ascii(data):
        return data, offsets
    if name in _UTF8:
        if name != "ascii" and kernels.is_utf8(data, offsets):
            return data, offsets
        out = np.empty(len(data), np.uint8)
        kernels.repair_utf8(data, offsets, name == "ascii", out, begins)
        return out, begins
    out = np.empty(3 * len(data), np.uint8)
    one, two, three, four = _tables(name)
    kernels.by_table(data, offsets, one, two, three, four, out, begins)
    return out, begins


@lru_cache
def _tables(name: str) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the code tables of a character set; see `decode_kernels_charset.by_table`."""
    one = _one_byte(name)
    two, three, four = (np.zeros(0, np.int32) for _ in range(3))
    if longest_character(name) > 1:
        two = _two_bytes(name, one)
    if name in ("ujis", "eucjpms"):
        one[0x8F] = kernels.LEAD_3
        three = _three_bytes(name)
    if name == "gb18030":
        one[0x81:0xFF] = kernels.LEAD_4
        four = _four_bytes()
    return frozen(one), frozen(two), frozen(three), frozen(four)


def _code(name: str, text: bytes) -> int:
    """Return the code point of one character, or STRAY."""
    changed = _ELSEWHERE.get(name, {})
    try:
        character = changed[text] if text in changed else text.decode(_CODECS.get(name, name))
    except UnicodeDecodeError:
        return kernels.STRAY
    return ord(character) if character and len(character) == 1 else kernels.STRAY


def _one_byte(name: str) -> Ints:
    codes = np.array([_code(name, bytes([b])) for b in range(256)], np.int32)
    upper = {"armscii8": (0xA1, _ARMENIAN), "geostd8": (0x80, _GEORGIAN)}
    upper["keybcs2"] = (0x80, _KAMENICKY)
    if name in upper:
        first, characters = upper[name]
        codes[first : first + len(characters)] = [ord(c) for c in characters]
    return codes


def _two_bytes(name: str, one: Ints) -> Ints:
    """Return the table of pairs; marks the first bytes in `one`."""
    codes = np.full((256, 256), kernels.STRAY, np.int32)
    for lead in range(0x80, 0x100):
        if one[lead] != kernels.STRAY:
            continue
        for trail in range(0x30, 0x100):
            codes[lead, trail] = _pair(name, lead, trail)
        if (codes[lead] >= 0).any():
            one[lead] = kernels.LEAD
    # A first byte between others is one too, although none of its characters has a code point.
    known = np.flatnonzero(one == kernels.LEAD)
    last = _LAST_LEAD.get(name, int(known[-1]))
    between = np.arange(0x81 if known[0] == 0x81 else 0xA1, last + 1)
    one[between[one[between] == kernels.STRAY]] = kernels.LEAD
    trails = (codes >= 0).any(axis=0)
    for lead in map(int, np.flatnonzero(one == kernels.LEAD)):
        codes[lead][trails & (codes[lead] == kernels.STRAY)] = kernels.UNMAPPED
    return codes.reshape(-1)


def _pair(name: str, lead: int, trail: int) -> int:
    if name in ("ujis", "eucjpms") and lead >= 0xF5:
        inside = lead <= 0xFE and 0xA1 <= trail <= 0xFE
        return _PRIVATE + (lead - 0xF5) * _ROW + trail - 0xA1 if inside else kernels.STRAY
    if name == "eucjpms" and lead >= 0xA1:  # Windows' characters at the places of JIS X 0208
        if not 0xA1 <= trail <= 0xFE:
            return kernels.STRAY
        row, cell = lead - 0xA1, trail - 0xA1
        first = row // 2 + (0x81 if row < 62 else 0xC1)
        second = cell + 0x9F if row % 2 else cell + 0x40 + (cell >= 63)
        return _code("cp932", bytes([first, second]))
    return _code(name, bytes([lead, trail]))


def _three_bytes(name: str) -> Ints:
    table = np.full((256, 256), kernels.STRAY, np.int32)
    for row in range(0xA1, 0xFF):
        for cell in range(0xA1, 0xFF):
            code = _code(name, bytes([0x8F, row, cell]))
            if row >= 0xF5:
                code = _PRIVATE + 10 * _ROW + (row - 0xF5) * _ROW + cell - 0xA1
            table[row, cell] = code if code >= 0 else kernels.UNMAPPED
    if name == "eucjpms":
        codes = [ord(c) for c in _ibm_extensions()]
        table[0xF3, 0xF3:0xFF] = codes[:12]
        table[0xF4, 0xA1:0xFF] = codes[12:]
    return table.reshape(-1)


def _ibm_extensions() -> list[str]:
    """Return the characters that IBM added for Windows and that JIS X 0212 lacks, in order."""
    places = [bytes([a, b]) for a in (0xFA, 0xFB, 0xFC) for b in range(0x40, 0xFD)]
    added = [chr(c) for place in places if (c := _code("cp932", place)) >= 0]
    lacking = [c for c in added if not c.encode("euc_jp", "ignore") or c == "\u2116"]
    return [c for c in lacking if c not in "\uffe2\uffe4"]


def _four_bytes() -> Ints:
    def text(place: int) -> bytes:
        rest, d = divmod(place, 10)
        rest, c = divmod(rest, 126)
        a, b = divmod(rest, 10)
        return bytes([0x81 + a, 0x30 + b, 0x81 + c, 0x30 + d])

    codes = np.array([_code("gb18030", text(i)) for i in range(39420)], np.int32)
    codes[codes < 0] = kernels.UNMAPPED
    return codes
