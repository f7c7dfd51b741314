"""The columns of a lake's table, and what becomes of them when the source's table changes.

Their JSON form is that of a Delta schema; tables of other formats keep it in a property.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from rowferry.change.position import PHYSICAL_SHIFT, physical_ms
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.errors import BadInput, SchemaChangeRefused
from rowferry.flow.sink.lake.columns import (
    CHOICES,
    IMPLICIT,
    LakeColumns,
    is_wider,
    keeps_values,
    lake_kind,
)

_NOT_PLAIN: Final = frozenset(" ,;{}()\n\t=")  # in names of columns without a mapping
_ID, _PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"
_SOURCE, _SCALE, _TYPE = "rowferry.column", "rowferry.scale", "rowferry.type"
NUMBERINGS: Final = "rowferry.numberings"  # the property of a table that tells them
_SINCE, _FORMER = "rowferry.since", "rowferry.former"
# A commit-ts of one transaction may be smaller when the log is read again from a later place.
_UNSURE: Final = 1000 << PHYSICAL_SHIFT
_MOST_NUMBERINGS: Final = 64


@dataclass(frozen=True, slots=True)
class StoredField:
    """One column.

    Attributes:
        kind: the name of the type, as Delta has it.
        source: the column's number in the source's table, as its numbering has it; 0: it is ours.
        scale: digits of a second's fraction in the source.
        physical: its name in data files.
        id: its number in the table's mapping; 0: the table has none.
        source_type: its type in the source, as JSON; empty: not noted.
        since: the version of the source's table with which it came; 0: with the first.
        former: the names that it had before, each with the version that ended it, ascending.
    """

    name: str
    kind: str
    source: int
    scale: int
    physical: str
    id: int = 0
    comment: str = ""
    source_type: str = ""
    since: int = 0
    former: tuple[tuple[int, str], ...] = ()

    def at(self, version: int) -> StoredField:
        """Return the column by the name that it had at a version of the source's table."""
        name = next((name for until, name in self.former if until > version), self.name)
        return replace(self, name=name, former=tuple(f for f in self.former if f[0] <= version))


