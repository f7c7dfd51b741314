"""Whether a table can still be read by an older definition of it."""

from __future__ import annotations

from rowferry.change.table import TableSchema


def can_be_read_as(now: TableSchema, old: TableSchema) -> bool:
    """Return whether a table has all columns of an older definition, and is read by the same key.

    A column that was only added does no harm: the log adds it to the rows.
    """
    same = all(
        (mine := now.by_name.get(c.name.lower())) is not None and mine.type == c.type
        for c in old.columns
    )
    return same and _same_key(now, old)


def misleads(now: TableSchema, old: TableSchema) -> bool:
    """Return whether a column has another name than before, which now is that of another one.

    Whoever reads the table by the older definition then gets the other one's values. For a column
    of the key it is enough that another one has its name: parts are read in the order of its
    values.
    """
    ids = {c.id for c in now.columns}
    key = {name.lower() for name in old.handle_key}
    return any(
        (c.id in ids or c.name.lower() in key)
        and (other := now.by_name.get(c.name.lower())) is not None
        and other.id != c.id
        for c in old.columns
    )


def _same_key(now: TableSchema, old: TableSchema) -> bool:
    """Return whether the key through which the parts are read has its name and its columns."""
    mine, other = now.handle_index, old.handle_index
    if mine is None or other is None:
        return mine is other
    return mine.name == other.name and now.handle_key == old.handle_key
