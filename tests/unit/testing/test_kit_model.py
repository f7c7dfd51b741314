from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit_scenario import (
    ACCOUNT,
    account,
    add_column,
    bank,
    delete,
    insert,
    renamed,
    row,
    truncate,
    update,
)

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput
from rowferry.testing.model import History, RowChange, canonical_row


def test_rows_at_each_moment():
    found = bank()
    assert found.rows_at(ACCOUNT, 9) == {}
    assert found.rows_at(ACCOUNT, 10) == {(1,): row(1, "ann", 60), (2,): row(2, "bob", 40)}
    assert found.rows_at(ACCOUNT, 45)[(3,)] == row(3, "cyd", 0)
    assert (3,) not in found.rows_at(ACCOUNT, 50)
    assert found.last_commit_ts() == 70


def test_notes_out_of_order_end_up_in_commit_order():
    found = History()
    found.note_table(account())
    found.note_commit(20, [update(row(1, "a", 1), row(1, "a", 2))])
    found.note_commit(10, [insert(row(1, "a", 1))])
    assert found.rows_at(ACCOUNT, 20) == {(1,): row(1, "a", 2)}
    assert [ts for ts, _ in found.changes(ACCOUNT, 0, 20)] == [10, 20]
    assert [ts for ts, _ in found.changes(ACCOUNT, 10, 20)] == [20]


def test_an_update_of_the_key_moves_the_row():
    found = History()
    found.note_table(account())
    found.note_commit(10, [insert(row(1, "a", 1))])
    found.note_commit(20, [update(row(1, "a", 1), row(5, "a", 1))])
    assert found.rows_at(ACCOUNT, 20) == {(5,): row(5, "a", 1)}


def test_schema_changes_reshape_clear_and_move_rows():
    found = History()
    found.note_table(account())
    found.note_commit(10, [insert(row(1, "a", 1))])
    found.note_schema_change(add_column(20))
    assert found.rows_at(ACCOUNT, 20) == {(1,): row(1, "a", 1, note="x")}
    assert found.version_at(ACCOUNT, 19) == account()
    assert found.version_at(ACCOUNT, 20).version == 20
    other = renamed(add_column(20).schema, "old", 30)
    found.note_schema_change(
        SchemaChange(30, DdlKind.RENAME_TABLE, "RENAME", other.id, other, previous=ACCOUNT)
    )
    assert found.rows_at(ACCOUNT, 30) == {}
    assert found.version_at(ACCOUNT, 30) is None
    assert found.rows_at(other.id, 30) == {(1,): row(1, "a", 1, note="x")}
    found.note_schema_change(
        SchemaChange(40, DdlKind.DROP_DATABASE, "DROP", TableId("bank", ""), None)
    )
    assert found.rows_at(other.id, 40) == {}
    assert found.version_at(other.id, 40) is None


def test_truncate_clears():
    found = bank()
    found.note_schema_change(truncate(65))
    assert found.rows_at(ACCOUNT, 65) == {}
    assert found.rows_at(ACCOUNT, 70) == {(1,): row(1, "ann", 50)}


def test_columns_change_type_and_name():
    found = History()
    found.note_table(account())
    found.note_commit(10, [insert(row(1, "a", 12))])
    schema = TableSchema(
        ACCOUNT,
        7,
        20,
        (
            Column(1, "id", SqlType("bigint"), nullable=False),
            Column(3, "amount", SqlType("decimal", length=10, scale=2)),
            Column(4, "seen", SqlType("datetime", scale=3), nullable=False),
        ),
        account().indexes,
    )
    query = "ALTER TABLE account CHANGE COLUMN `balance` amount decimal(10,2), DROP owner"
    found.note_schema_change(SchemaChange(20, DdlKind.MULTI_SCHEMA_CHANGE, query, ACCOUNT, schema))
    assert found.rows_at(ACCOUNT, 20) == {
        (1,): {"id": 1, "amount": "12.00", "seen": "0000-00-00 00:00:00.000"}
    }


