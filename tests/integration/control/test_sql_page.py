"""The examples of docs/sql.md, carried out one after the other."""

from __future__ import annotations

from pathlib import Path

from faces_kit import Shell, stored

from page_examples import all_blocks, commands
from rowferry.control.operator.operations import Operations
from rowferry.control.operator.statements.execute import StatementAnswer, execute
from rowferry.control.operator.statements.tokens import split
from rowferry.control.store.sql_store import open_store
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.refstore.cluster import LocalCluster

PAGE = "sql.md"


def test_a_reader_can_follow_the_page(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    operations = Operations(store)
    about = About("127.0.0.1:8300", "0.1.0", 0.0, "here")
    answers: list[tuple[str, StatementAnswer]] = []
    with (
        LocalCluster(tmp_path / "store", 1) as cluster,
        serve(create_app(operations, about), "127.0.0.1:0") as serving,
    ):
        with cluster.store() as source:
            source.ddl("CREATE DATABASE shop")
            for name in ("orders", "items", "customers"):
                source.ddl(f"CREATE TABLE shop.{name} (id bigint PRIMARY KEY)")
        for words in (w for b in all_blocks("sh") if b.page == PAGE for w in commands(b)):
            Shell(serving.url, tmp_path).run(*words[1:])
        for block in (b for b in all_blocks("sql") if b.page == PAGE):
            text = block.text.replace("127.0.0.1:4400", cluster.master_address)
            complete, rest = split(text.replace("/tmp/shop", str(tmp_path / "shop")))
            assert rest == ""
            for statement in complete:
                answers.append((statement, execute(operations, statement)))
                if statement.startswith("EXPLAIN"):
                    assert stored(operations) == []
                if statement.startswith("ALTER CHANGEFEED shop RESET"):
                    (feed,) = stored(operations)
                    config = feed["spec"]["config"]
                    assert config["filter"]["rules"] == ["shop.orders", "shop.customers"]
                    assert "include-commit-ts" not in config["sink"]["csv"]
                    assert feed["spec"]["sink"].endswith("flush-interval=1s")
    assert stored(operations) == []
    store.close()
    explained, created = (answer for _, answer in answers[:2])
    assert explained.rows[:2] == created.rows[:2]
    assert [row[:2] for row in created.rows[:2]] == [
        ("captured", "shop.items"),
        ("captured", "shop.orders"),
    ]
    assert answers[-1][1].message.endswith("nothing to drop")


def test_every_statement_of_the_list_is_understood() -> None:
    """Each line of the page's grammar, with its words filled in, is a statement."""
    from rowferry.control.operator.statements.syntax import parse

    (block,) = (b for b in all_blocks("text") if b.page == PAGE)
    for line in block.text.splitlines():
        if line.endswith("CHANGEFEED …"):
            continue
        filled = line.replace("[", "").replace("]", "").replace("rule, …", "a.b, c.*")
        parse(filled.replace("key = value, …", "a.b = 1").replace("commit-ts", "5"))
