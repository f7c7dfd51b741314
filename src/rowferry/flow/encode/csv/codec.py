"""The csv codec: one line for each row change, for files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, element_text, fields, float_text
from rowferry.errors import BadOption, DecodeError, EncodeError, OptionsConflict
from rowferry.flow.encode.contract import CodecTraits, CommitTime, Encoded, MessageCodec
from rowferry.flow.encode.csv import tokenizer as kernels_csv
from rowferry.flow.encode.csv.reader import Dialect, read_lines
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.kernels import spans as kernels_spans
from rowferry.flow.encode.layout import Cell, Layout, Part, ProgramMemory
from rowferry.flow.encode.options import CodecOptions
from rowferry.flow.encode.same_layout import repeated
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionShape, OptionTable, Section, flag, option, text
from rowferry.spec.sink_traits import SinkTraits


def _quote() -> OptionShape[str]:
    def parse(value: Any) -> str:
        quote = text().parse(value)
        if len(quote.encode()) > 1:
            raise ValueError("csv config quote contains more than one character")
        if quote in ("\r", "\n"):
            raise ValueError("csv config quote cannot be line break character")
        return quote

    return OptionShape("one character of one byte, or empty for no quotes", parse)


def _delimiter() -> OptionShape[str]:
    def parse(value: Any) -> str:
        delimiter = text().parse(value)
        if not delimiter:
            raise ValueError("csv config delimiter cannot be empty")
        if len(delimiter.encode()) > 3:
            raise ValueError(
                "csv config delimiter contains more than three characters, note that escape "
                "sequences can only be used in double quotes in toml configuration items."
            )
        if "\r" in delimiter or "\n" in delimiter:
            raise ValueError("csv config delimiter contains line break characters")
        return delimiter

    return OptionShape("one to three bytes without line breaks", parse)


_ESCAPED: Final = {ord("\\"): b"\\", ord("\r"): b"r", ord("\n"): b"n"}  # behind a backslash
_NUMBER: Final = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_IN_NUMBERS: Final = frozenset(b"0123456789+-.e")
_IN_WORDS: Final = re.compile(rb"[A-Za-z0-9_-]")
# Its words are checked after the delimiter and quote together, whose fault is the worse one.
_PACKINGS: Final = ("base64", "hex")


class CsvOptions(Section, section="sink.csv"):
    """The options of csv."""

    quote = option(
        _quote(), '"', "What stands around strings; empty: none, and backslashes escape."
    )
    delimiter = option(_delimiter(), ",", "What stands between columns.")
    null = option(
        text(),
        "\\N",
        "What stands for NULL, without quotes. Where `quote` is empty, a "
        "text that is written like it is NULL for readers; none is written like the default.",
        alterable=False,
    )
    include_commit_ts = option(flag(), False, "Write each row's commit-ts.")
    binary_encoding_method = option(
        replace(text(), words=" | ".join(_PACKINGS)),
        "base64",
        "How binary values become text.",
        alterable=False,
    )
    output_old_value = option(
        flag(),
        False,
        "Write an update as a delete of the old and an insert of the new row, marked as an update.",
    )
    output_handle_key = option(
        flag(), False, "Write the handle key.", no_effect="TiCDC writes none either"
    )
    output_field_header = option(flag(), False, "Begin each file with column names.")


_path: Final = CsvOptions.path
_BARE: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})


class Csv(MessageCodec):
    """Row changes as CSV lines; schema changes and watermarks have no form here."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix=".csv",
        schema_change_goes_to="nowhere",
        carries_before_image=False,
        can_omit_columns=False,
        kinds=frozenset(Kind),
        needs_old_rows=True,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (CodecOptions.TABLE, CsvOptions.TABLE)

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        options, shared = spec.options(CsvOptions), spec.options(CodecOptions)
        self._quote = options.quote.encode()
        self._delimiter = options.delimiter.encode()
        self._null = options.null.encode()
        self._commit_ts = options.include_commit_ts
        self._packing = options.binary_encoding_method
        self._old_value = options.output_old_value
        self._header = options.output_field_header
        self._lines = sink.takes_files
        self._terminator = shared.terminator.encode()
        self._memory = ProgramMemory()
        path = _path(CsvOptions.delimiter)
        if self._quote and self._quote in self._delimiter:
            raise BadOption(
                f"{path}: csv config quote and delimiter has common characters which is not allowed"
            )
        if self._packing not in _PACKINGS:
            raise BadOption(
                f"{_path(CsvOptions.binary_encoding_method)} = {self._packing!r}: csv config "
                "binary-encoding-method can only be hex or base64"
            )
        if not self._quote and set(self._delimiter) & set(b"\\rn"):
            raise BadOption(f"{path} may not hold a backslash, r or n when quote is empty")
        marks = (self._delimiter, self._quote, b"\r", b"\n")
        escape = not self._quote and self._null == b"\\"  # which may stand before a delimiter
        if any(m and m in self._null for m in marks) or _NUMBER.fullmatch(self._null) or escape:
            raise BadOption(
                f"{_path(CsvOptions.null)} = {options.null!r}: readers could not tell it from "
                "values; choose a text that is no number and holds no quote, delimiter or line "
                "break, and more than a backslash"
            )
        self._refuse_marks_in_values()
        if shared.delete_only_output_handle_key_columns:
            whole = CodecOptions.path(CodecOptions.delete_only_output_handle_key_columns)
            raise OptionsConflict(
                f"{whole}: CSV protocol always output all columns "
                "for the delete event, set it to false"
            )

    def _refuse_marks_in_values(self) -> None:
        """Refuse what may stand inside values that are written without quotes and escapes."""
        end = CodecOptions.path(CodecOptions.terminator)
        marks = {
            _path(CsvOptions.delimiter): self._delimiter,
            _path(CsvOptions.quote): self._quote,
            end: self._terminator,
        }
        for path, mark in marks.items():
            if mark and _IN_NUMBERS.issuperset(mark):
                raise BadOption(f"{path} = {mark.decode()!r}: readers find it in numbers")
        if self._old_value and any(self._delimiter in word for word in (b"true", b"false")):
            raise BadOption(
                f"{_path(CsvOptions.delimiter)} = {self._delimiter.decode()!r}: readers find it in "
                f"the true and false of {CsvOptions.output_old_value.key}"
            )
        if self._quote and self._quote in self._terminator:
            raise BadOption(f"{end} = {self._terminator.decode()!r}: it holds the quote")
        if not self._quote and (
            self._terminator.startswith(b"\\") or not set(self._terminator) & set(b"\r\n")
        ):
            raise BadOption(
                f"{end} = {self._terminator.decode()!r}: readers find it in texts; where quote is "
                "empty it must hold a line break, and not begin with a backslash"
            )

    @property
    def commit_time(self) -> CommitTime:
        """Exact with a column for it; else nothing is told."""
        if self._commit_ts:
            return CommitTime("exact")
        why = (
            f"the changefeed has not {_path(CsvOptions.include_commit_ts)} = true (or its "
            "configuration was not given)"
        )
        return CommitTime("none", why)

    @property
    def unseen_moves(self) -> str:
        """An update has its old row with `output-old-value` only."""
        return "" if self._old_value else f"csv without {CsvOptions.output_old_value.key}"

    def advice(self, tables: Sequence[TableSchema]) -> list[str]:
        """Say where a text may be taken for NULL: without quotes only escapes tell them apart."""
        escapes = b"\\rn" + self._delimiter  # what may stand behind the backslash of a text
        no_text = self._null.startswith(b"\\") and self._null[1:2] not in escapes
        if self._quote or no_text:
            return []
        return [
            f"{_path(CsvOptions.quote)} is empty, so that readers take a text that is written "
            f"{self._null.decode()!r} for NULL; set {_path(CsvOptions.null)} = '\\N', or set a "
            "quote"
        ]

    def file_head(self, table: TableSchema) -> bytes:
        """Return the line of column names, or nothing."""
        if not self._header:
            return b""
        names = ["operation", "table", "schema"]
        names += ["commit-ts"] if self._commit_ts else []
        names += ["is-update"] if self._old_value else []
        heads = [f"ticdc-meta${name}" for name in names] + [c.name for c in table.visible]
        return self._delimiter.join(h.encode() for h in heads) + self._terminator

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: one value for each row change (two lines for an update with its old row).

        Raises:
            EncodeError: a column is absent, or an old row is wanted that the source does not give.
        """
        return self._encode(rows)

    def encode_same_layout(self, whole: Rows, parts: Sequence[Rows], planned_at_ms: int) -> Encoded:
        """Encode chunks of tables that differ in their names only; raises as `encode_rows`."""
        return self._encode(whole, repeated([self._names(p.table) for p in parts], parts))

    def _encode(self, rows: Rows, names: pa.LargeBinaryArray | None = None) -> Encoded:
        """Encode rows, with their table's name or with one for each row."""
        images = ImagePresence.of(rows)
        deletes, updates = images.op == Op.DELETE, images.op == Op.UPDATE
        if self._old_value and (updates & ~images.has_before).any():
            key = _path(CsvOptions.output_old_value)
            raise EncodeError(f"{rows.table.id}: {key} needs old rows, which this source lacks")
        used = tuple(np.bincount(images.op, minlength=3) > 0)
        facts = (names is None, *used) if ImagePresence.is_whole(rows) else ()
        known = self._memory.recall(rows.table, facts) if facts else None
        layout = Layout(self._delimiter, known)
        stamp = Cell(layout.slot(rows.batch.column("commit_ts"), kernels.RAW))
        name: Part = self._names(rows.table)
        if names is not None:
            name = Cell(layout.slot(names, kernels.RAW))
        with_before = deletes | updates if self._old_value else deletes
        before = self._cells(layout, rows.table, rows.before, bool(with_before.any()))
        after = self._cells(layout, rows.table, rows.after, not bool(deletes.all()))

        def line(op: str, cells: list[Part], is_update: bool = False) -> list[Part]:
            return self._line(name, op, stamp, cells, is_update)

        if known is None:
            update = line("U", after)
            if self._old_value:
                update = line("D", before, True) + line("I", after, True)
            for lines in (line("I", after), update, line("D", before)):
                layout.program(lines if self._lines else lines[:-1])
            if facts:
                self._memory.keep(rows.table, facts, layout.programs)
        return Encoded(layout.run(images.op))

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Return None: schema changes are not written as CSV."""
        return None

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Return None: watermarks are not written as CSV."""
        return None

    def plain_value(self, column: Column, text: str) -> bytes:
        """Return the text itself, unless a delimiter of such characters could stand beside it."""
        between = self._delimiter + self._quote + self._terminator
        return b"" if _IN_WORDS.search(between) else text.encode()

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Read lines back as chunks, `seq` being the number of the row change.

        Without `include-commit-ts` commit-ts is 0. An update has its old row only with
        `output-old-value`. The header is passed over where there is one.
        """
        dialect = Dialect(
            delimiter=self._delimiter,
            terminator=self._terminator,
            quote=self._quote,
            null=self._null,
            packing=self._packing,
            commit_ts=self._commit_ts,
            is_update=self._old_value,
            needs_end=self._lines,
        )
        head = self.file_head(table)
        skip = len(head) if head and data.startswith(head) else 0
        return read_lines(data, skip, table, dialect)

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Refuse: lines do not say what their columns are."""
        raise DecodeError("csv is a format of files; its lines cannot be read as messages")

    def _names(self, table: TableSchema) -> bytes:
        """Return the fields of table and schema."""
        name = table.written_as
        return self._string(name.table) + self._delimiter + self._string(name.database)

    def _line(
        self, name: Part, op: str, stamp: Part, cells: list[Part], is_update: bool
    ) -> list[Part]:
        join = self._delimiter
        parts: list[Part] = [self._string(op) + join, name]
        if self._commit_ts:
            parts += [join, stamp]
        if self._old_value:
            parts += [join, b"true" if is_update else b"false"]
        for cell in cells:
            parts += [join, cell]
        return [*parts, self._terminator]

    def _string(self, value: str) -> bytes:
        """Return a name as a string field."""
        encoded = value.encode()
        if self._quote:
            return self._quote + encoded.replace(self._quote, self._quote * 2) + self._quote
        mark, made, at = self._delimiter, b"", 0
        while at < len(encoded):
            width = len(mark) if encoded.startswith(mark, at) else 1
            # Also what the delimiter behind the name would complete.
            begins = (encoded[at : at + len(mark)] + mark).startswith(mark)
            for byte in encoded[at : at + width]:
                letter = _ESCAPED.get(byte, b"%c" % byte)
                made += b"\\" + letter if begins or byte in _ESCAPED else letter
            at += width
        return made

    def _cells(
        self, layout: Layout, table: TableSchema, image: pa.StructArray, needed: bool
    ) -> list[Part]:
        if not needed:
            return []
        present = fields(table, image)
        missing = [c.name for c in table.visible if c.name not in {f.column.name for f in present}]
        if missing or not present:
            lost = ", ".join(missing) or "all"
            raise EncodeError(f"{table.id}: csv cannot leave columns out; missing: {lost}")
        return [Cell(self._slot(layout, table, field)) for field in present]

    def _slot(self, layout: Layout, table: TableSchema, field: Field) -> int:
        kind, values = field.column.type.kind, field.values
        if kind in _BARE:
            return layout.slot(values, kernels.RAW, null=self._null)
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            words = float_text(values, kernels_float.GENERAL)
            return layout.slot(words, kernels.RAW, null=self._null, valid=values)
        words = values
        if kind in (Kind.ENUM, Kind.SET):
            words = element_text(table, field)
        elif kind is Kind.BINARY:
            pack = (
                kernels_render.base64_text if self._packing == "base64" else kernels_render.hex_text
            )
            words = pack(values)
        elif kind in (Kind.DATETIME, Kind.TIMESTAMP):
            words = kernels_render.six_digit_text(values)
        mode = kernels.DOUBLED if self._quote else kernels.ESCAPED
        wrap = self._quote[0] if self._quote else 0
        return layout.slot(words, mode, wrap, self._null, valid=values)


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_float, kernels_render, kernels_spans, kernels_csv):
        module.warm()
