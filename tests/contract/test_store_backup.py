"""Backup, restore and check of the meta database, on every kind."""

from __future__ import annotations

import gzip
import json
import stat
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from store_harness import Place, new_database
from store_material import (
    ITEMS,
    NOW,
    ORDERS,
    TTL_S,
    make_plan,
    make_range,
    make_spec,
    make_table,
    run_plan,
    someone_else,
    sqlite_url,
)

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.control.lifecycle import Verb
from rowferry.control.store import postgres_kind
from rowferry.control.store.backup import EPOCH_STEP, back_up, restore
from rowferry.control.store.checking import check
from rowferry.control.store.connection import Database
from rowferry.control.store.contract import MetaStore, Sample
from rowferry.control.store.sql_store import open_store
from rowferry.control.store.tables import REVISIONS, VERSION_TABLE, MetaTable
from rowferry.errors import BadInput, Fenced, RowRejected
from rowferry.mysql import wary_connection

LATER = NOW + 86_400


def _fill(store: MetaStore) -> Any:
    """Store something in every table; returns the claim of `feed-1`."""
    for name in ("feed-1", "feed-2", "gone"):
        store.create_changefeed(make_spec(name, sink={"protocol": "csv", "odd": "naïve ∞ \\ '"}), 5)
    store.remove("gone")
    claim = store.claim("feed-1", someone_else(), NOW, TTL_S)
    ranges = tuple(make_range(i) for i in range(3))
    first = make_plan(1, table=make_table(), ranges=ranges, watermark=2**62, sink_state={"n": 1})
    run_plan(store, claim, first, make_table(), make_table(ITEMS, 8))
    store.record(claim, make_plan(2, watermark=2**62 + 1), ())
    store.move("feed-2", Verb.GIVE_UP, RowRejected("‘é’ is too long"))
    store.update_spec("feed-2", make_spec("feed-2"))
    store.announce(someone_else(), "h:1", NOW)
    store.write_samples({"feed-1": Sample(NOW, 1, 2, 3, 4, 5, 6.0)})
    return claim


def _contents(store: MetaStore) -> list[Any]:
    """Return all that a restore must bring back."""
    found: list[Any] = []
    for feed in store.feeds():
        state = store.state(feed.id)
        seen = (feed.state, feed.spec, feed.spec_version, feed.created_at, feed.micro_batch)
        progress = (state.position, state.ranges, state.versions, state.watermark)
        history = [n for n in store.history(feed.id) if n.at == NOW]
        spec = store.spec(feed.id, 1)
        found += [feed.id, seen, progress, state.sink_state, feed.error, feed.error_code]
        found += [store.pending(feed.id), spec, history, feed.cancel]
    return found


