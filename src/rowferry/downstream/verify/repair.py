"""Statements that make the tables of side B equal to those of side A, as a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op, make_rows
from rowferry.change.table import Index, TableSchema
from rowferry.downstream.verify.comparison import A, B, Comparison
from rowferry.downstream.verify.work import Differences
from rowferry.errors import BadOption
from rowferry.flow.encode.sql_rows.codec import SqlRows
from rowferry.flow.sink.mysql.sink import MySqlSink
from rowferry.flow.sink.mysql.statements import (
    Around,
    delete_around,
    insert_around,
    joined,
    replace_around,
    upsert_around,
)
from rowferry.mysql.session import Flavour
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.uri import Uri

_ROWS_EACH: Final = 200  # rows of one statement
_HELD: Final = 8 << 20
_HEAD: Final = (
    b"SET NAMES utf8mb4;\n"
    b"SET time_zone = '+00:00', foreign_key_checks = 0;\n"
    b"SET sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,"
    b"NO_BACKSLASH_ESCAPES' /*T![softdelete] , tidb_translate_softdelete_sql = 0 */;\n"
)


class Repair:
    """Collects a table's statements: what must go comes before what must be put."""

    def __init__(self, comparison: Comparison, flavour: Flavour) -> None:
        """Begin with a table that both sides have; `flavour` is that of B's server."""
        self._comparison = comparison
        self._tables = _written(comparison, A), _written(comparison, B)
        target = Uri.parse(f"{flavour.value}://none/", "sink")
        spec = ChangefeedSpec("verify", Uri.parse(NO_PLACE, "source"), target)
        self._codec = SqlRows(spec, MySqlSink.TRAITS)
        self._gone = tempfile.SpooledTemporaryFile(_HELD)
        self._put = tempfile.SpooledTemporaryFile(_HELD)

    def add(self, differences: Differences) -> None:
        """Take in some rows that differ."""
        around = delete_around(self._tables[B])
        for text in self._texts(differences.only[B], B):
            self._gone.write(joined(text, around) + b";\n")
        around = self._putting()
        for rows in (differences.only[A], differences.changed[A]):
            for text in self._texts(rows, A):
                self._put.write(joined(text, around) + b";\n")

    def write_to(self, target: BinaryIO) -> None:
        """Write the statements, those that delete first, and forget them."""
        for part in (self._gone, self._put):
            part.seek(0)
            shutil.copyfileobj(part, target)
        self.close()

    def close(self) -> None:
        """Forget the statements."""
        self._gone.close()
        self._put.close()

    def _putting(self) -> Around:
        table = self._tables[A]
        if not table.handle_key:
            return insert_around(table)
        # A REPLACE would take away what is in columns that are not compared.
        whole = {c.name for c in self._comparison.schemas[B].visible if not c.generated}
        return (
            replace_around(table)
            if whole <= {c.name for c in table.columns}
            else upsert_around(table, keeps_key=True)
        )

    def _texts(self, rows: pa.Table, side: int) -> Iterator[pa.LargeBinaryArray]:
        """Yield A's rows, or what names B's, as texts: as many as one statement takes."""
        gone, table = side == B, self._tables[side]
        each = 1 if gone and not table.handle_key else _ROWS_EACH
        narrow = rows.select([pair[side].name for pair in self._comparison.columns])
        named = narrow.rename_columns([c.name for c in table.columns])
        for batch in named.combine_chunks().to_batches():
            image, count = batch.to_struct_array(), batch.num_rows
            nothing = pa.nulls(count, image.type)
            change = make_rows(
                table,
                pa.array(np.full(count, int(Op.DELETE if gone else Op.INSERT), np.int8)),
                pa.array(np.zeros(count, np.uint64)),
                pa.array(np.arange(count)),
                image if gone else nothing,
                nothing if gone else image,
            )
            encoded = self._codec.encode_rows(change, 0)
            texts = encoded.keys if gone else encoded.values
            assert texts is not None
            for start in range(0, count, each):
                yield texts.slice(start, each)


class RepairFile:
    """The file that gets the statements of all tables; an old one is never overwritten."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            BadOption: it is there already, or cannot be written.
        """
        try:
            # Its statements hold rows: they are nobody else's to read.
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._file: BinaryIO = open(number, "wb")  # noqa: SIM115
        except FileExistsError:
            raise BadOption(f"--repair {path}: is there already; name another file") from None
        except OSError as err:
            raise BadOption(f"--repair {path}: cannot be written: {err.strerror}") from None
        self._file.write(_HEAD)

    def add(self, repair: Repair) -> None:
        """Write a table's statements."""
        repair.write_to(self._file)

    def close(self) -> None:
        """Close it; what was written stays."""
        self._file.close()


def _written(comparison: Comparison, side: int) -> TableSchema:
    """Return B's table as statements speak of it: the compared columns, values as a side has them.

    Rows are named by the compared key; without one by all columns.
    """
    a, b = comparison.schemas
    columns = tuple(
        replace(pair[side], name=pair[B].name, generated=pair[B].generated)
        for pair in comparison.columns
    )
    key = tuple(pair[B].name for pair in comparison.columns if pair[A].name in comparison.key)
    index = (Index(1, "key", key, unique=True, primary=True),) if key else ()
    return TableSchema(b.id, 0, 0, columns, index, charset=a.charset)
