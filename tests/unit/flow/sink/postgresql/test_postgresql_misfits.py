"""Keys that tell fewer rows apart than the source's are refused; rows would go."""

from __future__ import annotations

import pytest

from rowferry.flow.sink.postgresql.merging import displacing
from rowferry.flow.sink.postgresql.target_tables import DownstreamColumn, DownstreamTable, misfit
from rowferry.mysql.ddl.statement import parse_create

PLAIN = DownstreamColumn("varchar", "character varying")
WORDS = {
    "plain": PLAIN,
    "citext": DownstreamColumn("citext", "citext", exact=False),
    "collated": DownstreamColumn("text", "text", exact=False),
    "padded": DownstreamColumn("bpchar", "character(9)", 9),
}


def judged(columns: str, u: DownstreamColumn, *keys: set[str]) -> str:
    table = parse_create(f"create table d.t ({columns})")
    there = {"id": DownstreamColumn("int4", "integer"), "u": u}
    return misfit(table, DownstreamTable(there, {str(n): key for n, key in enumerate(keys)}))


@pytest.mark.parametrize(
    ("kind", "there", "fits"),
    [
        ("varchar(9)", "plain", True),
        ("varchar(9)", "citext", False),
        ("varchar(9)", "collated", False),
        ("varchar(9)", "padded", False),
        ("char(9)", "padded", True),
        ("char(9)", "citext", False),
    ],
)
@pytest.mark.parametrize("handle", ["id int primary key", "id int"])
def test_every_unique_key_tells_all_texts_apart(
    kind: str, there: str, fits: bool, handle: str
) -> None:
    keys: list[set[str]] = [{"id"}] if "primary" in handle else []
    words = judged(f"{handle}, u {kind}, unique key (u)", WORDS[there], *keys, {"u"})
    assert (words == "") is fits
    assert fits or "compares the key column 'u'" in words
    assert judged(f"{handle}, u {kind}, key (u)", WORDS[there], *keys) == ""


def test_what_holds_an_exact_key_may_compare_the_rest_as_it_likes() -> None:
    columns = "id int primary key, u varchar(9)"
    assert judged(columns, WORDS["citext"], {"id"}, {"id", "u"}) == ""
    both = "id int, u varchar(9), primary key (id, u)"
    assert "key column 'u'" in judged(both, WORDS["citext"], {"id", "u"})
    assert judged(both, WORDS["plain"], {"id", "u"}) == ""


def test_rows_are_displaced_by_columns_that_are_here() -> None:
    table = parse_create(
        "create table d.t (id int primary key, a int, v int as (a + 1) virtual, u int, "
        "unique key (v), unique key (u, v), unique key (u))"
    )
    assert displacing(table, "stage") == [
        'DELETE FROM "d"."t" t USING pg_temp.stage s WHERE t."u" = s."u" AND NOT (t."id" = s."id")'
    ]
