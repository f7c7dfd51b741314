"""The redo log: whatever is lost at whatever moment, `apply` ends at one consistent point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mysql_sink_kit import MySqlFeed, Scene

from patience import until_it_fails
from rowferry.downstream.redo.apply import RedoState, apply, find_log
from rowferry.errors import (
    BadInput,
    BadOption,
    Fenced,
    SinkDamaged,
    SinkUnavailable,
    TargetLost,
    TargetWentBack,
)
from rowferry.moment import watched
from rowferry.secrets.sources import NO_STORE
from rowferry.spec.uri import Uri

ACCOUNTS, MONEY = 8, 1000
# Transactions are written downstream in pieces by several workers.
PIECES = "max-txn-row=2&worker-count=2&multi-stmt-enable=false"


class Death:
    """Ends the process at one of its calls to the outside: nothing is done from there on."""

    def __init__(self, at: int | None) -> None:
        """Die at the call of this number; None: never."""
        self._at = at
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if self._at is not None and len(self.names) >= self._at:
            raise SinkUnavailable("the process has ended")


class Bank:
    """Money that goes from account to account, each time with a line in a journal."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.entries = 0
        scene.sql(
            "CREATE TABLE account (id int PRIMARY KEY, money int NOT NULL)",
            "CREATE TABLE journal (n int PRIMARY KEY, payer int, payee int, money int)",
            "INSERT INTO account VALUES " + ", ".join(f"({i}, {MONEY})" for i in range(ACCOUNTS)),
        )

    def transfer(self, times: int) -> None:
        statements = []
        for n in range(self.entries + 1, self.entries + times + 1):
            payer, payee = n % ACCOUNTS, (n * 3 + 1) % ACCOUNTS
            statements += [
                "BEGIN",
                f"UPDATE account SET money = money - {n} WHERE id = {payer}",
                f"UPDATE account SET money = money + {n} WHERE id = {payee}",
                f"INSERT INTO journal (n, payer, payee, money) VALUES ({n}, {payer}, {payee}, {n})",
                "COMMIT",
            ]
        self._scene.sql(*statements)
        self.entries += times

    def point(self) -> int | None:
        """Return up to which transfer the downstream has all, and nothing else; None: neither."""
        copy = self._scene.copy
        lines = self._scene.target.execute(
            f"SELECT n, payer, payee, money FROM {copy}.journal ORDER BY n"
        )
        money = [MONEY] * ACCOUNTS
        for place, line in enumerate(lines):
            n, payer, payee, sum_ = (int(str(cell)) for cell in line)
            if n != place + 1:
                return None
            money[payer] -= sum_
            money[payee] += sum_
        accounts = self._scene.target.execute(f"SELECT money FROM {copy}.account ORDER BY id")
        return len(lines) if [int(str(row[0])) for row in accounts] == money else None


def feed_with_log(scene: Scene, folder: Path, more: str = "") -> MySqlFeed:
    place = f"level = 'eventual'\nstorage = 'file://{folder}/redo'\n{more}"
    return scene.feed(f"create-tables=true&{PIECES}", f"[consistent]\n{place}\n[filter]\n")


def state_of(folder: Path) -> RedoState:
    return find_log(Uri.parse(f"file://{folder}/redo", "storage"), "")[1]


def applied(feed: MySqlFeed, folder: Path) -> RedoState:
    log, state = find_log(Uri.parse(f"file://{folder}/redo", "storage"), "")
    return apply(log, state, feed.sink_uri, NO_STORE).state


def ends_at(last: str) -> Callable[[str], None]:
    """Return what ends a process at one of its calls to the outside."""

    def end(name: str) -> None:
        if name == last:
            raise SinkUnavailable(_end_of(last))

    return end


def end_at(feed: MySqlFeed, last: str) -> None:
    """Let a feed come to one of its calls to the outside, and no further."""
    with watched(ends_at(last)):
        until_it_fails(feed, _end_of(last))


def _end_of(last: str) -> str:
    return f"the process has ended at {last!r}"


def test_every_moment_leads_to_a_consistent_point(scene: Scene, tmp_path: Path) -> None:
    """The feed dies at each of its calls in turn; what it did not keep, it did not write."""
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path, "compression = 'lz4'")
    feed.catch_up()
    torn, tries, reached = 0, 0, 0
    for at in [*moments_of(bank, feed, scene), None]:
        work(bank, scene)
        feed.run()
        with watched(death := Death(at)):
            for _ in range(3):
                feed.step()
        feed.stop()
        torn += bank.point() is None
        state = applied(feed, tmp_path)
        point = bank.point()
        assert point is not None, death.names
        assert reached <= point <= bank.entries
        reached = point
        assert state_of(tmp_path).checkpoint_ts == state.resolved_ts
        assert applied(feed, tmp_path).kept is None  # a second time there is nothing to do
        tries += 1
        if at is not None and tries % 4:
            continue  # the next process finds what this one has left
        feed.run()
        feed.catch_up()
        assert scene.assert_same("account", "journal") == ACCOUNTS + bank.entries
        reached = bank.entries
    assert torn > 2, "no death was in the midst of a transaction"
    left = [path for path in (tmp_path / "redo" / feed.name).rglob("*") if path.is_file()]
    assert [path.name[:7] for path in left] == ["reached"]  # nothing piles up


