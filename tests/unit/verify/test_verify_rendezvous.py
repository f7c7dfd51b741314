"""How two sides come to one moment, whatever the changefeed does meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rowferry.downstream.verify import rendezvous
from rowferry.downstream.verify.rendezvous import Stood, met
from rowferry.downstream.verify.views import OpenViews, PastViews
from rowferry.errors import NoSyncPoint, SourceMismatch
from rowferry.mysql import session
from rowferry.mysql.session import Flavour, Login, ServerFacts

PLACE = {"server": "s", "file": "log.1", "offset": 9, "gtid": ""}
STILL = Stood("at", 5, 5, False, 700)
NOT_YET = Stood("", 0, 4, True, 700)
LOGIN = Login("db", 1, "root", "")


class Side:
    """A side without a server."""

    login, facts = LOGIN, ServerFacts(Flavour.MYSQL, (8, 4, 0), "8.4.0", 1, "s")
    views: OpenViews | None = None


class Brake:
    """Answers as it is told to, each time once; the last answer stays."""

    def __init__(self, *answers: Stood | None) -> None:
        self._answers = list(answers)
        self.asked: list[Any] = []

    def hold(self, place: Mapping[str, Any] | None) -> None:
        self.asked.append("border" if place is None else place)

    def look(self) -> Stood | None:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def release(self) -> None:
        self.asked.append("go on")


class Views(OpenViews):
    """Views that tell whether they were closed."""

    opened: int = 0

    def __init__(self) -> None:
        super().__init__([])
        Views.opened += 1

    def close(self) -> None:
        Views.opened -= 1


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    Views.opened = 0
    monkeypatch.setattr(rendezvous, "open_views", lambda *_: Views())
    monkeypatch.setattr(rendezvous, "open_views_at_a_place", lambda *_: (Views(), PLACE))


def meet(brake: Brake) -> list[Any]:
    a: Any = Side()
    b: Any = Side()
    with met(a, b, brake, 2, 0.2, wait=lambda seconds: None) as meeting:
        assert brake.asked[-1] == "go on" and meeting.place == PLACE
        assert a.views is not None and b.views is not None and Views.opened == 2
    assert a.views is None and b.views is None
    return brake.asked


@pytest.mark.parametrize(
    ("answers", "tries"),
    [
        ([STILL], 1),
        ([NOT_YET, STILL, NOT_YET, NOT_YET, STILL], 1),
        ([STILL, Stood("past", 5, 5, False, 0), STILL], 2),  # A did not show yet what it had read
        ([STILL, STILL, Stood("at", 5, 5, True, 0), STILL], 2),  # B's views came too late
        ([STILL, STILL, Stood("at", 5, 6, False, 0), STILL], 2),
        ([STILL, STILL, None, STILL], 2),
    ],
)
def test_it_is_tried_until_nothing_came_in_between(
    answers: Sequence[Stood | None], tries: int
) -> None:
    assert meet(Brake(*answers)) == ["border", PLACE] * tries + ["go on"]
    assert Views.opened == 0


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ([NOT_YET], NoSyncPoint, "a border between micro-batches within 0 s and is 1 s behind; "),
        ([STILL, NOT_YET], NoSyncPoint, "did not come to log.1:9 within"),
        ([STILL, None], NoSyncPoint, "did not come to log.1:9 within 0 s; try again"),
        ([STILL, Stood("elsewhere", 5, 5, False, 0)], SourceMismatch, "reads another server"),
    ],
)
def test_it_ends_with_a_line_and_lets_the_changefeed_go_on(
    answers: Sequence[Stood | None], error: type[Exception], words: str
) -> None:
    brake = Brake(*answers)
    with pytest.raises(error, match=words):
        meet(brake)
    assert brake.asked[-1] == "go on" and Views.opened == 0


def test_it_is_not_tried_for_ever() -> None:
    busy = [STILL, STILL, Stood("at", 5, 6, False, 0)]
    brake = Brake(*busy * 6)
    with pytest.raises(NoSyncPoint, match="did not stand still"):
        meet(brake)
    assert brake.asked == ["border", PLACE] * 5 + ["go on"] and Views.opened == 0


def test_the_past_of_tidb(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    class Connection:
        def close(self) -> None:
            sent.append("closed")

    def rows(connection: Any, login: Login, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        sent.append(sql)
        return []

    monkeypatch.setattr(session, "connect", lambda login: Connection())
    monkeypatch.setattr(session, "rows", rows)
    with PastViews(433305438660591626).lent(LOGIN, Flavour.MYSQL):
        assert sent[-1] == "SET @@tidb_snapshot = '433305438660591626'"
    assert sent[-1] == "closed"
