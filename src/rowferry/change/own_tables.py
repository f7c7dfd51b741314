"""Tables that a changefeed, or who applies its output, keeps in the database written to.

Who captures that database, e.g. to bring its changes back, must not take them along: at the other
end they would be written over those of another changefeed, its fence among them.
"""

from __future__ import annotations

from typing import Final

FENCE: Final = "rowferry_fence"
DELIVERED: Final = "rowferry_delivered"
SCHEMA_CHANGES: Final = "rowferry_schema_changes"
MARK: Final = "rowferry_mark"
EXCHANGES: Final = "rowferry_exchanges"
OWN_TABLES: Final = frozenset({FENCE, DELIVERED, SCHEMA_CHANGES, MARK, EXCHANGES})
