"""ALTER TABLE that leads from one definition to another, where no statement of a user does."""

from __future__ import annotations

from rowferry.change.table import Index, TableId, TableSchema
from rowferry.mysql.ddl.table import column_sql, index_sql, literal, quoted, quoted_table


def alter_sql(name: TableId, old: TableSchema, new: TableSchema) -> str:
    """Return the statement that makes a table as `new` says out of one as `old` says; or "".

    A column is the same one as long as its id is. Partitions, foreign keys and checks are let be.
    """
    parts = [*_columns(old, new), *_indexes(old, new)]
    if old.comment != new.comment:
        parts.append(f"COMMENT={literal(new.comment)}")
    if old.charset != new.charset:
        parts.append(f"DEFAULT CHARSET={new.charset}")
    return f"ALTER TABLE {quoted_table(name)} {', '.join(parts)}" if parts else ""


def _columns(old: TableSchema, new: TableSchema) -> list[str]:
    before, after = ({c.id: c for c in t.columns} for t in (old, new))
    clauses = [f"DROP COLUMN {quoted(c.name)}" for c in old.columns if c.id not in after]
    stayed = [i for i in before if i in after]
    moved = stayed != [i for i in after if i in before]
    place = "FIRST"
    for column in new.columns:
        was = before.get(column.id)
        text = column_sql(column, new)
        if was is None:
            clauses.append(f"ADD COLUMN {text} {place}")
        elif moved:
            clauses.append(f"CHANGE COLUMN {quoted(was.name)} {text} {place}")
        elif column_sql(was, old) != text:
            clauses.append(f"CHANGE COLUMN {quoted(was.name)} {text}")
        place = f"AFTER {quoted(column.name)}"
    return clauses


def _indexes(old: TableSchema, new: TableSchema) -> list[str]:
    names = {c.id: c.name.lower() for c in new.columns}
    now = {c.name.lower(): names.get(c.id, "") for c in old.columns}

    def kept(index: Index) -> list[str]:
        """Return the columns that an index has left, under their present names."""
        return [n for c in index.columns if (n := now.get(c.lower(), ""))]

    # Servers find the columns of keys by name: one that is added would take a dropped one's place.
    added = {c.name.lower() for c in new.columns} - set(now.values())
    unsure = {
        _index_name(i) for i in old.indexes if not added.isdisjoint(map(str.lower, i.columns))
    }
    before = {_index_name(i): (kept(i), i.unique) for i in old.indexes if kept(i)}
    after = {_index_name(i): ([c.lower() for c in i.columns], i.unique) for i in new.indexes}
    clauses = []
    for index in old.indexes:
        name = _index_name(index)
        if name in unsure or (name in before and before[name] != after.get(name)):
            what = "PRIMARY KEY" if index.primary else f"INDEX {quoted(index.name)}"
            clauses.append(f"DROP {what}")
    for index in new.indexes:
        name = _index_name(index)
        if name in unsure or before.get(name) != after[name]:
            clauses.append(f"ADD {index_sql(index)}")
    return clauses


def _index_name(index: Index) -> str:
    return "PRIMARY" if index.primary else index.name.lower()
