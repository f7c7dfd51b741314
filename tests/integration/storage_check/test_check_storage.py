"""What a feed of a real server leaves passes the check; what somebody breaks there does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from feed_kit import Feed, Scene, scene_of
from run_kit import call

from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import plan_tables, rebuild_here
from rowferry.testing.servers import ObjectServer, Server

TYPES = (
    "CREATE TABLE types (id BIGINT UNSIGNED PRIMARY KEY, t TINYINT, m MEDIUMINT UNSIGNED, f FLOAT, "
    "d DOUBLE, n DECIMAL(12,3), b BIT(11), c CHAR(5), v VARCHAR(40), x TEXT, vb VARBINARY(9), "
    "bl BLOB, da DATE, dt DATETIME(3), ts TIMESTAMP NULL, ti TIME(2), y YEAR, "
    "e ENUM('a b','c|d','é'), s SET('p','q','r'), j JSON)"
)
VALUES = (
    "INSERT INTO types VALUES (18446744073709551615, -128, 16777215, 1.5e-10, -1e300, -12.5, 2047, "
    "'ab', 'quote \" comma , line\\r\\n', '\\\\N', x'00ff', '', '2024-02-29', "
    "'2024-02-29 01:02:03.456', '2024-02-29 01:02:03', '-838:59:59.00', 2024, 'c|d', 'p,r', "
    "'{\"k\": [1, null]}')",
    f"INSERT INTO types VALUES (0{', NULL' * 19})",
    "INSERT INTO types (id, f, d, n, e, s, ti) VALUES (1, 0, 1e21, 0, 'é', '', '00:00:01.5')",
)
CONFIGS = {
    "csv": "[sink.csv]\ninclude-commit-ts = true\noutput-field-header = true",
    "csv-bare": (
        '[sink]\nterminator = "\\n"\ndate-separator = "month"\nfile-index-digit = 6\n'
        '[sink.csv]\nquote = ""\ndelimiter = "|,"\nbinary-encoding-method = "hex"\n'
        "include-commit-ts = true\noutput-old-value = true"
    ),
    "canal-json": '[sink]\ndate-separator = "year"\ntransaction-atomicity = "table"',
    "parquet": '[sink]\ntransaction-atomicity = "table"\n[sink.parquet]\nlayout = "images"',
}


@pytest.fixture
def scene(mysql_server: Server, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(mysql_server, tmp_path, "check_storage") as found:
        yield found


def lived_through(scene: Scene, config: str, protocol: str) -> Feed:
    """A feed that saw a snapshot, days, partitions, and every kind of DDL that leaves a file."""
    scene.sql(
        TYPES,
        VALUES[0],
        "CREATE TABLE parts (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 3",
        "CREATE TABLE `né/w %` (id INT PRIMARY KEY, v VARCHAR(9))",
    )
    feed = scene.feed(config=config, protocol=protocol)
    feed.catch_up()
    scene.sql(*VALUES[1:], "UPDATE types SET v = 'z', e = 'a b'", "DELETE FROM types WHERE id = 0")
    session = scene.session()
    session("INSERT INTO parts VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    session("BEGIN", "UPDATE parts SET v = v + 1", "DELETE FROM parts WHERE id = 2", "COMMIT")
    feed.catch_up()
    scene.sql(
        "INSERT INTO `né/w %` VALUES (1, 'a')",
        "ALTER TABLE `né/w %` ADD COLUMN w INT NOT NULL DEFAULT 7",
        "INSERT INTO `né/w %` VALUES (2, 'b', 8)",
        "ALTER TABLE `né/w %` COMMENT 'no other columns'",
        "INSERT INTO `né/w %` VALUES (3, 'c', 9)",
        "RENAME TABLE `né/w %` TO renamed",
        "UPDATE renamed SET v = 'd' WHERE id = 2",
        "TRUNCATE TABLE parts",
        "INSERT INTO parts VALUES (9, 9)",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        "DROP TABLE gone",
        "ALTER TABLE types DROP COLUMN j, MODIFY v VARCHAR(60) NOT NULL DEFAULT ''",
        "INSERT INTO types (id, v) VALUES (5, 'late')",
    )
    feed.catch_up()
    return feed


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_feed_leaves_what_the_layout_says(
    kind: str,
    scene: Scene,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protocol = kind.split("-bare")[0]
    feed = lived_through(scene, CONFIGS[kind], protocol)
    config = tmp_path / "settings.toml"
    config.write_text(CONFIGS[kind])
    query = "?enable-tidb-extension=true" if protocol == "canal-json" else ""
    words = ["check-storage", f"file://{feed.root}{query}", "--config", str(config)]
    clean = call(tmp_path, capfd, monkeypatch, words)
    assert clean.code == 0, clean.out
    assert clean.out.endswith("no violation\n")

    index = next(feed.root.rglob("parts/*/*/*/meta/CDC.index"))
    index.unlink()
    broken = call(tmp_path, capfd, monkeypatch, [*words, "--json"])
    assert broken.code == 1
    told = json.loads(broken.out)
    assert told["violations"] == 1
    assert [(s["rule"], s["path"]) for s in told["samples"]] == [
        ("index-missing", str(index.parents[1].relative_to(feed.root)))
    ]


@pytest.mark.parametrize("protocol", ["canal-json", "parquet"])
def test_buckets_are_read_as_directories_are(
    protocol: str,
    scene: Scene,
    s3_server: ObjectServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = lived_through(scene, "", protocol)
    exact = {"enable-tidb-extension": "true"} if protocol == "canal-json" else {}
    uri = s3_server.uri(f"check-storage-{protocol}", **exact)
    bucket = open_storage(uri, protocol=protocol).files
    for path in (p for p in feed.root.rglob("*") if p.is_file()):
        bucket.overwrite(path.relative_to(feed.root).as_posix(), path.read_bytes())
    result = call(tmp_path, capfd, monkeypatch, ["check-storage", uri])
    assert result.code == 0, result.out
    assert result.out.endswith("no violation\n")
    local = f"file://{feed.root}?{urlencode(exact)}"
    plans = [plan_tables(open_storage(place)) for place in (uri, local)]
    assert [p.lineage.table.table for p in plans[0]] == ["parts", "renamed", "types"]
    for one, other in zip(*plans, strict=True):
        # A table has no order of its own.
        rows = [sorted(rebuild_here(p).to_pylist(), key=repr) for p in (one, other)]
        assert rows[0] == rows[1]
