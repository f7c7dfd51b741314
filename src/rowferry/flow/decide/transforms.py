"""Masks and computed columns: what becomes of a table, of its rows and of its schema changes.

Whatever is not certain is refused: a value that should be masked leaves as it is in no case, also
where a DDL renames, changes or replaces a column or a table.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from rowferry.change.chunk import Rows, make_rows
from rowferry.change.dialect import fold
from rowferry.change.table import MYSQL, Column, TableId, TableSchema
from rowferry.errors import BadFilterRule, BadStatement, BadTransform, MaskLost
from rowferry.flow.decide.expression_values import ImageColumns
from rowferry.flow.decide.hmac_kernels import HexHmac
from rowferry.flow.decide.masked_columns import MadeColumn, computed, masked
from rowferry.flow.decide.table_filter import NameFilter, TableFilter, named_by
from rowferry.flow.decide.table_flags import COMMIT_TS, ORIGIN_TS, SOFT_DELETE_TIME
from rowferry.flow.decide.typed_result import keeps_text
from rowferry.mysql.ddl.cursor import QUOTED, WORD, tokenize
from rowferry.spec.rules.transform import HASH, ComputedRule, MaskRule, TransformOptions

_MARKS: Final = frozenset({ORIGIN_TS, SOFT_DELETE_TIME, COMMIT_TS})
_FIRST_COMPUTED_ID: Final = 100_000  # no table has so many columns of its own
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class TransformedTable:
    """A table version with its masks and computed columns.

    Attributes:
        schema: as readers see it.
        made: the columns that are not what the source has, by name.
        masked: which of them the source has, by its ids.
    """

    schema: TableSchema
    made: dict[str, MadeColumn]
    masked: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Mask:
    rule: MaskRule
    tables: TableFilter
    columns: NameFilter
    named: frozenset[tuple[str | None, str | None]]  # tables that it names without a wildcard

    def fits(self, table: TableSchema, column: Column) -> bool:
        return self.tables.matches_table(*table.id) and self.columns.matches(column.name)


class Transforms:
    """`[transform]` of a changefeed."""

    def __init__(self, options: TransformOptions, case_sensitive: bool, keeps_keys: bool) -> None:
        """Read the rules.

        Args:
            options: as the user wrote them.
            case_sensitive: whether matchers go by the case of tables' names.
            keeps_keys: the source stores keys of rows with its progress.

        Raises:
            BadTransform: a pattern that cannot be used.
            BadFilterRule: a matcher with a syntax error.
        """
        self._masks = [_read_mask(rule, case_sensitive) for rule in options.masks]
        self._computed = [(rule, _tables(rule, case_sensitive)) for rule in options.computed]
        self._case_sensitive, self._keeps_keys = case_sensitive, keeps_keys
        self._salt, self._check = options.salt.encode(), options.salt_check
        self._hmac = HexHmac(self._salt) if self._salt and self._hashes else None
        self.any = bool(self._masks or self._computed)

    @property
    def _hashes(self) -> bool:
        return any(m.rule.action == HASH for m in self._masks)

    @property
    def hides(self) -> bool:
        """Whether there are masks at all."""
        return bool(self._masks)

    # --- the salt --------------------------------------------------------------------------------

    def salt_check(self) -> str:
        """Return by what a changed salt is noticed; empty: nothing is hashed."""
        if not self._hashes or not self._salt:
            return ""
        return hmac.new(self._salt, b"rowferry salt check", hashlib.sha256).hexdigest()[:16]

    def check_salt(self) -> None:
        """Refuse another salt than the changefeed began with, and one that could be guessed.

        Raises:
            BadTransform: it is one of these.
        """
        if not self._hashes:
            return
        if len(self._salt) < _SALT_BYTES:
            raise BadTransform(
                f"transform.salt has less than {_SALT_BYTES} bytes, so that hashes could be guessed"
            )
        if self._check and self._check != self.salt_check():
            raise BadTransform(
                "transform.salt is not the one with which the changefeed was created: hashes would "
                "not be those that readers have; give it back its value"
            )

    # --- tables ----------------------------------------------------------------------------------

    def look(self, table: TableSchema) -> TransformedTable | None:
        """Return a table with its masks and computed columns; None: it has none.

        Raises:
            BadTransform: a rule that does not fit it.
            MaskLost: a rule names the table, and no column that it has any more.
        """
        if not self.any:
            return None
        rules = {c.id: rule for c in table.columns if (rule := self._rule(table, c)) is not None}
        self._refuse_unfound(table)
        if rules or any(tables.matches_table(*table.id) for _, tables in self._computed):
            self._refuse_dialect(table)
        if rules:
            self._refuse_generated(table, rules)
        made: dict[str, MadeColumn] = {}
        columns = []
        for column in table.columns:
            if column.id in rules:
                self._refuse_special(table, column, rules[column.id])
                made[column.name] = masked(rules[column.id], table, column, self._hmac)
                column = made[column.name].column
            columns.append(column)
        for asked, tables in self._computed:
            if tables.matches_table(*table.id):
                one = computed(asked, table, _FIRST_COMPUTED_ID + asked.place)
                if asked.column.lower() in {c.name.lower() for c in columns}:
                    raise BadTransform(
                        f"{asked.path('column')}: table {table.id} has a column {asked.column!r} "
                        "already; give it another name"
                    )
                made[one.column.name] = one
                columns.append(one.column)
        if not made:
            return None
        schema = replace(table, columns=tuple(columns))
        return TransformedTable(schema, made, frozenset(rules))

    def _rule(self, table: TableSchema, column: Column) -> MaskRule | None:
        return next((m.rule for m in self._masks if m.fits(table, column)), None)

    def _refuse_unfound(self, table: TableSchema) -> None:
        """Refuse a table that a rule names without a wildcard, and that lost what it is about."""
        cased = self._case_sensitive
        name = tuple(part if cased else fold(part) for part in table.id)
        for mask in self._masks:
            if name in mask.named and mask.tables.matches_table(*table.id):
                if not any(mask.columns.matches(c.name) for c in table.columns):
                    raise MaskLost(
                        f"{mask.rule.path('columns')} fit no column of table {table.id}, which the "
                        f"rule names (it has: {', '.join(c.name for c in table.columns)}); a "
                        "column that was renamed would go out as it is"
                    )

    def _refuse_dialect(self, table: TableSchema) -> None:
        if table.dialect != MYSQL:
            raise BadTransform(
                f"table {table.id}: masks and computed columns are for tables of MySQL and its "
                f"like, not for those of {table.dialect}; leave it out of transform"
            )

    def _refuse_special(self, table: TableSchema, column: Column, rule: MaskRule) -> None:
        what = f"{rule.path('columns')}: {table.id}.{column.name}"
        if column.name.lower() in _MARKS:
            raise BadTransform(
                f"{what} tells which write is newer or that a row is deleted, and cannot be "
                f"masked; leave it out with '!{column.name}'"
            )
        keyed = {c.lower() for i in table.indexes if i.primary or i.unique for c in i.columns}
        if column.name.lower() in keyed and rule.action != HASH:
            raise BadTransform(
                f"{what} is part of a primary or unique key, in which two rows would become one "
                f"by action = {rule.action}; use hash, or leave it out with '!{column.name}'"
            )
        part = table.partitioning
        if part is not None and part.column.lower() == column.name.lower():
            raise BadTransform(
                f"{what} is the column by which the table is partitioned, and cannot be masked; "
                f"leave it out with '!{column.name}'"
            )
        if self._keeps_keys and column.name in table.handle_key:
            raise BadTransform(
                f"{what} is part of the key, and this source stores keys of rows with its progress "
                f"in the meta database; leave it out with '!{column.name}'"
            )

    def _refuse_generated(self, table: TableSchema, rules: dict[int, MaskRule]) -> None:
        """Refuse columns that tell a masked one's value because they are computed from it."""
        names = {c.name.lower() for c in table.columns if c.id in rules}
        for column in table.columns:
            # A default may be computed from other columns, too.
            if (column.generated or column.expression) and column.id not in rules:
                if used := _mentioned(column.expression, names):
                    made = "is generated" if column.generated else "has a default that is made"
                    raise BadTransform(
                        f"{table.id}.{column.name} {made} from {used}, which is masked, and "
                        "would tell its value; mask it too, for instance with action = null"
                    )

    def hides_key(self, table: TableSchema) -> bool:
        """Return whether a column of the table's key is masked."""
        return any(self._rule(table, table.column(c)) is not None for c in table.handle_key)

    def makes_the_same_of(self, table: TableSchema, former: TableId) -> bool:
        """Return whether the same rules are for a table as would be under another name."""
        before = replace(table, id=former)
        masks = all(self._rule(before, c) == self._rule(table, c) for c in table.columns)
        return masks and all(
            tables.matches_table(*former) == tables.matches_table(*table.id)
            for _, tables in self._computed
        )

    def check(self, tables: Sequence[TableSchema]) -> list[str]:
        """Judge the tables of a new changefeed; return notices.

        Raises:
            BadTransform: a rule that fits no column of any table.
        """
        self.check_salt()
        for mask in self._masks if tables else ():
            if not any(mask.fits(t, c) for t in tables for c in t.columns):
                raise BadTransform(
                    f"{mask.rule.path()} fits no column of any captured table "
                    f"(matcher {', '.join(mask.rule.matcher)}; columns "
                    f"{', '.join(mask.rule.columns)}); correct it, or remove it"
                )
        for rule, filter_ in self._computed if tables else ():
            if not any(filter_.matches_table(*t.id) for t in tables):
                raise BadTransform(f"{rule.path('matcher')} fits no captured table; correct it")
        return [notice for t in tables for notice in self._notices(t)]

    def _notices(self, table: TableSchema) -> Iterable[str]:
        plan = self.look(table)
        clear = {c.name for c in table.columns if plan and c.id in plan.masked}
        for one in plan.made.values() if plan else ():
            if unmasked := sorted((one.needs & clear) - {one.column.name}):
                yield (
                    f"{table.id}.{one.column.name} is computed from {', '.join(unmasked)} before "
                    "they are masked"
                )

    # --- schema changes --------------------------------------------------------------------------

    def follow(self, old: TableSchema, new: TableSchema) -> None:
        """Refuse a new version of a table in which something is no longer masked.

        Raises:
            MaskLost: a masked column goes on under a name, or in a table, that no rule fits; or it
                is gone and another came, which may be the same one; or any is gone and another
                came by a statement that could not be read.
            BadTransform: rows that readers have would be other ones now, and no statement makes
                them so.
        """
        before = self.look(old)
        if before is None:
            return
        after = self.look(new)
        same = old.table_id == new.table_id  # else ids of columns mean nothing to each other
        if after is not None and same:
            _refuse_outdated(old, before, new, after)
        if not before.masked:
            return
        still = after.masked if after else frozenset()
        names = {_mark(c, same): c.name for c in old.columns}
        lost = {_mark(c, same) for c in old.columns if c.id in before.masked}
        shown = [c for c in new.columns if c.id not in still]
        for column in shown:
            if (mark := _mark(column, same)) in lost:
                raise MaskLost(
                    f"column {names[mark]} of {old.id} is masked, and is {new.id}.{column.name} "
                    "now, which no rule of transform.masks fits"
                )
        here = {_mark(c, same) for c in new.columns}
        lost -= here
        if unread := [c for c in shown if c.untold and _mark(c, same) not in names]:
            lost = names.keys() - here  # names may have been traded: any may be the masked one
            came = [c.name for c in unread]
        else:
            came = [c.name for c in shown if _mark(c, same) not in names]
        if lost and came:
            gone = ", ".join(sorted(names[mark] for mark in lost))
            raise MaskLost(
                f"table {new.id} lost {gone}, which is masked, and got {', '.join(came)}, which no "
                "rule of transform.masks fits, at once: it may be the same column"
            )

    # --- rows ------------------------------------------------------------------------------------

    def rows(self, rows: Rows, table: TransformedTable, seen: TableSchema) -> Rows:
        """Return rows with their masks and computed columns, and no other columns than `seen` has.

        Raises:
            BadTransform: a value of which something cannot be made; the text does not tell it.
        """
        return make_rows(
            seen,
            rows.batch.column("op"),
            rows.batch.column("commit_ts"),
            rows.batch.column("seq"),
            self.images(rows.before, table, seen),
            self.images(rows.after, table, seen),
            rows.physical_id,
            rows.half,
        )

    def images(
        self, images: pa.StructArray, table: TransformedTable, seen: TableSchema
    ) -> pa.StructArray:
        """Return images of rows as `rows` does. Raises as it does."""
        self.check_salt()
        return _made(images, table, seen)


