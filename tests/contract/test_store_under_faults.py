"""The meta store on servers that restart, hang, or are used by two owners at once."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from store_harness import PATIENCE_S, new_database, url_of
from store_material import (
    NOW,
    TTL_S,
    make_plan,
    make_range,
    make_spec,
    make_table,
    run_plan,
    someone_else,
)

from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.store.connection import Database, has_database
from rowferry.control.store.sql_store import SqlStore, open_store
from rowferry.errors import BadUri, Fenced, MetaUnavailable
from rowferry.testing.servers import MariaDb, MySql, Postgres, Server

KINDS: dict[str, type[MariaDb] | type[Postgres]] = {"mariadb": MariaDb, "postgres": Postgres}


@pytest.fixture(scope="module", params=sorted(KINDS))
def own_server(request: pytest.FixtureRequest, server_folder: Path) -> Iterator[MariaDb | Postgres]:
    """A server that may be restarted and stopped."""
    with KINDS[request.param].start(server_folder / f"meta-{request.param}") as server:
        server.execute("CREATE DATABASE meta")
        yield server


@contextmanager
def _at(database: Database, name: str, statement: str, act: Callable[[], None]) -> Iterator[None]:
    """Act once, when a statement (or with "commit" a transaction) comes to this point."""
    done: list[bool] = []

    def look(_connection: Any, *more: Any) -> None:
        if not done and (not statement or statement in more[1]):
            done.append(True)
            act()

    event.listen(database.engine, name, look)
    yield
    event.remove(database.engine, name, look)
    assert done  # it did come to this point


def _until_it_works(call: Callable[[], Any]) -> None:
    """Do what the supervisor does while the meta database is away."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except MetaUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_server_that_restarts_in_the_middle_of_record_and_publish_loses_nothing(
    own_server: MariaDb | Postgres,
) -> None:
    database = Database(url_of(own_server, "meta"))
    store = SqlStore(database, lambda: NOW)
    store.create_changefeed(make_spec("restarts"))
    claim = store.claim("restarts", Holder.here(), NOW, TTL_S)
    first = make_plan(1, table=make_table(), ranges=(make_range(1),), watermark=20)
    with _at(database, "before_cursor_execute", "INSERT INTO pending", own_server.restart):
        with pytest.raises(MetaUnavailable):
            store.record(claim, first, (make_table(),))
    assert store.pending("restarts") is None
    _until_it_works(lambda: store.record(claim, first, (make_table(),)))
    with _at(database, "commit", "", own_server.restart):
        with pytest.raises(MetaUnavailable):
            store.publish(claim, first)
    assert store.state("restarts").micro_batch == 0
    assert store.pending("restarts") == first
    _until_it_works(lambda: store.publish(claim, first))
    store.publish(claim, first)
    own_server.restart()
    found = store.state("restarts")  # a connection that died while it was idle is no error
    assert (found.micro_batch, found.watermark, found.ranges) == (1, 20, (make_range(1),))
    store.close()


def test_a_server_that_is_away_or_hangs_is_unavailable_and_holds_no_thread(
    own_server: MariaDb | Postgres,
) -> None:
    url = url_of(own_server, "meta")
    store = open_store(url, busy_timeout_s=1.0)
    assert isinstance(store, SqlStore)
    with _frozen(own_server, store), pytest.raises(MetaUnavailable) as raised:
        store.feeds()
    assert "\n" not in str(raised.value)
    _until_it_works(store.feeds)
    own_server.stop()
    for call in (store.feeds, lambda: open_store(url), lambda: has_database(url)):
        with pytest.raises(MetaUnavailable) as raised:
            call()
        assert "\n" not in str(raised.value)
    own_server.restart()
    _until_it_works(store.feeds)
    store.close()


@contextmanager
def _frozen(server: MariaDb | Postgres, store: SqlStore) -> Iterator[None]:
    """Stop the process that serves the store's connection, as a machine without memory does."""
    if isinstance(server, Postgres):
        store.feeds()
        with store.database.engine.connect() as connection:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    else:
        pid = server.pid
    # Only after the connection was checked: a check that fails makes a new one.
    with _at(store.database, "begin", "", lambda: os.kill(pid, signal.SIGSTOP)):
        yield
    os.kill(pid, signal.SIGCONT)


