"""What a Delta log keeps of files that were taken out: as much as checkpoints need, packed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from rowferry.flow.sink.lake.data_file import read_parquet
from rowferry.flow.sink.lake.delta import tombstones
from rowferry.flow.sink.lake.delta.checkpoint import checkpoint_bytes
from rowferry.flow.sink.lake.delta.log import DeltaLog, TableState
from rowferry.flow.sink.lake.delta.tombstones import Tombstones, file_key, retention_ms
from rowferry.flow.sink.storage.local_files import LocalFiles

DAY = 86_400_000
OURS = {"name": "id", "type": "long", "metadata": {"rowferry.column": 1}}


def removal(number: int, at_ms: int, vector: int = 0) -> dict[str, Any]:
    action: dict[str, Any] = {
        "path": f"part-{number}.parquet",
        "deletionTimestamp": at_ms,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": {"day": None if number % 2 else "1"},
        "size": 10 + number,
    }
    if vector:
        about = {"storageType": "u", "pathOrInlineDv": f"v{vector}", "offset": vector}
        action["deletionVector"] = {**about, "sizeInBytes": 34, "cardinality": 2}
    return action


def _time(action: dict[str, Any]) -> int:
    return int(action["deletionTimestamp"])


def by_key(removals: Any) -> dict[str, dict[str, Any]]:
    found = list(removals)
    keyed = {file_key(one): one for one in found}
    assert len(keyed) == len(found)  # each once
    return keyed


def checkpointed(given: Tombstones, since_ms: int) -> pa.ChunkedArray:
    content, count = checkpoint_bytes(
        [{"txn": {"appId": "a", "version": 1}}], given.since(since_ms)
    )
    rows = read_parquet(content)
    assert rows.num_rows == count
    return rows.column("remove").drop_null()


@pytest.mark.parametrize("seed", range(8))
def test_they_are_the_last_removals_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "_BLOCK", 4)
    random, given, horizon = Random(seed), Tombstones(), 0
    plain: dict[str, dict[str, Any]] = {}
    for step in range(600):
        one = removal(random.randrange(40), 1000 + step, random.randrange(3))
        key = file_key(one)
        if random.random() < 0.3:
            given.discard(key)
            plain.pop(key, None)
        else:
            given.add(one)
            plain[key] = one
        if random.random() < 0.02:
            before = max(horizon, 1000 + step - random.randrange(200))
            given.forget(before)
            horizon = before
            rows = checkpointed(given, before)
            again = TableState()
            again.apply_rows("remove", rows)
            plain = {k: o for k, o in plain.items() if _time(o) >= before}
            assert by_key(again.removed.values()) == plain
            if random.random() < 0.5:
                given = again.removed
            given.forget(before)
        if random.random() < 0.1:
            found = by_key(given.values())
            # Blocks go as a whole: what is older may be there still.
            late = {k: o for k, o in found.items() if k in plain or horizon <= _time(o)}
            assert late == plain


def test_many_of_them_take_little_memory() -> None:
    given = Tombstones()
    for number in range(20_000):
        given.add(removal(number, number, vector=number + 1))
    packed = sum(block.content.size + block.hashes.nbytes for block in given._blocks)
    assert len(given._recent) < 2000 and packed < 20_000 * 60
    given.forget(15_000)
    assert sum(len(b.hashes) for b in given._blocks) < 7000


def test_removals_of_others_are_read() -> None:
    """They have more columns, in another order, and may lack a time."""
    theirs = pa.array(
        [{"stats": "{}", "path": "a", "deletionTimestamp": None, "size": 5}],
        pa.struct(
            [
                ("stats", pa.string()),
                ("path", pa.string()),
                ("deletionTimestamp", pa.int64()),
                ("size", pa.int64()),
            ]
        ),
    )
    state = TableState()
    state.apply_rows("remove", pa.chunked_array([theirs]))
    (found,) = state.removed.values()
    assert (found["path"], found["deletionTimestamp"]) == ("a", 0)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        (None, 7),
        ("interval 1 week", 7),
        ("interval 30 days", 30),
        ("INTERVAL 48 HOURS", 2),
        ("2 days 24 hours", 3),
        ("interval 1 fortnight", 7),
        ("soon", 7),
        ("", 7),
    ],
)
def test_how_long_a_table_has_removed_files_kept(text: str | None, days: int) -> None:
    settings = {} if text is None else {"delta.deletedFileRetentionDuration": text}
    assert retention_ms(settings) == days * DAY


@pytest.mark.parametrize(("text", "named"), [(None, [13, 1]), ("interval 3 days", [9, 1])])
def test_a_checkpoint_names_what_the_table_wants_and_a_week_more(
    text: str | None, named: list[int], tmp_path: Path
) -> None:
    place = tmp_path / "t/_delta_log"
    place.mkdir(parents=True)
    settings = {} if text is None else {"delta.deletedFileRetentionDuration": text}
    schema = json.dumps({"fields": [OURS]})
    metadata = {"schemaString": schema, "partitionColumns": [], "configuration": settings}
    days = [15, 13, 9, 1] if text else [20, 15, 13, 1]
    now = 100 * DAY
    lines = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
    lines += [{"metaData": {**metadata, "id": "a", "format": {"provider": "parquet"}}}]
    lines += [{"remove": removal(n, now - n * DAY)} for n in days]
    (place / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    files = LocalFiles(tmp_path)
    files.prepare()
    log = DeltaLog(files, "t")
    state = log.read()
    log.write_checkpoint(state, now)
    for one in (state, log.read()):
        assert [(now - r["deletionTimestamp"]) // DAY for r in one.removed.values()] == named