def _made(images: pa.StructArray, table: TransformedTable, seen: TableSchema) -> pa.StructArray:
    there = {f.name for f in images.type}
    fields, arrays = [], []
    nothing = images.null_count == len(images)  # as before each insert: nothing is to be made
    wanted = _ValidColumns(images)
    for column in seen.columns:
        made = table.made.get(column.name)
        if made is None:
            if column.name not in there:
                continue
            array = images.field(column.name)
        elif not made.needs <= there:
            continue  # what it is made of is absent, and so is it
        elif nothing:
            array = pa.nulls(len(images), column.type.arrow)
        else:
            try:
                array = made.make(wanted)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise BadTransform(
                    f"{made.path}, for {table.schema.id}.{column.name}: a value of a row cannot be "
                    f"made into {column.type.sql} (it is not shown here); correct the rule"
                ) from None
        fields.append(pa.field(column.name, array.type))
        arrays.append(array)
    mask = images.is_null() if images.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


class _ValidColumns(ImageColumns):
    """The columns of images, NULL where there is no image."""

    def __init__(self, image: pa.StructArray) -> None:
        super().__init__(image)
        if image.null_count:
            names = [f.name for f in image.type]
            self._columns = dict(zip(names, image.flatten(), strict=True))


def _mark(column: Column, by_id: bool) -> int | str:
    return column.id if by_id else column.name.lower()


