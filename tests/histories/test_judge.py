"""The judge of histories finds every kind of damage in what a feed delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rowferry.testing.histories.facts import ColumnFacts, TableFacts
from rowferry.testing.histories.forms import FORMS
from rowferry.testing.histories.judge import Case, Judge
from rowferry.testing.histories.outputs import (
    Ddl,
    DeliveredRow,
    Event,
    WatermarkMark,
    csv_records,
    go_unquoted,
)
from rowferry.testing.histories.truth import JOURNAL, Change, Effect, Truth

T = ("h_main", "t")


def column(name: str, base: str, family: str) -> ColumnFacts:
    return ColumnFacts(name, base, base, "", True, False, False, False, False, None, family)


TABLE = TableFacts(
    T,
    (column("id", "int", "int"), column("u", "int", "int"), column("v", "varchar", "text")),
    ("id",),
    (("PRIMARY", ("id",)), ("u", ("u",))),
    ("PRIMARY", "u"),
    (),
    "",
)


def image(number: int, unique: int, text: str) -> dict[str, Any]:
    return {"id": number, "u": unique, "v": text}


A, B, C, D = image(1, 1, "a"), image(1, 1, "b"), image(1, 9, "b"), image(2, 2, "new")


def truth() -> Truth:
    """Two tokens; then: row 1 becomes b; its unique column changes; row 2 comes, by a REPLACE."""
    found = Truth()
    found.add([], {T: TABLE}, {T: {(1,): A}}, kind="beginning")
    found.add([], {T: TABLE}, {T: {(1,): A}}, token=1)
    found.add([], {T: TABLE}, {T: {(1,): A}}, token=2)

    def step(token: int, change: Change, state: Any, loose: bool = False) -> None:
        effect = Effect("update", "…", (change,), loose)
        found.add([effect], {T: TABLE}, {T: state}, token=token)

    step(3, Change(T, (1,), A, B), {(1,): B})
    step(4, Change(T, (1,), B, C), {(1,): C})
    step(5, Change(T, (2,), None, D), {(1,): C, (2,): D}, loose=True)
    found.add(
        [], {T: replace(TABLE, indexes=())}, {T: {(1,): C, (2,): D}}, kind="drop-index", ddl="DROP"
    )
    found.add([], {T: TABLE}, {T: {(1,): C, (2,): D}}, token=6, kind="tick")
    return found


def cells(row: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else {n: None if v is None else str(v) for n, v in row.items()}


def row(ts: int, op: Any, before: Any, after: Any, table: Any = T) -> DeliveredRow:
    return DeliveredRow("0", table, op, ts, cells(before), cells(after), f"{ts}{op}{before}{after}")


def token(number: int, ts: int) -> DeliveredRow:
    return row(ts, "insert", None, {"token": number}, JOURNAL)


def events() -> list[Event]:
    """What a right feed delivers; its low is 10."""
    return [
        token(1, 10),
        token(2, 10),
        row(10, "insert", None, A),
        WatermarkMark("0", 10),
        token(3, 30),
        row(30, "update", A, B),
        token(4, 40),
        row(40, "delete", B, None),
        row(40, "insert", None, C),
        WatermarkMark("0", 45),
        token(5, 50),
        row(50, "insert", None, image(2, 2, "old")),
        row(50, "update", image(2, 2, "old"), D),
        Ddl("0", T, 55, "DINDEX", "DROP INDEX"),
        token(6, 60),
        WatermarkMark("0", 60),
    ]


def judged(some: list[Event], repeats: bool = False) -> list[str]:
    case = Case(FORMS["canal-json"], 2, 2, repeats, "canal-json")
    return Judge(truth(), case, some).judge().failures


def test_a_right_feed_passes() -> None:
    assert judged(events()) == []


def test_a_replayed_micro_batch_is_a_repeat_where_it_may_be() -> None:
    some = events()
    again = [*some[:9], *some[6:9], *some[9:]]
    assert judged(again, repeats=True) == []
    assert judged(again) != []


def test_a_part_of_a_keyless_transaction_may_be_repeated_before_all_of_it() -> None:
    """A large one is sent in several pieces; whoever was killed between them begins again."""
    bare = replace(TABLE, primary=(), uniques=(), indexes=())
    told = Truth()
    for number in (0, 1, 2):
        told.add([], {T: bare}, {T: {(1,): A}}, token=number, kind="" if number else "beginning")
    first = Effect("update", "…", (Change(T, (1,), A, B),), False)
    second = Effect("update", "…", (Change(T, (1,), B, C),), False)
    told.add([first, second], {T: bare}, {T: {(1,): C}}, token=3)
    told.add([], {T: bare}, {T: {(1,): C}}, token=4, kind="tick")
    begin: list[Event] = [token(1, 10), token(2, 10), row(10, "insert", None, A)]
    begin += [WatermarkMark("0", 10), token(3, 30)]
    whole = [row(30, "update", A, B), row(30, "update", B, C)]
    end: list[Event] = [token(4, 60), WatermarkMark("0", 60)]
    case = Case(FORMS["canal-json"], 2, 2, True, "canal-json")
    for rows, is_right in (
        (whole, True),
        ([whole[0], *whole], True),
        ([*whole, *whole], True),
        ([*whole, whole[0]], False),
        ([whole[0]], False),
    ):
        failures = Judge(told, case, [*begin, *rows, *end]).judge().failures
        assert (failures == []) is is_right, (rows, failures)


def without(number: int) -> Callable[[list[Event]], list[Event]]:
    return lambda some: some[:number] + some[number + 1 :]


def instead(number: int, event: Event) -> Callable[[list[Event]], list[Event]]:
    return lambda some: [*some[:number], event, *some[number + 1 :]]


DAMAGE: dict[str, Callable[[list[Event]], list[Event]]] = {
    "a snapshot row is missing": without(2),
    "a snapshot row is another": instead(2, row(10, "insert", None, B)),
    "an update is missing": without(5),
    "a before-image is wrong": instead(5, row(30, "update", C, B)),
    "an after-image is wrong": instead(5, row(30, "update", A, image(1, 1, "x"))),
    "an update is told as an insert": instead(5, row(30, "insert", None, B)),
    "a column is missing": instead(5, row(30, "update", A, {"id": 1, "u": 1})),
    "a change has another commit-ts": instead(5, row(40, "update", A, B)),
    "a change has a commit-ts of nothing": instead(5, row(33, "update", A, B)),
    "a key change is not split": lambda s: [*s[:7], row(40, "update", B, C), *s[9:]],
    "delete and insert are exchanged": lambda s: [*s[:7], s[8], s[7], *s[9:]],
    "a repeat": lambda s: [*s[:6], s[5], *s[6:]],
    "a change comes behind its watermark": lambda s: [*s[:5], *s[6:10], s[5], *s[10:]],
    "a chain is broken": instead(12, row(50, "update", image(2, 2, "else"), D)),
    "a chain ends elsewhere": without(12),
    "a watermark goes back": instead(15, WatermarkMark("0", 44)),
    "a token is missing": without(6),
    "a token has two commit-ts": lambda s: [*s[:7], token(4, 41), *s[7:]],
    "a token that was never written": lambda s: [*s, token(77, 70)],
    "a schema change is missing": without(13),
    "a schema change is of another kind": instead(13, Ddl("0", T, 55, "ALTER", "DROP INDEX")),
    "a table that is not there": lambda s: [*s, row(60, "insert", None, A, ("h_main", "x"))],
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found(what: str) -> None:
    assert judged(DAMAGE[what](events())) != []


# Where readers meet everything in one order, and partitions.
IN_ORDER: dict[str, Callable[[list[Event]], list[Event]]] = {
    "a schema change comes behind its watermark": lambda s: [*s[:13], *s[14:], s[13]],
    "a partition gets no watermark": instead(12, replace(events()[12], where="1")),
    "a key goes to another partition": lambda s: [
        *s[:11],
        *(replace(e, where="1") for e in s[11:13]),
        *s[13:15],
        *(WatermarkMark(where, 60) for where in "01"),
        replace(s[8], where="1"),
    ],
}


@pytest.mark.parametrize("what", IN_ORDER)
def test_damage_of_order_is_found(what: str) -> None:
    assert judged(events(), repeats=True) == []
    assert judged(IN_ORDER[what](events()), repeats=True) != []


def test_csv_tells_null_from_text() -> None:
    text = '"I","t","d",5,\\N,"\\N","a""b,\r\nc",-1\r\n'
    assert list(csv_records(text)) == [["I", "t", "d", "5", None, "\\N", 'a"b,\r\nc', "-1"]]


def test_bytes_as_go_quotes_them() -> None:
    assert go_unquoted('a\\x89\\n\\"\\\\ü\\u200b\\x00') == b'a\x89\n"\\\xc3\xbc\xe2\x80\x8b\x00'


@pytest.mark.parametrize(
    ("form", "kind", "value", "cell"),
    [
        ("canal-json", ("float", "float"), 0.10000000149011612, "0.1"),
        ("canal-json", ("blob", "bytes"), b"\x00\xff", "\x00ÿ"),
        ("csv", ("datetime", "time"), "2024-02-29 00:00:00.5", "2024-02-29 00:00:00.500000"),
        ("open-protocol", ("text", "text"), "ü", {"v": "w7w="}),
        ("json", ("json", "json"), '{"b": 1, "a": 1.5}', {"a": 1.5, "b": 1}),
    ],
)
def test_values_have_their_forms(form: str, kind: tuple[str, str], value: Any, cell: Any) -> None:
    one = column("c", *kind)
    own = FORMS[form]
    assert own.of_truth(one, value) == own.of_cell(one, cell)


@pytest.mark.parametrize(
    ("form", "kind", "value", "cell"),
    [
        ("canal-json", ("double", "double"), -0.0, "0"),
        ("canal-json", ("int", "int"), 7, "07"),
        ("canal-json", ("int", "int"), 7, 7),
        ("csv", ("blob", "bytes"), b"a", "not base64"),
        ("open-protocol", ("int", "int"), 7, {"v": "7"}),
        ("json", ("decimal", "decimal"), "1.0", 1.0),
    ],
)
def test_another_form_is_found(form: str, kind: tuple[str, str], value: Any, cell: Any) -> None:
    one = column("c", *kind)
    own = FORMS[form]
    assert own.of_truth(one, value) != own.of_cell(one, cell)
