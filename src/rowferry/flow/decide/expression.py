"""Value expressions made ready for a table: which rows are true.

An expression is read once and fitted to each table version once; then it runs as Arrow kernels over
whole chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind
from rowferry.change.table import MYSQL, Column, TableSchema
from rowferry.errors import BadEventFilter, NoSuchColumn
from rowferry.flow.decide.expression_functions import BUILDERS, choose, is_null
from rowferry.flow.decide.expression_operators import (
    BIT_OPERATORS,
    bitwise,
    calculate,
    compare,
    is_among,
    is_between,
    joined,
    negative,
)
from rowferry.flow.decide.expression_syntax import Node, parse_expression, refuse
from rowferry.flow.decide.expression_values import (
    MOST_DIGITS,
    Datum,
    ImageColumns,
    Unfit,
    Value,
    ValueForm,
    as_bytes,
    as_number,
    as_text,
    as_truth,
    constant,
    digit,
    folded,
    mapped,
    moment_text,
    time_micros,
    with_room,
)
from rowferry.flow.decide.table_filter import bad_pattern
from rowferry.mysql.type_facts import keeps_case

TrueRows: TypeAlias = Callable[[ImageColumns], npt.NDArray[np.bool_]]

_COMPARISONS: Final = frozenset({"=", "<=>", "<>", "<", "<=", ">", ">="})
_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "div"})
_JOINS: Final[dict[str, Any]] = {"and": pc.and_kleene, "or": pc.or_kleene, "xor": pc.xor}


class Expression:
    """One expression, as written under one key."""

    def __init__(self, text: str, path: str) -> None:
        """Read the expression; `path` is its key, for errors.

        Raises:
            BadEventFilter: it cannot be read, or uses what is not supported.
        """
        self.text, self.path = text, path
        try:
            self._root = parse_expression(text)
        except BadEventFilter as err:
            raise BadEventFilter(f"{path}: {err.words}") from None

    def fit(self, table: TableSchema) -> TrueRows:
        """Return what says, for rows of a table version, where the expression gives exactly 1.

        The result raises BadEventFilter where a number goes beyond what its type holds, or where
        the images lack a column.

        Raises:
            BadEventFilter: a column that the table does not have, or types that do not fit.
        """
        try:
            value = _equals_one(_Fitting(self.text, table).value(self._root))
        except BadEventFilter as err:
            raise type(err)(f"{self.path}, for table {table.id}: {err.words}") from None

        def true_rows(images: ImageColumns) -> npt.NDArray[np.bool_]:
            try:
                result = value.run(images)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, _Absent) as err:
                words = _words(err)
                raise BadEventFilter(
                    f"{self.path} = {self.text!r}, for table {table.id}: {words}"
                ) from None
            if isinstance(result, pa.Scalar):
                return np.full(len(images), result.as_py() is True)
            flags: npt.NDArray[np.bool_] = pc.fill_null(result, False).to_numpy(False)
            return flags

        true_rows(ImageColumns(pa.array([], table.image)))  # kernels refuse types, too
        return true_rows

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it names, in lower case."""
        return frozenset(_columns_of(self._root))

    def fit_value(self, table: TableSchema) -> Value:
        """Return the recipe of what it gives for rows of a table version.

        Raises:
            BadEventFilter: a column that the table does not have, or types that do not fit.
        """
        try:
            return _Fitting(self.text, table).value(self._root)
        except BadEventFilter as err:
            raise type(err)(f"{self.path}, for table {table.id}: {err.words}") from None


def _columns_of(node: Node) -> Iterator[str]:
    if node.kind == "column":
        yield node.value.lower()
    for arg in node.args:
        yield from _columns_of(arg)


class _Absent(Exception):
    """The images lack a column."""


def _words(err: Exception) -> str:
    text = str(err)
    if "Decimal precision out of range" in text:
        return f"a number in it would need more than {MOST_DIGITS} digits; simplify it"
    return text.splitlines()[0] if text else type(err).__name__


def _equals_one(value: Value) -> Value:
    """Return where a value, as a whole number, is 1."""
    if value.form is ValueForm.BOOL:
        return value
    try:
        number = as_number(value)
    except Unfit:
        raise BadEventFilter(
            f"it gives {value.form.value}, which is neither true nor false; compare it"
        ) from None
    if number.form is ValueForm.INT:
        return mapped(number, ValueForm.BOOL, lambda d: pc.equal(d, pa.scalar(1)))
    return mapped(
        number,
        ValueForm.BOOL,
        lambda d: _is_one(pc.round(with_room(d), round_mode="half_towards_infinity")),
    )


def _is_one(data: Datum) -> Datum:
    return pc.equal(data, digit(1, data.type))


