"""Databases and storages compared: what differs is found, and repaired."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from feed_kit import scene_of

from rowferry.change.table import TableId
from rowferry.downstream.verify import ranges, run
from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.ranges import Ranges
from rowferry.downstream.verify.repair import RepairFile
from rowferry.downstream.verify.run import TableResult, VerifyRequest, verify
from rowferry.downstream.verify.side import DatabaseSide, DatabaseTable, Side, open_side
from rowferry.downstream.verify.sync_points import newest, read_at_newest
from rowferry.downstream.verify.views import PastViews
from rowferry.errors import NotSupported, SnapshotOutdated
from rowferry.mysql.key_ranges import Chunk
from rowferry.testing.servers import MariaDb, MySql, Server

CHUNK_ROWS = 200
# Type: a value, another one.
COLUMNS = {
    "tinyint": ("-128", "127"),
    "bigint unsigned": ("18446744073709551615", "0"),
    "float": ("0.1", "3.4028234e38"),
    "double": ("0.1", "-1.7976931348623157e308"),
    "decimal(65,30)": (f"-{'9' * 35}.{'9' * 30}", "0.000000000000000000000000000001"),
    "bit(64)": ("18446744073709551615", "1"),
    "year": ("2155", "0"),
    "date": ("'2024-02-00'", "0"),
    "datetime(6)": ("'9999-12-31 23:59:59.999999'", "0"),
    "timestamp(3) null": ("'2038-01-19 03:14:07.999'", "0"),
    "time(6)": ("'-838:59:59'", "'-00:00:00.000001'"),
    "char(10)": ("'😀é '", "''"),
    "varchar(30) charset latin1": ("'äöü€'", "'it\\'s \\\\ so'"),
    "longtext": ("repeat('😀', 3000)", "'x  '"),
    "binary(6)": ("x'0a00ff0000'", "x''"),
    "longblob": ("repeat(x'00ff27', 2000)", "x''"),
    "enum('a','it''s','é')": ("'it\\'s'", "'é'"),
    "set('a','b','c')": ("'a,c'", "''"),
    "json": ('\'{"a": [1, "ß"], "b": 0.5}\'', "'null'"),
}


class Counting(ThreadRunner):
    """Remembers which key ranges the servers found to differ."""

    def __init__(self) -> None:
        super().__init__(threads=2)
        self.ranges: dict[str, list[Chunk]] = {}

    def narrowed(self, ranges: Ranges) -> tuple[tuple[int, int], list[Chunk]]:
        found = super().narrowed(ranges)
        self.ranges[ranges.comparison.schemas[0].id.table] = found[1]
        return found


def compared(
    a: Side, b: Side, runner: ThreadRunner, *rules: str, file: RepairFile | None = None
) -> dict[str, TableResult]:
    request = VerifyRequest(Names.of(["va.*"], rules), (), CHUNK_ROWS, repairs=file is not None)
    results = {}
    for result in verify(a, b, request, runner):
        if file is not None and result.repair is not None:
            file.add(result.repair)
        results[result.name.table] = result
    return results


def make_tables(server: Server, database: str, turned: bool) -> None:
    """Make tables with the same rows; `turned`: columns and rows are in another order."""
    names = {f"c{place}": kind for place, kind in enumerate(COLUMNS)}
    order = list(names)[::-1] if turned else list(names)
    shape = ", ".join(f"{n} {names[n]}" for n in order)
    values = [{f"c{p}": v[row] for p, v in enumerate(COLUMNS.values())} for row in (0, 1)]
    texts = [", ".join(row[n] for n in order) for row in values]
    nulls = ", ".join(["NULL"] * len(order))
    dice = random.Random(7)
    many = [f"({n * 7}, 'n{n}')" for n in range(1000)]
    words = [f"('{w}', 'ä')" for w in ("b", "B1", "é", "e2", "z ", "Ω")]
    if turned:
        dice.shuffle(many)
        dice.shuffle(words)
    server.script(
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
        f"USE {database}",
        f"CREATE TABLE wide ({shape}, id int PRIMARY KEY)",
        f"INSERT INTO wide VALUES ({texts[0]}, 1), ({texts[1]}, 2), ({nulls}, 3)",
        f"CREATE TABLE bare ({shape})",
        f"INSERT INTO bare VALUES ({texts[0]}), ({texts[0]}), ({texts[1]}), ({nulls}), ({nulls})",
        "CREATE TABLE many (id bigint PRIMARY KEY, v varchar(20), UNIQUE (v))",
        f"INSERT INTO many VALUES {', '.join(many)}",
        "CREATE TABLE words (w varchar(9), v text, n int AS (length(v)) VIRTUAL, PRIMARY KEY (w))",
        f"INSERT INTO words (w, v) VALUES {', '.join(words)}",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
    )


def spoil(server: Server, database: str) -> None:
    columns = [f"c{place}" for place in range(len(COLUMNS))]
    others = ", ".join(f"{c} = {v[1]}" for c, v in zip(columns, COLUMNS.values(), strict=True))
    server.script(
        f"USE {database}",
        f"UPDATE wide SET {others} WHERE id = 1",
        "DELETE FROM wide WHERE id = 2",
        "DELETE FROM bare LIMIT 1",
        f"INSERT INTO bare ({', '.join(columns)}) SELECT {', '.join(columns)} FROM wide",
        "UPDATE many SET v = concat(v, '!') WHERE id = 70",
        # Two rows have each other's value of a unique key.
        "UPDATE many SET v = 'x' WHERE id = 350",
        "UPDATE many SET v = 'n50' WHERE id = 357",
        "UPDATE many SET v = 'n51' WHERE id = 350",
        "DELETE FROM many WHERE id = 6993",
        "INSERT INTO many VALUES (-5, 'new'), (99999, 'last')",
        "UPDATE words SET w = 'b1' WHERE w = 'B1'",
        "ALTER TABLE nothing ADD COLUMN more int",
        "CREATE TABLE lone (id int)",
    )


def check_spoiled(found: dict[str, TableResult], lost: str) -> None:
    wide, bare, many, words = (found[name] for name in ("wide", "bare", "many", "words"))
    assert (wide.rows, wide.only, wide.changed) == ((3, 2), [1, 0], 1)
    assert sorted(wide.columns) == sorted(f"c{place}" for place in range(len(COLUMNS)))
    assert bare.rows == (5, 6) and bare.changed == 0 and bare.only[1] - bare.only[0] == 1
    assert (many.rows, many.only, many.changed) == ((1000, 1001), [1, 2], 3)
    assert many.columns == {"v": 3}
    shown = {s["key"]["id"]: s for s in many.samples}
    assert shown[70] == {
        "kind": "changed", "key": {"id": 70}, "a": {"v": "n10"}, "b": {"v": "n10!"}
    }  # fmt: skip
    assert {key: s["kind"] for key, s in shown.items() if s["kind"] != "changed"} == {
        6993: "only_in_a", -5: "only_in_b", 99999: "only_in_b"
    }  # fmt: skip
    assert (words.only, words.changed) == ([1, 1], 0)
    assert found["nothing"].lone == ((), ("more",)) and not found["nothing"].is_equal
    assert found["lone"].missing == lost


def run_file(server: Server, path: Path) -> None:
    server.script(*(s for s in path.read_text().split(";\n") if s.strip()))


def test_databases_of_one_kind_are_compared_by_their_servers(
    source_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_READ_AT_ONCE", 20)
    server = source_server
    make_tables(server, "va", turned=False)
    make_tables(server, "vb", turned=True)
    a, b = (open_side(server.uri, CHUNK_ROWS) for _ in range(2))
    runner, route = Counting(), "va.* -> vb.*"
    found = compared(a, b, runner, route)
    assert [r.name.table for r in found.values() if not r.is_equal] == []
    assert found["many"].rows == (1000, 1000)
    assert runner.ranges == {"wide": [], "many": [], "words": [], "nothing": []}

    spoil(server, "vb")
    path = tmp_path / "repair.sql"
    file = RepairFile(path)
    found = compared(a, b, runner, route, file=file)
    file.close()
    check_spoiled(found, "a")
    narrow = runner.ranges["many"]
    assert 3 <= len(narrow) <= 8
    server.execute("DROP TABLE vb.lone")
    server.execute("UPDATE vb.nothing SET more = 1")
    run_file(server, path)
    found = compared(a, b, runner, route)
    assert [r.name.table for r in found.values() if not r.is_equal] == ["nothing"]

    # A server whose estimates cannot be read is cut by counting keys.
    assert isinstance(a, DatabaseSide) and isinstance(b, DatabaseSide)
    monkeypatch.setattr(a, "facts", replace(a.facts, version_text="8.0.11-TiDB-v8.5.0"))
    many = a.cut(a.table(a.schemas(lambda n: n.table == "many")[TableId("va", "many")]))
    assert isinstance(many, DatabaseTable)
    assert [c.rows for c in many.chunks if c] == [CHUNK_ROWS] * 5
    assert compared(a, b, runner, route)["many"].rows == (1000, 1000)

    # What is compared must stay as it is.
    server.execute("ALTER TABLE va.many DROP COLUMN v")
    with pytest.raises(SnapshotOutdated, match="has no column 'v' any more"):
        list(many.read([0], ["id", "v"]))
    with pytest.raises(NotSupported, match="has no sync points of changefeed default/one"):
        newest(b, "one")
    server.script(
        "CREATE DATABASE IF NOT EXISTS tidb_cdc",
        "CREATE TABLE tidb_cdc.syncpoint_v1 (changefeed varchar(20), primary_ts varchar(18), "
        "secondary_ts varchar(18))",
        "INSERT INTO tidb_cdc.syncpoint_v1 VALUES ('default/one', '99', '1'), "
        "('default/one', '400', '2'), ('x/two', '500', '3')",
    )
    try:
        assert (newest(b), newest(b, "one"), newest(b, "x/two")) == ((500, 3), (400, 2), (500, 3))
        assert read_at_newest(a, b, "one") == (400, 2)
        assert (a.views, b.views) == (PastViews(400), PastViews(2))
        assert a.cut(a.table(many.schema)) == replace(many, views=PastViews(400))
    finally:
        server.execute("DROP TABLE tidb_cdc.syncpoint_v1")


def test_databases_of_two_kinds_are_compared_and_repaired(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path
) -> None:
    make_tables(mysql_server, "va", turned=False)
    make_tables(mariadb_server, "va", turned=True)
    a, b = open_side(mysql_server.uri, CHUNK_ROWS), open_side(mariadb_server.uri, CHUNK_ROWS)
    runner = Counting()
    assert [r.name.table for r in compared(a, b, runner).values() if not r.is_equal] == []
    spoil(mariadb_server, "va")
    path = tmp_path / "repair.sql"
    file = RepairFile(path)
    check_spoiled(compared(a, b, runner, file=file), "a")
    file.close()
    assert runner.ranges == {}
    run_file(mariadb_server, path)
    mariadb_server.execute("ALTER TABLE va.nothing DROP COLUMN more")
    found = compared(a, b, runner)
    assert [r.name.table for r in found.values() if not r.is_equal] == ["lone"]


def test_a_storage_is_compared_with_its_source_while_the_feed_runs(
    mysql_server: MySql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "bucket_count", lambda rows, chunk_rows: 1)  # all rows are neighbours
    with scene_of(mysql_server, tmp_path, "va") as scene:
        make_tables(mysql_server, "va", turned=False)
        mysql_server.execute("DROP TABLE va.bare")  # feeds leave tables without a key out
        feed = scene.feed()
        feed.catch_up()
        uri = f"file://{feed.root}?protocol=canal-json&enable-tidb-extension=true"
        a, b = open_side(mysql_server.uri, CHUNK_ROWS), open_side(uri, CHUNK_ROWS)
        runner = ThreadRunner()
        found = compared(a, b, runner)
        assert [r.name.table for r in found.values() if not r.is_equal and r.missing == ""] == []
        assert found["many"].rows == (1000, 1000)

        before = int((feed.root / "metadata").read_text().split(":")[1].strip("} \n"))
        scene.sql("UPDATE many SET v = concat(v, '+') WHERE id < 70", "DELETE FROM words LIMIT 1")
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            feed.catch_up()
            if len(waits) == 1:  # differs from now on only: it was equal before
                scene.sql("UPDATE many SET v = 'late' WHERE id = 700")

        names = Names.of(["va.many", "va.words"], [])
        request = VerifyRequest(names, (), CHUNK_ROWS, tries=3, wait_s=0.5)
        found = {r.name.table: r for r in verify(a, b, request, runner, wait)}
        assert all(r.is_equal for r in found.values()) and found["many"].tries == 2
        assert waits == [0.5]  # the rest had come meanwhile
        # A row that never comes is real.
        feed.catch_up()
        scene.sql("SET sql_log_bin = 0", "DELETE FROM many WHERE id = 707")
        (lost,) = verify(a, b, VerifyRequest(Names.of(["va.many"], []), tries=2, wait_s=0), runner)
        assert (lost.only, lost.changed, lost.tries) == ([0, 1], 0, 2)
        # What the storage was then is not what the source is now.
        old = open_side(uri, CHUNK_ROWS, as_of=before)
        found = compared(old, b, runner)
        assert (found["many"].changed, found["words"].only) == (11, [1, 0])
