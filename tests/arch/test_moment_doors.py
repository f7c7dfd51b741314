"""Every call that leaves the process has a name of its own. Planted ones without are found."""

from __future__ import annotations

import pytest
from moment_doors import DOORS, WALLS, doors_in_use, functions, repeated_names, unnamed_doors
from source_tree import read_sources


def test_every_door_has_a_name() -> None:
    assert unnamed_doors(read_sources()) == []


def test_a_name_belongs_to_one_call_site() -> None:
    assert repeated_names(read_sources()) == []
    assert sum(len(one.moments) for one in functions(read_sources())) > 100


def test_the_tables_say_nothing_in_vain() -> None:
    assert doors_in_use(read_sources()) == {what for what, _, _ in DOORS}
    assert WALLS.keys() <= read_sources().keys()


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("rowferry/flow/capture/binlog/x.py", "session.rows(connection, login, 'SELECT 1')"),
        ("rowferry/flow/capture/binlog/x.py", "with connected(login) as connection: pass"),
        ("rowferry/flow/capture/binlog/x.py", "self._socket.recv_into(room)"),
        ("rowferry/flow/capture/range_log/x.py", "channel.unary_unary(method)(request)"),
        ("rowferry/control/x.py", "with self.database.writing('x') as session: pass"),
        ("rowferry/control/x.py", "with self._engine.begin() as connection: pass"),
        ("rowferry/control/x.py", "self._runner.run(spec, plan, tables)"),
        ("rowferry/flow/sink/storage/x.py", "self._files.swap(path, data, None)"),
        ("rowferry/flow/sink/x/y.py", "os.link(here, there)"),
        ("rowferry/flow/sink/x/y.py", "open(path, 'w').write('x')"),
        ("rowferry/flow/sink/x/y.py", "obstore.put(store, key, data)"),
        ("rowferry/flow/sink/mysql/x.py", "session.run(b'COMMIT')"),
        ("rowferry/flow/sink/kafka/x.py", "self._producer.produce(topic)"),
        ("rowferry/flow/sink/x/y.py", "self._pool.request('POST', url)"),
    ],
)
def test_a_door_without_a_name_is_found(path: str, call: str) -> None:
    bare = {path: f"def newcomer():\n    {call}\n"}
    (found,) = unnamed_doors(bare)
    assert found.startswith(f"{path}:1: newcomer goes through a door")
    assert unnamed_doors({path: f"def newcomer():\n    moment('x')\n    {call}\n"}) == []


_PIECES = (
    "def outer():\n    {}\n    inner()\n\n"
    "def other():\n    {}\n    partial(inner, 1)\n\n"
    "def inner():\n    return rows(connection, login, 'SELECT 1')\n"
)


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [("moment('a')", "moment('b')", 0), ("moment('a')", "pass", 1), ("pass", "pass", 1)],
)
def test_who_calls_a_door_may_name_it_if_all_do(first: str, second: str, count: int) -> None:
    path = "rowferry/flow/capture/binlog/x.py"
    assert len(unnamed_doors({path: _PIECES.format(first, second)})) == count


def test_two_sites_of_one_name_are_found() -> None:
    text = "def a():\n    moment('x')\n\nclass B:\n    def c(self):\n        moment('x')\n"
    path = "rowferry/control/x.py"
    assert repeated_names({path: text}) == [f"'x': {path}:a, {path}:B.c"]
