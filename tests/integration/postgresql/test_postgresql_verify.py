"""Two PostgreSQL databases compared: what of their rows a comparison must not pass over."""

from __future__ import annotations

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import VerifyRequest, verify
from rowferry.downstream.verify.side import open_side
from rowferry.testing.servers import Postgres


def test_rows_that_are_null_count(postgres_server: Postgres) -> None:
    sides = []
    for database, rows in (("nulls_a", "(NULL), (''), (NULL), ('x')"), ("nulls_b", "(''), ('x')")):
        postgres_server.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        postgres_server.execute(f"CREATE DATABASE {database}")
        postgres_server.execute("CREATE SCHEMA shop", database)
        postgres_server.execute("CREATE TABLE shop.t (v text)", database)
        postgres_server.execute(f"INSERT INTO shop.t VALUES {rows}", database)
        sides.append(open_side(postgres_server.url(database), 10_000))
    (result,) = verify(*sides, VerifyRequest(Names.of(["shop.*"], ())), ThreadRunner(1))
    assert (result.rows, result.only, result.changed) == ((4, 2), [2, 0], 0)
    (result,) = verify(sides[0], sides[0], VerifyRequest(Names.of(["shop.*"], ())), ThreadRunner(1))
    assert result.is_equal and result.rows == (4, 4)
