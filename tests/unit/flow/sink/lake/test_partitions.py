"""Partitioned lake tables equal the source's, each file has rows of one partition; others judge."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iceberg_kit import IcebergLake
from lake_kit import Changes, Lake, Model, ordered, table, with_columns
from rowferry.change.chunk import DdlKind, Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column
from rowferry.errors import BadLayout, EncodeError, SchemaChangeRefused
from rowferry.moment import watched
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

SALES = table(
    ("id", SqlType("bigint")),
    ("region", SqlType("varchar", length=9)),
    ("at", SqlType("datetime", scale=0)),
    ("day", SqlType("date")),
    ("note", SqlType("varchar", length=60)),
)
REGIONS = ("north", "süd / 1", None)


class Sales(Model):
    """Rows that move between partitions."""

    def __init__(self, number: int) -> None:
        super().__init__(SALES, number)

    def image(self, key: tuple[Any, ...]) -> dict[str, Any]:
        day = f"2024-0{1 + self.random.randrange(3)}-1{self.random.randrange(2)}"
        at = f"{day} 0{self.random.randrange(2)}:30:00"
        region = self.random.choice(REGIONS)
        return {**super().image(key), "region": region, "day": day, "at": at}

    def expected(self) -> list[dict[str, Any]]:
        plain = super().expected()
        return [
            {
                **row,
                "day": dt.date.fromisoformat(row["day"]),
                "at": dt.datetime.fromisoformat(row["at"]),
            }
            for row in plain
        ]


def laid_out(
    kind: type[Lake],
    root: Path,
    *by: str,
    parameters: str = "",
    config: dict[str, Any] | None = None,
) -> Lake:
    """A lake with one rule for all tables."""

    class LaidOut(kind):  # type: ignore[misc,valid-type]
        rule: tuple[str, ...] = by

        def built(self) -> Any:
            source = Uri.parse("range://127.0.0.1:1", "source")
            rules = [{"matcher": ["shop.*"], "partition-by": list(self.rule)}]
            given = {**(config or {}), "sink": {"lake": {"layouts": rules}}}
            spec = ChangefeedSpec(self.changefeed, source, Uri.parse(self.uri, "sink"), given)
            loaded: Any = SINKS.load(self.scheme)
            return loaded(ChangefeedSpec.from_json(spec.to_json()), None)

    return LaidOut(root, parameters)


def equal(lake: Lake, model: Model) -> bool:
    rows = [{k: row[k] for k in model.schema.by_name} for row in lake.rows()]
    for row in rows:  # delta-rs tells a moment without a zone as one of UTC, or not
        row["at"] = row["at"].replace(tzinfo=None)
    return ordered(rows, ("id",)) == model.expected()


def partitions(lake: Lake) -> list[dict[str, Any]]:
    """The partition values of each data file, as others read them."""
    if isinstance(lake, IcebergLake):
        files = lake.iceberg().inspect.files().to_pylist()
        return [f["partition"] for f in files if f["content"] == 0]
    actions = pa.table(lake.delta().get_add_actions())
    if "partition" not in actions.column_names:
        return [{} for _ in range(actions.num_rows)]
    return [dict(v) for v in actions.column("partition").to_pylist()]


def names(lake: Lake) -> tuple[str, ...]:
    """What the table is partitioned by, as others read it."""
    if isinstance(lake, IcebergLake):
        return tuple(f.name for f in lake.iceberg().spec().fields)
    return tuple(lake.delta().metadata().partition_columns)


CASES = [
    pytest.param(Lake, ("region",), id="delta"),
    pytest.param(Lake, ("day", "region"), id="delta-two"),
    pytest.param(Lake, ("at",), id="delta-time"),
    pytest.param(IcebergLake, ("region",), id="iceberg"),
    pytest.param(IcebergLake, ("month(at)", "bucket(3, region)"), id="iceberg-transforms"),
    pytest.param(IcebergLake, ("day(day)", "truncate(2, region)"), id="iceberg-days"),
]


@pytest.mark.parametrize(("kind", "by"), CASES)
def test_rows_move_between_partitions(
    kind: type[Lake], by: tuple[str, ...], tmp_path: Path
) -> None:
    lake, model = laid_out(kind, tmp_path, *by, parameters="&checkpoint-interval=3"), Sales(5)
    for _ in range(2):
        lake.open()
        for _ in range(2):
            lake.step(SALES, model.changes(25), model.changes(25))
        assert equal(lake, model)
    check_deletes(lake)
    before = sorted(map(json.dumps, map(_jsonable, partitions(lake))))
    assert len(set(before)) > 2
    assert sum(n for _, n in lake.sink.upkeep().optimize(1)) > 2
    after = sorted(map(json.dumps, map(_jsonable, partitions(lake))))
    assert len(after) == len(set(after)) and set(after) <= set(before)
    assert equal(lake, model)
    lake.open()
    lake.step(SALES, model.changes(40))
    assert equal(lake, model)
    if isinstance(lake, IcebergLake) and by == ("region",):
        chosen = lake.iceberg().scan(row_filter="region == 'north'")
        assert {r["region"] for r in chosen.to_arrow().to_pylist()} == {"north"}
        whole = len(list(lake.iceberg().scan().plan_files()))
        assert 0 < len(list(chosen.plan_files())) < whole
    if kind is Lake:
        actions = pa.table(lake.delta().get_add_actions()).to_pylist()
        for action in actions:
            held = pq.read_table(tmp_path / "shop/orders" / action["path"], columns=list(by))
            (only,) = {tuple(row.values()) for row in held.to_pylist()}
            assert only == tuple(action["partition"][name] for name in by)


def check_deletes(lake: Lake) -> None:
    """Engines look for deletes in the partition of a data file only; pyiceberg looks everywhere."""
    if not isinstance(lake, IcebergLake):
        return
    files = lake.iceberg().inspect.files().to_pylist()
    data = {f["file_path"]: f["partition"] for f in files if f["content"] == 0}
    deletes = [f for f in files if f["content"] == 1]
    assert len(deletes) > 2
    for file in deletes:
        named = pq.read_table(file["file_path"].removeprefix("file://"), columns=["file_path"])
        for place in set(named.column(0).to_pylist()):
            assert data[place] == file["partition"]


def _jsonable(values: dict[str, Any]) -> dict[str, str]:
    return {k: str(v) for k, v in values.items()}


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("kind", [Lake, IcebergLake], ids=["delta", "iceberg"])
@pytest.mark.parametrize("step", ["name lake files", "lake files put", "publish lake progress"])
def test_killed_and_carried_out_again(kind: type[Lake], step: str, tmp_path: Path) -> None:
    lake, model = laid_out(kind, tmp_path, "region"), Sales(5)
    lake.open()
    lake.step(SALES, model.changes(30))
    plan, content = lake.plan(SALES, 2), [model.changes(20), model.changes(20)]

    def end(name: str) -> None:
        if name == step:
            raise Killed

    with pytest.raises(Killed), watched(end):
        lake.publish(plan, SALES, lake.write(plan, SALES, content))
    lake.open()
    lake.publish(plan, SALES, lake.write(plan, SALES, content))
    assert equal(lake, model)
    assert list(lake.sink.upkeep().orphans()) == []


@pytest.mark.parametrize("kind", [Lake, IcebergLake], ids=["delta", "iceberg"])
def test_a_plan_that_is_given_up_leaves_nothing(kind: type[Lake], tmp_path: Path) -> None:
    lake, model = laid_out(kind, tmp_path, "region"), Sales(5)
    lake.open()
    lake.step(SALES, model.changes(30))
    plan = lake.plan(SALES)
    before = sorted(tmp_path.rglob("*.parquet"))
    lake.write(plan, SALES, [Sales(6).changes(20)])
    assert len(sorted(tmp_path.rglob("*.parquet"))) > len(before)
    assert not lake.sink.discard(plan)
    assert sorted(tmp_path.rglob("*.parquet")) == before
    lake.step(SALES, model.changes(20))
    assert equal(lake, model)


@pytest.mark.parametrize("kind", [Lake, IcebergLake], ids=["delta", "iceberg"])
def test_another_rule_needs_a_table_that_is_filled_anew(kind: type[Lake], tmp_path: Path) -> None:
    lake, model = laid_out(kind, tmp_path, "region"), Sales(5)
    lake.open()
    lake.step(SALES, model.changes(30))
    commits = lake.commits()
    for other in ((), ("day",)):
        lake.rule = other
        lake.open()
        with pytest.raises(BadLayout, match=r"is partitioned by region, and its rule asks for"):
            lake.plan(SALES)
    assert lake.commits() == commits
    for other in (("day",), (), ("region",)):
        lake.rule = other
        lake.open(continues=False)
        model = Sales(6)
        lake.step(SALES, model.changes(30))
        assert equal(lake, model)
        assert names(lake) == other
        lake.step(SALES, model.changes(30))
        assert equal(lake, model)


@pytest.mark.parametrize("kind", [Lake, IcebergLake], ids=["delta", "iceberg"])
def test_ddl_of_the_column(kind: type[Lake], tmp_path: Path) -> None:
    lake, model = laid_out(kind, tmp_path, "region"), Sales(5)
    lake.open()
    lake.step(SALES, model.changes(30))
    columns = SALES.columns
    changed = {
        "is dropped": [c for c in columns if c.name != "region"],
        "is renamed to 'area'": [
            replace(c, name="area") if c.name == "region" else c for c in columns
        ],
        "becomes binary": [
            replace(c, type=SqlType("varbinary", length=9)) if c.name == "region" else c
            for c in columns
        ],
    }
    commits, rows = lake.commits(), lake.rows()
    for words, after in changed.items():
        wanted = "changed to varbinary" if words == "becomes binary" else words
        change = lake.change(DdlKind.ADD_COLUMN, with_columns(SALES, *after))
        target = lake.sink.target_at("shop/orders")
        note = lake.sink._note(lake.plan(SALES))
        with pytest.raises(SchemaChangeRefused, match=wanted):
            target.commit_schema(note, change, lake.sink._ownership.fenced)
    assert (lake.commits(), lake.rows()) == (commits, rows)
    # Another column may come and go.
    more = with_columns(SALES, *columns, Column(9, "more", SqlType("int"), False, filled=7))
    lake.step(SALES, model.changes(5), changes=[lake.change(DdlKind.ADD_COLUMN, more)])
    assert {r["more"] for r in lake.rows()} == {7}
    assert names(lake) == ("region",)


@pytest.mark.parametrize("resets", [False, True], ids=["create", "reset"])
def test_no_column_of_a_table_that_begins_anew_has_the_number_of_another(
    resets: bool, tmp_path: Path
) -> None:
    """Readers take older partition specs, and bounds in older manifests, with the new schema."""
    lake = laid_out(IcebergLake, tmp_path, "day(at)")
    kinds = {c.name: c.type for c in SALES.columns}
    first = table(*((name, kinds[name]) for name in ("id", "at", "note")))
    lake.open()
    row = {"id": 1, "at": "2024-02-29 00:00:00", "note": "n" * 8}
    lake.step(first, [(Op.INSERT, None, row)])
    # One column moves, one has another type, one is new.
    kinds["at"] = SqlType("date")
    second = table(*((name, kinds[name]) for name in ("id", "note", "region", "at")), version=200)
    if resets:
        lake.micro_batch = 0
        lake.open(continues=False)
    else:
        lake.step(first, changes=[replace(lake.change(DdlKind.DROP_TABLE, None), table=first.id)])
        lake.step(first, changes=[lake.change(DdlKind.CREATE_TABLE, second)])
    new = {"id": 2, "note": "x", "region": "north", "at": "2024-03-01"}
    lake.step(second, [(Op.INSERT, None, new)])
    assert lake.rows() == [{**new, "at": dt.date(2024, 3, 1)}]
    metadata = lake.iceberg().metadata
    numbers = {(f.field_id, f.name, f.field_type) for s in metadata.schemas for f in s.fields}
    assert sorted((number, name) for number, name, _ in numbers) == [
        (1, "id"),
        (2, "at"),
        (3, "note"),
        (4, "region"),
        (5, "at"),
    ]
    assert len(metadata.partition_specs) == 2
    for spec in metadata.partition_specs:
        spec.check_compatible(metadata.schema(), allow_missing_fields=True)


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    masks = {
        "transform": {"masks": [{"matcher": ["shop.*"], "columns": ["reg*"], "action": "null"}]}
    }
    for kind, by, config, words in (
        (Lake, ("day(at)",), None, "needs a generated column"),
        (Lake, ("town",), None, "has no column 'town'"),
        (Lake, ("region",), masks, "is masked"),
        (IcebergLake, ("hour(day)",), None, "cannot partition by a column of the type date"),
        (IcebergLake, ("week(at)",), None, "no transform 'week' is known"),
        (IcebergLake, ("id", "region", "at", "day", "note"), None, "no column beside those"),
    ):
        with pytest.raises(BadLayout, match=words):
            laid_out(kind, tmp_path / "x", *by, config=config).sink.check_tables([SALES])
    assert not (tmp_path / "x").exists()
    empty: Changes = [(Op.INSERT, None, {**Sales(1).image((1,)), "region": ""})]
    delta, ice = (laid_out(k, tmp_path / k.__name__, "region") for k in (Lake, IcebergLake))
    delta.open()
    with pytest.raises(EncodeError, match="is NULL to readers of Delta"):
        delta.step(SALES, empty)
    ice.open()
    ice.step(SALES, empty)
    assert [r["region"] for r in ice.rows()] == [""]


def test_files_of_others_may_lack_the_column(tmp_path: Path) -> None:
    """As Spark's OPTIMIZE writes them: what a partition has is in the log only."""
    by_key = table(*((c.name, c.type) for c in SALES.columns), key=("id", "region"))
    lake, model = laid_out(Lake, tmp_path, "region"), Sales(5)
    lake.open()
    rows = [model.image((n,)) | {"region": f"r{n % 2}"} for n in range(9)]
    lake.step(by_key, [(Op.INSERT, None, row) for row in rows])
    for file in (tmp_path / "shop/orders").glob("part-*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(["region"]), file)
    for run in (tmp_path / "shop/orders/_rowferry").glob("*.run"):
        run.unlink()
    lake.open()
    lake.step(by_key, [(Op.UPDATE, rows[3], rows[3] | {"note": "new"}), (Op.DELETE, rows[4], None)])
    list(lake.sink.upkeep().optimize(1))
    left = {row["id"]: (row["region"], row["note"]) for row in lake.rows()}
    expected = {row["id"]: (row["region"], row["note"]) for row in rows if row["id"] != 4}
    assert left == expected | {3: ("r1", "new")}
