"""P8: each rule of the storage layout passes a sound directory and fails a broken one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_scenario import ACCOUNT, FULL, account, bank, chunk

from rowferry.change.chunk import Rows
from rowferry.testing.validators import DeliveryOracle, StorageLayout


class Writer:
    """Writes what a storage sink writes; a data file's text is a range of changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "bank/account/1/2024-01-01"
        (self.directory / "meta").mkdir(parents=True)

    def path(self, number: int) -> Path:
        return self.directory / f"CDC{number:020d}.csv"

    def data(self, number: int, first: int, end: int) -> None:
        self.path(number).write_text(f"{first},{end}")

    def index(self, number: int) -> None:
        (self.directory / "meta/CDC.index").write_text(f"{self.path(number).name}\n")

    def metadata(self, commit_ts: int) -> None:
        (self.root / "metadata").write_text(json.dumps({"checkpoint-ts": commit_ts}))

    def discards(self, count: int) -> None:
        (self.root / "rowferry.owner").write_text(json.dumps({"discards": count}))


def decode(path: Path) -> Iterator[Rows]:
    first, end = map(int, path.read_text().split(","))
    yield chunk(account(), bank().changes(ACCOUNT)[first:end])


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    found = Writer(tmp_path)
    found.data(1, 0, 4)  # up to 20
    found.data(2, 4, 6)  # up to 40
    found.index(2)
    found.metadata(40)
    return found


@pytest.fixture
def layout(writer: Writer) -> StorageLayout:
    found = StorageLayout(writer.root, DeliveryOracle(bank(), FULL), decode)
    found.observe()
    assert found.failures == []
    return found


def failure(layout: StorageLayout) -> str:
    layout.observe()
    [words] = layout.failures
    assert words.startswith("P8: ")
    return words


def test_a_sound_directory_that_grows(writer: Writer, layout: StorageLayout):
    writer.data(4, 8, 9)  # tasks finish in any order; nothing above the index counts yet
    layout.observe()
    writer.data(3, 6, 8)
    writer.index(4)
    layout.observe()
    writer.metadata(70)
    layout.observe()
    layout.finish()
    assert layout.failures == []
    assert layout.unchecked == []


def test_a_gap_in_the_numbers(writer: Writer, layout: StorageLayout):
    writer.data(4, 6, 9)
    writer.index(4)
    assert "no file has number 3 (index: 4)" in failure(layout)


def test_an_index_without_its_file(writer: Writer, layout: StorageLayout):
    writer.index(3)
    assert "no file has number 3" in failure(layout)


def test_changed_content(writer: Writer, layout: StorageLayout):
    writer.data(2, 4, 5)
    assert "CDC00000000000000000002.csv got other content" in failure(layout)


def test_changed_content_behind_equal_file_times_is_found_at_the_end(
    writer: Writer, layout: StorageLayout
):
    stat = writer.path(2).stat()
    writer.path(2).write_text("4,5")
    os.utime(writer.path(2), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    layout.observe()
    assert layout.failures == []
    layout.finish()
    assert "got other content" in layout.failures[0]


def test_a_file_that_goes(writer: Writer, layout: StorageLayout):
    writer.path(1).unlink()
    layout.observe()
    assert any("is gone" in f for f in layout.failures)


def test_unpublished_files_change_only_with_a_discard(writer: Writer, layout: StorageLayout):
    writer.data(3, 6, 8)
    layout.observe()
    writer.discards(1)
    writer.data(3, 6, 7)
    layout.observe()
    assert layout.failures == []
    writer.data(3, 6, 9)
    assert "got other content" in failure(layout)


def test_a_discard_may_be_seen_before_its_files_go(writer: Writer, layout: StorageLayout):
    writer.data(3, 6, 8)
    layout.observe()
    writer.discards(1)
    layout.observe()
    writer.path(3).unlink()
    layout.observe()
    assert layout.failures == []
    writer.data(3, 6, 7)
    layout.observe()
    writer.data(3, 6, 9)
    assert "got other content" in failure(layout)


def test_a_discarded_file_may_be_made_anew_and_published_between_two_looks(
    writer: Writer, layout: StorageLayout
):
    writer.data(3, 6, 8)
    layout.observe()
    writer.discards(1)
    writer.data(3, 6, 7)
    writer.index(3)
    layout.observe()
    assert layout.failures == []
    writer.data(3, 6, 8)
    assert "got other content" in failure(layout)


def test_files_may_be_compressed(tmp_path: Path):
    """Their names end in one more part."""
    writer = Writer(tmp_path)
    (writer.directory / "CDC00000000000000000001.csv.gz").write_bytes(b"1")
    (writer.directory / "meta/CDC.index").write_text("CDC00000000000000000001.csv.gz\n")
    layout = StorageLayout(tmp_path)
    layout.observe()
    assert layout.failures == []
    (writer.directory / "CDC00000000000000000001.csv.gz").write_bytes(b"2")
    assert "got other content" in failure(layout)


def test_published_files_do_not_change_even_with_a_discard(writer: Writer, layout: StorageLayout):
    writer.discards(1)
    writer.data(2, 4, 5)
    assert "got other content" in failure(layout)


def test_an_index_that_goes_back(writer: Writer, layout: StorageLayout):
    writer.index(1)
    assert "CDC.index went back from 2 to 1" in failure(layout)


def test_an_index_that_is_damaged(writer: Writer, layout: StorageLayout):
    (writer.directory / "meta/CDC.index").write_text("CDC")
    layout.observe()
    assert any("not a data file's name" in f for f in layout.failures)


def test_metadata_that_goes_back(writer: Writer, layout: StorageLayout):
    writer.metadata(39)
    assert "metadata went back from 40 to 39" in failure(layout)


def test_metadata_that_is_torn_or_gone(writer: Writer, layout: StorageLayout):
    (writer.root / "metadata").write_text('{"checkpoint')
    assert "cannot be read" in failure(layout)
    (writer.root / "metadata").unlink()
    layout.observe()
    assert "metadata is gone" in layout.failures[1]


def test_metadata_ahead_of_the_files(writer: Writer, layout: StorageLayout):
    writer.metadata(50)
    assert "lost: bank.account (3,) delete at 50" in failure(layout)


def test_metadata_ahead_of_the_index(writer: Writer, layout: StorageLayout):
    writer.data(3, 6, 7)
    writer.metadata(50)
    assert "lost" in failure(layout)


def test_rows_that_stand_twice(writer: Writer, layout: StorageLayout):
    writer.data(3, 5, 7)
    writer.index(3)
    assert "repeated: bank/account/1/2024-01-01/CDC00000000000000000003.csv@1" in failure(layout)
    lenient = StorageLayout(writer.root, DeliveryOracle(bank(), FULL), decode, allow_repeats=True)
    lenient.finish()
    assert lenient.failures == []


def test_two_files_of_one_number(writer: Writer, layout: StorageLayout):
    writer.path(2).with_suffix(".json").write_text("0,0")
    assert "number 2 has two files" in failure(layout)


def test_without_history_it_says_what_is_not_checked(writer: Writer):
    layout = StorageLayout(writer.root)
    layout.finish()
    assert layout.failures == []
    assert "no history" in layout.unchecked[0]
