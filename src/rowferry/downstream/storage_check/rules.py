"""The rules, one name each, and what was found against them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

MOST_SAMPLES = 20  # kept of each rule: a broken directory may have millions


class Rule(Enum):
    """One rule of the layout: its code, and what must hold.

    `fails` is False where the layout allows the thing, but somebody who reads should know.
    """

    UNKNOWN_OBJECT = ("unknown-object", "every object has a place in the layout")
    PATH_NAME = ("path-name", "only what a path cannot hold is escaped in names, as %XX")
    PATH_VERSION = ("path-version", "below a table, directories are table versions")
    PATH_PARTITION = ("path-partition", "partition directories are numbers, where they may be")
    PATH_DATE = ("path-date", "date directories are as date-separator says, and real dates")
    FILE_NAME = ("file-name", "data files are CDC<number>.<extension>, equal in digits")
    METADATA = ("metadata", '`metadata` is {"checkpoint-ts": <number>}')
    INDEX_MISSING = ("index-missing", "a directory with data files has its CDC.index")
    INDEX_CONTENT = ("index-content", "CDC.index is the name of a data file of its directory")
    INDEX_BEHIND_DATA = ("index-behind-data", "CDC.index names the largest file in use")
    GAP_IN_NUMBERS = ("gap-in-numbers", "numbers run from 1 to the index without a gap")
    SCHEMA_NAME = ("schema-name", "in meta/ are files schema_<version>_<ten digits>.json only")
    SCHEMA_FORM = ("schema-form", "a schema file is JSON with the keys of the layout")
    SCHEMA_PLACE = ("schema-place", "a schema file says the names and version of its path")
    SCHEMA_CHECKSUM = ("schema-checksum", "the number in a schema file's name is its checksum")
    SCHEMA_TOTAL = ("schema-total", "TableColumnsTotal counts TableColumns")
    SCHEMA_COLUMN = ("schema-column", "each column is described as its type needs")
    SCHEMA_TYPE = ("schema-type", "Type is the number of a DDL, 0 without one")
    SCHEMA_MISSING = ("schema-missing", "each table version with data has one schema file")
    ROW_FIT = ("row-does-not-fit-schema", "rows have the columns and types of their version")
    ROW_NAMES = ("row-names", "rows say the database and table of their path")
    ROW_ORDER = ("row-order", "commit-ts never falls, in a file and from file to file")
    ROW_VERSION = ("row-outside-version", "rows are at or above their version, below the next")
    WRONG_DATE = ("wrong-date-directory", "rows are in the directory of their commit date")
    SPLIT_TRANSACTION = ("split-transaction", "with atomicity `table`, one file per transaction")
    ROWS_ABOVE_CHECKPOINT = (
        "rows-above-checkpoint",
        "all is at or below checkpoint-ts, unless a feed is at work",
        False,
    )

    def __init__(self, code: str, promise: str, fails: bool = True) -> None:
        self.code = code
        self.promise = promise
        self.fails = fails


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a rule does not hold."""

    rule: Rule
    path: str
    words: str


@dataclass(slots=True)
class StorageFindings:
    """What a check found; of each rule the first violations are kept, and all are counted.

    Attributes:
        unchecked: what could not be checked, in words.
    """

    counts: Counter[Rule] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    bytes: int = 0

    @property
    def failed(self) -> int:
        """How many violations there are."""
        return sum(count for rule, count in self.counts.items() if rule.fails)

    def add(self, rule: Rule, path: str, words: str) -> None:
        """Take in one violation."""
        self.counts[rule] += 1
        if self.counts[rule] <= MOST_SAMPLES:
            self.violations.append(Violation(rule, path, words))

    def leave_unchecked(self, words: str) -> None:
        """Say once what could not be checked."""
        if words not in self.unchecked:
            self.unchecked.append(words)