@dataclass(frozen=True, slots=True)
class Filled:
    """A column that rows from before it was added have a value in."""

    physical: str
    column: Column


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """All columns of a table version.

    Attributes:
        mapped: names in data files are other than readers'.
        max_id: the highest number that any column of the mapping ever had.
        numberings: in which the columns have their numbers of the source. A table that is met
            again, as after a reset, may have its columns numbered in another way.
    """

    fields: tuple[StoredField, ...]
    mapped: bool = False
    max_id: int = 0
    numberings: tuple[str, ...] = ()

    @property
    def physical(self) -> dict[str, str]:
        """Names in data files, by the names that readers see."""
        return {f.name: f.physical for f in self.fields}

    @property
    def kinds(self) -> set[str]:
        """The names of all types."""
        return {f.kind for f in self.fields}

    def schema_text(self) -> str:
        """Return the JSON form that a table's metadata holds."""
        plain = [f for f in self.fields if f.source]
        top = []
        for field in self.fields:
            kind: Any = field.kind
            if field.kind == "struct":
                # Fields of old rows have their columns' names; their numbers follow all others.
                inner = [replace(f, id=self.max_id + 1 + i) for i, f in enumerate(plain)]
                kind = {"type": "struct", "fields": [self._form(f, f.kind) for f in inner]}
            top.append(self._form(field, kind))
        return json.dumps({"type": "struct", "fields": top}, ensure_ascii=False)

    @property
    def last_id(self) -> int:
        """The highest number in the mapping."""
        nested = any(f.kind == "struct" for f in self.fields)
        return self.max_id + (sum(1 for f in self.fields if f.source) if nested else 0)

    def _form(self, field: StoredField, kind: Any) -> dict[str, Any]:
        about: dict[str, Any] = {_SOURCE: field.source, _SCALE: field.scale}
        if field.comment:
            about["comment"] = field.comment
        if field.source_type:
            about[_TYPE] = field.source_type
        if field.since:
            about[_SINCE] = field.since
        if field.former:  # as a text: readers know no lists of lists here
            about[_FORMER] = json.dumps(field.former, ensure_ascii=False)
        if self.mapped:
            about |= {_ID: field.id, _PHYSICAL: field.physical}
        return {"name": field.name, "type": kind, "nullable": True, "metadata": about}

    @classmethod
    def read(
        cls, text: str, mapped: bool, max_id: int, numberings: Iterable[str] = ()
    ) -> StoredColumns | None:
        """Read what `schema_text` gave; None: these are columns of somebody else.

        `max_id` is the highest number that any column of the table ever had, as far as is noted.

        Raises:
            ValueError: these are no columns at all.
        """
        try:
            all_fields = [_read_field(form) for form in json.loads(text)["fields"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ValueError("no columns of a table") from None
        fields = tuple(field for field in all_fields if field is not None)
        if len(fields) < len(all_fields):
            return None
        return cls(fields, mapped, max([max_id, *(f.id for f in fields)]), tuple(numberings))


def _read_field(form: dict[str, Any]) -> StoredField | None:
    """Return a column; None: it is not ours.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is none.
    """
    about = form.get("metadata") or {}
    if _SOURCE not in about:
        return None
    kind = form["type"] if isinstance(form["type"], str) else "struct"
    name = form["name"]
    former = [(until, old) for until, old in json.loads(about.get(_FORMER, "[]"))]
    numbers = [about[_SOURCE], about.get(_SCALE, 0), about.get(_ID, 0), about.get(_SINCE, 0)]
    texts = [name, about.get(_PHYSICAL, name), about.get("comment", ""), about.get(_TYPE, "")]
    numbers_all = [*numbers, *(until for until, _ in former)]
    if not all(type(n) is int for n in numbers_all):
        raise ValueError
    if not all(isinstance(t, str) for t in [*texts, *(old for _, old in former)]):
        raise ValueError
    return StoredField(
        name,
        kind,
        source=numbers[0],
        scale=numbers[1],
        physical=texts[1],
        id=numbers[2],
        comment=texts[2],
        source_type=texts[3],
        since=numbers[3],
        former=tuple(former),
    )


@dataclass(frozen=True, slots=True)
class Evolution:
    """The next columns of a table, and what old rows need: nothing, or to be written anew."""

    columns: StoredColumns
    filled: tuple[Filled, ...] = ()
    casts: tuple[str, ...] = ()  # physical names

    @property
    def rewrites(self) -> bool:
        """Whether rows that are there must be written anew."""
        return bool(self.filled or self.casts)


def evolve(
    old: StoredColumns | None,
    table: TableSchema,
    lake: LakeColumns,
    mapped: bool = False,
    emptied: StoredColumns | None = None,
    numbering: str = "",
    succeeds: bool = False,
) -> Evolution:
    """Return the columns that a table's version has in the lake, after those that it had.

    Columns keep their names in data files: a renamed one is the same, and one that was dropped and
    added again is another. `mapped`: columns have numbers from the beginning. `emptied`: those of a
    table that begins anew; what its history says of their numbers stays true. `numbering`: in which
    the table has its columns' numbers (see `numbering_of`); in another one than the lake's they are
    known by the names that they had at the table's version. `succeeds`: this is the first version
    of a table; `old`, if any, was another, whose changes stay, and are empty in other columns.

    Raises:
        SchemaChangeRefused: old rows cannot be made to fit; the text has the choices.
    """
    numbering = numbering or numbering_of(table)
    wanted = _wanted(table, lake)
    if old is None:
        strange = any(set(f.name) & _NOT_PLAIN for f in wanted)
        ids, last = _fresh_ids(wanted, emptied)
        since = table.version if succeeds else 0
        fields = [
            replace(f, id=i, physical=f"col-{i}" if strange and f.source else f.name, since=since)
            for i, f in zip(ids, wanted, strict=True)
        ]
        return Evolution(_settled(fields, mapped or strange, last, (numbering,)))
    matched = _matched(old, wanted, table, numbering, succeeds)
    gone = {f.physical for f in old.fields} - {m.physical for m in matched if m}
    renamed = any(m and m.name != w.name for m, w in zip(matched, wanted, strict=True))
    added = [w for m, w in zip(matched, wanted, strict=True) if m is None]
    mapped = old.mapped or bool(gone) or renamed or any(set(w.name) & _NOT_PLAIN for w in added)
    max_id = old.max_id or len(old.fields)
    known = {f.physical: f.id or i for i, f in enumerate(old.fields, 1)}
    fields, filled, casts = [], [], []
    for match, want in zip(matched, wanted, strict=True):
        if match is None:
            max_id += 1
            physical = _new_physical(max_id) if mapped else want.name
            fields.append(replace(want, physical=physical, id=max_id, since=table.version))
            column = table.column(want.name)
            if not succeeds and _fills(column, table):
                filled.append(Filled(physical, column))
            continue
        if _needs_cast(match, want, table, lake):
            casts.append(match.physical)
        if table.inferred:  # the log's own description does not have every type by its name
            want = replace(want, source_type=match.source_type)
        elif want.source and not lake.changelog:
            _require_values(match, want, table)
        former = match.former
        if match.name.lower() != want.name.lower():
            former = (*former, (table.version, match.name))
        number, since = known[match.physical], match.since
        kept = replace(want, physical=match.physical, id=number, since=since, former=former)
        fields.append(kept)
    numberings = _numberings(old, fields, numbering)
    return Evolution(_settled(fields, mapped, max_id, numberings), tuple(filled), tuple(casts))


def numbering_of(table: TableSchema, begun: int = 0) -> str:
    """Return what tells the numbers of a table's columns from those of other numberings.

    `begun`: the epoch at which the changefeed has met its tables anew; 0: it has not.
    """
    return f"{table.table_id}@{begun:x}" if begun else str(table.table_id)


def _fresh_ids(
    wanted: Sequence[StoredField], emptied: StoredColumns | None
) -> tuple[list[int], int]:
    """Return the numbers of a new table's columns, and the highest one that any ever had."""
    known = {(f.name, f.kind): f.id for f in emptied.fields} if emptied is not None else {}
    last = emptied.max_id if emptied is not None else 0
    ids = []
    for field in wanted:
        number = known.get((field.name, field.kind), 0)
        if not number:
            last = number = last + 1
        ids.append(number)
    return ids, last


def _new_physical(number: int) -> str:
    """Return the name in data files of a column that was added.

    Names of the source stand there, too, also of columns that were dropped: no source has this one.
    """
    return f"col-{uuid5(NAMESPACE_OID, str(number))}"


def _settled(
    fields: Sequence[StoredField], mapped: bool, max_id: int, numberings: tuple[str, ...]
) -> StoredColumns:
    stored = tuple(f if mapped else replace(f, id=0) for f in fields)
    return StoredColumns(stored, mapped, max_id, numberings)


def _numberings(
    old: StoredColumns, fields: Sequence[StoredField], numbering: str
) -> tuple[str, ...]:
    """Return in which numberings the next columns have their numbers.

    Several may give the same ones, as those of tables that are written to one.
    """
    if [(f.physical, f.source) for f in fields] != [(f.physical, f.source) for f in old.fields]:
        return (numbering,)
    others = [one for one in old.numberings if one != numbering]
    if len(others) < len(old.numberings):
        return old.numberings
    return (*others[1 - _MOST_NUMBERINGS :], numbering)


def _wanted(table: TableSchema, lake: LakeColumns) -> list[StoredField]:
    fields = []
    for field in lake.schema(table):
        own = lake.changelog and field.name.lower() not in table.by_name
        column = None if own else table.column(field.name)
        fields.append(
            StoredField(
                field.name,
                lake_kind(field.type),
                column.id if column else 0,
                column.type.fraction_digits if column else 0,
                field.name,
                comment=column.comment if column else "",
                source_type=json.dumps(column.type.to_json(), sort_keys=True) if column else "",
            )
        )
    return fields


def _matched(
    old: StoredColumns,
    wanted: list[StoredField],
    table: TableSchema,
    numbering: str,
    succeeds: bool,
) -> list[StoredField | None]:
    """Return what each column was; None: it is new."""
    if numbering not in (old.numberings or (numbering_of(table),)):
        if succeeds:
            return _named_at(old, wanted, table.version)
        return _matched_by_names(old, wanted, table)
    by_name = {f.name: f for f in old.fields}
    by_source = {f.source: f for f in old.fields if f.source}
    return [by_source.get(w.source) if w.source else by_name.get(w.name) for w in wanted]


def _matched_by_names(
    old: StoredColumns, wanted: list[StoredField], table: TableSchema
) -> list[StoredField | None]:
    """Return what each column was, by the names that the lake's had at the table's version.

    That may be long ago, and columns that came later are not there yet. All that were there must
    have a name in the table, or it is of another place than its version says: as where a place was
    given without a time, or the first version has the columns of today.

    Raises:
        SchemaChangeRefused: more than one answer is possible.
    """
    turns = {until for f in old.fields for until, _ in f.former} | {f.since for f in old.fields}
    is_placed = physical_ms(table.version) > 0
    first = table.version if is_placed else 0
    names = {w.name.lower() for w in wanted}
    fit = [
        place
        for place in [first, *sorted(turn for turn in turns if turn > first)]
        if all(f.at(place).name.lower() in names for f in old.fields if f.since <= place)
    ]
    if is_placed and fit[:1] == [first]:
        fit = [place for place in fit if place < first + _UNSURE]
    answers = [_named_at(old, wanted, place) for place in fit]
    if not answers:
        present = _named_at(old, wanted, max(turns))
        kept = {m.physical for m in present if m is not None}
        if None in present and any(f.physical not in kept for f in old.fields):
            raise SchemaChangeRefused(
                f"{table.id}: which of its columns ({_listed(wanted)}) are those of the lake's "
                f"table ({_listed(old.fields)}) is not known, as the changefeed did not see how "
                f"they changed; {CHOICES}"
            )
        return present
    if len({tuple(m.physical if m else "" for m in answer) for answer in answers}) > 1:
        raise SchemaChangeRefused(
            f"{table.id}: columns have changed names, and which of them {_listed(wanted)} are at "
            f"the place where the changefeed reads on is not known; {CHOICES}"
        )
    return answers[0]


def _named_at(
    old: StoredColumns, wanted: Sequence[StoredField], place: int
) -> list[StoredField | None]:
    """Return the columns that had these names at a place; of those that came later, have now."""
    there = {f.name.lower(): replace(f, former=()) for f in old.fields if f.since > place}
    there |= {now.name.lower(): now for f in old.fields if f.since <= place if (now := f.at(place))}
    return [there.get(w.name.lower()) for w in wanted]


def _listed(fields: Iterable[StoredField]) -> str:
    return ", ".join(f.name for f in fields if f.source)


def _fills(column: Column, table: TableSchema) -> bool:
    """Return whether older rows have something other than NULL in a column that was added."""
    if column.untold:
        raise SchemaChangeRefused(
            f"{table.id}: no statement that could be read tells what older rows have in the column "
            f"{column.name!r}: it may be an earlier column by another name; {CHOICES}"
        )
    if column.auto_increment:
        raise SchemaChangeRefused(
            f"{table.id}: the source has numbered older rows in the new column {column.name!r}, "
            f"which the log does not hold; {CHOICES}"
        )
    if column.generated or (column.expression and column.filled is None):
        raise SchemaChangeRefused(
            f"{table.id}: older rows have computed values in the new column {column.name!r}, which "
            f"the log does not hold; {CHOICES}"
        )
    if column.filled is not None:
        return True
    if column.nullable:
        return False
    if column.type.kind in IMPLICIT:
        return True
    raise SchemaChangeRefused(
        f"{table.id}: what older rows have in the new column {column.name!r} ({column.type.sql} "
        f"NOT NULL without a default) is not known; {CHOICES}"
    )


def _needs_cast(old: StoredField, new: StoredField, table: TableSchema, lake: LakeColumns) -> bool:
    """Return whether values must be written anew for a column whose type has changed."""
    if new.kind == old.kind:
        if old.scale == new.scale or not new.source or old.kind.startswith("decimal"):
            return False
        if new.kind in ("timestamp", "timestamp_ntz") and new.scale > old.scale:
            return False
        timed = table.column(new.name).type.kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
        if not timed:
            return False
    elif is_wider(old.kind, new.kind) and not lake.changelog:
        return True
    raise SchemaChangeRefused(
        f"{table.id}: the type of column {new.name!r} changed to {table.column(new.name).type.sql} "
        f"(in the lake from {old.kind} to {new.kind}); {CHOICES}"
    )


def _require_values(old: StoredField, new: StoredField, table: TableSchema) -> None:
    """Raise where the source has changed the values of older rows with their column's type."""
    column = table.column(new.name)
    try:
        before = SqlType.from_json(json.loads(old.source_type))
    except (ValueError, RecursionError, BadInput):
        return  # of a table, or with a type, that another version wrote
    if not keeps_values(before, column.type, new.kind):
        raise SchemaChangeRefused(
            f"{table.id}: the type of column {new.name!r} changed from {before.sql} to "
            f"{column.type.sql}, by which the source may have changed older rows; {CHOICES}"
        )
