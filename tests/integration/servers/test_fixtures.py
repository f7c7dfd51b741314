"""The servers that all tests share."""

from __future__ import annotations

from rowferry.mysql import session
from rowferry.testing.servers import Server


def test_a_shared_server_can_be_a_source(source_server: Server) -> None:
    names = ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata")
    (found,) = source_server.execute(f"SELECT {', '.join(f'@@{name}' for name in names)}")
    assert found == ("1", "ROW", "FULL", "FULL")


def test_the_product_can_log_in(source_server: Server) -> None:
    login = source_server.login
    with session.connected(login) as connection:
        facts = session.facts(connection, login)
    assert (facts.flavour, facts.server_id) == (source_server.flavour, source_server.server_id)