def work(bank: Bank, scene: Scene) -> None:
    """Change rows, then a table, then rows again."""
    bank.transfer(12)
    scene.sql(f"ALTER TABLE journal ADD COLUMN c{bank.entries} int")
    bank.transfer(3)


def moments_of(bank: Bank, feed: MySqlFeed, scene: Scene) -> list[int]:
    """Return the first and the last call of each kind that a process makes for such work."""
    work(bank, scene)
    feed.run()
    with watched(names := Death(None)):
        for _ in range(3):
            feed.step()
    first = {name: place for place, name in reversed([*enumerate(names.names, 1)])}
    last = {name: place for place, name in enumerate(names.names, 1)}
    assert {"keep plan in redo log", "segment kept in redo log", "run ddl downstream"} <= {*first}
    return sorted({*first.values(), *last.values()})


def test_a_plan_that_was_given_up_is_covered(scene: Scene, tmp_path: Path) -> None:
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    feed.catch_up()
    bank.transfer(20)

    def names(name: str) -> None:
        if name == "commit held rows" or name.startswith("publish progress"):
            raise SinkUnavailable("gone")

    with watched(names):
        assert feed.step() is None
    feed.loop.replan("somebody asked for it")
    bank.transfer(5)
    with watched(Death(60)):
        feed.step()
    feed.stop()
    applied(feed, tmp_path)
    assert bank.point() is not None


