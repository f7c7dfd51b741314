"""A recorded plan goes by the settings with which it was made, whatever they are by now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_kit import NAME, START, Bench, forget_scripted_source, register_scripted_source

from rowferry.change.chunk import DdlKind, Rows, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.table import Column, TableId
from rowferry.control.feed.recorded import has_made_changes
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import Owner
from rowferry.testing.storage import storage_changes

CLEAR = "anna@example.org"
SALT = "sixteen bytes or more"


def masks(action: str, **more: Any) -> dict[str, Any]:
    rule = {"matcher": ["shop.*"], "columns": ["*", "!id"], "action": action, **more}
    return {"transform": {"salt": SALT, "masks": [rule]}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetaStore]:
    found = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    yield found
    found.close()


@pytest.fixture
def bench(tmp_path: Path, store: MetaStore) -> Iterator[Bench]:
    register_scripted_source()
    yield Bench(tmp_path / "out", store)
    forget_scripted_source()


def settle(bench: Bench, **config: Any) -> None:
    """Store settings: some sections in the place of the present ones."""
    bench.spec = replace(bench.spec, config={**bench.spec.config, **config})
    bench.store.update_spec("feed", bench.spec)


def add_column_with_default(bench: Bench) -> None:
    """Write the ALTER that tells a value: the default of the new column."""
    script = bench.script
    at, last = script.ts(len(script.entries)), script.versions[-1]
    column = Column(9, "email", last.columns[1].type, default=CLEAR)
    table = replace(last, version=at, columns=(*last.columns, column))
    script.versions.append(table)
    query = f"ALTER TABLE orders ADD COLUMN email varchar(20) DEFAULT '{CLEAR}'"
    script.entries.append(SchemaChange(at, DdlKind.ADD_COLUMN, query, NAME, table))


def schema_files(bench: Bench) -> dict[str, bytes]:
    found = bench.root.rglob("schema_*.json")
    return {str(p.relative_to(bench.root)): p.read_bytes() for p in found}


def killed(bench: Bench, call: str) -> None:
    bench.journal.fail("after", call, RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        bench.loop().step()


@pytest.mark.parametrize("call", ["record", "run", "show"])
@pytest.mark.parametrize(
    "rule", [masks("hash"), masks("constant", value="x"), masks("truncate", length=1)]
)
def test_tables_that_left_the_filter_stay_masked(
    bench: Bench, call: str, rule: Mapping[str, Any]
) -> None:
    settle(bench, **rule)
    bench.script.commit(1)
    bench.script.commit(2)
    add_column_with_default(bench)
    bench.script.most = 3
    killed(bench, call)
    before = schema_files(bench)
    settle(bench, filter={"rules": ["shop.*", "!shop.orders"]})
    assert bench.loop().step().replayed
    files = [p for p in bench.root.rglob("*") if p.is_file()]
    assert not [p for p in files if CLEAR.encode() in p.read_bytes()]
    assert not [p for p in files if b"note-1" in p.read_bytes()]
    assert schema_files(bench).items() >= before.items()
    assert len(schema_files(bench)) == 2  # of the rows, and of the change


@pytest.mark.parametrize("call", ["record", "run", "show"])
def test_a_replay_is_the_same_in_all_schema_files(bench: Bench, call: str, tmp_path: Path) -> None:
    settle(bench, **masks("hash"))
    bench.script.commit(1)
    add_column_with_default(bench)
    killed(bench, call)
    settle(
        bench,
        filter={"rules": ["none.*"]},
        sink={
            **bench.spec.section("sink"),
            "dispatchers": [{"matcher": ["*.*"], "target-schema": "other"}],
        },
    )
    bench.loop().step()
    again = schema_files(bench)
    undisturbed = Bench(tmp_path / "plain", open_store(f"sqlite:///{tmp_path / 'other.db'}"))
    settle(undisturbed, **masks("hash"))
    undisturbed.script.commit(1)
    add_column_with_default(undisturbed)
    undisturbed.loop().step()
    assert schema_files(undisturbed) == again


@pytest.mark.parametrize("call", ["record", "run", "show"])
def test_rows_and_schema_changes_of_a_plan_have_one_name(bench: Bench, call: str) -> None:
    """As where `rowferry run` begins again with other dispatchers."""
    bench.script.commit(1)
    bench.script.add_column("colour")
    killed(bench, call)
    rule = {"matcher": ["*.*"], "target-schema": "other"}
    settle(bench, sink={**bench.spec.section("sink"), "dispatchers": [rule]})
    bench.script.commit(2)
    loop = bench.loop()
    while not loop.step().caught_up:
        pass
    found = list(storage_changes(bench.root, assemble(bench.spec).encode))
    rows = [(c.table.id.database, len(c)) for c in found if isinstance(c, Rows)]
    told = [(c.table.database, c.query) for c in found if isinstance(c, SchemaChange) and c.query]
    assert rows == [("shop", 1), ("other", 1)]
    assert told == [("shop", "ALTER TABLE orders ADD COLUMN colour varchar(20)")]


def test_a_sink_is_told_of_the_tables_of_a_plan_that_left_the_filter(bench: Bench) -> None:
    """Else it would make a table anew that is gone downstream, instead of saying so."""
    bench.script.commit(1)
    loop = bench.loop()
    loop.step()
    bench.script.commit(2)
    bench.journal.fail("after", "record", RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        loop.step()
    settle(bench, filter={"rules": ["none.*"]})
    loop = bench.loop()
    owners: list[Owner] = []
    sink: Any = loop._flow.sink
    opened = sink._inner.open
    sink._inner.open = lambda owner, state: (owners.append(owner), opened(owner, state))
    loop.step()
    assert owners[0].captured == {NAME}


def test_a_plan_that_has_made_its_change_is_known_by_the_names_of_then(bench: Bench) -> None:
    bench.script.commit(1)
    bench.script.add_column("colour")
    rule = {"matcher": ["*.*"], "target-schema": "then"}
    settle(bench, sink={**bench.spec.section("sink"), "dispatchers": [rule]})
    killed(bench, "record")
    settle(
        bench,
        filter={"rules": ["none.*"]},
        sink={
            **bench.spec.section("sink"),
            "dispatchers": [{"matcher": ["*.*"], "target-schema": "now"}],
        },
    )
    pending = bench.store.pending("feed")
    assert pending is not None
    asked: list[Plan] = []

    class Asked:
        def has_changes_of(self, plan: Plan) -> bool:
            asked.append(plan)
            return True

    flow: Any = replace(assemble(bench.spec), sink=Asked())  # type: ignore[arg-type]
    assert has_made_changes(bench.store, "feed", flow, pending)
    (change,) = asked[0].stretch.schema_changes
    assert change.written_as == TableId("then", "orders")
    assert change.commit_ts == START + 2
