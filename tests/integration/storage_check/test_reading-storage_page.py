"""The page of check-storage and table: its commands are carried out, its rules are the rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from feed_kit import scene_of
from run_kit import call

from page_examples import ROOT, all_blocks, commands, table_rows
from rowferry.downstream.rebuild.table import TablePlan, rebuild_here
from rowferry.downstream.storage_check.rules import Rule
from rowferry.face.cli.downstream import table as table_face
from rowferry.spark.rebuild_table import Rebuilt
from rowferry.testing.servers import MySql

PAGE = "reading-storage.md"
CONFIG = '[filter]\nrules = ["shop.*"]\n\n[sink.csv]\ninclude-commit-ts = true\n'


class JobHere:
    """Rebuilds in this process, for tests of words; Spark has a test of its own."""

    def tasks(self) -> tuple[int, int]:
        return 0, 0

    def show(self, plans: list[TablePlan], most: int, native_times: bool) -> Iterator[Rebuilt]:
        for plan in plans:
            rows = rebuild_here(plan).sort_by([(c, "ascending") for c in plan.key])
            first = (tuple(r.values()) for r in rows.slice(0, most).to_pylist())
            yield Rebuilt(plan, rows.num_rows, tuple(first))

    def write(
        self, plans: list[TablePlan], folders: list[Path], native_times: bool
    ) -> Iterator[Rebuilt]:
        for plan, folder in zip(plans, folders, strict=True):
            rows = rebuild_here(plan)
            folder.mkdir(parents=True)
            pq.write_table(rows, folder / "part.parquet")
            yield Rebuilt(plan, rows.num_rows)


@contextmanager
def job_here(log_dir: Path, master: str) -> Iterator[JobHere]:
    yield JobHere()


def test_the_rules_are_those_of_the_page() -> None:
    rows = table_rows((ROOT / "docs" / PAGE).read_text(), "rule|what must hold")
    assert [name.strip("`") for name, _ in rows] == [rule.code for rule in Rule]


def test_a_reader_can_follow_the_page(
    own_mysql: MySql,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_face, "opened_job", job_here)
    with scene_of(own_mysql, tmp_path, "shop") as scene:
        scene.sql(
            "CREATE TABLE orders (id INT PRIMARY KEY, item VARCHAR(20))",
            "INSERT INTO orders VALUES (1, 'tea'), (2, 'salt')",
        )
        feed = scene.feed(config="[sink.csv]\ninclude-commit-ts = true", protocol="csv")
        feed.catch_up()
        scene.sql("UPDATE orders SET item = 'milk' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
        feed.catch_up()
        feed.root.rename(tmp_path / "changes")
    (tmp_path / "feed.toml").write_text(CONFIG)
    shell = [words for b in all_blocks("sh") if b.page == PAGE for words in commands(b)]
    said = []
    for words in shell:
        typed = [w.replace("$PWD", str(tmp_path)) for w in words[1:]]
        found = call(tmp_path, capfd, monkeypatch, typed)
        assert found.code == 0, found.err
        said.append(found.out)
    assert said[0].endswith("no violation\n")
    assert said[1].splitlines()[:2] == ["id\titem", "1\tmilk"]
    assert said[2].startswith("shop.orders: 1 rows in ")
    assert pq.read_table(tmp_path / "lake/shop/orders").to_pylist() == [{"id": 1, "item": "milk"}]
