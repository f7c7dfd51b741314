"""The rules of the soak run: what is drift, when lag is back, what a plain reader holds."""

from __future__ import annotations

import json
import random
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture(autouse=True)
def bench_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in set(sys.modules) - before:
        if name.startswith("soak"):
            del sys.modules[name]


# --- drift ---------------------------------------------------------------------------------------


def hour(value: Callable[[float], float], life: str = "one", begin: float = 0.0) -> list[Any]:
    """Samples of an hour, five seconds apart, with some noise."""
    dice = random.Random(5)
    return [
        (life, begin + t, value(t) + dice.uniform(-3, 3)) for t in (5.0 * n for n in range(720))
    ]


def drifts(points: list[Any], floor: float = 20.0) -> bool:
    from soak_drift import Rule, judge

    found = judge(points, Rule(floor))
    assert found is not None
    return bool(found.drifts)


def test_a_leak_drifts() -> None:
    from soak_drift import Rule, judge

    found = judge(hour(lambda t: 400 + 50 * t / 3600), Rule(20))
    assert found.drifts and found.slope == pytest.approx(50, abs=3)
    assert found.allowed == pytest.approx(0.05 * found.level)


@pytest.mark.parametrize(
    "value",
    [
        lambda t: 400.0,
        lambda t: 400 + t % 300 / 3,  # collected every five minutes
        lambda t: 5000.0 if t % 600 < 60 else 400.0,  # a tenth of the looks finds something else
        lambda t: 300 + min(t, 1000) / 10,  # grows while it warms up
        lambda t: 400 + 15 * t / 3600,  # less than the floor
        lambda t: 400 - 50 * t / 3600,
    ],
)
def test_noise_outliers_warm_up_and_little_do_not_drift(value: Callable[[float], float]) -> None:
    assert not drifts(hour(value))


