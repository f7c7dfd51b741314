"""A source beside what a changefeed with masks made of it: equal where the masks are the same."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from feed_kit import scene_of

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.masks import RowMasks
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import TableResult, VerifyRequest, verify
from rowferry.downstream.verify.side import DatabaseSide, open_side
from rowferry.errors import BadOption
from rowferry.secrets.environment import sources_of_environment
from rowferry.testing.servers import MySql

RULES = """
[transform]
salt = "{salt}"

[[transform.masks]]
matcher = ["vm.people"]
columns = ["code", "email"]
action = "hash"

[[transform.masks]]
matcher = ["vm.people"]
columns = ["card"]
action = "keep-last"
length = 4

[[transform.masks]]
matcher = ["vm.people"]
columns = ["note"]
action = "null"

[[transform.computed]]
matcher = ["vm.people"]
column = "rich"
type = "tinyint"
expression = "money > 100"
"""
CHUNK_ROWS = 50


def test_masked_rows_are_equal_with_the_same_masks_only(
    mysql_server: MySql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERIFY_SALT", "a salt of enough bytes")
    config = tmp_path / "masked.toml"
    config.write_text(RULES.format(salt="env:VERIFY_SALT"))
    secrets = sources_of_environment()
    with scene_of(mysql_server, tmp_path, "vm") as scene:
        people = ", ".join(
            f"('k{n}', 'p{n}@example.org', '4111{n:012}', 'n{n}', {n})" for n in range(300)
        )
        scene.sql(
            "CREATE TABLE people (code varchar(20) PRIMARY KEY, email varchar(40), "
            "card char(16), note text, money int)",
            f"INSERT INTO people VALUES {people}",
            "CREATE TABLE plain (id int PRIMARY KEY)",
            "INSERT INTO plain VALUES (1)",
        )
        feed = scene.feed(config=RULES.format(salt="a salt of enough bytes"))
        feed.catch_up()
        uri = f"file://{feed.root}?protocol=canal-json&enable-tidb-extension=true"

        def found(masks: RowMasks | None) -> dict[str, TableResult]:
            a, b = open_side(mysql_server.uri, CHUNK_ROWS), open_side(uri, CHUNK_ROWS)
            assert isinstance(a, DatabaseSide)
            a.masks = masks
            request = VerifyRequest(Names.of(["vm.*"], []), (), CHUNK_ROWS)
            return {r.name.table: r for r in verify(a, b, request, ThreadRunner())}

        masks = RowMasks.of_file(config, secrets)
        assert masks is not None and "enough" not in repr(masks)
        assert pickle.loads(pickle.dumps(masks)) == masks  # tasks get it
        same = found(masks)
        assert {name: r.is_equal for name, r in same.items()} == {"people": True, "plain": True}
        assert same["people"].rows == (300, 300)

        assert not found(None)["people"].is_equal
        monkeypatch.setenv("VERIFY_SALT", "another salt of enough bytes")
        other = found(RowMasks.of_file(config, secrets))["people"]
        assert (other.only, other.changed) == ([300, 300], 0)  # keys are hashed, too

        # A row that differs is told by what readers see of it.
        scene.sql(
            "SET sql_log_bin = 0", "UPDATE people SET money = 500, note = 'x' WHERE code = 'k7'"
        )
        changed = found(masks)["people"]
        assert (changed.changed, set(changed.columns)) == (1, {"money", "rich"})
        assert "k7" not in str(changed.samples)

    monkeypatch.setenv("VERIFY_SALT", "short")
    with pytest.raises(BadOption, match="less than"):
        RowMasks.of_file(config, secrets)
    assert RowMasks.of_file(None, secrets) is None