def test_a_backup_goes_from_any_kind_of_database_into_any_other(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        urls = [sqlite_url(tmp_path / "first.db")]
        for kind in ("postgres", "mysql"):
            server = request.getfixturevalue(f"{kind}_server")
            urls.append(stack.enter_context(new_database(server, "meta_backup")))
        urls.append(sqlite_url(tmp_path / "last.db"))
        store = stack.enter_context(closing(open_store(urls[0], clock=lambda: NOW)))
        claim = _fill(store)
        expected = _contents(store)
        epochs = [claim.epoch]
        for number, (source, target) in enumerate(zip(urls, urls[1:], strict=False)):
            file = tmp_path / f"{number}.gz"
            made = back_up(source, file, NOW)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert restore(target, file, LATER) == made
            assert (made.changefeeds, made.schema, made.at) == (2, REVISIONS[-1], NOW)
            with closing(open_store(target, clock=lambda: LATER)) as restored:
                assert _contents(restored) == expected
                epochs.append(_owned_anew(restored, target))
            assert {look.findings for look in check(target)} == {()}
        pairs = zip(epochs, epochs[1:], strict=False)
        assert all(after >= max(before + EPOCH_STEP, int(LATER)) for before, after in pairs)


@pytest.mark.parametrize("kind", ["sqlite", "mysql", "mariadb", "postgres"])
def test_schema_changes_are_delivered_behind_a_restore(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Their rows are numbered by the database; it must not give a restored one's number again."""
    with ExitStack() as stack:
        first, file = sqlite_url(tmp_path / "first.db"), tmp_path / "b.gz"
        url = sqlite_url(tmp_path / "restored.db")
        if kind != "sqlite":
            server = request.getfixturevalue(f"{kind}_server")
            url = stack.enter_context(new_database(server, "meta_numbered"))
        with closing(open_store(first, clock=lambda: NOW)) as store:
            store.create_changefeed(make_spec())
            claim = store.claim("feed-1", someone_else(), NOW, TTL_S)
            run_plan(store, claim, make_plan(1, changes=_changes(20)), make_table())
        back_up(first, file, NOW)
        restore(url, file, LATER)
        with closing(open_store(url, clock=lambda: LATER)) as store:
            claim = store.claim("feed-1", someone_else(), LATER, TTL_S)
            run_plan(store, claim, make_plan(2, changes=_changes(21)[20:]))
            found = [change.commit_ts for change in store.schema_changes("feed-1")]
        assert found == list(range(120, 99, -1))


@pytest.mark.parametrize("kind", ["sqlite", "mysql", "postgres"])
def test_a_backup_may_be_longer_than_any_answer(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of 500 changefeeds is; whoever asked for all of it at once got none of it."""
    with ExitStack() as stack:
        url = sqlite_url(tmp_path / "long.db")
        if kind != "sqlite":
            server = request.getfixturevalue(f"{kind}_server")
            url = stack.enter_context(new_database(server, "meta_long"))
        rows = MetaTable.metadata.tables["published_batches"]
        batch = "x" * 4000
        forms = [
            {"changefeed": f"f{n % 3}", "micro_batch": n, "single": 1, "at": 0, "batch": batch}
            for n in range(999)
        ]
        with closing(open_store(url, clock=lambda: NOW)) as store:
            store.create_changefeed(make_spec())
        with closing(Database(url)) as database, database.writing("fill") as session:
            session.execute(insert(rows), forms)
        for module in (postgres_kind, wary_connection):
            monkeypatch.setattr(module, "MOST_ANSWER", 2 << 20)
        file = tmp_path / "b.gz"
        back_up(url, file, NOW)
    with gzip.open(file, "rt") as lines:
        kept = [form["row"] for form in map(json.loads, lines) if form.get("table") == rows.name]
    assert kept == sorted(forms, key=lambda form: (form["changefeed"], form["micro_batch"]))


def _changes(count: int) -> tuple[SchemaChange, ...]:
    """Return schema changes from commit-ts 100 on."""
    return tuple(
        SchemaChange(100 + i, DdlKind.ADD_COLUMN, "ALTER …", ORDERS, make_table(version=100 + i))
        for i in range(count)
    )


def _owned_anew(store: MetaStore, url: str) -> int:
    """Check that nobody owns what was restored; returns the epoch after a claim."""
    found = store.feed("feed-1")
    assert found is not None and found.lease is None
    assert store.history("feed-1")[0].what == "restored"
    assert store.servers() == () and store.samples("feed-1") == ()
    with closing(Place(url)) as place:
        assert place.sql("SELECT DISTINCT owner FROM subscribe") == [("",)]
    again = store.create_changefeed(make_spec("gone"))
    assert again.epoch >= EPOCH_STEP  # the epochs of removed ones go on as well
    store.remove("gone")
    claim = store.claim("feed-1", someone_else("new"), LATER, TTL_S)
    store.release(claim)
    return claim.epoch


def test_a_full_database_is_not_restored_into(tmp_path: Path) -> None:
    full, other = sqlite_url(tmp_path / "full.db"), sqlite_url(tmp_path / "other.db")
    with closing(open_store(full)) as store:
        claim = _fill(store)
        back_up(full, tmp_path / "b.gz", NOW)
        with pytest.raises(BadInput, match="not empty.*new one"):
            restore(full, tmp_path / "b.gz", LATER)
        store.renew(claim, NOW)  # nobody was fenced
    open_store(other).close()  # tables without a row are as good as none
    restore(other, tmp_path / "b.gz", LATER)
    with closing(open_store(other)) as store, pytest.raises(Fenced):
        store.renew(claim, LATER)


def test_an_older_backup_is_brought_to_the_newest_version(tmp_path: Path) -> None:
    with closing(Database(sqlite_url(tmp_path / "old.db"), migrate=False)) as old:
        old.migrate(REVISIONS[0])
        with closing(Place(sqlite_url(tmp_path / "old.db"))) as place:
            place.sql("INSERT INTO leases VALUES ('gone', 7, NULL, 0, 0)")
            back_up(sqlite_url(tmp_path / "old.db"), tmp_path / "b.gz", NOW)
            assert place.sql(f"SELECT * FROM {VERSION_TABLE}") == [(REVISIONS[0],)]
        looks = check(sqlite_url(tmp_path / "old.db"))
        assert "meta migrate" in looks[0].findings[0]
    restore(sqlite_url(tmp_path / "new.db"), tmp_path / "b.gz", NOW)
    with closing(Place(sqlite_url(tmp_path / "new.db"))) as place:
        assert place.sql(f"SELECT * FROM {VERSION_TABLE}") == [(REVISIONS[-1],)]
        assert place.sql("SELECT changefeed, epoch FROM leases") == [("gone", int(NOW))]


@pytest.mark.parametrize("kind", ["sqlite", "mysql", "mariadb", "postgres"])
def test_rows_of_an_older_version_are_kept_and_owned(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Version 0003 had one name for a changefeed and its rows."""
    with ExitStack() as stack:
        url = sqlite_url(tmp_path / "old.db")
        if kind != "sqlite":
            server = request.getfixturevalue(f"{kind}_server")
            url = stack.enter_context(new_database(server, "meta_older"))
        old = stack.enter_context(closing(Database(url, migrate=False)))
        old.migrate("0003")
        place = stack.enter_context(closing(Place(url)))
        for number, table in enumerate(("items", "orders"), 1):
            place.sql(
                f"INSERT INTO subscribe VALUES (5, 'shop', '{table}', 'bank', NULL, 7, 'm:1', "
                "'file:///out', 0, '')"
            )
            place.sql(
                f"INSERT INTO progress VALUES (5, 'shop', '{table}', 'bank', {number}, 2, 1, 1, "
                "'', 3, 7, 7, '', '', 1, 1)"
            )
        old.migrate()
        old.migrate()
        for name in ("subscribe", "progress"):
            found = place.sql(f"SELECT table_name, subscribe_name, changefeed FROM {name}")
            assert sorted(found) == [("items", "bank", "bank"), ("orders", "bank", "bank")]
        place.sql(f"UPDATE subscribe SET subscribe_name = '{'n' * 255}' WHERE table_name = 'items'")
        place.sql("UPDATE progress SET range_id = 2, changefeed = 'other' WHERE range_id = 1")
        with pytest.raises(IntegrityError):
            place.sql("UPDATE progress SET changefeed = 'bank'")


def _rewritten(change: Callable[[list[Any]], object]) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        lines = [json.loads(line) for line in gzip.open(file, "rt")]
        change(lines)
        file.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))

    return spoil


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda f: f.write_bytes(f.read_bytes()[:-20]), "cannot be read"),
    "text": (lambda f: f.write_text("dear diary"), "cannot be read"),
    "away": (lambda f: f.unlink(), "No such file"),
    "empty": (lambda f: f.write_bytes(gzip.compress(b"")), "not complete"),
    "short": (_rewritten(lambda lines: lines.pop(3)), "not complete"),
    "no-end": (_rewritten(lambda lines: lines.pop()), "not complete"),
    "newer": (_rewritten(lambda lines: lines[0].update(schema="9999")), "no backup.*knows"),
    "stranger": (_rewritten(lambda lines: lines[2].update(table="passwd")), "no table"),
    "scalar": (_rewritten(lambda lines: lines.insert(2, 7)), "cannot be read"),
}