# --- fitting -------------------------------------------------------------------------------------


class _Fitting:
    """One expression being fitted to one table."""

    def __init__(self, text: str, table: TableSchema) -> None:
        self.text, self.table = text, table

    def value(self, node: Node) -> Value:
        """Return the recipe of a node."""
        if node.kind == "column":
            return self._column(node)
        args = [self.value(a) for a in node.args]
        try:
            return replace(self._made(node, args), at=node.at)
        except Unfit as err:
            refuse(str(err), node.at, self.text)

    def _made(self, node: Node, args: list[Value]) -> Value:
        kind = node.kind
        if kind in _COMPARISONS:
            return compare(kind, *args)
        if kind in _ARITHMETIC:
            return calculate(kind, *args)
        if kind in BIT_OPERATORS:
            return bitwise(kind, *args)
        if kind in _JOINS:
            kernel = _JOINS[kind]
            return joined(ValueForm.BOOL, lambda *d: reduce(kernel, d), *map(as_truth, args))
        if kind == "call":
            return BUILDERS[node.value](args)
        return self._other(node, args)

    def _other(self, node: Node, args: list[Value]) -> Value:
        match node.kind:
            case "literal":
                return constant(node.value)
            case "date" | "datetime" | "time":
                return _typed_literal(node)
            case "hex":
                number = constant(int.from_bytes(node.value, "big"))
                return replace(constant(node.value), number=number)
            case "not":
                return mapped(as_truth(args[0]), ValueForm.BOOL, lambda d: pc.invert(d))
            case "is null":
                return is_null(args[0])
            case "is true":
                return mapped(as_truth(args[0]), ValueForm.BOOL, lambda d: pc.fill_null(d, False))
            case "is false":
                return mapped(
                    as_truth(args[0]), ValueForm.BOOL, lambda d: pc.invert(pc.fill_null(d, True))
                )
            case "minus":
                return negative(args[0])
            case "in":
                return is_among(args[0], args[1:])
            case "between":
                return is_between(*args)
            case "like":
                return _like(args[0], args[1], node.value)
            case "regexp":
                return _regexp(args[0], args[1])
            case "case":
                return choose(args[:-1:2], [*args[1::2], args[-1]])
            case "binary":
                return as_bytes(args[0])
            case "collate":
                return _collated(args[0], node.value)
        raise AssertionError(f"a node of kind {node.kind!r}")

    def _column(self, node: Node) -> Value:
        column = self.table.by_name.get(node.value.lower())
        if column is None:
            known = ", ".join(c.name for c in self.table.columns)
            why = f"there is no column {node.value!r} (it has: {known})"
            refuse(why, node.at, self.text, NoSuchColumn)
        value = column_value(column)
        # Only MySQL's collations say by their names that case does not count.
        sensitive = value.sensitive or self.table.dialect != MYSQL
        return replace(value, at=node.at, sensitive=sensitive)


def _typed_literal(node: Node) -> Value:
    """Return DATE '…', TIMESTAMP '…' or TIME '…'."""
    if node.kind == "time":
        time_micros(node.value)
        return replace(constant(node.value), form=ValueForm.TIME)
    text = moment_text(node.value)
    form = ValueForm.DATE if node.kind == "date" else ValueForm.DATETIME
    shown = text[:10] if form is ValueForm.DATE else text.removesuffix(".000000")
    return replace(constant(shown), form=form)


def _collated(value: Value, collation: str) -> Value:
    if collation == "binary":
        return as_bytes(value)
    if collation.endswith(("_ci", "_bin", "_cs")):
        return replace(as_text(value), sensitive=not collation.endswith("_ci"))
    raise Unfit(f"the collation {collation} is not known: use one that ends in _ci, _bin or _cs")


# --- columns -------------------------------------------------------------------------------------

_SAME: Final = {
    Kind.YEAR: ValueForm.INT,
    Kind.TEXT: ValueForm.TEXT,
    Kind.BINARY: ValueForm.BYTES,
    Kind.DATE: ValueForm.DATE,
    Kind.DATETIME: ValueForm.DATETIME,
    Kind.TIMESTAMP: ValueForm.DATETIME,
    Kind.TIME: ValueForm.TIME,
    Kind.DOUBLE: ValueForm.DBL,
    Kind.JSON: ValueForm.OPAQUE,
    Kind.VECTOR: ValueForm.OPAQUE,
    Kind.NUMERIC: ValueForm.OPAQUE,
}