def _refuse_outdated(
    old: TableSchema, before: TransformedTable, new: TableSchema, after: TransformedTable
) -> None:
    """Refuse types by which what was made of older rows is not what is made of them now.

    The source converts its own column; readers have a hash, or what was computed, which stays. So
    the next change of the row, or its delete, would miss a row that is named by it.
    """
    were = {c.id: c for c in old.columns}
    known = {one.column.id for one in before.made.values()}
    for one in after.made.values():
        for name in sorted(one.needs) if one.column.id in known else ():
            now = new.column(name)
            was = were.get(now.id)
            converted = now.id == one.column.id and one.column.type == now.type
            if was is not None and not converted and not keeps_text(was.type, now.type):
                raise BadTransform(
                    f"{one.path}: the type of {new.id}.{name} changed from {was.type.sql} to "
                    f"{now.type.sql}, and readers have {one.column.name} as it was made of values "
                    "of the old type; make a new changefeed, which begins with all rows"
                )


def _read_mask(rule: MaskRule, case_sensitive: bool) -> _Mask:
    tables = _tables(rule, case_sensitive)
    try:
        columns = NameFilter(rule.columns)
    except ValueError as err:
        raise BadTransform(f"{rule.path('columns')}: {err}") from None
    plain = [m for m in rule.matcher if m.strip() and not m.strip().startswith(("!", "#", "@"))]
    named = frozenset(named_by(m, case_sensitive) for m in plain)
    return _Mask(rule, tables, columns, frozenset(n for n in named if None not in n))


def _tables(rule: MaskRule | ComputedRule, case_sensitive: bool) -> TableFilter:
    try:
        return TableFilter(rule.matcher, case_sensitive)
    except BadFilterRule as err:
        raise BadFilterRule(f"{rule.path('matcher')}: {err.words}") from None


def _mentioned(expression: str, names: Iterable[str]) -> str:
    """Return a column that an expression mentions, of some; what cannot be read mentions all."""
    wanted = sorted(names)
    if not expression:
        return ", ".join(wanted)
    try:
        tokens = tokenize(expression)
    except BadStatement:
        return ", ".join(wanted)
    behind = [*(t.word for t in tokens[1:]), ""]
    words = {
        t.text.lower()
        for t, next_word in zip(tokens, behind, strict=False)
        if t.kind == QUOTED or (t.kind == WORD and next_word != "(")  # else it is a function
    }
    return ", ".join(n for n in wanted if n in words)