@pytest.mark.parametrize("how", sorted(SPOILED))
def test_a_spoiled_file_is_refused_before_anything_is_made(how: str, tmp_path: Path) -> None:
    spoil, words = SPOILED[how]
    file, target = tmp_path / "b.gz", tmp_path / "target.db"
    with closing(open_store(sqlite_url(tmp_path / "meta.db"))) as store:
        _fill(store)
    back_up(sqlite_url(tmp_path / "meta.db"), file, NOW)
    spoil(file)
    with pytest.raises(BadInput, match=words) as raised:
        restore(sqlite_url(target), file, NOW)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)
    assert not target.exists()


def test_a_backup_needs_a_database_and_a_new_file(tmp_path: Path) -> None:
    missing, file = tmp_path / "missing.db", tmp_path / "b.gz"
    with pytest.raises(BadInput, match="no meta database"):
        back_up(sqlite_url(missing), file, NOW)
    assert not missing.exists() and not file.exists()
    open_store(sqlite_url(tmp_path / "meta.db")).close()
    file.write_text("precious")
    with pytest.raises(BadInput, match="File exists"):
        back_up(sqlite_url(tmp_path / "meta.db"), file, NOW)
    assert file.read_text() == "precious"
    with pytest.raises(BadInput, match="No such file"):
        back_up(sqlite_url(tmp_path / "meta.db"), tmp_path / "nowhere" / "b.gz", NOW)