def column_value(column: Column) -> Value:
    """Return a column as a value, in the form in which MySQL uses its type."""
    sql_type, kind = column.type, column.type.kind

    def run(images: ImageColumns) -> Datum:
        values = images.column(column.name)
        if values is None:
            raise _Absent(f"the row images lack the column {column.name!r}")
        return values

    if kind in _SAME:
        sensitive = keeps_case(sql_type.collation)
        return Value(_SAME[kind], run, year=kind is Kind.YEAR, sensitive=sensitive)
    plain = Value(ValueForm.INT, run)
    if kind is Kind.FLOAT:
        return mapped(plain, ValueForm.DBL, lambda d: pc.cast(d, pa.float64()))
    if kind is Kind.DECIMAL:
        digits, scale = sql_type.size or 10, sql_type.scale or 0
        exact = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
        return mapped(plain, ValueForm.DEC, lambda d: pc.cast(d, exact))
    if kind is Kind.INTEGER and not sql_type.unsigned:
        return plain
    wide = sql_type.name == "bigint" or kind is Kind.SET or (sql_type.length or 1) == 64
    whole = (
        mapped(plain, ValueForm.DEC, lambda d: pc.cast(d, pa.decimal128(20, 0)))
        if wide
        else mapped(plain, ValueForm.INT, lambda d: pc.cast(d, pa.int64()))
    )
    if kind not in (Kind.ENUM, Kind.SET):
        return replace(whole, in_bits=kind is Kind.BIT)
    names = sql_type.elements
    text = _enum_text(names) if kind is Kind.ENUM else _set_text(names)
    text_value = mapped(plain, ValueForm.TEXT, text, number=whole)
    return replace(text_value, sensitive=keeps_case(sql_type.collation))


def _enum_text(names: tuple[str, ...]) -> Callable[[Datum], Datum]:
    texts = pa.array(["", *names], pa.large_utf8())  # 0 stands for a value that was refused
    return lambda numbers: texts.take(numbers)


def _set_text(names: tuple[str, ...]) -> Callable[[Datum], Datum]:
    def text(members: int | None) -> str | None:
        if members is None:
            return None
        return ",".join(n for place, n in enumerate(names) if members >> place & 1)

    def texts(numbers: Datum) -> Datum:
        encoded = pc.dictionary_encode(numbers)  # few sets occur, however many rows there are
        known = pa.array([text(m) for m in encoded.dictionary.to_pylist()], pa.large_utf8())
        return known.take(encoded.indices)

    return texts


# --- patterns ------------------------------------------------------------------------------------


def _like(value: Value, pattern: Value, escape: str) -> Value:
    written = _pattern_text(pattern, "LIKE")
    if value.form is ValueForm.BYTES:
        in_bytes = _like_regex(written.encode().decode("latin1"), escape, _byte_piece)
        return mapped(
            value, ValueForm.BOOL, lambda d: pc.match_substring_regex(d, pattern=in_bytes)
        )
    if value.sensitive or pattern.sensitive:
        exact = _like_regex(written, escape, re.escape)
        return mapped(
            as_text(value), ValueForm.BOOL, lambda d: pc.match_substring_regex(d, pattern=exact)
        )
    regex = _like_regex(written, escape, _folded_piece)
    return mapped(
        as_text(value), ValueForm.BOOL, lambda d: pc.match_substring_regex(folded(d), pattern=regex)
    )


def _like_regex(pattern: str, escape: str, piece: Callable[[str], str]) -> str:
    pieces = ["(?s)^"]
    here = 0
    while here < len(pattern):
        char = pattern[here]
        if char == escape and here + 1 < len(pattern):
            here += 1
            pieces.append(piece(pattern[here]))
        else:
            pieces.append({"%": ".*", "_": "."}.get(char) or piece(char))
        here += 1
    return "".join(pieces) + "$"


def _folded_piece(char: str) -> str:
    return re.escape(str(folded(pa.scalar(char, pa.large_utf8()))))


def _byte_piece(char: str) -> str:
    return re.escape(char) if char.isascii() else f"\\x{ord(char):02x}"


def _regexp(value: Value, pattern: Value) -> Value:
    written = _pattern_text(pattern, "REGEXP")
    if why := bad_pattern(written):
        raise Unfit(f"the pattern {written!r} cannot be used: {why}")
    if value.form is ValueForm.BYTES and not written.isascii():
        raise Unfit("REGEXP on binary text needs a pattern of ASCII characters")
    sensitive = value.sensitive or pattern.sensitive or value.form is ValueForm.BYTES
    return mapped(
        value if value.form is ValueForm.BYTES else as_text(value),
        ValueForm.BOOL,
        lambda d: pc.match_substring_regex(d, pattern=written, ignore_case=not sensitive),
    )


def _pattern_text(pattern: Value, operator: str) -> str:
    if pattern.literal is None or pattern.form is not ValueForm.TEXT:
        raise Unfit(f"{operator} needs a pattern in quotes")
    return str(pattern.literal)
