"""The indexes that got something: the same ones must be there, with the same kind of id."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import TargetLost, TargetUnfit
from rowferry.flow.sink.contract import RESTORE, Owner
from rowferry.flow.sink.search.index_names import index_name, shared

_KEY: Final = "delivered"
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class DeliveredIndex:
    """An index of which something is known.

    Attributes:
        number: the index's own, which another one of the same name does not have; "": not known.
        key: how ids are made: the columns of the handle key and what decides their texts.
    """

    table: TableId
    number: str
    key: tuple[str, ...]


def key_form(table: TableSchema) -> tuple[str, ...]:
    """Return what decides how a table's keys are written as ids."""
    columns = (table.column(name) for name in table.handle_key)
    return tuple(f"{c.name} {c.type.kind.value} {c.type.scale or 0}" for c in columns)


class DeliveredIndexes:
    """What is known of indexes by what was published; kept in the sink's state."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self.known: dict[str, DeliveredIndex] = {}

    def resume(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Know what the last published plan knew, of the tables that are still captured."""
        known = _of_form(state or {})
        if owner.continues:
            known = {name: one for name, one in known.items() if one.table in owner.captured}
        self.known = known

    def check_key(self, name: str, table: TableSchema) -> None:
        """Refuse a table whose rows would get other ids than they have.

        Raises:
            TargetUnfit: its key is another one now, or it has none.
            BadInput: the index is another table's.
        """
        if not table.handle_key:
            raise keyless([table])
        one = self.known.get(name)
        if one is None:
            return
        if one.table != table.written_as:
            raise shared(name, one.table, table.written_as)
        if one.key != key_form(table):
            raise TargetUnfit(
                f"table {table.id} has the key ({', '.join(table.handle_key)}) now, so that its "
                f"rows would get other ids than they have in index {name}: delete the index, and "
                "begin anew with rowferry changefeed reset --snapshot"
            )

    def check_there(self, names: Collection[str], numbers: Mapping[str, str], at: str) -> None:
        """Refuse where one of these indexes is gone, or was made anew.

        Raises:
            TargetLost: the text names it.
        """
        gone = sorted(
            name
            for name in names
            if (one := self.known.get(name)) is not None
            and (name not in numbers or (one.number and numbers[name] != one.number))
        )
        if gone:
            raise lost(gone, at)

    def foresee(
        self,
        tables: Iterable[TableSchema],
        numbers: Mapping[str, str],
        changes: Iterable[SchemaChange],
    ) -> dict[str, Any] | None:
        """Return the state once a plan is published that writes these tables; None: as before."""
        then = self.with_tables(tables, numbers)
        for change in changes:
            then.follow(change)
        return None if then.known == self.known else {_KEY: _form(then.known)}

    def with_tables(
        self, tables: Iterable[TableSchema], numbers: Mapping[str, str]
    ) -> DeliveredIndexes:
        """Return what is known once these tables are written."""
        then = DeliveredIndexes(self._rule)
        then.known = dict(self.known)
        for table in tables:
            index = index_name(self._rule, table.written_as)
            one = DeliveredIndex(table.written_as, numbers.get(index, ""), key_form(table))
            then.known[index] = one
        return then

    def publish(self, state: dict[str, Any] | None) -> None:
        """Take over what a plan foresaw."""
        if state is not None and _KEY in state:
            self.known = _of_form(state)

    def follow(self, change: SchemaChange) -> None:
        """Know what is known behind a schema change."""
        known = self.known
        name, old = change.written_as, change.previous_target or change.previous
        if change.takes_tables:
            for index, one in list(known.items()):
                if one.table.database == name.database:
                    del known[index]
        elif change.kind is DdlKind.DROP_TABLE:
            known.pop(index_name(self._rule, name), None)
        elif old is not None and old != name:
            one_known = known.pop(index_name(self._rule, old), None)
            if one_known is not None:
                key = key_form(change.schema) if change.schema else one_known.key
                known[index_name(self._rule, name)] = DeliveredIndex(name, "", key)
        elif change.kind is not DdlKind.CREATE_TABLE and change.schema is not None:
            index = index_name(self._rule, name)
            if index in known:  # another one may come in its place, where a field's type changes
                known[index] = replace(known[index], number="")


def keyless(tables: Iterable[TableSchema]) -> TargetUnfit:
    """Return the error for tables without a key."""
    names = ", ".join(sorted(str(table.id) for table in tables))
    return TargetUnfit(
        f"{names}: without a key a row has no id of its own in an index; give the table a primary "
        "key or a unique key over columns that are NOT NULL, or filter it out"
    )


def lost(names: Collection[str], at: str) -> TargetLost:
    """Return the error for indexes that are gone."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return TargetLost(
        f"{at}: index {', '.join(ordered[:_NAMED])}{more} is gone, or was made anew, to which this "
        f"changefeed has delivered; {RESTORE}"
    )


def _form(known: Mapping[str, DeliveredIndex]) -> dict[str, Any]:
    return {
        name: {"table": list(one.table), "number": one.number, "key": list(one.key)}
        for name, one in sorted(known.items())
    }


def _of_form(state: dict[str, Any]) -> dict[str, DeliveredIndex]:
    return {
        name: DeliveredIndex(TableId(*one["table"]), one["number"], tuple(one["key"]))
        for name, one in state.get(_KEY, {}).items()
    }
