"""Decoders of a worker process, kept from segment to segment.

Tables that differ in nothing but their names share all of a decoder that costs time to make.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count
from typing import Final

from rowferry.change.remembered import Remembered
from rowferry.change.table import TableSchema
from rowferry.flow.capture.binlog.decode.rows_events import RowsDecoder
from rowferry.flow.capture.binlog.decode.table_map import MappedTable, parse_table_map
from rowferry.mysql.session import Flavour

_KEPT: Final = 8192


class Decoders:
    """Decoders by TABLE_MAP and table version, kept from segment to segment."""

    def __init__(self) -> None:
        # Each may forget by itself: tables that are alike may then have two forms for a while.
        self._known: Remembered[tuple[bytes, Flavour, bool, int], RowsDecoder] = Remembered(_KEPT)
        self._mapped: Remembered[tuple[bytes, Flavour], MappedTable] = Remembered(_KEPT)
        self._of_form: Remembered[tuple[int, Flavour, bool], RowsDecoder] = Remembered(_KEPT)
        self._forms: Remembered[Hashable, int] = Remembered(_KEPT)
        self._numbers = count()
        self._form_of: Remembered[tuple[bytes, Flavour, int], tuple[TableSchema, int]]
        self._form_of = Remembered(_KEPT)

    def mapped(self, body: bytes, flavour: Flavour) -> MappedTable:
        """Return what a TABLE_MAP says."""
        table = self._mapped.get((body, flavour))
        if table is None:
            table = self._mapped[body, flavour] = parse_table_map(body, flavour)
        return table

    def of(
        self, body: bytes, schema: TableSchema, flavour: Flavour, allow_partial: bool
    ) -> RowsDecoder:
        """Return the decoder for rows of a TABLE_MAP, which are of this table version."""
        key = (body, flavour, allow_partial, id(schema))
        decoder = self._known.get(key)
        if decoder is None or decoder.schema is not schema:
            form = (self.form(body, schema, flavour), flavour, allow_partial)
            alike = self._of_form.get(form)
            if alike is None:
                alike = RowsDecoder(self.mapped(body, flavour), schema, flavour, allow_partial)
                self._of_form[form] = alike
            self._known[key] = decoder = alike.of_table(schema)
        return decoder

    def form(self, body: bytes, schema: TableSchema, flavour: Flavour) -> int:
        """Return a number that is the same for tables that differ in nothing but their names."""
        key = (body, flavour, id(schema))
        kept = self._form_of.get(key)
        if kept is not None and kept[0] is schema:
            return kept[1]
        mapped = self.mapped(body, flavour)
        alike = (mapped.columns, mapped.has_metadata, schema.columns, schema.indexes)
        number = self._forms.get(alike)
        if number is None:  # one that was forgotten is never given again
            number = self._forms[alike] = next(self._numbers)
        self._form_of[key] = (schema, number)
        return number
