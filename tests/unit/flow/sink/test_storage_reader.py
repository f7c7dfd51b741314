from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from storage_kit import (
    EMPLOYEE,
    NEXT_DAY,
    NOON,
    OWNER,
    Feed,
    files_in,
    name,
    opened,
    segment,
    slice_of,
    storage,
    table,
    ts,
)

from rowferry.change.chunk import DdlKind, SchemaChange, Watermark
from rowferry.change.table import TableId
from rowferry.errors import SinkDamaged
from rowferry.flow.sink.storage.expire import expire
from rowferry.flow.sink.storage.reader import StoredData, StoredSchema, read_storage

SLICE = slice_of(EMPLOYEE)
DAY = "hr/employee/100/2023-05-09"


def told(root: Path) -> list[str]:
    found = []
    for step in read_storage(root):
        match step:
            case StoredSchema():
                found.append(
                    f"{step.document.database}.{step.document.table} {step.document.query}"
                )
            case StoredData():
                assert step.schema.version == step.directory.version
                assert files_in(root)[step.path] == step.content
                found.append(f"{step.directory.path} {step.number} {step.content.decode()}")
            case Watermark():
                found.append(f"up to {step.commit_ts}")
    return found


def test_an_empty_or_missing_directory(tmp_path: Path) -> None:
    assert told(tmp_path) == []
    assert told(tmp_path / "missing") == []


def test_replay_order(tmp_path: Path) -> None:
    newer = table(version=NOON + 2)
    zoo = table("zoo")
    feed = opened(tmp_path, EMPLOYEE, newer, zoo)
    create = SchemaChange(50, DdlKind.CREATE_DATABASE, "CREATE DATABASE hr", TableId("hr", ""))
    alter = SchemaChange(NOON + 2, DdlKind.ADD_COLUMN, "ALTER", newer.id, newer)
    drop = SchemaChange(NEXT_DAY + 9, DdlKind.DROP_TABLE, "DROP", zoo.id)
    feed.run(changes=[create], watermark=50)
    parts = (slice_of(EMPLOYEE, 14), slice_of(EMPLOYEE, 13), slice_of(zoo))
    feed.run(segment(0, *parts), segment(1, *parts), content=b"a", changes=[alter])
    feed.run(segment(0, slice_of(newer, 13), at=NEXT_DAY), content=b"b")
    feed.run(segment(0, slice_of(zoo), at=NEXT_DAY), content=b"c", changes=[drop])
    feed.run(watermark=NEXT_DAY + 9)
    assert told(tmp_path) == [
        "hr. CREATE DATABASE hr",
        "hr.employee ",
        "hr.zoo ",
        "hr/employee/100/13/2023-05-09 1 a",
        "hr/employee/100/13/2023-05-09 2 a",
        "hr/employee/100/14/2023-05-09 1 a",
        "hr/employee/100/14/2023-05-09 2 a",
        "hr/zoo/100/2023-05-09 1 a",
        "hr/zoo/100/2023-05-09 2 a",
        "hr/zoo/100/2023-05-10 1 c",
        "hr.employee ALTER",
        f"hr/employee/{NOON + 2}/13/2023-05-10 1 b",
        "hr.zoo DROP",
        f"up to {NEXT_DAY + 9}",
    ]


def test_nodes_of_ticdc_count_their_own_files(tmp_path: Path) -> None:
    """As it does where `scheduler.enable-table-across-nodes` is on."""
    feed = opened(tmp_path, EMPLOYEE)
    feed.run(segment(0, SLICE), segment(1, SLICE), content=b"a")
    day = tmp_path / DAY
    nodes = {"1f-2": 1, "9a-0": 2}
    for node, count in nodes.items():
        for number in range(1, 4):  # those above the index are not visible
            (day / f"CDC_{node}_{number:06d}.csv").write_text(f"{node}#{number}")
        (day / f"meta/CDC_{node}.index").write_text(f"CDC_{node}_{count:06d}.csv\n")
    (day / "000003.csv").write_text("a stranger's")
    found = [line for line in told(tmp_path) if line.startswith(DAY)]
    own = [f"{DAY} 1 a", f"{DAY} 2 a"]
    assert found == [*own, f"{DAY} 1 1f-2#1", f"{DAY} 1 9a-0#1", f"{DAY} 2 9a-0#2"]
    (day / "CDC_9a-0_000001.csv").unlink()
    with pytest.raises(SinkDamaged, match=r"no data file of number 1, but .*CDC_9a-0\.index"):
        told(tmp_path)


def test_the_schema_that_comes_with_data(tmp_path: Path) -> None:
    opened(tmp_path).run(segment(0, SLICE))
    data = [s for s in read_storage(tmp_path) if isinstance(s, StoredData)]
    schema = data[0].schema
    assert schema.id == EMPLOYEE.id
    assert schema.primary_key == ("Id",)
    assert [(c.name, c.type.name, c.nullable) for c in schema.columns] == [
        ("Id", "int", False),
        ("LastName", "varchar", True),
    ]