def test_a_leak_is_found_in_lives_that_begin_anew() -> None:
    """A restart brings the level back, and hides nothing."""
    points = hour(lambda t: 400 + 100 * (t % 600) / 3600)
    assert drifts([(at // 600, at, value) for _, at, value in points])
    assert not drifts(points)  # as if it were one life


def test_too_few_samples_say_nothing() -> None:
    from soak_drift import Rule, judge

    assert judge([], Rule(1)) is None
    assert judge([("a", 0.0, 1.0), ("a", 5.0, 9.0)], Rule(1)) is None


# --- recovery ------------------------------------------------------------------------------------


def looks(*worst: float) -> list[dict[str, Any]]:
    return [{"t": 5.0 * n, "lag": {"healthy": [w / 2, w, w]}} for n, w in enumerate(worst)]


@pytest.mark.parametrize(
    ("worst", "back"),
    [
        ((1, 1, 1, 1, 1, 1), 0.0),
        ((1, 9, 20, 30, 4, 1, 1, 1), 20.0),
        ((1, 9, 2, 2, 30, 4, 1, 1), 25.0),  # a short calm before the worst is none
        ((1, 9, 20, 30, 40, 50, 60, 70), None),
        ((1, 9, 20, 30, 4, 30, 4, 4), None),  # three calm looks in a row are asked for
    ],
)
def test_lag_is_back_when_it_stays_low(worst: tuple[float, ...], back: float | None) -> None:
    from soak_judge import _recovery

    event = {"name": "kill", "began": 0.0, "ended": 5.0, "restarts": True, "error": ""}
    found = _recovery(event, [event], looks(*worst), limit=6.0)
    assert found["recovered_s"] == back and found["worst"] == max(worst)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([(5, False), (9, False)], True),
        ([(5, False), (9, True)], False),
        ([(0, False), (9, True)], False),
        ([(0, False), (9, False)], None),  # one that could not be judged: nobody can say
    ],
)
def test_what_was_not_judged_has_not_passed(
    found: list[tuple[int, bool]], verdict: bool | None
) -> None:
    from soak_judge import _no_drift

    told = {f"q{n}": {"samples": s, "drifts": d} for n, (s, d) in enumerate(found)}
    assert _no_drift(told) is verdict


@pytest.mark.parametrize(("lines", "kept"), [(200, True), (221, False)])
def test_history_is_judged_by_its_bound_and_not_as_drift(lines: int, kept: bool) -> None:
    from soak_judge import _bounded, _of_meta, _of_tables

    still = {"changefeeds": [10, 10**6], "subscribe": [5, 10**6]}
    grown = [
        {"t": 60.0 * n, "meta": {"tables": {"history": [10 * n, n], **still}}}
        for n in range(lines + 1)
    ]
    assert {value for _, _, value in _of_tables(grown)} == {3}
    assert {value for _, _, value in _of_meta(grown)} == {2}
    found = _bounded(grown, 10)
    assert found["history"]["last"] == 10 * lines
    assert all(one["last"] <= one["allowed"] for one in found.values()) is kept


def servers(
    memory: Callable[[int], float], kept: Callable[[int], float], owned: Callable[[int], int]
) -> list[dict[str, Any]]:
    """Looks at one server, a minute apart, for an hour; it has a thread for each changefeed."""
    return [
        {
            "t": 60.0 * n,
            "servers": [
                {
                    "pid": 7,
                    "python": memory(n),
                    "kept_log": kept(n),
                    "owned": owned(n),
                    "threads": 100 + owned(n),
                }
            ],
        }
        for n in range(60)
    ]


@pytest.mark.parametrize(("leak", "drifts"), [(0, False), (1, True)])
def test_kept_log_is_judged_by_its_bound_and_not_as_drift(leak: int, drifts: bool) -> None:
    from soak_drift import Rule, judge
    from soak_judge import _kept_log, _without_kept_log

    looked = servers(lambda n: 500 + n + leak * n, lambda n: n, lambda n: 50)
    found = judge(_without_kept_log(looked, 50), Rule(32))
    assert found is not None and found.drifts is drifts
    assert _kept_log(looked) == {"most": 59, "allowed": 83.9}


def test_threads_follow_the_number_of_changefeeds() -> None:
    from soak_drift import Rule, judge
    from soak_judge import _of_feeds, _of_servers

    looked = servers(lambda n: 500, lambda n: 0, lambda n: 46 + n // 8)
    moved = judge(_of_servers(looked, 50, "threads"), Rule(2, 0))
    assert moved is not None and moved.drifts, "the test means nothing"
    found = judge(_of_feeds(looked, 50, "threads"), Rule(2, 0))
    assert found is not None and not found.drifts


# --- a plain reader ------------------------------------------------------------------------------


def row(ident: int, word: str = "c") -> dict[str, Any]:
    return {"id": ident, "k": 1, "c": word, "pad": "p", "more1": None}


def test_repeats_change_nothing_not_even_a_repeated_swap() -> None:
    from soak_copy import Copy

    copy = Copy()
    swap = ["RENAME TABLE `d`.`a` TO `d`.`x`", "RENAME TABLE `d`.`b` TO `d`.`a`"]
    swap.append("RENAME TABLE `d`.`x` TO `d`.`b`")

    def batch() -> None:
        copy.row(10, ("d", "a"), False, row(1))
        copy.row(11, ("d", "b"), False, row(2))
        for query in swap:
            copy.schema_change(12, "d", query)

    batch()
    batch()
    copy.watermark(12)
    batch()
    assert {name: set(rows) for name, rows in copy.tables.items()} == {
        ("d", "a"): {"2"},
        ("d", "b"): {"1"},
    }
    assert copy.repeats == 5 + 5


def test_bodies_and_messages_give_the_same_rows() -> None:
    from soak_copy import COLUMNS, Copy, digest

    by_http, by_kafka = Copy(), Copy()
    changes = [
        {"op": "insert", "before": None, "after": row(1)},
        {"op": "insert", "before": None, "after": row(2)},
        {"op": "update", "before": row(1), "after": row(1, "d")},
        {"op": "delete", "before": row(2), "after": None},
    ]
    place = {"database": "d", "table": "a"}
    body = [{**place, "commitTs": n, **change} for n, change in enumerate(changes, 1)]
    by_http.apply_json(json.dumps(body).encode())
    for n, change in enumerate(changes, 1):
        data = change["after"] or change["before"]
        assert isinstance(data, dict)
        text = {name: None if v is None else str(v) for name, v in data.items()}
        message = {**place, "isDdl": False, "type": str(change["op"]).upper(), "data": [text]}
        by_kafka.apply_canal(json.dumps({**message, "_tidb": {"commitTs": n}}).encode())
    right = {("d", "a"): {"1": digest(row(1, "d")[name] for name in COLUMNS)}}
    assert by_http.tables == by_kafka.tables == right
    clear = [{**place, "type": "ddl", "commitTs": 9, "query": "TRUNCATE TABLE `d`.`a`"}]
    by_http.apply_json(json.dumps(clear).encode())
    assert not by_http.tables


# --- charts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [True, False])
def test_a_chart_has_its_lines_gaps_and_marks(tmp_path: Path, log: bool) -> None:
    from soak_plot import Line, Mark, chart

    lines = [
        Line("p50", [(0, 1.0), (1, None), (2, 300.0), (3, 2.0)]),
        Line("a < b", [(0, 0.0), (3, 5)]),
    ]
    chart(tmp_path / "x.svg", "Lag & load", "s", lines, [Mark(1.5, "kill -9")], log)
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    space = {"s": "http://www.w3.org/2000/svg"}
    drawn = [p.get("d") or "" for p in root.findall("s:path", space) if p.get("fill") == "none"]
    assert [d.count("M") for d in drawn] == [2, 1] and [d.count("L") for d in drawn] == [1, 1]
    words = [t.text for t in root.iter(f"{{{space['s']}}}text")]
    assert {"Lag & load", "p50", "a < b", "s", "minutes"} <= set(words)
    assert [t.text for t in root.iter(f"{{{space['s']}}}title")] == ["kill -9"]
    heights = [float(part.split()[1]) for d in drawn for part in d.replace("L", "M").split("M")[1:]]
    assert all(0 < h < 300 for h in heights)


def test_shares_of_changefeeds_have_one_slow_and_one_failing() -> None:
    from soak_world import plan_feeds

    feeds = plan_feeds(100)
    kinds = [feed.kind for feed in feeds]
    assert len({feed.id for feed in feeds}) == len({feed.database for feed in feeds}) == 100
    assert (kinds.count("slow"), kinds.count("failing"), kinds.count("files")) == (1, 1, 48)
    assert {feed.source for feed in feeds if feed.kind == "files"} == {"mysql", "mariadb"}