def test_a_server_that_is_the_primary_no_more_is_left(own_server: MariaDb | Postgres) -> None:
    """It answers on; only a new connection leads to where the name of the primary leads now."""
    url, number = url_of(own_server, "meta"), "SELECT pg_backend_pid()"
    if isinstance(own_server, MariaDb):
        own_server.execute("CREATE USER plain IDENTIFIED BY 'plain'")  # read_only holds for it
        own_server.execute("GRANT ALL ON meta.* TO plain")
        url, number = re.sub("//[^@]*@", "//plain:plain@", url), "SELECT CONNECTION_ID()"
    with closing(Database(url)) as database:
        store = SqlStore(database, lambda: NOW)

        def asked(statement: str) -> Any:
            with database.engine.connect() as connection:
                found = connection.exec_driver_sql(statement)
                answer = found.scalar() if found.returns_rows else None
                connection.commit()
                return answer

        before = asked(number)
        if isinstance(own_server, MariaDb):
            own_server.execute("SET GLOBAL read_only = ON")
        else:
            asked("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        with pytest.raises(MetaUnavailable):
            store.create_changefeed(make_spec("demoted"))
        if isinstance(own_server, MariaDb):
            own_server.execute("SET GLOBAL read_only = OFF")
        store.create_changefeed(make_spec("demoted"))
        assert asked(number) != before


def test_who_is_not_let_in_hears_so_at_once_without_the_password(
    own_server: MariaDb | Postgres,
) -> None:
    good = url_of(own_server, "meta")
    password = good.split(":")[2].split("@")[0]
    for url in (good.replace(password, "mistaken"), url_of(own_server, "nowhere")):
        for call in (open_store, has_database):
            with pytest.raises(BadUri, match="check user") as raised:
                call(url)
            said = str(raised.value)
            assert "mistaken" not in said and password not in said and "\n" not in said
    with new_database(own_server, "others") as url:
        assert has_database(url) is False
        open_store(url).close()
        assert has_database(url) is True


def test_tls_is_used_and_a_certificate_that_cannot_be_trusted_is_refused(
    mysql_server: MySql, postgres_server: Postgres
) -> None:
    with new_database(mysql_server, "meta_tls") as url:
        bare = url.partition("?")[0]
        with closing(Database(f"{bare}?ssl-mode=required")) as database:
            with database.engine.connect() as connection:
                shown = connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()
                assert shown[1]
        with pytest.raises(BadUri, match="TLS"):
            Database(f"{bare}?ssl-mode=verify-identity")
    with new_database(postgres_server, "meta_tls") as url:
        with closing(Database(f"{url}?sslmode=require")) as database:
            with database.engine.connect() as connection:
                query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
                assert connection.exec_driver_sql(query).scalar() is True
        with pytest.raises(BadUri, match="TLS"):
            Database(f"{url}?sslmode=verify-full")


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"])
def test_of_two_owners_one_waits_for_the_other_and_never_both_write(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Server | Postgres = request.getfixturevalue(f"{kind}_server")
    with new_database(server, "meta_owners") as url, closing(Database(url)) as database:
        store = SqlStore(database, lambda: NOW)
        store.create_changefeed(make_spec())
        old = store.claim("feed-1", Holder.here(), NOW, TTL_S)
        run_plan(store, old, make_plan(1))
        store.record(old, make_plan(2), ())
        with closing(Database(url)) as elsewhere:
            _take_over_while(store, SqlStore(elsewhere, lambda: NOW), old)


def _take_over_while(mine: SqlStore, theirs: SqlStore, old: Claim) -> None:
    """Take a changefeed over in the middle of a publication, then publish in the middle of that."""
    claims: list[Claim] = []
    errors: list[Exception] = []

    def take() -> None:
        claims.append(theirs.claim("feed-1", someone_else(), NOW + TTL_S, TTL_S))

    def publish() -> None:
        try:
            mine.record(old, make_plan(3), ())
        except Exception as err:
            errors.append(err)

    taker, publisher = threading.Thread(target=take), threading.Thread(target=publish)

    def meet(thread: threading.Thread) -> None:
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()  # it waits until this transaction has ended

    with _at(mine.database, "before_cursor_execute", "DELETE FROM pending", lambda: meet(taker)):
        mine.publish(old, make_plan(2))
    taker.join(PATIENCE_S)
    assert claims[0].epoch == old.epoch + 1
    assert theirs.state("feed-1").micro_batch == 2
    release = "UPDATE leases"
    with _at(theirs.database, "before_cursor_execute", release, lambda: meet(publisher)):
        theirs.claim("feed-1", someone_else("third"), NOW + 2 * TTL_S, TTL_S)
    publisher.join(PATIENCE_S)
    assert [type(e) for e in errors] == [Fenced]
    assert theirs.pending("feed-1") is None


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_writers_that_meet_do_not_disturb_each_other(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Threads of four changefeeds write, create and sample at once: nobody hears of a deadlock."""
    server: Server | Postgres = request.getfixturevalue(f"{kind}_server")
    errors: list[Exception] = []
    with new_database(server, "meta_crowd") as url, closing(Database(url)) as database:
        store = SqlStore(database, lambda: NOW)

        def run(name: str) -> None:
            try:
                store.create_changefeed(make_spec(name))
                claim = store.claim(name, Holder.here(), NOW, TTL_S)
                for number in range(1, 9):
                    ranges = tuple(make_range(i, index=number) for i in range(20))
                    gone = (number,) if number % 2 else ()
                    run_plan(
                        store,
                        claim,
                        make_plan(number, table=make_table(), ranges=ranges, gone=gone),
                    )
                    store.renew(claim, NOW)
                    store.announce(claim.holder, "here", NOW)
                store.remove(claim)
            except Exception as err:
                errors.append(err)

        threads = [threading.Thread(target=run, args=(f"feed-{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert errors == []
        assert store.feeds() == ()
