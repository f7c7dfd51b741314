"""Looks for a row in the data files of a storage, from the newest to the oldest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output
from rowferry.downstream.consume.storage import stored_files
from rowferry.downstream.trace.delivered import OutputFindings, TraceLimits, matching
from rowferry.downstream.trace.row_key import RowKey, holds_all
from rowferry.errors import DecodeError
from rowferry.flow.encode.contract import Format
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.options import read_settings
from rowferry.flow.sink.storage.reader import (
    VisibleFile,
    file_content,
    table_schemas,
    visible_files,
)
from rowferry.spec.changefeed import ChangefeedSpec

_FILES: Final = "files"


def changes_in_files(
    spec: ChangefeedSpec,
    codec: Format,
    key: RowKey,
    limits: TraceLimits,
    skips: Callable[[str], bool],
) -> OutputFindings:
    """Return the changes of a row in the visible files of its table.

    `skips` says of which files, by path, it is known that they hold nothing between the bounds.

    Raises:
        BadUri: there is no such directory.
        SinkError: the storage cannot be read.
    """
    findings = OutputFindings()
    files = stored_files(spec)
    try:
        separator = read_settings(spec).layout.date_separator
        there = visible_files(files, key.table.written_as, separator)
        order = sorted(there, key=_age, reverse=True)
        # Rows that move between partitions of a table are in order within each of them only.
        parted = len({one.directory.physical_id for one in order}) > 1
        _look(files, order, parted, codec, key, limits, skips, findings)
    finally:
        files.close()
    return findings


def _age(one: VisibleFile) -> tuple[int, str, int]:
    return (one.directory.version, one.directory.date, one.number)


def _look(
    files: Files,
    order: list[VisibleFile],
    parted: bool,
    codec: Format,
    key: RowKey,
    limits: TraceLimits,
    skips: Callable[[str], bool],
    findings: OutputFindings,
) -> None:
    schemas = table_schemas(files, key.table.written_as) if order else {}
    gone = 0
    for place, one in enumerate(order):
        if skips(one.path):
            continue
        enough = len(findings.changes) >= limits.limit and not parted
        if enough or limits.is_over:
            left = f"{len(order) - place} older files were not read"
            findings.stop(f"{left}: --limit was reached" if enough else f"{left}: the time was up")
            return
        schema = schemas.get(one.directory.version)
        content = file_content(files, one)
        if content is None or schema is None:
            gone += 1
            continue
        findings.count(_FILES)
        findings.count("bytes", len(content))
        if not holds_all(content, key.needles(codec, schema)):
            continue
        shown, row = files.shown(one.path), 1
        try:
            for change in codec.decode(content, schema):
                if isinstance(change, Rows):
                    findings.changes += matching(
                        change,
                        key,
                        limits,
                        partial(_row_place, shown, row),
                        one.path,
                        (*_age_numbers(one), row),
                    )
                    row += len(change)
        except DecodeError as err:
            findings.stop(f"{shown} cannot be read: {err.words}")
    if gone:
        findings.notes.append(f"{gone} files of the table are not there any more")


def _row_place(path: str, first: int, number: int) -> dict[str, Any]:
    return {"file": path, "row": first + number}


def _age_numbers(one: VisibleFile) -> tuple[int, ...]:
    date = int(one.directory.date.replace("-", "") or 0)
    return (one.directory.version, date, one.number)


def output_path(output: Output) -> str:
    """Return the path of the file that a plan assigned to a slice; empty: it is no file."""
    return str(output.target.get("path", ""))