def test_a_ddl_that_cannot_be_followed_is_refused():
    with pytest.raises(BadInput, match="TRUNCATE_PARTITION"):
        History().note_schema_change(
            SchemaChange(1, DdlKind.TRUNCATE_PARTITION, "ALTER", ACCOUNT, account())
        )


def test_save_and_load_keep_every_value(tmp_path: Path):
    found = bank()
    odd = {"id": 2**63, "owner": b"\x00\xff", "balance": None, "rate": 0.1, "name": "é\n\u2028"}
    found.note_commit(80, [RowChange(ACCOUNT, Op.INSERT, (2**63, b"\xff"), None, odd)])
    found.note_schema_change(add_column(90))
    found.save(tmp_path / "h")
    loaded = History.load(tmp_path / "h")
    assert loaded.entries() == found.entries()


def test_several_writers_load_as_one_history(tmp_path: Path):
    for name, ts in (("a", 20), ("b", 10)):
        part = History(tmp_path / name)
        part.note_commit(ts, [insert(row(ts, name, 0))])
        part.close()
    both = History.load(tmp_path / "a", tmp_path / "b")
    assert [ts for ts, _ in both.changes(ACCOUNT)] == [10, 20]


def test_a_torn_last_line_is_left_out_and_a_damaged_one_refused(tmp_path: Path):
    path = tmp_path / "h"
    bank().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(History.load(path).entries()) == len(bank().entries()) - 1
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(BadInput, match="line 1"):
        History.load(path)


def test_a_new_writer_goes_on_after_a_torn_line(tmp_path: Path):
    path = tmp_path / "h"
    bank().save(path)
    path.write_bytes(path.read_bytes()[:-5])
    again = History(path)
    again.note_commit(90, [insert(row(9, "i", 0))])
    again.close()
    loaded = History.load(path)
    assert len(loaded.entries()) == len(bank().entries())
    assert loaded.rows_at(ACCOUNT, 90)[(9,)] == row(9, "i", 0)


def test_a_killed_writer_leaves_every_noted_commit(tmp_path: Path):
    path = tmp_path / "h"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kit_scenario import insert, row\n"
        "from rowferry.testing.model import History\n"
        f"history = History(Path({str(path)!r}))\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    history.note_commit(n, [insert(row(n, 'x' * 200, n))])\n"
        "    print(n, flush=True)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    assert writer.stdout is not None
    with writer, writer.stdout as said:
        for line in said:
            if int(line) >= 50:
                break
        os.kill(writer.pid, signal.SIGKILL)
        last = max([50, *(int(x) for x in said.read().split("\n")[:-1])])
    assert len(History.load(path).rows_at(ACCOUNT, last)) == last


def test_threads_may_note_at_once():
    found = History()
    found.note_table(account())

    def note(base: int) -> None:
        for i in range(200):
            found.note_commit(base + i, [insert(row(base + i, "t", 0))])

    threads = [threading.Thread(target=note, args=(1000 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found.rows_at(ACCOUNT, 10**6)) == 800


def test_canonical_values_are_as_a_chunk_holds_them():
    table = TableSchema(
        ACCOUNT, 7, 1, (Column(1, "f", SqlType("float")), Column(2, "n", SqlType("int")))
    )
    assert canonical_row(table, {"f": 0.1, "n": 3}) == {"f": 0.10000000149011612, "n": 3}


def test_keyless_rows_go_by_the_key_that_the_writer_gives():
    keyless = TableSchema(ACCOUNT, 7, 1, account().columns, (Index(2, "k", ("owner",)),))
    found = History()
    found.note_table(keyless)
    same = row(1, "a", 1)
    changes = [RowChange(ACCOUNT, Op.INSERT, (n,), None, same) for n in (101, 102)]
    found.note_commit(10, changes)
    assert list(found.rows_at(ACCOUNT, 10)) == [(101,), (102,)]
    found.note_commit(20, [delete(same)._replace(key=(101,))])
    assert list(found.rows_at(ACCOUNT, 20)) == [(102,)]