def test_only_what_the_index_counts_is_seen(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    feed.run(segment(0, SLICE), content=b"seen", watermark=None)
    feed.write(feed.plan(segment(0, SLICE), segment(1, SLICE, at=NEXT_DAY)), b"unseen")
    assert told(tmp_path) == ["hr.employee ", f"{DAY} 1 seen"]


def test_a_missing_number_is_told(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    feed.run(segment(0, SLICE), segment(1, SLICE), segment(2, SLICE))
    (tmp_path / DAY / name(2)).unlink()
    with pytest.raises(SinkDamaged, match="no data file of number 2.*counts 3"):
        told(tmp_path)


def test_a_version_without_schema_file_is_told(tmp_path: Path) -> None:
    opened(tmp_path).run(segment(0, SLICE))
    for path in (tmp_path / "hr/employee/meta").iterdir():
        path.unlink()
    with pytest.raises(SinkDamaged, match="version 100 of hr.employee has no schema file"):
        told(tmp_path)


@pytest.mark.parametrize("file", ["metadata", f"{DAY}/meta/CDC.index"])
def test_damage_is_told(tmp_path: Path, file: str) -> None:
    opened(tmp_path).run(segment(0, SLICE))
    (tmp_path / file).write_text("x")
    with pytest.raises(SinkDamaged, match=file):
        told(tmp_path)


def test_numbers_that_outgrow_their_width_are_found(tmp_path: Path) -> None:
    feed = opened(tmp_path, query="file-index-digit=6")
    feed.run(segment(0, SLICE), content=b"1")
    home = tmp_path / DAY
    home.joinpath("CDC0000002.csv").write_bytes(b"2")  # as if 2 had outgrown six digits
    home.joinpath("meta/CDC.index").write_text("CDC0000002.csv\n")
    assert f"{DAY} 2 2" in told(tmp_path)


# --- expiry ---------------------------------------------------------------------------------------


def test_expired_days_go_when_the_cron_text_says_so(tmp_path: Path) -> None:
    clock = [datetime(2023, 5, 9, 12, tzinfo=UTC)]
    config = {"sink": {"cloud-storage-config": {"file-expiration-days": 2}}}
    other = table("other")
    feed = Feed(storage(tmp_path, config, now=lambda: clock[0]), EMPLOYEE, other)
    feed.sink.open(OWNER, None)
    days = [ts(f"2023-05-{day:02}T12:00:00") for day in (9, 10, 11, 12)]
    for day in days[:3]:
        feed.run(segment(0, SLICE, slice_of(other, 7), at=day), watermark=day)
    late = days[3]
    feed.run(segment(0, SLICE, at=late), watermark=late)
    everything = files_in(tmp_path)
    assert any("2023-05-09" in path for path in everything)  # two in the morning has not come

    clock[0] = datetime(2023, 5, 12, 2, tzinfo=UTC)
    feed.run(watermark=late + 1)
    kept = {p: c for p, c in everything.items() if "2023-05-09" not in p}
    kept["metadata"] = f'{{"checkpoint-ts":{late + 1}}}'.encode()
    assert files_in(tmp_path) == kept
    assert not list(tmp_path.rglob("2023-05-09"))
    assert told(tmp_path)[-1] == f"up to {late + 1}"

    feed.run(watermark=ts("2023-06-01T00:00:00"))  # not before the next morning
    assert any("2023-05-10" in path for path in files_in(tmp_path))


def test_an_index_goes_before_the_files_that_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"sink": {"cloud-storage-config": {"file-expiration-days": 2}}}
    feed = opened(tmp_path, config=config)
    feed.run(segment(0, SLICE))
    gone: list[str] = []
    real = feed.sink._files.delete

    def delete(path: str) -> None:
        real(path)
        gone.append(path)
        told(tmp_path)  # readable at every moment

    monkeypatch.setattr(feed.sink._files, "delete", delete)
    expire(feed.sink._files, feed.sink._ownership, feed.sink.settings, ts("2023-06-01T00:00:00"))
    assert {f"{DAY}/meta/CDC.index", f"{DAY}/{name(1)}"} == set(gone)


@pytest.mark.parametrize("days", [700_000, 730_000, 737_000, 999_999, 10**10])
def test_nothing_is_older_than_thousands_of_years(tmp_path: Path, days: int) -> None:
    clock = [datetime(2023, 5, 9, 12, tzinfo=UTC)]
    config = {"sink": {"cloud-storage-config": {"file-expiration-days": days}}}
    feed = opened(tmp_path, config=config, now=lambda: clock[0])
    feed.run(segment(0, SLICE))
    everything = files_in(tmp_path)
    clock[0] = datetime(2023, 5, 10, 2, tzinfo=UTC)
    feed.run(watermark=NOON)
    assert files_in(tmp_path) == everything


@pytest.mark.parametrize(("hours", "is_kept"), [("00:30:00", True), ("01:00:00", False)])
def test_days_before_the_checkpoint_have_24_hours(
    tmp_path: Path, hours: str, is_kept: bool
) -> None:
    """Of the day before, an hour is missing in Berlin."""
    config = {"sink": {"cloud-storage-config": {"file-expiration-days": 1}}}
    feed = opened(tmp_path, config=config, query="time-zone=Europe/Berlin")
    feed.run(segment(0, SLICE, at=ts("2023-03-25T12:00:00+01:00")))
    checkpoint = ts(f"2023-03-27T{hours}+02:00")
    expire(feed.sink._files, feed.sink._ownership, feed.sink.settings, checkpoint)
    assert any("2023-03-25" in path for path in files_in(tmp_path)) == is_kept


def test_nothing_expires_unless_asked(tmp_path: Path) -> None:
    feed = opened(tmp_path, now=lambda: datetime(2033, 1, 1, 2, tzinfo=UTC))
    feed.run(segment(0, SLICE), watermark=ts("2033-01-01T00:00:00"))
    assert f"{DAY}/{name(1)}" in files_in(tmp_path)
