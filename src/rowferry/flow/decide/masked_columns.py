"""One mask for one column: what the column looks like to readers, and how its values are made.

Each mask is chosen once for a table version; then it runs as kernels over whole columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.errors import BadEventFilter, BadTransform
from rowferry.flow.decide.expression import Expression, column_value
from rowferry.flow.decide.expression_values import ImageColumns, Unfit, as_text
from rowferry.flow.decide.hmac_kernels import DIGITS, HexHmac
from rowferry.flow.decide.pattern_kernels import compiled_replacement
from rowferry.flow.decide.star_kernels import keep_last
from rowferry.flow.decide.table_filter import bad_pattern
from rowferry.flow.decide.typed_result import (
    as_type,
    broadcast,
    constant_of,
    cut_text,
    read_type,
    refuse_characters,
)
from rowferry.spec.rules.transform import (
    CONSTANT,
    HASH,
    KEEP_LAST,
    NULL,
    REGEX,
    TRUNCATE,
    ComputedRule,
    MaskRule,
)

MakeColumn: TypeAlias = Callable[[ImageColumns], pa.Array]
_Kernel: TypeAlias = Callable[[pa.Array], pa.Array]

HASH_TYPE: Final = SqlType("char", length=DIGITS, charset="ascii", collation="ascii_bin")
_NOT_TEXT: Final = frozenset({"inet4", "inet6", "uuid", "geometry"})
_NO_DEFAULT: Final = ("text", "blob", "geometry")
_NOT_HASHED: Final = (Kind.FLOAT, Kind.DOUBLE, Kind.VECTOR)


@dataclass(frozen=True, slots=True)
class MadeColumn:
    """A column that is not what the source has.

    Attributes:
        column: as readers see it.
        needs: the columns of the source without which it cannot be made, by their own names.
        make: returns its values for some row images.
        path: the rule, as errors name it.
    """

    column: Column
    needs: frozenset[str]
    make: MakeColumn
    path: str


def masked(rule: MaskRule, table: TableSchema, column: Column, hmac: HexHmac | None) -> MadeColumn:
    """Return how a column is masked.

    Args:
        rule: says how.
        table: the source's, to which the column belongs.
        column: the source's.
        hmac: what hashes; None: there is no salt.

    Raises:
        BadTransform: the action does not fit the column.
    """
    try:
        return _masked(rule, table, column, hmac)
    except Unfit as err:
        what = f"{table.id}.{column.name} ({column.type.sql})"
        raise BadTransform(f"{rule.path()}: action = {rule.action} on {what}: {err}") from None


def _masked(rule: MaskRule, table: TableSchema, column: Column, hmac: HexHmac | None) -> MadeColumn:
    if rule.expression:
        return _by_expression(rule, table, column)
    kind = column.type
    needs = frozenset({column.name})
    if rule.action in (NULL, CONSTANT):
        value = None if rule.action == NULL else constant_of(kind, rule.value or "")
        scalar = pa.scalar(value, kind.arrow)
        # Servers give such columns no default; rows from before the column was added stay NULL.
        shown = None if kind.kind is Kind.JSON or kind.name.endswith(_NO_DEFAULT) else value
        shown = shown.decode() if isinstance(shown, bytes) else shown
        seen = replace(_plain(column), default=shown, filled=shown)
        if rule.action == NULL:
            seen = replace(seen, nullable=True)
        return MadeColumn(seen, needs, lambda images: pa.repeat(scalar, len(images)), rule.path())
    new_type, kernel = _kernel(rule, column, hmac)

    def make(images: ImageColumns) -> pa.Array:
        values = images.column(column.name)
        if values is None:
            raise ValueError(f"the images lack {column.name}")
        return broadcast(kernel(values), len(images), new_type.arrow)

    seen = replace(
        _plain(column),
        type=new_type,
        default=_of_one(kernel, column, column.default),
        filled=_of_one(kernel, column, column.filled),
    )
    return MadeColumn(seen, needs, make, rule.path())


def _plain(column: Column) -> Column:
    """Return a column whose values come from the row alone, whatever the source does for it."""
    return replace(column, generated="", expression="", auto_increment=False, default=None)


def _of_one(kernel: _Kernel, column: Column, value: Any) -> Any:
    """Return what a mask makes of a default; None where that is not a value."""
    if value is None or column.expression:
        return None
    if column.type.kind in (Kind.DATETIME, Kind.TIMESTAMP) and "CURRENT" in str(value):
        return None
    if isinstance(value, str) and column.type.kind is Kind.BINARY:
        value = value.encode("utf-8", "surrogateescape")
    try:
        masked = kernel(pa.array([value], column.type.arrow))[0].as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None  # the catalog words it in another way than rows do
    return masked.decode("utf-8", "surrogateescape") if isinstance(masked, bytes) else masked


def _kernel(rule: MaskRule, column: Column, hmac: HexHmac | None) -> tuple[SqlType, _Kernel]:
    """Return the type of the results, and what makes them of the values; NULL stays NULL."""
    kind, size = column.type, rule.length or 0
    if rule.action == HASH:
        return HASH_TYPE, _hashed(column, hmac)
    if rule.action == REGEX:
        _refuse_other_than_text(kind)
        return kind, _by_pattern(rule, kind)
    if rule.action == KEEP_LAST:
        if kind.kind in (Kind.INTEGER, Kind.DECIMAL):
            digits = 20 if kind.kind is Kind.INTEGER else 67  # at most, with sign and point
            texts = SqlType("varchar", length=digits)
            return texts, lambda d: keep_last(d.cast(pa.large_utf8()), size)
        _refuse_other_than_text(kind)
        return kind, lambda d: keep_last(d, size)
    if rule.action == TRUNCATE:
        _refuse_other_than_text(kind, binary=True)
        if kind.kind is Kind.BINARY:
            return kind, lambda d: pc.binary_slice(d, 0, size)
        return kind, lambda d: pc.utf8_slice_codeunits(d, start=0, stop=size)
    raise AssertionError(f"an action {rule.action!r}")


def _refuse_other_than_text(kind: SqlType, binary: bool = False) -> None:
    wanted = (Kind.TEXT, Kind.BINARY) if binary else (Kind.TEXT,)
    if kind.kind not in wanted or kind.name in _NOT_TEXT:
        what = "character and binary columns" if binary else "character columns"
        raise Unfit(f"it is for {what} only; use null, constant, hash or expression")


def _hashed(column: Column, hmac: HexHmac | None) -> _Kernel:
    if hmac is None:
        raise Unfit("it needs transform.salt, a secret of at least 16 bytes")
    kind = column.type.kind
    if kind in _NOT_HASHED:
        raise Unfit("servers do not agree on the digits of such numbers; use null or constant")
    if kind in (Kind.ENUM, Kind.SET):
        # By name: numbers change when a DDL puts a name between others.
        texts = as_text(column_value(column))
        name = column.name

        def of_names(values: pa.Array) -> pa.Array:
            image = pa.StructArray.from_arrays([values], names=[name])
            return hmac.of(texts.run(ImageColumns(image)).cast(pa.large_binary()))

        return of_names
    if kind in (Kind.INTEGER, Kind.YEAR, Kind.BIT):
        return lambda values: hmac.of(values.cast(pa.large_utf8()).cast(pa.large_binary()))
    return lambda values: hmac.of(values.cast(pa.large_binary()))


def _by_pattern(rule: MaskRule, kind: SqlType) -> _Kernel:
    if why := bad_pattern(rule.pattern):
        raise Unfit(f"the pattern {rule.pattern!r} cannot be used: {why}")
    refuse_characters(kind, rule.replacement)

    def by_re2(texts: pa.Array) -> pa.Array:
        return pc.replace_substring_regex(texts, pattern=rule.pattern, replacement=rule.replacement)

    try:
        by_re2(pa.array(["", "x"], pa.large_utf8()))
    except pa.ArrowInvalid:
        raise Unfit(
            f"the replacement {rule.replacement!r} cannot be used; groups of the pattern are "
            r"written \1 to \9, a backslash \\"
        ) from None
    compiled = compiled_replacement(rule.pattern, rule.replacement)

    def replaced(texts: pa.Array) -> pa.Array:
        quick = None if compiled is None else compiled.of(texts)
        return cut_text(kind, by_re2(texts) if quick is None else quick)

    return replaced


# --- expressions ---------------------------------------------------------------------------------


def _by_expression(rule: MaskRule, table: TableSchema, column: Column) -> MadeColumn:
    kind = read_type(rule.type) if rule.type else column.type
    needs, make = _expression(rule.expression, rule.path("expression"), table, kind)
    # NULL may come of any expression.
    seen = replace(_plain(column), type=kind, nullable=True, filled=None)
    return MadeColumn(seen, needs | {column.name}, make, rule.path())


def computed(rule: ComputedRule, table: TableSchema, number: int) -> MadeColumn:
    """Return a column that the source does not have; `number` is its id.

    Raises:
        BadTransform: the expression or the type does not fit the table.
    """
    try:
        kind = read_type(rule.type)
        needs, make = _expression(rule.expression, rule.path("expression"), table, kind)
    except Unfit as err:
        raise BadTransform(f"{rule.path()}, for table {table.id}: {err}") from None
    return MadeColumn(Column(number, rule.column, kind), needs, make, rule.path())


def _expression(
    text: str, path: str, table: TableSchema, kind: SqlType
) -> tuple[frozenset[str], MakeColumn]:
    """Return which columns an expression needs, and what makes its values."""
    try:
        expression = Expression(text, path)
        value = as_type(expression.fit_value(table), kind)
    except BadEventFilter as err:
        raise BadTransform(err.words) from None
    arrow, run = kind.arrow, value.run

    def make(images: ImageColumns) -> pa.Array:
        return broadcast(run(images), len(images), arrow)

    try:
        make(ImageColumns(pa.array([], table.image)))  # kernels refuse types, too
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
        raise BadTransform(f"{path}, for table {table.id}: {str(err).splitlines()[0]}") from None
    return frozenset(table.by_name[name].name for name in expression.columns), make
