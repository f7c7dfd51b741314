"""Options of the data source: what is understood, and one line for what is not."""

from __future__ import annotations

import pytest

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BY_CODE, NoSuchTable, RowferryError
from rowferry.spark.table_request import read_request

LOGIN = "mysql://u:" + "hidden@db:3306/"
GOOD = {"source": LOGIN, "table": "shop.orders"}


def test_defaults() -> None:
    found = read_request(GOOD, "spark-1")
    assert found.table == TableId("shop", "orders")
    assert (found.starts_now, found.native_times, found.stretch_bytes) == (False, False, 256 << 20)
    assert found.spec.changefeed_id == "spark-1"


def test_keys_come_in_any_case() -> None:
    more = {"startingposition": "NOW", "TEMPORAL": "native", "maxbytespertrigger": "8MiB"}
    found = read_request({**GOOD, **more}, "spark-1")
    assert (found.starts_now, found.native_times, found.stretch_bytes) == (True, True, 8 << 20)
    assert found.spec.section("source") == {"snapshot": "never"}


def test_options_of_the_source_stand_in_the_uri_or_beside_it() -> None:
    uri = LOGIN + "?server-id=77"
    found = read_request({**GOOD, "source": uri, "Read-Timeout": "5s"}, "spark-1")
    assert found.spec.source.parameter("server-id") == "77"
    assert found.spec.section("source") == {"read-timeout": "5s"}
    found.source()


def test_a_source_without_that_option_begins_now_all_the_same() -> None:
    found = read_request(
        {"source": "range://h:1", "table": "d.t", "startingPosition": "now"}, "spark-1"
    )
    assert found.starts_now
    assert found.spec.section("source") == {}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("d.t", ("d", "t")),
        (" d.t ", ("d", "t")),
        ("`d.e`.t", ("d.e", "t")),
        ("d.`a``b`", ("d", "a`b")),
        ('d."t"', ("d", '"t"')),
        ("été.Übung", ("été", "Übung")),
    ],
)
def test_only_the_named_table_is_captured(written: str, name: tuple[str, str]) -> None:
    found = read_request({**GOOD, "table": written}, "spark-1")
    assert found.table == name
    decision = found.decision()
    assert decision.keeps_table(TableId(*name))
    assert decision.captures(TableSchema(TableId(*name), 1, 1, ()))  # without a key
    assert not decision.keeps_table(TableId(name[0], name[1] + "x"))
    assert not decision.keeps_table(TableId(name[0].swapcase(), name[1]))


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"table": "d.t"}, "RF-1002", 'option source is missing; add .option("source"'),
        ({"source": LOGIN}, "RF-1002", 'option table is missing; add .option("table"'),
        ({**GOOD, "table": "orders"}, "RF-1002", "'orders' is not database.table"),
        ({**GOOD, "table": "a.b.c"}, "RF-1002", "stands in backquotes"),
        ({**GOOD, "tabel": "x"}, "RF-1001", "unknown option 'tabel'; did you mean 'table'?"),
        (
            {**GOOD, "feed-level": "range"},
            "RF-1001",
            "known here: clear-password-over, connect-timeout,",
        ),
        ({**GOOD, "startingPosition": "soon"}, "RF-1002", "snapshot | now"),
        ({**GOOD, "temporal": "utc"}, "RF-1002", "string | native"),
        ({**GOOD, "maxBytesPerTrigger": "0"}, "RF-1002", "maxBytesPerTrigger"),
        ({**GOOD, "server-id": "x"}, "RF-1002", "source.server-id"),
        ({**GOOD, "source": LOGIN + "?nope=1"}, "RF-1001", "unknown parameter 'nope'"),
        ({**GOOD, "source": "oracle://h/"}, "RF-1007", "known: mariadb, mysql, range"),
        ({**GOOD, "source": "u:hidden@h"}, "RF-1004", "no scheme"),
        ({**GOOD, "startingPosition": "now", "snapshot": "only"}, "RF-1008", "contradict"),
        ({**GOOD, "partial-row-image": "Allow"}, "RF-1008", "binlog_row_image = FULL"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(options: dict[str, str], code: str, words: str) -> None:
    with pytest.raises(RowferryError) as raised:
        read_request(options, "spark-1").source()
    assert type(raised.value) is BY_CODE[code]
    assert words in raised.value.words
    assert "hidden" not in str(raised.value)


def test_system_tables_are_not_captured() -> None:
    with pytest.raises(NoSuchTable, match="system databases"):
        read_request({**GOOD, "table": "mysql.user"}, "spark-1").present()
