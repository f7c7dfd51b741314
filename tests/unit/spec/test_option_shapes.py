from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowferry.errors import BadOption, UnknownOption
from rowferry.spec.option import (
    Option,
    OptionShape,
    OptionTable,
    duration,
    flag,
    go_text,
    one_of,
    parse_duration,
    read_options,
    size,
    text,
    texts,
    whole,
)

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("5s", 5 * SECOND),
        ("100ms", SECOND / 10),
        ("1h30m", 5400 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND / 2),
        ("2.s", 2 * SECOND),
        ("-10s", -10 * SECOND),
        ("+1m1s", 61 * SECOND),
        ("1500us", SECOND * 3 / 2000),
        ("7µs", timedelta(microseconds=7)),
        ("1999ns", timedelta(microseconds=1)),
        ("0", timedelta(0)),
    ],
)
def test_durations(written: str, wanted: timedelta) -> None:
    assert parse_duration(written) == wanted


@pytest.mark.parametrize("written", ["", "-", "s", "5 s", "5x", "1h 5m", "--5s", "5s-", "１s", "∞"])
def test_texts_that_are_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(written)


@pytest.mark.parametrize("written", ["5", "-5", "1.5"])
def test_plain_numbers_are_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match="needs its unit"):
        parse_duration(written)


def test_huge_duration() -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration("9" * 30 + "h")


@given(st.timedeltas())
def test_durations_are_read_back(value: timedelta) -> None:
    assert parse_duration(go_text(value)) == value


@pytest.mark.parametrize(
    ("shape", "value", "wanted"),
    [
        (whole(), " 12", 12),
        (whole(), "-3", -3),
        (whole(1, 5, clamp=True), 9, 5),
        (whole(1, 5, clamp=True), "0", 1),
        (size(), 1024, 1024),
        (size(), "64MiB", 1 << 26),
        (size(), "2k", 2048),
        (size(), "3 GB", 3 << 30),
        (size(), "17B", 17),
        (size(1024, 1 << 29, clamp=True), 1, 1024),
        (duration(SECOND, clamp=True), "1ms", SECOND),
        (duration(most=SECOND, clamp=True), "1h", SECOND),
        (one_of("day", "none"), "DAY", "day"),
        (flag(), "True", True),
        (texts(), ["a"], ("a",)),
        (text(), "", ""),
    ],
)
def test_shapes(shape: OptionShape[Any], value: Any, wanted: Any) -> None:
    assert shape.parse(value) == wanted


@pytest.mark.parametrize(
    ("shape", "value", "words"),
    [
        (whole(1, 5), 9, "k = 9: out of range; allowed: a whole number from 1 to 5"),
        (whole(1), 0, "k = 0: out of range; allowed: a whole number from 1 to …"),
        (
            whole(),
            True,
            "k = True: expected a whole number, got true/false; allowed: a whole number",
        ),
        (whole(), "１２", "k = '１２': expected a whole number, got text; allowed: a whole number"),
        (size(), "64X", "k = '64X': not a number of bytes; allowed: bytes as 67108864 or 64MiB"),
        (
            duration(SECOND, 60 * SECOND),
            5,
            "k = 5: expected a duration with its unit, got a whole number; "
            "allowed: a duration such as 5s, 100ms or 1h30m from 1s to 1m",
        ),
        (flag(), "yes", "k = 'yes': expected true or false, got text; allowed: true or false"),
        (texts(), "a", "k = 'a': expected a list of texts, got text; allowed: a list of texts"),
        (one_of("a", "b"), {}, "k = {}: expected text, got a section; allowed: a | b"),
    ],
)
def test_refusals(shape: OptionShape[Any], value: Any, words: str) -> None:
    table = OptionTable("", (Option("k", shape, None, ""),))
    with pytest.raises(BadOption) as caught:
        read_options(table, {"k": value})
    assert str(caught.value) == f"[RF-1002] {words}"


def test_clamping_is_seen() -> None:
    shape = whole(1, 5, clamp=True)
    assert shape.clamps(9) and not shape.clamps(5) and not whole().clamps(9)


def test_secret_values_are_not_shown() -> None:
    secret = Option("pin", whole(), 0, "", secret=True)
    table = OptionTable("s", (secret,))
    with pytest.raises(BadOption) as caught:
        read_options(table, {"pin": "hunter2"})
    assert "hunter2" not in str(caught.value) and "s.pin = ***" in str(caught.value)
    assert "1234" not in repr(read_options(table, {"pin": 1234}))
    assert read_options(table, {"pin": 1234})[secret] == 1234


def test_unknown_key_suggests_and_lists() -> None:
    table = OptionTable(
        "sink.csv", (Option("quote", text(), "", ""), Option("null", text(), "", ""))
    )
    with pytest.raises(UnknownOption) as caught:
        read_options(table, {"qoute": "x"})
    words = "unknown option 'sink.csv.qoute'; did you mean 'quote'?; known here: null, quote"
    assert str(caught.value) == f"[RF-1001] {words}"
