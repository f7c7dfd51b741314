"""The whole check: list, read the small files, then every data file."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.inflate import inflated
from rowferry.downstream.storage_check.canal_rows import canal_lines
from rowferry.downstream.storage_check.csv_rows import csv_lines
from rowferry.downstream.storage_check.expected import ExpectedLayout
from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.downstream.storage_check.layout import (
    DataDirectory,
    DataPath,
    LayoutReader,
    TableFiles,
    parse_index,
    survey,
)
from rowferry.downstream.storage_check.lines import Lines
from rowferry.downstream.storage_check.parquet_rows import parquet_lines
from rowferry.downstream.storage_check.rules import Rule, StorageFindings
from rowferry.downstream.storage_check.schema import TableForm, check_schema

Tell = Callable[[int, int], None]

_LOGICAL_BITS = 18
_QUARTER_MS = 15 * 60 * 1000  # time zones differ by quarters of an hour
_DATE_FORMS = {4: "%Y", 7: "%Y-%m", 10: "%Y-%m-%d"}
_READERS = {
    FileKind.CSV: csv_lines,
    FileKind.CANAL_JSON: canal_lines,
    FileKind.PARQUET: parquet_lines,
}
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_MOST_FILE = 2 << 30  # bytes, of a file whose like has 512 MiB at most, and a row


def check_storage(
    reader: LayoutReader, expected: ExpectedLayout, tell: Tell = lambda done, total: None
) -> StorageFindings:
    """Check everything below a prefix; `tell` hears how many data files are done, of how many.

    No more than one data file is in memory at a time.
    """
    findings = StorageFindings()
    tree = survey(reader, expected, findings)
    checkpoint = _metadata(reader, tree.has_metadata, findings)
    if not expected.carries_commit_ts:
        gap = "rows carry no commit-ts: order, dates, versions and checkpoint"
        if expected.kind is FileKind.CANAL_JSON:
            gap = "rows carry their millisecond only: order and versions inside one"
        findings.leave_unchecked(gap)
    total, done = tree.data_files, 0
    for table in tree.tables:
        forms = _schemas(reader, table, findings)
        for directory in table.directories:
            _index(reader, directory, findings)
            check = _DirectoryCheck(table, directory, forms, expected, findings, checkpoint)
            for file in directory.files:
                check.file(reader, file)
                done += 1
                tell(done, total)
    return findings


def _metadata(reader: LayoutReader, is_there: bool, findings: StorageFindings) -> int | None:
    stored = reader.get("metadata") if is_there else None
    if stored is None:
        findings.add(Rule.METADATA, "metadata", "it is not there")
        return None
    try:
        form = json.loads(stored.data)
    except (ValueError, RecursionError):
        form = None
    stamp = form.get("checkpoint-ts") if isinstance(form, dict) else None
    if type(stamp) is not int or not 0 <= stamp < 1 << 64:
        findings.add(Rule.METADATA, "metadata", f"it is {stored.data[:60]!r}")
        return None
    return stamp


def _schemas(
    reader: LayoutReader, table: TableFiles, findings: StorageFindings
) -> dict[int, TableForm | None]:
    """Return a table's versions with their columns; None: the file is there and is not readable."""
    forms: dict[int, TableForm | None] = {}
    for at in table.schemas:
        stored = reader.get(at.path)
        form = check_schema(stored.data, at, table, findings) if stored is not None else None
        known = forms.get(at.version)
        if form is not None and form.columns and known is not None and known.columns:
            words = f"version {at.version} has more than one schema file"
            findings.add(Rule.SCHEMA_MISSING, at.path, words)
        if at.version not in forms or (form is not None and form.columns):
            forms[at.version] = form
    return forms


def _index(reader: LayoutReader, here: DataDirectory, findings: StorageFindings) -> None:
    path = f"{here.path}/meta/CDC.index"
    stored = reader.get(path) if here.has_index else None
    if stored is None:
        words = "data files that no index counts; a feed that writes now leaves such for a moment"
        findings.add(Rule.INDEX_MISSING, here.path, words)
        return
    named = parse_index(stored.data)
    if named is None or int(named[1]) == 0:
        findings.add(Rule.INDEX_CONTENT, path, f"it is {stored.data[:60]!r}")
        return
    last, numbers = int(named[1]), [f.number for f in here.files]
    names = {f.number: f.name for f in here.files}
    if last in names and names[last] != named[0]:
        findings.add(Rule.INDEX_CONTENT, path, f"it names {named[0]}, the file is {names[last]}")
    there, listed = set(numbers), max(numbers, default=0)
    if last > listed and reader.get(f"{here.path}/{named[0]}") is not None:
        last = listed  # a feed is at work: it has published more since the names were listed
    missing = list(islice((n for n in range(1, last + 1) if n not in there), 5))
    if missing:
        few = ", ".join(map(str, missing))
        words = f"no file has number {few}; the index says {last}"
        findings.add(Rule.GAP_IN_NUMBERS, here.path, words)
    above = [n for n in numbers if n > last]
    if above:
        words = (
            f"the index says {last}, and there is {names[above[-1]]}; "
            "a feed that writes now, or was killed, leaves such until it has published"
        )
        findings.add(Rule.INDEX_BEHIND_DATA, path, words)
    for one, two in pairwise(numbers):
        if one == two:
            findings.add(Rule.FILE_NAME, here.path, f"two files have the number {one}")


