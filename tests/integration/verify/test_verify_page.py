"""The examples of docs/verify.md, carried out on Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from feed_kit import scene_of
from run_kit import call
from test_lake_feed import LakeFeed

from page_examples import ROOT, all_blocks, commands
from rowferry.face.cli.downstream import verify as command
from rowferry.spark.session import close_session, open_session
from rowferry.spark.verify_job import SparkVerifyRunner
from rowferry.testing.servers import MariaDb, MySql

PAGE = "verify.md"


@pytest.fixture
def one_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All commands share one Spark."""
    session = open_session("test", tmp_path / "spark", "local[2]")

    @contextmanager
    def opened(log_dir: Path, master: str) -> Iterator[SparkVerifyRunner]:
        yield SparkVerifyRunner(session)

    monkeypatch.setattr(command, "opened_verify", opened)
    yield
    close_session(session)


def test_a_reader_can_follow_the_page(
    own_mysql: MySql,
    own_mariadb: MariaDb,
    one_spark: None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = (
        "CREATE TABLE shop.items (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO shop.items VALUES (1, 'x'), (2, 'y')",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(20))",
    )
    with scene_of(own_mysql, tmp_path, "shop") as scene:
        own_mysql.script(*shop)
        scene.sql("INSERT INTO orders VALUES (1, 'milk'), (2, 'tea'), (3, 'milk'), (4, 'tea')")
        own_mariadb.script("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", *shop)
        own_mariadb.execute(
            "INSERT INTO shop.orders VALUES (1, 'milk'), (2, 'coffee'), (9, 'milk')"
        )
        feed = scene.feed()
        feed.catch_up()
        (tmp_path / "lake").mkdir()
        lake = LakeFeed(own_mysql, tmp_path / "lake", ["shop.*"])
        scene._open.append(lake)
        lake.catch_up()
        real = {
            "mysql://root:$PASSWORD@127.0.0.1:3306/": own_mysql.uri,
            "mariadb://root:$COPY_PASSWORD@127.0.0.1:3307/": own_mariadb.uri.replace(
                "mysql:", "mariadb:"
            ),
            "file://$PWD/changes": f"file://{feed.root}",
            "delta+file://$PWD/lake": lake._sink_uri(),
        }
        shell = [words for b in all_blocks("sh") if b.page == PAGE for words in commands(b)]
        first, repaired, through_masks, online, beside_lake, _ = (
            [real.get(w, w) for w in words[1:]] for words in shell
        )

        # Each row is a key range of its own: tasks get several.
        found = call(tmp_path, capfd, monkeypatch, [*first, "--chunk-rows", "1"])
        assert found.code == 1, found.err
        page = (ROOT / "docs" / PAGE).read_text()
        wanted = [line[4:] for line in page.splitlines() if line.startswith("    ")]
        assert sorted(found.out.splitlines()) == sorted(wanted)

        found = call(tmp_path, capfd, monkeypatch, repaired)
        assert found.code == 1, found.err
        statements = (tmp_path / "repair.sql").read_text().split(";\n")
        own_mariadb.script(*(s for s in statements if s.strip()))
        refused = call(tmp_path, capfd, monkeypatch, repaired)
        assert (refused.code, refused.refusal()[0]) == (2, "RF-1002")
        rows = [s.execute("SELECT * FROM shop.orders") for s in (own_mysql, own_mariadb)]
        assert rows[0] == rows[1]

        found = call(tmp_path, capfd, monkeypatch, online)
        told = json.loads(found.out)
        assert (found.code, told["equal"], len(told["tables"])) == (0, True, 2)

        found = call(tmp_path, capfd, monkeypatch, beside_lake)
        assert found.code == 0, found.out + found.err
        assert "shop.orders: equal, 4 rows" in found.out

        scene.sql("CREATE TABLE people (id int PRIMARY KEY, email varchar(40))")
        scene.sql("INSERT INTO people VALUES (1, 'ada@example.org')")
        mask = "{matcher = ['shop.people'], columns = ['email'], action = 'truncate', length = 3}"
        masking = f"[transform]\nmasks = [{mask}]\n"
        (tmp_path / "masked.toml").write_text(masking)
        masked = scene.feed(["shop.people"], config=masking)
        masked.catch_up()
        real["file://$PWD/masked"] = f"file://{masked.root}"
        found = call(tmp_path, capfd, monkeypatch, [real.get(w, w) for w in through_masks])
        assert (found.code, found.err) == (0, "")
        assert "shop.people: equal, 1 rows" in found.out
        plain = [w for w in through_masks if w not in ("--config", "masked.toml")]
        found = call(tmp_path, capfd, monkeypatch, [real.get(w, w) for w in plain])
        assert found.code == 1

        # On one kind of server, its ranges are summed up there; names may differ.
        own_mariadb.script(
            "DROP DATABASE IF EXISTS shop_copy",
            "CREATE DATABASE shop_copy",
            "CREATE TABLE shop_copy.orders LIKE shop.orders",
            "INSERT INTO shop_copy.orders SELECT * FROM shop.orders WHERE id > 1",
        )
        two = [real["mariadb://root:$COPY_PASSWORD@127.0.0.1:3307/"]] * 2
        routed = ["--tables", "shop.orders", "--route", "shop.* -> shop_copy.*"]
        found = call(tmp_path, capfd, monkeypatch, ["verify", *two, *routed])
        assert found.code == 1
        assert "shop.orders → shop_copy.orders: different, 4 rows in A, 3 in B" in found.out
        for more, words in (
            (["--sync-point"], "name the changefeed that runs from A to B"),
            (["--as-of", "5"], "--as-of is for storages"),
            (["--tables", "none.*"], "holds no table"),
            (["--tries", "0"], "--tries 0"),
        ):
            refused = call(tmp_path, capfd, monkeypatch, ["verify", *two, *more])
            assert refused.code == 2
            assert words in refused.refusal()[1]
