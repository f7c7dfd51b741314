"""Who claims and who hands over: shares come out even, and nothing stays free for ever."""

from __future__ import annotations

import random

import pytest

from rowferry.control.fleet.assignment import to_claim, to_hand_over


def test_one_server_takes_everything() -> None:
    free = {f"f{i}": 0.0 for i in range(50)}
    assert sorted(to_claim(free, {"a": 0}, "a", 2.5)) == sorted(free)


def test_a_share_is_not_exceeded() -> None:
    free = {f"f{i}": 0.0 for i in range(7)}
    assert len(to_claim(free, {"a": 0, "b": 0, "c": 0}, "a", 2.5)) == 3


def test_who_has_fewer_comes_first() -> None:
    assert to_claim({"f": 1.0}, {"a": 1, "b": 0}, "a", 2.5) == []
    assert to_claim({"f": 1.0}, {"a": 1, "b": 0}, "b", 2.5) == ["f"]


def test_what_nobody_takes_is_taken_whatever_the_share() -> None:
    free = {"old": 3.0, "new": 0.1}
    assert to_claim(free, {"a": 5, "b": 0}, "a", 2.5) == ["old"]


@pytest.mark.parametrize(
    ("counts", "giver"),
    [
        ({"a": 2, "b": 2, "c": 0}, "a"),
        ({"a": 1, "b": 3, "c": 2}, "b"),
        ({"a": 1, "b": 2, "c": 2}, None),
        ({"a": 4}, None),
        ({}, None),
    ],
)
def test_one_server_hands_over_where_two_differ_by_two(
    counts: dict[str, int], giver: str | None
) -> None:
    held = {name: [f"{name}{i}" for i in range(count)] for name, count in counts.items()}
    gave = [name for name in counts if to_hand_over(held[name], counts, name) is not None]
    assert gave == ([giver] if giver else [])


def test_a_fleet_comes_to_rest_in_balance(seed: int) -> None:
    """Servers come and go, all judge at once, and the lease lets one of them win."""
    dice = random.Random(seed)
    owner: dict[str, str] = {f"f{i}": "" for i in range(23)}
    servers = {"a"}
    for turn in range(200):
        if turn % 20 == 0 and turn < 160:
            servers = {n for n in "abcde" if dice.random() < 0.6} or {"a"}
            owner = {f: o if o in servers else "" for f, o in owner.items()}
        counts = {s: sum(o == s for o in owner.values()) for s in servers}
        free = {f: dice.uniform(0, 2.4) for f, o in owner.items() if not o}
        claims = [(s, f) for s in servers for f in to_claim(free, counts, s, 2.5)]
        dice.shuffle(claims)
        for server, name in claims:
            owner[name] = owner[name] or server
        if not free:
            for server in servers:
                held = [f for f, o in owner.items() if o == server]
                name = to_hand_over(held, counts, server)
                if name is not None:
                    owner[name] = ""
    counts = {s: sum(o == s for o in owner.values()) for s in servers}
    assert "" not in owner.values()
    assert max(counts.values()) - min(counts.values()) <= 1
