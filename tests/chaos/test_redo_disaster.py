"""Source, feed and downstream end at once, mid-transaction; the source never comes back."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

from pymysql import MySQLError

from rowferry.errors import RowferryError
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.servers import MariaDb, MySql

DATABASE = "ferry_redo"
ACCOUNTS, MONEY, WRITERS = 40, 1000, 3
PATIENCE_S = 600.0  # for a start on a machine under load; never reached by working code
PADDING = "x" * 3000  # so that some micro-batches are tasks of Spark


class RedoCommand(RunProcess):
    """`rowferry redo`."""

    COMMAND = "redo"


class Writers:
    """Writers that move money until their server ends, each transfer with a line in a journal."""

    def __init__(self, server: MySql, round_: int, seed: int) -> None:
        self.acknowledged: dict[int, int] = {}
        self._threads = [
            threading.Thread(target=self._write, args=(server, w, round_, seed), daemon=True)
            for w in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, server: MySql, writer: int, round_: int, seed: int) -> None:
        dice = random.Random(f"{seed}/{round_}/{writer}")
        with suppress(MySQLError, RowferryError, OSError):
            for n in range(1, 1 << 30):
                payer, payee = dice.sample(range(ACCOUNTS), 2)
                number, money = round_ * 1_000_000 + n, dice.randint(1, 9)
                # In one order always, so that nobody waits for each other.
                moves = sorted([(payer, -money), (payee, money)])
                server.script(
                    f"USE {DATABASE}",
                    "BEGIN",
                    *(f"UPDATE account SET money = money + {m} WHERE id = {i}" for i, m in moves),
                    "INSERT INTO journal VALUES "
                    f"({writer}, {number}, {payer}, {payee}, {money}, '{PADDING}')",
                    "COMMIT",
                )
                self.acknowledged[writer] = number

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)


def _count(server: MariaDb | MySql, table: str = "journal") -> int:
    try:
        return int(str(server.execute(f"SELECT COUNT(*) FROM {DATABASE}.{table}")[0][0]))
    except (MySQLError, RowferryError):
        return 0


def _is_consistent(target: MariaDb) -> bool:
    """Tell whether the downstream is as the source was at some moment."""
    money = [MONEY] * ACCOUNTS
    lines = target.execute(
        f"SELECT writer, n, payer, payee, money FROM {DATABASE}.journal ORDER BY writer, n"
    )
    last: dict[int, int] = {}
    for line in lines:
        writer, n, payer, payee, sum_ = (int(str(cell)) for cell in line)
        follows = last.get(writer, 0) + 1
        if n != follows and n % 1_000_000 != 1:  # each round begins anew
            return False
        last[writer] = n
        money[payer] -= sum_
        money[payee] += sum_
    accounts = target.execute(f"SELECT money FROM {DATABASE}.account ORDER BY id")
    return [int(str(row[0])) for row in accounts] == money


def test_all_of_it_is_lost_but_the_redo_log(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    storage = f"file://{tmp_path}/redo"
    config = tmp_path / "feed.toml"
    config.write_text(
        f"[filter]\nrules = ['{DATABASE}.*']\n"
        f"[consistent]\nlevel = 'eventual'\nstorage = '{storage}'\n"
    )
    with (
        MySql.start(tmp_path / "source", server_id=51) as source,
        MariaDb.start(tmp_path / "target", server_id=52) as target,
    ):
        source.script(
            f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4",
            f"USE {DATABASE}",
            "CREATE TABLE account (id int PRIMARY KEY, money int NOT NULL)",
            "CREATE TABLE journal (writer int, n int, payer int, payee int, money int, pad text, "
            "PRIMARY KEY (writer, n))",
            "INSERT INTO account VALUES " + ", ".join(f"({i}, {MONEY})" for i in range(ACCOUNTS)),
        )
        target.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        sink = f"{target.uri}?create-tables=true&max-txn-row=4"
        arguments = ["--source", source.uri, "--sink-uri", sink, "--config", str(config)]
        arguments += ["--changefeed-id", "redo"]
        for round_ in range(1, 4):
            before = _count(target)
            with RunProcess(arguments, tmp_path / "work") as process:
                wait_for(
                    lambda p=process: not p.alive or _count(target, "account") == ACCOUNTS,  # type: ignore[misc]
                    "the snapshot",
                    PATIENCE_S,
                )
                writers = Writers(source, round_, seed)
                wait_for(
                    lambda p=process, b=before: not p.alive or _count(target) > b + 20,  # type: ignore[misc]
                    "new rows",
                    PATIENCE_S,
                )
                assert process.alive, process.printed()[-2000:]
                time.sleep(dice.uniform(0, 1.5))
                source.kill()
                process.kill()
                target.kill()
                writers.join()
            target.restart()
            for _ in range(2):  # the second time there is nothing to do
                words = ["apply", "--storage", storage, "--sink-uri", sink]
                with RedoCommand(words, tmp_path / "work") as command:
                    assert command.wait(PATIENCE_S) == 0, command.printed()[-2000:]
            assert "there was nothing to write: the downstream has everything" in command.printed()
            assert _is_consistent(target)
            assert _count(target) > before + 20
            source.restart()  # for the next round: not everything is always lost
