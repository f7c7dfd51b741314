"""The examples of docs/mysql-sink.md, carried out: the copy equals the source."""

from __future__ import annotations

from pathlib import Path

from page_examples import all_blocks, carried_out, commands
from rowferry.testing.servers import MariaDb, MySql

PAGE = "mysql-sink.md"


def test_a_reader_gets_a_copy(own_mysql: MySql, own_mariadb: MariaDb, tmp_path: Path) -> None:
    own_mysql.script(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(20) NOT NULL, "
        "price DECIMAL(10,2), at DATETIME(3), UNIQUE KEY (item))",
        "CREATE TABLE shop.notes (a INT, b VARCHAR(10), t TEXT, PRIMARY KEY (a, b))",
        *(
            f"INSERT INTO shop.orders VALUES ({i}, 'item {i}', {i}.25, '2026-01-01 10:00:{i % 60}')"
            for i in range(40)
        ),
        "INSERT INTO shop.notes VALUES (1, 'x', 'naïve 🚢'), (2, 'y', NULL), (3, 'z', '')",
        "DELETE FROM shop.orders WHERE id = 7",
    )
    own_mariadb.script("DROP DATABASE IF EXISTS shop_copy", "DROP DATABASE IF EXISTS tidb_cdc")
    first, second = [b for b in all_blocks("toml") if b.page == PAGE]
    (tmp_path / "copy.toml").write_text(first.text + second.text.replace("[sink.mysql-config]", ""))
    (block,) = [b for b in all_blocks("sh") if b.page == PAGE]
    (words,) = commands(block)
    for written, real in (
        ("mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/", own_mysql.uri),
        ("mysql://copy:$COPY_PASSWORD@127.0.0.1:3307/", own_mariadb.uri),
    ):
        words = [w.replace(written, real) for w in words]
    carried_out(words, tmp_path)
    for table, count in (("orders", 39), ("notes", 3)):
        here = own_mysql.execute(f"SELECT * FROM shop.{table} ORDER BY 1")
        assert own_mariadb.execute(f"SELECT * FROM shop_copy.{table} ORDER BY 1") == here
        assert len(here) == count
    assert len(own_mariadb.execute("SELECT * FROM tidb_cdc.rowferry_fence")) == 1