def test_what_cannot_be_applied(scene: Scene, tmp_path: Path) -> None:
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    feed.catch_up()
    bank.transfer(1)  # one transaction, which a step has as a whole
    place = Uri.parse(f"file://{tmp_path}/redo", "storage")

    end_at(feed, "kept in redo log")
    feed.stop()
    log, state = find_log(place, feed.name)
    assert state.kept is not None and state.resolved_ts > state.checkpoint_ts
    with pytest.raises(BadOption, match="written for a mysql sink; it cannot be applied to"):
        apply(log, state, "postgresql://localhost:1/db", NO_STORE)
    with pytest.raises(BadInput, match="holds no redo log of changefeed 'other'"):
        find_log(place, "other")
    with pytest.raises(BadInput, match="nfs-like:// cannot hold a redo log"):
        find_log(Uri.parse("nfs-like://x/y", "storage"), "")
    fence = f"{scene.meta}.rowferry_fence"
    (reached,) = scene.target.execute(f"SELECT commit_ts FROM {fence}")[0]
    scene.target.execute(f"UPDATE {fence} SET commit_ts = 5")
    with pytest.raises(TargetWentBack):  # a backup of the downstream, or another one
        apply(log, state, feed.sink_uri, NO_STORE)
    scene.target.execute(f"UPDATE {fence} SET commit_ts = {reached}")
    directory = tmp_path / "redo" / feed.name / state.kept.name.directory
    content = (directory / "0.arrow").read_bytes()
    (directory / "0.arrow").write_bytes(content[: len(content) // 2])
    with pytest.raises(SinkDamaged, match=r"0\.arrow cannot be read"):
        apply(log, state, feed.sink_uri, NO_STORE)
    (directory / "0.arrow").write_bytes(content)
    assert apply(log, state, feed.sink_uri, NO_STORE).changes > 0
    assert bank.point() == 1


def test_no_secret_lies_in_the_log(scene: Scene, tmp_path: Path) -> None:
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    feed.login = "keeper:aPassword77"
    for server in (scene.target,):
        server.execute("CREATE USER IF NOT EXISTS keeper IDENTIFIED BY 'aPassword77'")
        server.execute("GRANT ALL ON *.* TO keeper")
    feed.catch_up()
    bank.transfer(2)
    end_at(feed, "kept in redo log")
    kept = list((tmp_path / "redo").rglob("*.json"))
    assert any("plan.json" in path.name for path in kept)
    for path in kept:
        assert b"aPassword77" not in path.read_bytes()
        json.loads(path.read_bytes())


def test_no_point_is_announced_while_a_table_joins(scene: Scene, tmp_path: Path) -> None:
    """Its rows are ahead of what the log has told of the others."""
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    every, feed.rules = feed.rules, f"['{scene.database}.*', '!{scene.database}.journal']"
    bank.transfer(3)
    feed.catch_up()
    feed.rules = every
    feed.run()
    stood = 0
    for _ in range(200):
        bank.transfer(1)
        step = feed.step()
        assert step is not None
        state = state_of(tmp_path)
        if not state.resolved_ts:
            stood += 1
            with pytest.raises(BadInput, match="cannot be brought to a consistent point: .* joins"):
                applied(feed, tmp_path)
        elif stood:
            break
    assert stood, "the table had joined at once"
    assert bank.point() is not None
    feed.catch_up()
    assert state_of(tmp_path).resolved_ts == state_of(tmp_path).checkpoint_ts > 0
    assert scene.assert_same("account", "journal") == ACCOUNTS + bank.entries


def test_an_old_log_sets_nothing_back(scene: Scene, tmp_path: Path) -> None:
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    feed.catch_up()
    bank.transfer(4)
    end_at(feed, "kept in redo log")
    feed.stop()
    feed.config = feed.config.replace("/redo'", "/moved'")
    for _ in range(3):
        bank.transfer(4)
        feed.catch_up()
    feed.stop()
    with pytest.raises(BadInput, match="would set newer rows back"):
        applied(feed, tmp_path)
    assert bank.point() == bank.entries == 16


def test_what_only_moved_the_watermark_is_not_newer(scene: Scene, tmp_path: Path) -> None:
    """The downstream has noted it, and the redo log has not."""
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    bank.transfer(4)
    feed.catch_up()
    for last in ("publish progress", "note what is reached in redo log"):
        for _ in range(3):
            with watched(ends_at(last)):
                feed.step()
        feed.stop()
        assert applied(feed, tmp_path).kept is None
        assert bank.point() == 4
        feed.catch_up()


def test_nothing_to_write_is_not_believed_blindly(scene: Scene, tmp_path: Path) -> None:
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    bank.transfer(4)
    feed.catch_up()
    log, state = find_log(Uri.parse(f"file://{tmp_path}/redo", "storage"), feed.name)
    assert state.kept is None
    with pytest.raises(SinkUnavailable):
        apply(log, state, "mysql://root@127.0.0.1:1/", NO_STORE)
    with pytest.raises(TargetLost):
        apply(log, state, scene.source.uri, NO_STORE)
    fence = f"{scene.meta}.rowferry_fence"
    (reached,) = scene.target.execute(f"SELECT commit_ts FROM {fence}")[0]
    scene.target.execute(f"UPDATE {fence} SET commit_ts = 5")
    with pytest.raises(TargetWentBack):
        apply(log, state, feed.sink_uri, NO_STORE)
    scene.target.execute(f"UPDATE {fence} SET commit_ts = {reached}")
    # The process was believed dead, and writes on while the log is looked at.
    bank.transfer(4)
    feed.run()
    feed.catch_up()
    assert apply(log, state, feed.sink_uri, NO_STORE).state.resolved_ts > state.resolved_ts
    bank.transfer(4)
    with pytest.raises(Fenced):
        feed.catch_up()
    assert bank.point() == 8
    applied(feed, tmp_path)
    feed.run()  # it goes on as if nothing had happened
    feed.catch_up()
    assert bank.point() == 12


@pytest.mark.parametrize("before", ["", "elsewhere"])
def test_a_log_that_is_asked_for_in_the_midst(scene: Scene, tmp_path: Path, before: str) -> None:
    """A plan that is pending goes by way of the log of now, whatever settings it was made with."""
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    with_log = feed.config
    feed.config = with_log.replace("/redo'", f"/{before}'") if before else "[filter]\n"
    feed.catch_up()
    bank.transfer(4)
    end_at(feed, "run job")
    feed.config = with_log
    feed.run()
    end_at(feed, "kept in redo log")
    feed.stop()
    assert applied(feed, tmp_path).kept is not None
    assert bank.point()
    feed.catch_up()
    assert bank.point() == 4


def test_parameters_of_the_sink_are_kept(scene: Scene, tmp_path: Path) -> None:
    """Whoever applies the log need not know them; what they give wins."""
    bank = Bank(scene)
    feed = feed_with_log(scene, tmp_path)
    feed.query += "&exactly-once=true&transaction-atomicity=table&ssl-ca=/ca.pem&ssl-mode=disabled"
    feed.config = "bdr-mode = true\n" + feed.config
    feed.catch_up()
    bank.transfer(4)
    end_at(feed, "kept in redo log")
    feed.stop()
    log, state = find_log(Uri.parse(f"file://{tmp_path}/redo", "storage"), "")
    assert state.kept is not None
    for config in (state.kept.config, state.reached.config):
        assert config["bdr-mode"] is True
        assert config["sink"]["transaction-atomicity"] == "table"
        kept = config["sink"]["mysql-config"]
        assert (kept["exactly-once"], kept["meta-database"]) == ("true", scene.meta)
        assert "ssl-ca" not in kept
    assert apply(log, state, scene.target.uri + "?worker-count=1", NO_STORE).changes > 0
    assert bank.point()
    noted = f"SELECT SUM(micro_batch = {state.kept.plan.micro_batch}) FROM {scene.meta}"
    assert scene.target.execute(f"{noted}.rowferry_delivered") != [("0",)]
