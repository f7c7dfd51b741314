"""What preflight reads and says, without a server."""

from __future__ import annotations

import pytest

from rowferry.errors import LoginRefused, ReplicaIdTaken, SourceUnsupported
from rowferry.flow.capture.binlog.client import probe
from rowferry.flow.capture.binlog.client.privileges import Grants
from rowferry.mysql.session import Flavour, Login, ServerFacts, version_numbers

LOGIN = Login("db", 3306, "u", "hidden-word")


def told(version: str) -> ServerFacts:
    names = {"MariaDB": Flavour.MARIADB, "TiDB": Flavour.TIDB}
    flavour = next((f for name, f in names.items() if name in version), Flavour.MYSQL)
    return ServerFacts(flavour, version_numbers(version), version, 1, "x")


@pytest.mark.parametrize(
    "version",
    ["8.0.1", "8.0.42-33", "8.4.5", "9.7.4-2", "10.5.0-MariaDB-log", "11.8.3-MariaDB-deb"],
)
def test_versions_that_are_taken(version: str) -> None:
    probe._check_version(LOGIN, told(version))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("5.7.44-log", "MySQL 8.0.1 or later"),
        ("8.0.0", "MySQL 8.0.1 or later"),
        ("10.4.34-MariaDB", "MariaDB 10.5.0 or later"),
        ("8.0.11-TiDB-v8.5.0", "TiDB"),
    ],
)
def test_versions_that_are_refused(version: str, words: str) -> None:
    with pytest.raises(SourceUnsupported, match=words):
        probe._check_version(LOGIN, told(version))


@pytest.mark.parametrize(
    ("lines", "blind"),
    [
        (["GRANT ALL PRIVILEGES ON *.* TO `u`@`%` WITH GRANT OPTION"], []),
        (["GRANT SELECT, REPLICATION SLAVE ON *.* TO `u`@`%`"], []),
        (["GRANT INSERT, SELECT ON *.* TO 'u'@'%' IDENTIFIED BY PASSWORD '*7B9E'"], []),
        (["GRANT USAGE ON *.* TO u", "GRANT SELECT ON `a`.* TO `r`"], ["`a`.* only"]),
        (["GRANT SELECT ON `a b ON c`.`t` TO u", "GRANT `r` TO u"], ["`a b ON c`.`t` only"]),
        (
            ["GRANT SELECT ON *.* TO `u`@`%`", "REVOKE SELECT, DROP ON `mysql`.* FROM `u`@`%`"],
            ["SELECT on `mysql`.* is revoked"],
        ),
    ],
)
def test_grants_that_let_tables_be_read(lines: list[str], blind: list[str]) -> None:
    grants = Grants.parse(lines)
    assert grants.allows("SELECT")
    found = list(grants.blind_spots())
    assert len(found) == len(blind)
    assert all(words in line for words, line in zip(blind, found, strict=True))
    assert "7B9E" not in str(found)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["GRANT USAGE ON *.* TO `u`@`%`"],
        ["GRANT SELECT ON `test`.* TO PUBLIC"],
        ["GRANT SELECT (`a`, `x) y`), UPDATE ON `d`.`t` TO `u`@`%`"],
        ["GRANT `SELECT`@`%` TO `u`@`%`"],
        ["SET DEFAULT ROLE `r` FOR `u`@`%`"],
    ],
)
def test_grants_that_do_not(lines: list[str]) -> None:
    assert not Grants.parse(lines).allows("SELECT")


def test_a_column_does_not_hide_its_neighbour() -> None:
    grants = Grants.parse(["GRANT SELECT (`a`, `b`), LOCK TABLES, UPDATE (`c`) ON `d`.* TO u"])
    assert grants.places("LOCK TABLES") == ["`d`.*"]
    assert not grants.allows("SELECT") and not grants.allows("UPDATE")


def test_many_places_are_shortened() -> None:
    lines = [f"GRANT SELECT ON `d{n}`.* TO u" for n in range(9)]
    (found,) = Grants.parse(lines).blind_spots()
    assert "`d4`.* and others only" in found and "d5" not in found


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("OFF", ["OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"]),
        ("OFF_PERMISSIVE", ["ON_PERMISSIVE", "ON"]),
        ("ON_PERMISSIVE", ["ON"]),
    ],
)
def test_the_way_to_gtids(mode: str, steps: list[str]) -> None:
    way = [f"SET GLOBAL gtid_mode = {step}" for step in steps]
    assert probe._gtid_steps(mode, "ON") == way
    assert probe._gtid_steps(mode, "WARN") == ["SET GLOBAL enforce_gtid_consistency = ON", *way]


def test_the_class_says_what_is_wrong() -> None:
    login, number = LoginRefused("grant"), ReplicaIdTaken("number")
    assert type(probe._joined(LOGIN, [login])) is LoginRefused
    assert type(probe._joined(LOGIN, [number])) is ReplicaIdTaken
    both = probe._joined(LOGIN, [login, number])
    assert type(both) is SourceUnsupported
    assert both.words == "u@db:3306 cannot be captured: grant; number"
