"""What is remembered never outgrows its bound, and what is asked again is answered anew."""

from __future__ import annotations

from rowferry.change.remembered import Remembered


def test_a_bound_is_kept() -> None:
    found: Remembered[int, str] = Remembered(3)
    for n in range(100):
        found[n] = str(n)
        assert found[n] == str(n) and len(found) <= 3


def test_a_new_answer_to_an_old_question_forgets_nothing() -> None:
    found: Remembered[int, str] = Remembered(3)
    found[0], found[1], found[2] = "a", "b", "c"
    found[1] = "d"
    assert found == {0: "a", 1: "d", 2: "c"}
