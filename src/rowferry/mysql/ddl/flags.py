"""Soft delete and active-active in TiDB's DDL text, where both stand in `/*T![…] … */` comments."""

from __future__ import annotations

import re
from typing import Final

# Quoted text and plain comments are matched only to be left alone: a comment mark inside of the one
# is not a comment, and a quote inside of the other begins no text.
_MARKED: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`"""
    r"""|/\*(?!!|M!|T!\[).*?\*/|(?:--(?=\s)|\#)[^\n]*|/\*T!\[[^\]]*\](.*?)\*/""",
    re.DOTALL,
)
_ACTIVE_ACTIVE: Final = re.compile(r"\bACTIVE_ACTIVE\s*=?\s*'ON'", re.IGNORECASE)
_SOFT_DELETE: Final = re.compile(r"\bSOFTDELETE\s*=?\s*(RETENTION\b|'ON')", re.IGNORECASE)


def marked_flags(sql: str) -> tuple[bool, bool]:
    """Return whether CREATE TABLE makes an active-active table, and one with soft delete."""
    if "/*T![" not in sql:
        return False, False
    marked = " ".join(match[1] for match in _MARKED.finditer(sql) if match[1] is not None)
    active_active = _ACTIVE_ACTIVE.search(marked) is not None
    return active_active, _SOFT_DELETE.search(marked) is not None


def flags_sql(active_active: bool, soft_delete: bool) -> str:
    """Return what `marked_flags` reads, as the end of a statement."""
    marks = " /*T![softdelete] SOFTDELETE RETENTION 7 DAY */" if soft_delete else ""
    return marks + (" /*T![active_active] ACTIVE_ACTIVE='ON' */" if active_active else "")