class _DirectoryCheck:
    """The data files of one directory, in order."""

    def __init__(
        self,
        table: TableFiles,
        here: DataDirectory,
        forms: dict[int, TableForm | None],
        expected: ExpectedLayout,
        findings: StorageFindings,
        checkpoint: int | None,
    ) -> None:
        self._table, self._here, self._expected = table, here, expected
        self._findings, self._checkpoint = findings, checkpoint
        self._form = forms.get(here.version)
        self._next = min((v for v in forms if v > here.version), default=None)
        self._last: tuple[int, bool] | None = None  # commit-ts, and whether its rows are inserts
        if here.version not in forms or (self._form is not None and not self._form.columns):
            self._form = None
            words = f"version {here.version} has no schema file with columns"
            findings.add(Rule.SCHEMA_MISSING, here.path, words)

    def file(self, reader: LayoutReader, file: DataPath) -> None:
        """Check one file's rows; of each rule the first row that breaks it is told."""
        self._findings.files += 1
        stored = reader.get(file.path)
        if stored is None or self._form is None:
            return
        self._findings.bytes += len(stored.data)
        try:
            data = _plain(stored.data, file.compression)
        except (OSError, pa.ArrowInvalid) as err:
            words = f"cannot be unpacked: {str(err).splitlines()[0]}"
            self._findings.add(Rule.ROW_FIT, file.path, words)
            return
        seen: set[Rule] = set()
        is_first = True
        for lines in _READERS[self._expected.kind](data, self._table, self._form, self._expected):
            self._findings.rows += lines.count
            for fault in lines.split():
                self._note(fault.rule, file, fault.row, fault.words, seen)
            if lines.commit_ts is not None and lines.count:
                self._times(lines, lines.commit_ts, file, seen, is_first)
                is_first = False

    def _note(self, rule: Rule, file: DataPath, row: int, words: str, seen: set[Rule]) -> None:
        if rule not in seen:
            seen.add(rule)
            self._findings.add(rule, file.path, f"row {row}: {words}")

    def _times(
        self,
        lines: Lines,
        stamps: npt.NDArray[np.uint64],
        file: DataPath,
        seen: set[Rule],
        is_first: bool,
    ) -> None:
        def note(rule: Rule, wrong: npt.NDArray[np.bool_], words: str) -> None:
            if wrong.any():
                place = int(np.argmax(wrong))
                text = f"commit-ts {int(stamps[place])} {words}"
                self._note(rule, file, lines.first_row + place, text, seen)

        before = stamps[:1] if self._last is None else np.array([self._last[0]], np.uint64)
        previous = np.concatenate([before, stamps[:-1]])
        note(Rule.ROW_ORDER, stamps < previous, "comes after a larger one")
        # Where only milliseconds are told, a version is compared by its own.
        shift = np.uint64(0 if self._expected.carries_commit_ts else _LOGICAL_BITS)
        times = stamps >> shift
        wrong = times < np.uint64(self._here.version >> int(shift))
        note(Rule.ROW_VERSION, wrong, f"is below version {self._here.version}")
        if self._next is not None:
            late = times > np.uint64(self._next >> int(shift))
            note(Rule.ROW_VERSION, late, f"is above the next version {self._next}")
        if self._checkpoint is not None:
            over = times > np.uint64(self._checkpoint >> int(shift))
            note(Rule.ROWS_ABOVE_CHECKPOINT, over, f"is above checkpoint-ts {self._checkpoint}")
        if self._here.date and self._date_is_certain():
            note(Rule.WRONG_DATE, self._other_dates(stamps), f"is not of {self._here.date}")
        self._transactions(lines, stamps, note, is_first)

    def _transactions(
        self,
        lines: Lines,
        stamps: npt.NDArray[np.uint64],
        note: Callable[[Rule, npt.NDArray[np.bool_], str], None],
        is_first: bool,
    ) -> None:
        """Note a transaction that began in the file before; rows of a snapshot share their time."""
        assert lines.inserts is not None
        begins = stamps == stamps[0]
        only_inserts = bool(lines.inserts[begins].all())
        if self._last is not None and is_first and self._last[0] == stamps[0]:
            certain = self._expected.carries_commit_ts and self._expected.whole_transactions
            if certain and not (only_inserts and self._last[1]):
                note(Rule.SPLIT_TRANSACTION, begins, "is also in the file before")
        ends = stamps == stamps[-1]
        last_inserts = bool(lines.inserts[ends].all())
        if self._last is not None and self._last[0] == stamps[-1]:
            last_inserts = last_inserts and self._last[1]
        self._last = (int(stamps[-1]), last_inserts)

    def _date_is_certain(self) -> bool:
        """Return whether the directory is a date, and not perhaps a partition of four digits."""
        return len(self._here.date) > 4 or self._expected.date_separator == "year"

    def _other_dates(self, stamps: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        quarters = (stamps >> np.uint64(_LOGICAL_BITS)) // np.uint64(_QUARTER_MS)
        distinct, places = np.unique(quarters, return_inverse=True)
        form = _DATE_FORMS[len(self._here.date)]
        wrong = [
            datetime.fromtimestamp(int(q) * _QUARTER_MS / 1000, self._expected.zone).strftime(form)
            != self._here.date
            for q in distinct
        ]
        differs: npt.NDArray[np.bool_] = np.array(wrong, bool)[places]
        return differs


def _plain(data: bytes, compression: str) -> bytes:
    if not compression:
        return data
    return inflated(data, _CODECS[compression], _MOST_FILE)
