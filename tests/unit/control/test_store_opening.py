"""Opening the meta database: new, old, newer, broken, out of reach."""

from __future__ import annotations

import sqlite3
import ssl
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateTable

from rowferry.control.store import connection
from rowferry.control.store.mysql_kind import MysqlKind
from rowferry.control.store.sql_store import open_store
from rowferry.control.store.tables import REVISIONS, VERSION_TABLE, MetaTable
from rowferry.errors import BadUri, MetaDamaged, MetaUnavailable
from rowferry.mysql.login import tls_context

MIGRATIONS = Path(connection.__file__).parent / "migrations"


def _open(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()


def test_a_new_file_is_made_with_its_directory_and_only_we_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "meta.db"
    _open(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert raw.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [
            (REVISIONS[-1],)
        ]
    raw.close()


def test_opening_again_runs_no_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _open(tmp_path / "meta.db")
    monkeypatch.setattr(connection, "_upgrade", lambda *_: pytest.fail("migrated again"))
    _open(tmp_path / "meta.db")


def test_migrations_make_exactly_the_tables_that_the_code_uses(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    _open(path)
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as found:
        context = MigrationContext.configure(found, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, MetaTable.metadata) == []
    engine.dispose()


def test_known_revisions_are_those_of_the_scripts() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(s.revision for s in reversed(list(scripts.walk_revisions()))) == REVISIONS


def test_the_tables_can_be_written_down_for_other_databases() -> None:
    for dialect in (mysql.dialect(), postgresql.dialect()):
        for table in MetaTable.metadata.sorted_tables:
            assert str(CreateTable(table).compile(dialect=dialect))
    on_mysql = str(
        CreateTable(MetaTable.metadata.tables["pending_plans"]).compile(dialect=mysql.dialect())
    )
    assert "LONGTEXT" in on_mysql and "utf8mb4_bin" in on_mysql


def test_threads_may_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    path, errors = tmp_path / "meta.db", []
    together = threading.Barrier(4)

    def run() -> None:
        together.wait()
        try:
            _open(path)
        except Exception as err:
            errors.append(err)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_newer_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    _open(path)
    raw = sqlite3.connect(path)
    with raw:
        raw.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    raw.close()
    with pytest.raises(MetaDamaged, match=f"9999.*{REVISIONS[-1]}.*newer Rowferry") as raised:
        _open(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"dear diary, " * 100)
    with pytest.raises(MetaDamaged, match="notes.txt"):
        _open(path)
    assert path.read_bytes() == b"dear diary, " * 100


def test_a_database_of_someone_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE orders (id INTEGER)")
    raw.close()
    with pytest.raises(MetaDamaged, match="shop.db.*'orders'"):
        _open(path)
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("orders",)]
    raw.close()


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "meta.db", tmp_path, Path("/proc/nowhere/meta.db")):
        with pytest.raises(MetaUnavailable) as raised:
            _open(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///meta.db?mode=ro",
        "oracle://root:hunter2@db/meta",
        "mysql://root:hunter2@db:port/meta",
        "mysql://root:hunter2@db",
        "postgresql:///meta",
    ],
)
def test_urls_that_cannot_be_used_are_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(BadUri) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)
    assert "sqlite:///path" in str(raised.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://root:hunter2@db/meta?sslmode=require", "'sslmode'; known: ssl-mode, ssl-ca"),
        ("mariadb://root:hunter2@db/meta?ssl-mode=yes", "allowed: disabled, preferred, required"),
        ("mysql://root:hunter2@db/meta?ssl-mode=verify-ca&ssl-ca=/none.pem", "check ssl-ca"),
        ("postgres://root:hunter2@db/meta?ssl-ca=x", "'ssl-ca'; known: sslmode, sslrootcert"),
    ],
)
def test_parameters_of_servers_are_checked_before_they_are_asked(url: str, words: str) -> None:
    with pytest.raises(BadUri, match=words) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


def test_tls_is_asked_for_as_the_url_says() -> None:
    url = "mysql://root@db/meta?ssl-mode="
    modes = {}
    for mode in ("required", "verify-ca", "verify-identity"):
        tls = tls_context(MysqlKind(make_url(url + mode), 5.0).login())
        assert tls is not None
        modes[mode] = (tls.verify_mode is ssl.CERT_REQUIRED, tls.check_hostname)
    assert modes == {
        "required": (False, False),
        "verify-ca": (True, False),
        "verify-identity": (True, True),
    }
    assert MysqlKind(make_url(url + "disabled"), 5.0).login().ssl_mode == "disabled"


@pytest.mark.parametrize("tables", [1, 5, 10])
def test_a_migration_that_was_cut_off_goes_on(tmp_path: Path, tables: int) -> None:
    """MySQL keeps tables that were made before a crash: here some are there already."""
    path, whole = tmp_path / "meta.db", tmp_path / "whole.db"
    _open(whole)
    with closing(sqlite3.connect(whole)) as raw:
        made = raw.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    with closing(sqlite3.connect(path)) as raw:
        for (statement,) in made[: tables + 1]:
            raw.execute(statement)
    _open(path)
    with closing(sqlite3.connect(path)) as raw:
        again = raw.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    assert sorted(again) == sorted(made)


def test_a_lock_held_by_someone_else_is_unavailable_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    _open(path)
    store = open_store(f"sqlite:///{path}", busy_timeout_s=0.05)
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(MetaUnavailable, match="locked"):
        store.note("feed", "hello")
    assert store.feeds() == ()  # readers are not disturbed
    raw.execute("ROLLBACK")
    store.note("feed", "hello")
    assert [n.what for n in store.history("feed")] == ["hello"]
    raw.close()
    store.close()


def test_a_missing_table_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    store = open_store(f"sqlite:///{path}")
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("DROP TABLE history")
    raw.close()
    with pytest.raises(MetaDamaged, match="history"):
        store.note("feed", "hello")
    store.close()
