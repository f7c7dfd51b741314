"""`verify` with a real TiDB as either side, and as both; what differs is found and repaired."""

from __future__ import annotations

from pathlib import Path

import pytest
from mysql_sink_kit import Scene
from test_types_arrive import COLUMNS
from typer.testing import CliRunner

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.repair import RepairFile
from rowferry.downstream.verify.run import TableResult, VerifyRequest, verify
from rowferry.downstream.verify.side import open_side
from rowferry.face.cli.main import app
from rowferry.testing.servers import Server, TiDb

TYPES = {kind: values for kind, values in COLUMNS.items() if kind != "geometry"}
ROWS = 500
CHUNK_ROWS = 60


def make(server: Server, database: str) -> None:
    """Make tables with every type, with a key of text, and without a key."""
    shape = ", ".join(f"c{place} {kind}" for place, kind in enumerate(TYPES))
    rows = [", ".join(values[place] for values in TYPES.values()) for place in range(2)]
    many = ", ".join(f"('k{n:04}', {n})" for n in range(ROWS))
    server.script(
        f"USE {database}",
        "SET sql_mode = ''",
        f"CREATE TABLE wide (id INT PRIMARY KEY, {shape})",
        f"INSERT INTO wide VALUES (1, {rows[0]}), (2, {rows[1]})",
        "CREATE TABLE texts (k VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, n INT)",
        f"INSERT INTO texts VALUES {many}",
        "CREATE TABLE bare (n INT)",
        "INSERT INTO bare VALUES (1), (1), (2)",
    )


def compared(
    a: Server, b: Server, route: str, file: RepairFile | None = None
) -> dict[str, TableResult]:
    schemes = [s.uri.replace("mysql:", "tidb:") if isinstance(s, TiDb) else s.uri for s in (a, b)]
    one, two = (open_side(uri, CHUNK_ROWS) for uri in schemes)
    rules = Names.of([route.split(" -> ")[0]], [route])
    found = {}
    request = VerifyRequest(rules, (), CHUNK_ROWS, repairs=file is not None)
    for result in verify(one, two, request, ThreadRunner(threads=2)):
        found[result.name.table] = result
        if file is not None and result.repair is not None:
            file.add(result.repair)
    return found


@pytest.mark.parametrize("sides", ["tidb, source", "source, tidb", "tidb, tidb"])
def test_either_side(each_source: Scene, sides: str, tmp_path: Path) -> None:
    scene = each_source
    servers = {"source": (scene.source, scene.database), "tidb": (scene.target, scene.copy)}
    (a, here), (b, there) = (servers[word] for word in sides.split(", "))
    if a is b:
        there = scene.meta
        a.script(f"CREATE DATABASE {there} CHARACTER SET utf8mb4")
    make(a, here)
    make(b, there)
    route = f"{here}.* -> {there}.*"
    equal = compared(a, b, route)
    assert {name: (r.is_equal, r.rows) for name, r in equal.items()} == {
        "wide": (True, (2, 2)),
        "texts": (True, (ROWS, ROWS)),
        "bare": (True, (3, 3)),
    }
    b.script(
        f"USE {there}",
        "UPDATE texts SET n = -1 WHERE k IN ('k0000', 'k0499')",
        "DELETE FROM texts WHERE k = 'k0250'",
        "INSERT INTO texts VALUES ('more', 1)",
        "UPDATE wide SET c6 = 0.5 WHERE id = 1",
        "DELETE FROM bare LIMIT 1",
    )
    path = tmp_path / "repair.sql"
    file = RepairFile(path)
    found = compared(a, b, route, file)
    file.close()
    assert (found["texts"].changed, found["texts"].only) == (2, [1, 1])
    assert found["wide"].columns == {"c6": 1}
    assert found["bare"].only == [1, 0]
    b.script(f"USE {there}", *path.read_text().split(";\n")[:-1])
    assert all(r.is_equal for r in compared(a, b, route).values())


def test_the_command(scene: Scene) -> None:
    make(scene.source, scene.database)
    make(scene.target, scene.copy)
    route = f"{scene.database}.* -> {scene.copy}.*"
    command = ["verify", scene.source.uri, scene.target.uri.replace("mysql:", "tidb:")]
    command += ["--tables", f"{scene.database}.*", "--route", route, "--spark-master", "local[1]"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "3 tables compared, all equal" in done.output
    at_once = CliRunner().invoke(app, [*command, "--sync-point"])
    assert at_once.exit_code == 2 and "TiDB on both" in at_once.output
