from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowferry.errors import BadInput
from rowferry.flow.sink.storage.paths import (
    DataFile,
    Directory,
    IndexFile,
    Metadata,
    SchemaFile,
    data_name,
    database_directory,
    escape,
    index_path,
    parse_path,
    schema_path,
    unescape,
)

NAMES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"))


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("employee", "employee"),
        ("Employee Nr. 1", "Employee Nr. 1"),
        ("订单", "订单"),
        ("a.b", "a.b"),
        ("Meta", "Meta"),
        ("metadata", "metadata"),
        ("a/b", "a%2Fb"),
        ("a\\b", "a%5Cb"),
        ("50%", "50%25"),
        ("tab\there", "tab%09here"),
        ("del\x7f", "del%7F"),
        ("c1\x85", "c1%C2%85"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
        ("meta", "%6D%65%74%61"),
        ("", "%00"),
    ],
)
def test_escape(name: str, segment: str) -> None:
    assert escape(name) == segment
    assert unescape(segment) == name


@given(NAMES)
def test_every_name_survives_as_one_segment(name: str) -> None:
    segment = escape(name)
    assert unescape(segment) == name
    assert "/" not in segment
    assert segment not in ("", ".", "..", "meta")


@given(NAMES, NAMES)
def test_two_names_never_share_a_segment(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


def test_a_name_with_nul_is_refused() -> None:
    with pytest.raises(BadInput, match="U\\+0000"):
        escape("a\0b")


@pytest.mark.parametrize("name", ["metadata", "rowferry.owner", "rowferry.lock", "rowferry.tmp"])
def test_a_database_never_takes_the_place_of_a_file_at_the_prefix(name: str) -> None:
    assert database_directory(name) != name
    assert unescape(database_directory(name)) == name


@pytest.mark.parametrize(
    ("path", "separator", "meaning"),
    [
        ("metadata", "", Metadata()),
        ("hr/meta/schema_12_0000000345.json", "", SchemaFile("hr", "", 12, 345)),
        ("hr/t/meta/schema_12_0000000345.json", "", SchemaFile("hr", "t", 12, 345)),
        ("hr/t/12/CDC000005.csv", "none", DataFile(Directory("hr", "t", 12), 5, "csv")),
        ("hr/t/12/7/CDC000005.csv", "", DataFile(Directory("hr", "t", 12, 7), 5, "csv")),
        (
            "hr/t/12/7/2023-05-09/CDC00000000000000000005.json",
            "",
            DataFile(Directory("hr", "t", 12, 7, "2023-05-09"), 5, "json"),
        ),
        (
            "hr/t/12/2023-05/CDC000005.csv",
            "",
            DataFile(Directory("hr", "t", 12, None, "2023-05"), 5, "csv"),
        ),
        ("hr/t/12/2023/meta/CDC.index", "", IndexFile(Directory("hr", "t", 12, None, "2023"))),
        ("hr/t/12/2023/meta/CDC.index", "day", IndexFile(Directory("hr", "t", 12, 2023))),
        ("hr/t/12/2023/2024/meta/CDC.index", "", IndexFile(Directory("hr", "t", 12, 2023, "2024"))),
        (
            "%6D%65%74%61/a%2Fb/12/meta/CDC.index",
            "",
            IndexFile(Directory("meta", "a/b", 12)),
        ),
    ],
)
def test_parse_path(path: str, separator: str, meaning: object) -> None:
    assert parse_path(path, separator) == meaning


@pytest.mark.parametrize(
    "path",
    [
        "",
        "rowferry.owner",
        "metadata/x",
        "hr/metadata",
        "hr/t/12/CDC.csv",
        "hr/t/12/CDC00005.csv",
        "hr/t/12/CDC000000000000000000005.csv",
        "hr/t/12/CDC000005",
        "hr/t/12/CDC000005.csv.part",
        "hr/t/12/cdc000005.csv",
        "hr/t/v12/CDC000005.csv",
        "hr/t/CDC000005.csv",
        "hr//12/CDC000005.csv",
        "hr/t/12/7/8/CDC000005.csv",
        "hr/t/12/7/8/2023-05-09/CDC000005.csv",
        "hr/t/12/2023-05-09/7/CDC000005.csv",
        "hr/t/12/CDC.index",
        "hr/t/x/meta/schema_12_0000000345.json",
        "meta/schema_12_0000000345.json",
        "hr/t/meta/schema_12_345.json",
        "hr/t/meta/schema_12_0000000345.json ",
        "hr/t/١٢/CDC000005.csv",
    ],
)
def test_other_paths_are_none_of_ours(path: str) -> None:
    assert parse_path(path) is None


@given(
    NAMES,
    NAMES,
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**63 - 1),
    st.sampled_from(["", "2023-05-09"]),
    st.integers(1, 10**20 - 1),
    st.integers(6, 20),
)
def test_what_is_built_is_read_back(
    database: str, table: str, version: int, part: int | None, date: str, number: int, digits: int
) -> None:
    where = Directory(database, table, version, part, date)
    separator = "day" if date else "none"
    data = f"{where.path}/{data_name(number, digits, '.csv')}"
    assert parse_path(data, separator) == DataFile(where, number, "csv")
    assert parse_path(index_path(where.path), separator) == IndexFile(where)
    schema = schema_path(database, table, version, 4294967295)
    assert parse_path(schema) == SchemaFile(database, table, version, 4294967295)