# --- check ---------------------------------------------------------------------------------------

DAMAGE = {
    "UPDATE changefeeds SET spec = '{' WHERE id = 'feed-1'": "settings of changefeed feed-1",
    "UPDATE changefeeds SET state = 'happy' WHERE id = 'feed-1'": "unknown state 'happy'",
    "UPDATE changefeeds SET position = '[]' WHERE id = 'feed-1'": "position of changefeed feed-1",
    "UPDATE changefeeds SET sink_state = '7' WHERE id = 'feed-1'": "sink state",
    "UPDATE changefeeds SET spec_version = 9 WHERE id = 'feed-1'": "spec version 9 is missing",
    "UPDATE changefeeds SET epoch = 0 WHERE id = 'feed-1'": "at epoch 0, its lease at 1",
    "DELETE FROM leases WHERE changefeed = 'feed-1'": "no lease row",
    "UPDATE leases SET holder = '{}' WHERE changefeed = 'feed-1'": "lease of changefeed feed-1",
    "UPDATE spec_versions SET spec = '{}' WHERE version = 1": "settings 1 of changefeed",
    "UPDATE pending_plans SET plan = '{}'": "pending plan of changefeed feed-1",
    "UPDATE pending_plans SET digest = 'x'": "not the one that was recorded",
    "UPDATE pending_plans SET micro_batch = 7": "is number 7, not 2",
    "UPDATE pending_plans SET epoch = 8": "epoch 8, above 1",
    "UPDATE table_versions SET definition = '{}' WHERE table_name = 'items'": "table shop.items",
    "UPDATE subscribe SET changefeed = 'x' WHERE table_name = 'items'": "no changefeed: 'x'",
    "UPDATE subscribe SET subscribe_name = 'x' WHERE table_name = 'items'": "another name: 'x'",
    "UPDATE subscribe SET cluster_id = 9 WHERE table_name = 'items'": "of cluster 9",
    "UPDATE progress SET progress_stage = 9 WHERE range_id = 1": "unknown stage 9",
    "UPDATE progress SET changefeed = 'x' WHERE range_id = 1": "range 1 belongs to no change",
    "UPDATE progress SET subscribe_name = 'x' WHERE range_id = 1": "another name: 'x'",
    "UPDATE history SET details = '' WHERE changefeed = 'feed-1'": "history",
}


def test_a_check_finds_every_kind_of_damage_and_changes_nothing(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "meta.db")
    with closing(open_store(url)) as store:
        _fill(store)
    good = {look.what: look for look in check(url)}
    assert {look.findings for look in good.values()} == {()}
    assert good["progress"].rows == 3 and good["changefeeds"].rows == 2
    assert good["leases and epochs"].rows == 3 and good["subscribe"].rows == 2
    whole = (tmp_path / "meta.db").read_bytes()
    for statement, words in DAMAGE.items():
        path = tmp_path / "spoiled.db"
        path.write_bytes(whole)
        with closing(Place(sqlite_url(path))) as place:
            place.sql("PRAGMA foreign_keys = OFF")
            place.sql(statement)
            before = place.everything()
            found = [line for look in check(sqlite_url(path)) for line in look.findings]
            assert any(words in line for line in found), (statement, found)
            assert place.everything() == before
        for part in tmp_path.glob("spoiled.db*"):
            part.unlink()
