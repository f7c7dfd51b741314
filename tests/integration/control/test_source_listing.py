"""Databases and tables of a real MySQL and MariaDB, as a form lists them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rowferry.control.operator.checks.health import FAILED, OK
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.testing.servers import Server

NAMES = ("a`b", "Größe", "plain", "<b>x</b>")


def test_a_form_lists_what_the_login_may_see(source_server: Server, tmp_path: Path) -> None:
    source_server.script(
        "CREATE DATABASE picked",
        *(f"CREATE TABLE picked.`{n.replace('`', '``')}` (id int PRIMARY KEY)" for n in NAMES),
        "CREATE VIEW picked.seen AS SELECT 1",
        "INSERT INTO picked.plain VALUES (1), (2), (3)",
        "ANALYZE TABLE picked.plain",
        "CREATE USER narrow@'%' IDENTIFIED BY 'a-long-password'",
        "GRANT SELECT ON picked.plain TO narrow@'%'",
    )
    with closing(open_store(f"sqlite:///{tmp_path / 'meta.db'}")) as store:
        operations = Operations(store)
        listed = operations.list_source(source_server.uri, {})
        assert "picked" in listed.databases and "mysql" not in listed.databases
        tables = operations.list_source(source_server.uri, {}, "picked").tables
        assert {t.name for t in tables} == set(NAMES)  # and no view
        assert next(t.rows for t in tables if t.name == "plain") == 3
        assert operations.list_source(source_server.uri, {}, "no such").tables == ()

        checks = operations.check_endpoint(
            "source", source_server.uri, {"filter": {"rules": ["picked.plain"]}}
        )
        assert {c.result for c in checks if c.check != "source: settings"} <= {OK, "warning"}
        assert "1 are captured" in next(c.words for c in checks if c.check == "tables")

        narrow = f"mysql://narrow:a-long-password@{source_server.uri.rpartition('@')[2]}"
        few = operations.list_source(narrow, {}, "picked").tables
        assert [t.name for t in few] == ["plain"]
        (*_, refused) = operations.check_endpoint("source", narrow, {})
        assert refused.result == FAILED and refused.cure and "a-long-password" not in str(refused)
