"""What is remembered never outgrows its bound, and what is asked again is answered anew."""

from __future__ import annotations

from rowferry.change.remembered import Remembered


def test_a_bound_is_kept() -> None:
    found: Remembered[int, str] = Remembered(3)
    for n in range(100):
        found[n] = str(n)
        assert found[n] == str(n) and len(found) <= 3


def test_what_was_not_asked_for_long_is_forgotten() -> None:
    now = [0.0]
    found: Remembered[int, str] = Remembered(100, 60.0, lambda: now[0])
    found[1], now[0] = "a", 59.0
    found[2], now[0] = "b", 60.0
    assert found == {1: "a", 2: "b"}
    found[2] = "c"  # asked for again: nothing new
    assert found == {1: "a", 2: "c"}
    found[3], now[0] = "d", 119.0
    found[4] = "e"
    assert found == {3: "d", 4: "e"}


def test_a_new_answer_to_an_old_question_forgets_nothing() -> None:
    found: Remembered[int, str] = Remembered(3)
    found[0], found[1], found[2] = "a", "b", "c"
    found[1] = "d"
    assert found == {0: "a", 1: "d", 2: "c"}
