"""What Canal's own classes read in packets that a feed sent through a real broker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from kafka_feed_kit import Scene

from rowferry.testing.servers.maven import Jars, java

CANAL = Jars("canal-1.1.8", ("com.alibaba.otter:canal.protocol:1.1.8",))
PROGRAM = Path(__file__).with_name("CanalPackets.java")
PATIENCE_S = 300
# column: definition, value as SQL has it, java.sql.Types, mysqlType, text
TYPES: dict[str, tuple[str, str, int, str, str | None]] = {
    "ti": ("tinyint", "-128", -6, "tinyint", "-128"),
    "tiu": ("tinyint unsigned", "200", 5, "tinyint unsigned", "200"),
    "iu": ("int unsigned", "4294967295", -5, "int unsigned", "4294967295"),
    "biu": ("bigint unsigned", "18446744073709551615", 3, "bigint unsigned", str((1 << 64) - 1)),
    "f": ("float", "0.1", 7, "float", "0.1"),
    "d": ("double", "1e20", 8, "double", "1" + "0" * 20),
    "de": ("decimal(65,30)", "-1.5", 3, "decimal", "-1.5" + "0" * 29),
    "b": ("bit(9)", "257", -7, "bit", "257"),
    "y": ("year", "2024", 12, "year", "2024"),
    "da": ("date", "'0000-00-00'", 91, "date", "0000-00-00"),
    "dt": ("datetime(6)", "'2024-02-29 01:02:03.5'", 93, "datetime", "2024-02-29 01:02:03.500000"),
    "tm": ("time", "'-838:59:59'", 92, "time", "-838:59:59"),
    "vc": ("varchar(9)", "'é😀'", 12, "varchar", "é😀"),
    "em": ("varchar(9)", "''", 12, "varchar", ""),
    "tx": ("text", "'tx'", 2005, "text", "tx"),
    "bl": ("blob", "x'00ff'", 2004, "blob", "\x00ÿ"),
    "e": ("enum('a','b')", "'b'", 4, "enum", "2"),
    "s": ("set('a','b')", "'a,b'", -7, "set", "3"),
    "js": ("json", """'{"a": 1}'""", 12, "json", '{"a": 1}'),
    "no": ("int", "null", 4, "int", None),
}


def read_by_canal(packets: list[bytes]) -> list[dict[str, Any]]:
    command = [java(), "-Xmx256m", "-cp", f"{CANAL.ensure()}/*", str(PROGRAM)]
    text = "".join(f"{packet.hex()}\n" for packet in packets)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def columns(updated: bool, key: str) -> list[dict[str, Any]]:
    def one(name: str, sql_type: int, kind: str, value: str | None) -> dict[str, Any]:
        return {
            "name": name,
            "sqlType": sql_type,
            "mysqlType": kind,
            "isKey": name == "id",
            "updated": updated,
            "value": value,
        }

    return [one("id", 4, "int", key), *(one(n, *case[2:]) for n, case in TYPES.items())]


def test_canals_own_classes_read_every_packet(scene: Scene) -> None:
    kinds = ", ".join(f"{name} {case[0]}" for name, case in TYPES.items())
    feed = scene.feed("protocol=canal&partition-num=1")
    feed.catch_up()
    values = ", ".join(case[1] for case in TYPES.values())
    scene.sql(
        "SET sql_mode = ''",
        f"CREATE TABLE every (id int primary key, {kinds})",
        f"INSERT INTO every VALUES (1, {values})",
        "UPDATE every SET id = 1, vc = 'new' WHERE id = 1",
        "UPDATE every SET vc = 'é😀' WHERE id = 1",
        "UPDATE every SET id = 2 WHERE id = 1",
        "DELETE FROM every",
    )
    feed.catch_up()
    packets = [m.value for m in scene.broker.read_all(scene.database) if m.value is not None]
    found = read_by_canal(packets)
    assert {(f["packet"], f["entryType"], f["encoding"], f["sourceType"]) for f in found} == {
        ("MESSAGES 1", "ROWDATA", "UTF-8", "MYSQL")
    }
    ddl, *rows = found
    assert (ddl["eventType"], ddl["isDdl"], ddl["ddlSchemaName"]) == (
        "CREATE",
        True,
        scene.database,
    )
    assert ddl["sql"].startswith("CREATE TABLE every")
    assert {(r["schemaName"], r["tableName"], r["isDdl"]) for r in rows} == {
        (scene.database, "every", False)
    }
    assert all(r["eventType"] == r["rowEventType"] for r in rows)
    wanted = ["INSERT", "UPDATE", "UPDATE", "DELETE", "INSERT", "DELETE"]
    assert [r["eventType"] for r in rows] == wanted
    one, two = columns(True, "1"), columns(True, "2")
    assert rows[0]["rows"] == [[[], one]]
    changed = [dict(c, value="new") if c["name"] == "vc" else c for c in one]
    assert rows[1]["rows"] == [[one, changed]]
    assert rows[3]["rows"] == [[columns(False, "1"), []]]
    assert rows[4]["rows"] == [[[], two]]
    assert rows[5]["rows"] == [[columns(False, "2"), []]]
    assert rows[0]["executeTime"] == feed.rows()[0].commit_ts >> 18
