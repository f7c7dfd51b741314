"""Changefeeds are brought to what files declare: by the difference, and no further."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from operations_kit import listed_source, table

from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator import owners
from rowferry.control.operator.actor import Actor, Role, current_actor
from rowferry.control.operator.declared.apply import (
    Action,
    ApplyRequest,
    Outcome,
    Step,
    apply_declared,
)
from rowferry.control.operator.declared.export import export_declared
from rowferry.control.operator.operations import ChangedSettings, Operations, Wanted
from rowferry.control.store.contract import FeedRecord
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadOption, NoSuchChangefeed, RoleTooLow, SinkUnavailable
from rowferry.spec.declared import Declaration, DeclaredFeed

NOTHING, CREATE, CHANGE = Action.NOTHING, Action.CREATE, Action.CHANGE


class Files:
    """What an owner's files declare, and the meta database that they are applied to."""

    def __init__(self, folder: Path, operations: Operations) -> None:
        self.folder, self.operations, self.store = folder, operations, operations.store

    def feed(self, name: str = "one", *rules: str, **more: Any) -> DeclaredFeed:
        config = {"filter": {"rules": list(rules or ("shop.*",))}, **more.pop("config", {})}
        given = {"source": "listed://shop", "sink": f"file://{self.folder}/{name}?protocol=csv"}
        return DeclaredFeed(name, **{**given, "config": config, **more})

    def apply(self, *feeds: DeclaredFeed, owner: str = "team", **more: bool) -> tuple[Step, ...]:
        return apply_declared(self.operations, ApplyRequest((Declaration(owner, feeds),), **more))

    def stored(self, name: str = "one") -> FeedRecord:
        found = self.store.feed(name)
        assert found is not None
        return found

    def everything(self) -> object:
        return self.store.feeds(), [self.store.history(f.id) for f in self.store.feeds()]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meta") / "meta.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def files(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.setattr(owners, "PATIENCE_S", 0.0)
    shutil.copy(empty, tmp_path / "meta.db")
    with listed_source(table("shop.orders"), table("shop.items"), table("crm.people")):
        store = open_store(f"sqlite:///{tmp_path}/meta.db")
        yield Files(tmp_path, Operations(store))
        store.close()


def told(steps: tuple[Step, ...]) -> list[tuple[str, Action, Outcome]]:
    return [(s.changefeed, s.action, s.outcome) for s in steps]


def shown(step: Step) -> dict[str, tuple[Any, Any]]:
    return {d.key: (d.before, d.after) for d in step.differences}


# --- the difference ------------------------------------------------------------------------------


def test_what_is_declared_is_created_once(files: Files) -> None:
    one, two = files.feed(), files.feed("two", "crm.*")
    (first, _) = files.apply(one, two)
    assert (first.action, first.outcome) == (CREATE, Outcome.DONE)
    assert first.tables == ("shop.items", "shop.orders")
    assert shown(first)["config.filter.rules"] == (None, ["shop.*"])
    assert files.stored().spec.managed_by == "team"
    before = files.everything()
    assert told(files.apply(one, two)) == [
        ("one", NOTHING, Outcome.PLANNED),
        ("two", NOTHING, Outcome.PLANNED),
    ]
    assert files.everything() == before


def test_a_dry_run_changes_nothing(files: Files) -> None:
    files.apply(files.feed(), files.feed("old"))
    before = files.everything()
    steps = files.apply(
        files.feed("one", "shop.orders"), files.feed("new", "crm.*"), dry_run=True, prune=True
    )
    assert told(steps) == [
        ("one", CHANGE, Outcome.PLANNED),
        ("new", CREATE, Outcome.PLANNED),
        ("old", Action.REMOVE, Outcome.PLANNED),
    ]
    assert shown(steps[0]) == {"config.filter.rules": (["shop.*"], ["shop.orders"])}
    assert files.everything() == before


def test_one_that_runs_is_paused_changed_and_resumed(files: Files) -> None:
    files.apply(files.feed())
    (step,) = files.apply(files.feed("one", "shop.orders"))
    assert (step.action, step.outcome) == (CHANGE, Outcome.DONE)
    found = files.stored()
    assert found.state is FeedState.NORMAL
    assert found.spec.section("filter") == {"rules": ["shop.orders"]}
    moves = [n.details["to"] for n in files.store.history("one") if n.what == "state"]
    assert moves == ["normal", "stopped"]


def test_one_that_an_operator_paused_stays_so(files: Files) -> None:
    files.apply(files.feed())
    files.operations.pause("one")
    assert told(files.apply(files.feed())) == [("one", NOTHING, Outcome.PLANNED)]
    files.apply(files.feed("one", "shop.orders"))
    assert files.stored().state is FeedState.STOPPED
    files.apply(files.feed("one", "shop.orders", paused=False))
    assert files.stored().state is FeedState.NORMAL


def test_a_failed_one_runs_again_with_its_new_settings(files: Files) -> None:
    files.apply(files.feed())
    files.store.move("one", Verb.GIVE_UP, SinkUnavailable("away"))
    assert told(files.apply(files.feed())) == [("one", NOTHING, Outcome.PLANNED)]
    files.apply(files.feed("one", "shop.orders"))
    assert files.stored().state is FeedState.NORMAL


def test_paused_is_declared_too(files: Files) -> None:
    (made,) = files.apply(files.feed(paused=True))
    assert shown(made)["paused"] == (None, True)
    assert files.stored().state is FeedState.STOPPED
    # From its first moment on: no server had the time to deliver a row.
    assert [n.what for n in files.store.history("one") if n.what in ("created", "state")] == [
        "created"
    ]
    (step,) = files.apply(files.feed(paused=False))
    assert shown(step) == {"paused": (True, False)}
    assert files.stored().state is FeedState.NORMAL
    files.apply(files.feed("one", "shop.orders", paused=True))
    assert files.stored().state is FeedState.STOPPED
    assert files.stored().spec.section("filter") == {"rules": ["shop.orders"]}


def test_what_was_changed_by_hand_is_brought_back(files: Files) -> None:
    files.apply(files.feed())
    files.operations.drop_tables("one", ["shop.items"])
    assert files.stored().spec.managed_by == "team"
    (step,) = files.apply(files.feed())
    assert shown(step) == {"config.filter.rules": (["shop.*", "!shop.items"], ["shop.*"])}
    files.operations.pause("one")
    files.operations.update("one", ChangedSettings(target_ts=1 << 62))
    assert files.stored().spec.managed_by == "team"
    (step,) = files.apply(files.feed())
    assert shown(step) == {"target-ts": (1 << 62, None)}


def test_where_it_began_is_not_compared(files: Files) -> None:
    begun = files.feed(source="listed://shop?start-ts=7&server-id=7")
    files.apply(begun)
    assert told(files.apply(begun)) == [("one", NOTHING, Outcome.PLANNED)]
    files.operations.pause("one")
    files.operations.reset("one", commit_ts=99)
    other_order = files.feed(source="listed://shop?server-id=7&start-ts=7")
    assert told(files.apply(other_order)) == [("one", NOTHING, Outcome.PLANNED)]
    files.apply(files.feed("one", "shop.orders", source="listed://shop?server-id=7"))
    assert files.stored().spec.start_ts == 99


# --- who looks after it --------------------------------------------------------------------------


def test_only_the_owner_removes_and_only_when_asked(files: Files) -> None:
    files.apply(files.feed(), files.feed("two"))
    files.apply(files.feed("other"), owner="others")
    files.operations.create(
        Wanted("listed://shop", f"file://{files.folder}/hand?protocol=csv", "hand")
    )
    assert told(files.apply(files.feed())) == [
        ("two", Action.LEAVE, Outcome.PLANNED),
        ("one", NOTHING, Outcome.PLANNED),
    ]
    assert told(files.apply(files.feed(), prune=True))[0] == (
        "two",
        Action.REMOVE,
        Outcome.DONE,
    )
    assert [f.id for f in files.store.feeds()] == ["hand", "one", "other"]
    files.apply(prune=True)
    assert [f.id for f in files.store.feeds()] == ["hand", "other"]


@pytest.mark.parametrize(("first", "words"), [("", "was not made by a file"), ("a", "by 'a'")])
def test_one_of_another_is_taken_over_only_when_asked(files: Files, first: str, words: str) -> None:
    one = files.feed()
    files.operations.create(Wanted(one.source, one.sink, one.id, one.config, managed_by=first))
    before = files.everything()
    (step,) = files.apply(one)
    assert step.outcome is Outcome.REFUSED
    assert step.error is not None and words in step.error.words and "--adopt" in step.error.words
    assert files.everything() == before
    (step,) = files.apply(one, adopt=True)
    assert shown(step) == {"owner": (first or None, "team")}
    assert files.stored().spec.managed_by == "team"
    assert files.stored().state is FeedState.NORMAL
    assert [n.what for n in files.store.history("one")] == ["updated", "created"]  # no pause


# --- refusals and failures -----------------------------------------------------------------------


def test_where_one_is_wrong_nothing_is_done(files: Files) -> None:
    files.apply(files.feed())
    before = files.everything()
    wrong = files.feed("two", config={"sink": {"csv": {"delimitr": ";"}}})
    steps = files.apply(files.feed("one", "shop.orders"), wrong, prune=True)
    assert {s.changefeed: s.outcome for s in steps} == {
        "one": Outcome.PLANNED,
        "two": Outcome.REFUSED,
    }
    (error,) = [s.error for s in steps if s.error]
    assert error.code == "RF-1001"
    assert "did you mean 'delimiter'?" in error.words
    assert files.everything() == before


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("key", ["rules", "soft-delete-tables"])
def test_no_file_of_the_server_is_read(
    files: Files, stored: bool, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stored:
        files.apply(files.feed())
    names: list[str] = []

    def noted(name: str) -> list[str]:
        names.append(name)
        return []

    for reader in ("rowferry.spec.config_file", "rowferry.flow.decide.table_filter"):
        monkeypatch.setattr(f"{reader}.read_rule_file", noted)
    rules = ["@/etc/passwd"]
    config = {"filter": {"rules": rules}} if key == "rules" else {key: rules}
    (step,) = files.apply(files.feed(config=config), dry_run=True)
    assert step.outcome is Outcome.REFUSED and names == []
    assert step.error is not None and "names a file" in step.error.words


def test_what_can_never_change_is_refused_before_anything_is_paused(files: Files) -> None:
    files.apply(files.feed())
    (step,) = files.apply(files.feed(sink=f"file://{files.folder}/elsewhere?protocol=csv"))
    assert step.outcome is Outcome.REFUSED
    assert step.error is not None and "make a new changefeed" in step.error.words
    assert files.stored().state is FeedState.NORMAL


def test_a_failure_is_told_and_the_others_go_on(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = files.feed(), files.feed("two")
    files.apply(one)
    update = Operations.update

    def away(self: Operations, changefeed: str, changed: ChangedSettings) -> FeedRecord:
        raise SinkUnavailable("the sink went away")

    monkeypatch.setattr(Operations, "update", away)
    steps = files.apply(files.feed("one", "shop.orders"), two)
    assert told(steps) == [("one", CHANGE, Outcome.FAILED), ("two", CREATE, Outcome.DONE)]
    assert files.stored().state is FeedState.NORMAL  # as it was
    assert files.stored().spec.section("filter") == {"rules": ["shop.*"]}
    monkeypatch.setattr(Operations, "update", update)
    steps = files.apply(files.feed("one", "shop.orders"), two)
    assert told(steps) == [("one", CHANGE, Outcome.DONE), ("two", NOTHING, Outcome.PLANNED)]


@pytest.mark.parametrize("stored", [False, True], ids=["before the update", "after it"])
def test_killed_while_it_was_paused_the_next_one_resumes_it(
    files: Files, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    class Killed(BaseException):
        pass

    files.apply(files.feed())
    update = Operations.update

    def killed(self: Operations, changefeed: str, changed: ChangedSettings) -> FeedRecord:
        if stored:
            update(self, changefeed, changed)
        raise Killed

    monkeypatch.setattr(Operations, "update", killed)
    changed = files.feed("one", "shop.orders")
    with pytest.raises(Killed):
        files.apply(changed)
    assert files.stored().state is FeedState.STOPPED
    monkeypatch.setattr(Operations, "update", update)
    files.apply(changed)
    assert files.stored().state is FeedState.NORMAL
    assert files.stored().spec.section("filter") == {"rules": ["shop.orders"]}
    files.operations.pause("one")  # an operator's own pause, later: it stays
    files.apply(changed)
    assert files.stored().state is FeedState.STOPPED


def test_a_finished_one_cannot_be_changed(files: Files) -> None:
    files.apply(files.feed())
    files.store.move("one", Verb.REACH_TARGET)
    assert told(files.apply(files.feed())) == [("one", NOTHING, Outcome.PLANNED)]
    (step,) = files.apply(files.feed("one", "shop.orders"))
    assert step.error is not None and "finished" in step.error.words


def test_declared_by_two_owners_is_refused(files: Files) -> None:
    twice = tuple(Declaration(owner, (files.feed(),)) for owner in ("a", "b"))
    with pytest.raises(BadOption, match="declared twice, by a and by b"):
        apply_declared(files.operations, ApplyRequest(twice))


@pytest.mark.parametrize("dry_run", [True, False])
def test_only_admins_may_apply(files: Files, dry_run: bool) -> None:
    token = current_actor.set(Actor("op", Role.OPERATOR, "h", "rest"))
    try:
        with pytest.raises(RoleTooLow):
            files.apply(files.feed(), dry_run=dry_run)
    finally:
        current_actor.reset(token)


# --- secrets, and export -------------------------------------------------------------------------


def test_a_secret_that_changes_is_told_without_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("A", "B"):
        monkeypatch.setenv(f"PW_{name}", f"clear-{name}")

    def with_password(text: str) -> DeclaredFeed:
        return replace(files.feed(), source=f"listed://ferry:{text}@shop")

    files.apply(with_password("clear-old-word"))
    (step,) = files.apply(with_password("env:PW_A"), dry_run=True)
    assert shown(step) == {"source": ("listed://ferry:***@shop", "(a secret in it changes)")}
    (step,) = files.apply(with_password("***"))
    assert step.outcome is Outcome.REFUSED
    assert step.error is not None
    assert "the source URI has *** in the place of a secret; write where" in step.error.words
    files.apply(with_password("env:PW_A"))
    assert "clear" not in repr(files.apply(with_password("env:PW_B"), dry_run=True))


def test_what_was_exported_is_as_declared(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "clear")
    one = replace(files.feed(), source="listed://ferry:env:PW@shop?start-ts=7")
    files.apply(one, files.feed("two", "crm.*", paused=True, target_ts=1 << 61))
    found = export_declared(files.operations)
    assert found.hidden == found.left_out == ()
    assert found.declaration.owner == "team"
    assert found.declaration.feeds[0] == one
    steps = apply_declared(files.operations, ApplyRequest((found.declaration,)))
    assert {s.action for s in steps} == {NOTHING}


def test_an_export_holds_no_secret(files: Files) -> None:
    files.apply(replace(files.feed(), source="listed://ferry:clear-word@shop"))
    found = export_declared(files.operations)
    assert found.hidden == ("one: source",)
    assert found.declaration.feeds[0].source == "listed://ferry:***@shop"
    (step,) = apply_declared(files.operations, ApplyRequest((found.declaration,)))
    assert step.outcome is Outcome.REFUSED


def test_an_export_has_one_owner(files: Files) -> None:
    files.apply(files.feed())
    files.apply(files.feed("two"), owner="others")
    with pytest.raises(BadOption, match="these changefeeds have: others, team"):
        export_declared(files.operations)
    assert [f.id for f in export_declared(files.operations, owner="others").declaration.feeds] == [
        "two"
    ]
    all_of_them = export_declared(files.operations, name="mine").declaration
    assert (all_of_them.owner, len(all_of_them.feeds)) == ("mine", 2)
    assert len(export_declared(files.operations, ["one"]).declaration.feeds) == 1
    with pytest.raises(NoSuchChangefeed):
        export_declared(files.operations, ["nope"])
