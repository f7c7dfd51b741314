"""Events that are read one by one: statements, and what the log says of their session."""

from __future__ import annotations

import pytest

from rowferry.flow.capture.binlog.frame.events import Query, parse_query

LATIN1, GBK, SJIS, UTF8, BINARY, UNHEARD_OF = 8, 28, 13, 45, 63, 60_000
FLAGS = b"\0\0\0\0\0"
SQL_MODE = b"\1" + (0x45A00020).to_bytes(8, "little")
CATALOG = b"\6\3std"
OLD_CATALOG = b"\2\3std\0"
INCREMENT = b"\3\2\0\1\0"
ZONE = b"\5\6SYSTEM"


def charsets(collation: int) -> bytes:
    """Write the variable with the client's collation, the connection's and the server's."""
    return b"\4" + collation.to_bytes(2, "little") + b"\x2d\0\xff\0"


def query_body(sql: bytes, status: bytes = b"", database: str = "d") -> bytes:
    name = database.encode()
    fixed = bytes(8) + bytes([len(name)]) + bytes(2) + len(status).to_bytes(2, "little")
    return fixed + status + name + b"\0" + sql


@pytest.mark.parametrize(
    ("collation", "codec"),
    [(LATIN1, "latin1"), (GBK, "gbk"), (SJIS, "shift_jis"), (UTF8, "utf-8")],
)
@pytest.mark.parametrize(
    "before",
    [
        b"",
        FLAGS + SQL_MODE,
        FLAGS + SQL_MODE + CATALOG,
        FLAGS + SQL_MODE + OLD_CATALOG + INCREMENT,
        FLAGS + SQL_MODE + CATALOG + INCREMENT,
    ],
    ids=["alone", "mode", "catalog", "old catalog", "increment"],
)
def test_a_statement_has_its_clients_character_set(
    collation: int, codec: str, before: bytes
) -> None:
    word = "ä" if collation == LATIN1 else "表"  # the second byte of the latter is a backslash
    sql = f"ALTER TABLE `t{word}` COMMENT '{word}', ADD b int"
    status = before + charsets(collation) + ZONE
    found = parse_query(query_body(sql.encode(codec), status, "dä"))
    assert found == Query("dä", sql, 0x45A00020 if SQL_MODE in before else 0)


@pytest.mark.parametrize("status", [b"", ZONE, FLAGS + ZONE, b"\6", b"\6\xff", b"\1\1", b"\4"])
def test_a_session_that_tells_nothing(status: bytes) -> None:
    found = parse_query(query_body("DROP TABLE `tä`".encode(), status))
    assert found.sql == "DROP TABLE `tä`"


@pytest.mark.parametrize("collation", [BINARY, UNHEARD_OF])
def test_a_character_set_that_is_none_is_the_servers_own(collation: int) -> None:
    sql = query_body("DROP TABLE `tä`".encode() + b"\xff", charsets(collation))
    assert parse_query(sql).sql == "DROP TABLE `tä`\ufffd"


@pytest.mark.parametrize(
    "head",
    [
        "CREATE TABLE `u表`",
        "CREATE TABLE `d`.`u表`",
        "CREATE OR REPLACE TABLE `表``s`",
        "CREATE TABLE IF NOT EXISTS `u表`",
    ],
)
def test_a_definition_by_the_server_is_utf8(head: str) -> None:
    sql = f"{head} (\n  `id` int NOT NULL,\n  `表` int DEFAULT NULL\n) START TRANSACTION"
    assert parse_query(query_body(sql.encode(), charsets(GBK))).sql == sql
    # The same text by a client, as a dump of such a table has it.
    assert parse_query(query_body(sql.encode("gbk"), charsets(GBK))).sql == sql
