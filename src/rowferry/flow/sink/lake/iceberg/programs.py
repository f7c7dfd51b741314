"""What a table's settings must not name."""

from __future__ import annotations

from typing import Final

from pyiceberg.table import Table

from rowferry.errors import TargetUnfit

_PROGRAM: Final = "write.py-location-provider.impl"


def without_program(table: Table) -> Table:
    """Return a table whose settings name no program: the library would begin it.

    Raises:
        TargetUnfit: they do.
    """
    if _PROGRAM in table.metadata.properties:
        raise TargetUnfit(
            f"the Iceberg table {'.'.join(table.name())} names a program for the places of its "
            f"files, which is not run here; remove its property {_PROGRAM}"
        )
    return table
