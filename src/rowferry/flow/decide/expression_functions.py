"""The functions of value expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.flow.decide.expression_operators import calculate, compare, joined
from rowferry.flow.decide.expression_values import (
    MOMENTS,
    NUMBERS,
    Datum,
    Unfit,
    Value,
    ValueForm,
    as_moment,
    as_number,
    as_text,
    as_truth,
    common_form,
    mapped,
    same_scale,
    time_part,
    with_room,
)

Builder: TypeAlias = Callable[[Sequence[Value]], Value]


def choose(conditions: Sequence[Value], results: Sequence[Value]) -> Value:
    """Return the result of the first condition that is true, else the last result (CASE)."""
    form, change = common_form(results)
    tests = [as_truth(c) for c in conditions]
    ways = [change(r) for r in results]

    def pick(*data: Datum) -> Datum:
        flags, values = data[: len(tests)], same_scale(data[len(tests) :])
        chosen = values[-1]
        for flag, value in zip(reversed(flags), reversed(values[:-1]), strict=True):
            chosen = pc.if_else(pc.fill_null(flag, False), value, chosen)
        return chosen

    return joined(form, pick, *tests, *ways, at=results[0].at)


def first_known(values: Sequence[Value]) -> Value:
    """Return the first value that is not NULL (COALESCE, IFNULL)."""
    form, change = common_form(values)
    return joined(form, lambda *data: pc.coalesce(*same_scale(data)), *map(change, values))


def is_null(value: Value) -> Value:
    """Return whether a value is NULL."""
    return mapped(value, ValueForm.BOOL, pc.is_null)


def _null_if(args: Sequence[Value]) -> Value:
    same = compare("=", args[0], args[1])
    nothing = Value(ValueForm.NULL, lambda images: pa.scalar(None))
    return choose([same], [nothing, args[0]])


# --- texts ---------------------------------------------------------------------------------------


def _of_text(kernel: Callable[[Datum], Datum], form: ValueForm = ValueForm.TEXT) -> Builder:
    return lambda args: mapped(as_text(args[0]), form, kernel)


def _length(args: Sequence[Value]) -> Value:
    value = args[0] if args[0].form is ValueForm.BYTES else as_text(args[0])
    return mapped(value, ValueForm.INT, lambda d: pc.cast(pc.binary_length(d), pa.int64()))


def _concat(args: Sequence[Value]) -> Value:
    empty = pa.scalar("", pa.large_utf8())
    texts = [as_text(a) for a in args]
    text_value = joined(ValueForm.TEXT, lambda *d: pc.binary_join_element_wise(*d, empty), *texts)
    return replace(text_value, at=args[0].at)


def _slice(value: Value, start: int, stop: int | None) -> Value:
    if value.form is ValueForm.BYTES:
        return mapped(value, ValueForm.BYTES, lambda d: pc.binary_slice(d, start=start, stop=stop))
    return mapped(
        as_text(value), ValueForm.TEXT, lambda d: pc.utf8_slice_codeunits(d, start=start, stop=stop)
    )


def _substring(args: Sequence[Value]) -> Value:
    start = _whole_literal(args[1], "the position")
    size = _whole_literal(args[2], "the length") if len(args) > 2 else None
    if start == 0 or (size is not None and size <= 0):
        return _slice(args[0], 0, 0)
    if start > 0:
        return _slice(args[0], start - 1, None if size is None else start - 1 + size)
    if size is None or size >= -start:
        return _from_end(args[0], start, None)
    return _from_end(args[0], start, start + size)


def _from_end(value: Value, start: int, stop: int | None) -> Value:
    """Slice from the end; a text that is shorter than that gives nothing, as in MySQL."""
    text = value if value.form is ValueForm.BYTES else as_text(value)
    length = pc.binary_length if text.form is ValueForm.BYTES else pc.utf8_length
    empty = pa.scalar(b"" if text.form is ValueForm.BYTES else "", _kind(text.form))

    def cut(whole: Datum, part: Datum) -> Datum:
        return pc.if_else(pc.less(length(whole), -start), empty, part)

    return joined(text.form, cut, text, _slice(text, start, stop), at=value.at)


def _kind(form: ValueForm) -> pa.DataType:
    return pa.large_binary() if form is ValueForm.BYTES else pa.large_utf8()


def _left(args: Sequence[Value]) -> Value:
    return _slice(args[0], 0, max(0, _whole_literal(args[1], "the length")))


def _right(args: Sequence[Value]) -> Value:
    size = max(0, _whole_literal(args[1], "the length"))
    return _slice(args[0], -size, None) if size else _slice(args[0], 0, 0)


def _whole_literal(value: Value, what: str) -> int:
    if value.form is not ValueForm.INT or not isinstance(value.literal, int):
        raise Unfit(f"{what} must be a whole number, written out")
    return value.literal


# --- numbers -------------------------------------------------------------------------------------


def _absolute(args: Sequence[Value]) -> Value:
    value = as_number(args[0])
    return mapped(value, value.form, lambda d: pc.abs_checked(d))


def _to_whole(kernel: Any) -> Builder:
    def build(args: Sequence[Value]) -> Value:
        value = as_number(args[0])
        if value.form is ValueForm.INT:
            return value
        return mapped(value, value.form, lambda d: kernel(with_room(d)))

    return build


def _round(args: Sequence[Value]) -> Value:
    value = as_number(args[0])
    digits = _whole_literal(args[1], "the number of digits") if len(args) > 1 else 0
    if value.form is ValueForm.INT and digits >= 0:
        return value
    mode = "half_to_even" if value.form is ValueForm.DBL else "half_towards_infinity"
    room = 1 + max(0, -digits)

    def kernel(data: Datum) -> Datum:
        return pc.round(with_room(data, room), ndigits=digits, round_mode=mode)

    return mapped(value, value.form, kernel)


def _sign(args: Sequence[Value]) -> Value:
    return mapped(as_number(args[0]), ValueForm.INT, lambda d: pc.cast(pc.sign(d), pa.int64()))


def _extreme(kernel: Any) -> Builder:
    """Return GREATEST or LEAST of numbers or of dates; NULL where one of them is NULL."""

    def build(args: Sequence[Value]) -> Value:
        forms = {a.form for a in args} - {ValueForm.NULL}
        if forms <= set(MOMENTS):
            form, ways = ValueForm.DATETIME, [as_moment(a) for a in args]
        elif forms <= set(NUMBERS):
            form, change = common_form([*map(as_number, args)])
            ways = [change(a) for a in args]
        else:
            raise Unfit("the function needs numbers only, or dates only")
        return joined(form, lambda *d: kernel(*same_scale(d), skip_nulls=False), *ways)

    return build


# --- dates ---------------------------------------------------------------------------------------


def _date_part(start: int, stop: int, *forms: ValueForm, of_time: int = 0) -> Builder:
    """Return a function that reads digits of a date's text, or a part of a TIME's."""

    def build(args: Sequence[Value]) -> Value:
        value = args[0]
        if of_time and value.form is ValueForm.TIME and value.literal is None:
            return mapped(value, ValueForm.INT, lambda d: time_part(d, of_time))
        if value.form not in forms:
            wanted = " or ".join(f.value for f in forms)
            raise Unfit(f"the function needs {wanted}, not {value.form.value}")

        def cut(texts: Datum) -> Datum:
            return pc.cast(pc.utf8_slice_codeunits(texts, start=start, stop=stop), pa.int64())

        return mapped(value, ValueForm.INT, cut)

    return build


def _date(args: Sequence[Value]) -> Value:
    if args[0].form not in MOMENTS:
        raise Unfit(f"date() needs a DATE or a DATETIME, not {args[0].form.value}")
    return mapped(args[0], ValueForm.DATE, lambda d: pc.utf8_slice_codeunits(d, start=0, stop=10))


BUILDERS: Final[dict[str, Builder]] = {
    "abs": _absolute,
    "ceil": _to_whole(pc.ceil),
    "char_length": _of_text(lambda d: pc.cast(pc.utf8_length(d), pa.int64()), ValueForm.INT),
    "coalesce": first_known,
    "concat": _concat,
    "date": _date,
    "day": _date_part(8, 10, *MOMENTS),
    "floor": _to_whole(pc.floor),
    "greatest": _extreme(pc.max_element_wise),
    "hour": _date_part(11, 13, ValueForm.DATETIME, of_time=1),
    "if": lambda args: choose([args[0]], [args[1], args[2]]),
    "ifnull": first_known,
    "isnull": lambda args: is_null(args[0]),
    "least": _extreme(pc.min_element_wise),
    "left": _left,
    "length": _length,
    "lower": _of_text(lambda d: pc.utf8_lower(d)),
    "ltrim": _of_text(lambda d: pc.ascii_ltrim(d, characters=" ")),
    "minute": _date_part(14, 16, ValueForm.DATETIME, of_time=2),
    "mod": lambda args: calculate("%", args[0], args[1]),
    "month": _date_part(5, 7, *MOMENTS),
    "nullif": _null_if,
    "right": _right,
    "round": _round,
    "rtrim": _of_text(lambda d: pc.ascii_rtrim(d, characters=" ")),
    "second": _date_part(17, 19, ValueForm.DATETIME, of_time=3),
    "sign": _sign,
    "substring": _substring,
    "trim": _of_text(lambda d: pc.ascii_trim(d, characters=" ")),
    "upper": _of_text(lambda d: pc.utf8_upper(d)),
    "year": _date_part(0, 4, *MOMENTS),
}
