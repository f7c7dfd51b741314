"""What flows: rows of one table version as Arrow columns, schema changes, watermarks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.change.table import MYSQL, TableId, TableSchema


class Op(IntEnum):
    """What happened to a row; the values of the `op` column."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a chunk was cut out of a longer batch; its other rows have the same layout.

    Such tables have equal columns and indexes, and differ in their names: stages that treat rows of
    both in the same way may do so with the whole.
    """

    whole: pa.RecordBatch
    first: int  # row of the whole


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk: changes of one table version (and one table partition), in log order, as columns.

    `batch` has the fields `op` int8, `commit_ts` uint64, `seq` int64, `before` and `after` structs.
    An insert's `before` and a delete's `after` are null. A struct holds the columns that the image
    has, named as in the table; a column that is missing from the struct is *absent* (partial row
    image), which is not the same as NULL. All rows of a chunk have the same columns present.
    `seq` orders all rows of one micro-batch and is the same on every replay. `half` is set where
    all rows are updates that move a row from one table partition to another: DELETE, this chunk is
    for the partition that they leave; INSERT, for the one that they come to. `key_only` is set by
    readers of messages that hold the handle key alone because the whole row was too large. `cut`
    is set while `batch` is a part of a longer one; who changes the batch leaves it out.
    """

    table: TableSchema
    batch: pa.RecordBatch
    physical_id: int | None = None  # table partition; None for a table without partitions
    key_only: bool = False
    cut: Cut | None = None
    half: Op | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def op(self) -> npt.NDArray[np.int8]:
        """The `op` column as numpy, without a copy."""
        codes: npt.NDArray[np.int8] = self.batch.column("op").to_numpy()
        return codes

    @property
    def commit_ts(self) -> npt.NDArray[np.uint64]:
        """The `commit_ts` column as numpy, without a copy."""
        stamps: npt.NDArray[np.uint64] = self.batch.column("commit_ts").to_numpy()
        return stamps

    @property
    def before(self) -> pa.StructArray:
        """Row images before the change; null on inserts."""
        return self.batch.column("before")

    @property
    def after(self) -> pa.StructArray:
        """Row images after the change; null on deletes."""
        return self.batch.column("after")

    def take(self, wanted: pa.Array | npt.NDArray[Any]) -> Rows:
        """Return the rows at these places, in this order."""
        where = wanted if isinstance(wanted, pa.Array) else pa.array(wanted)
        batch = self.batch.take(where)
        return Rows(self.table, batch, self.physical_id, self.key_only, half=self.half)


def make_rows(
    table: TableSchema,
    op: pa.Array,
    commit_ts: pa.Array,
    seq: pa.Array,
    before: pa.StructArray,
    after: pa.StructArray,
    physical_id: int | None = None,
    half: Op | None = None,
) -> Rows:
    """Put columns together as a chunk; lengths must agree."""
    batch = pa.RecordBatch.from_arrays(
        [op, commit_ts, seq, before, after], names=["op", "commit_ts", "seq", "before", "after"]
    )
    return Rows(table, batch, physical_id, half=half)


class DdlKind(IntEnum):
    """What a schema change does: TiDB's action numbers, which schema files and protocols write."""

    NONE = 0
    CREATE_DATABASE = 1
    DROP_DATABASE = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT = 15
    TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    TABLE_CHARSET = 22
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    DATABASE_CHARSET = 26
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    INDEX_VISIBILITY = 41
    EXCHANGE_PARTITION = 42
    MULTI_SCHEMA_CHANGE = 61
    REORGANIZE_PARTITION = 64
    ALTER_PARTITIONING = 71
    REMOVE_PARTITIONING = 72


@dataclass(frozen=True, slots=True)
class SchemaChange(JsonForm):
    """A DDL: after it, `table` has the definition `schema` (None: it is gone, or a database).

    Attributes:
        table: the name after the change; `table.table` is empty for a database.
        query: the statement; empty where the one before it has made this change, too.
        previous: the name before a rename.
        dropped_table_id: the id whose rows end with this change (DROP, TRUNCATE), else 0.
        target: the name that is written, where table routing gives another one; `query` has it too.
        previous_target: the same for `previous`.
        last_schema: the definition that a dropped table had, where it was known.
        dialect: of the source that it comes from: `query` is in its words. Whoever has another one
            goes by the rest.
        sql_mode: the modes of the session that ran it, as far as they decide what becomes of rows.
    """

    FORM = FormRules(
        brief=True,
        kept=("schema", "previous", "dropped_table_id", "target", "previous_target"),
        late=("target", "previous_target"),
    )

    commit_ts: int
    kind: DdlKind
    query: str
    table: TableId
    schema: TableSchema | None = None
    previous: TableId | None = None
    dropped_table_id: int = 0
    target: TableId | None = None
    previous_target: TableId | None = None
    last_schema: TableSchema | None = None
    dialect: str = MYSQL
    sql_mode: str = ""

    @property
    def written_as(self) -> TableId:
        """The name that codecs and sinks write."""
        return self.target or self.table

    @property
    def takes_tables(self) -> bool:
        """Whether a database goes with all that is in it.

        Not where routing gave the name, or brings tables of others there: then its own tables were
        dropped one by one before.
        """
        return self.kind is DdlKind.DROP_DATABASE and self.target is None and bool(self.query)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything with a commit-ts at or below this one has been delivered."""

    commit_ts: int


Change: TypeAlias = Rows | SchemaChange | Watermark
