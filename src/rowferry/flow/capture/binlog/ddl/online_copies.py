"""The names that tools for online schema changes give to the copy that becomes the table."""

from __future__ import annotations

import re
from typing import Final

from rowferry.change.table import TableId

_LONGEST: Final = 64  # characters of a table's name: tools cut longer ones
_COPIES: Final = (
    re.compile(r"_(.+)_gho"),  # gh-ost
    re.compile(r"_{1,10}(.+)_new"),  # pt-online-schema-change, Spirit
    re.compile(r"__osc_new_(.+)"),  # OnlineSchemaChange
    re.compile(r"lhmn_(.+)"),  # Large Hadron Migrator
)
_VITESS: Final = re.compile(r"_vt_(vrp_)?[0-9a-f]{32}_[0-9]{14}_")  # names the copy by a number


def is_online_copy(table: TableId, copy: TableId) -> bool:
    """Return whether a table of this name is a tool's copy of another, with the same rows.

    Whoever swaps tables by hand may have filled the other one with anything.
    """
    if table.database.lower() != copy.database.lower():
        return False
    name, wanted = copy.table.lower(), table.table.lower()
    if _VITESS.fullmatch(name):
        return True
    for pattern in _COPIES:
        if match := pattern.fullmatch(name):
            cut = len(name) >= _LONGEST and wanted.startswith(match[1])
            if match[1] == wanted or cut:
                return True
    return False
