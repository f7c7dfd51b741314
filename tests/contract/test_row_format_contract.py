"""What every row format promises; see `rowferry.flow.encode.contract`."""

from __future__ import annotations

import pytest
from sink_harness import ORDERS, text_rows

from rowferry.change.chunk import Rows
from rowferry.errors import DecodeError
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.encode.contract import RowFormat, StoredFormat
from rowferry.registry import ROW_FORMATS
from rowferry.spec.build import build_spec

VALUES = [b"a", b"", '\u00e9\U0001f6a2 \r\n"'.encode(), b"d" * 20]


@pytest.fixture(params=ROW_FORMATS.names())
def made(request: pytest.FixtureRequest) -> RowFormat:
    uri = f"file:///nowhere?protocol={request.param}"
    spec, _ = build_spec("range://h:1", uri, tables=option_tables, sinks=sink_traits)
    found = assemble(spec).format
    assert isinstance(found, RowFormat)
    return found


def stored(made: RowFormat, *chunks: Rows) -> bytes:
    pieces: list[bytes] = []
    file = made.file(ORDERS, pieces.append)
    for chunk in chunks:
        file.add(chunk)
    file.finish()
    return b"".join(pieces)


def test_rows_come_back_as_they_were(made: RowFormat) -> None:
    given = text_rows(ORDERS, VALUES, 7)
    (found,) = made.decode(stored(made, given), ORDERS)
    assert isinstance(found, Rows)
    for name in ("op", "commit_ts", "seq", "after"):
        assert found.batch.column(name).to_pylist() == given.batch.column(name).to_pylist()


def test_bytes_do_not_depend_on_chunks(made: RowFormat) -> None:
    whole = stored(made, text_rows(ORDERS, VALUES, 0))
    cut = [text_rows(ORDERS, [value], n) for n, value in enumerate(VALUES)]
    assert stored(made, *cut) == whole == stored(made, text_rows(ORDERS, VALUES, 0))
    assert stored(made, text_rows(ORDERS, VALUES, 1)) != whole


def test_a_file_without_rows_is_read_too(made: RowFormat) -> None:
    empty = stored(made)
    assert empty and [len(c) for c in made.decode(empty, ORDERS) if isinstance(c, Rows)] in (
        [],
        [0],
    )


def test_what_is_no_whole_file_is_refused(made: RowFormat) -> None:
    whole = stored(made, text_rows(ORDERS, VALUES, 0))
    for data in (b"", whole[:-1], whole[: len(whole) // 2], b"something else"):
        with pytest.raises(DecodeError, match=r"shop\.orders"):
            list(made.decode(data, ORDERS))


def test_files_have_a_name_and_can_be_rebuilt(made: RowFormat) -> None:
    assert made.TRAITS.file_suffix.startswith(".")
    assert isinstance(made, StoredFormat)
    assert made.commit_time.exactness == "exact" or made.commit_time.why
