"""Files of the protocol parquet: types, layouts, equal bytes, and other engines that read them."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from page_examples import ROOT, table_rows
from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.errors import BadInput, DecodeError, EncodeError, OptionsConflict
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.decide.key_split import split_in_halves
from rowferry.flow.encode.parquet.format import Parquet
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.build import build_spec

ALL = parse_create(
    "CREATE TABLE d.t (id bigint primary key, ti tinyint, iu int unsigned, bu bigint unsigned, "
    "y year, b1 bit(1), b64 bit(64), f float, d double, de decimal(20,10), wide decimal(65,2), "
    "e enum('x','y'), s set('x','y','z'), v varchar(9), bl blob, j json, "
    "da date, dt datetime(3), ts timestamp(6) null, t time)"
)
BIG = 2**64 - 1
FULL: dict[str, Any] = {
    "id": 1,
    "ti": -128,
    "iu": 2**32 - 1,
    "bu": BIG,
    "y": 2024,
    "b1": 1,
    "b64": BIG,
    "f": 1.5,
    "d": 1e300,
    "de": "-0.0000000150",
    "wide": "9" * 63 + ".99",
    "e": 2,
    "s": 5,
    "v": "é🚢",
    "bl": b"\x00\xff",
    "j": '{"a": 1}',
    "da": "0001-01-01",
    "dt": "9999-12-31 23:59:59.999",
    "ts": "2023-11-14 22:13:20.123456",
    "t": "-838:59:59",
}
NULLS = dict.fromkeys(FULL) | {"id": 2}
EDGES = NULLS | {"id": 3, "e": 0, "s": 0, "v": "", "bl": b"", "de": "0.0000000000", "y": 0}
TYPED = FULL | {
    "bu": Decimal(BIG),
    "b64": Decimal(BIG),
    "de": Decimal("-0.0000000150"),
    "e": "y",
    "s": "x,z",
    "da": date(1, 1, 1),
    "dt": datetime(9999, 12, 31, 23, 59, 59, 999000),
    "ts": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
}


def chunk(
    *changes: tuple[Op, dict[str, Any] | None, dict[str, Any] | None], table: TableSchema = ALL
) -> Rows:
    ops, before, after = zip(*changes, strict=True)
    return make_rows(
        table,
        pa.array([int(o) for o in ops], pa.int8()),
        pa.array(range(100, 100 + len(ops)), pa.uint64()),
        pa.array(range(len(ops)), pa.int64()),
        pa.array(before, table.image),
        pa.array(after, table.image),
    )


ROWS = chunk(
    (Op.INSERT, None, FULL),
    (Op.INSERT, None, NULLS),
    (Op.UPDATE, NULLS | {"id": 3}, EDGES),
    (Op.DELETE, FULL, None),
)


def parquet(**options: str) -> Parquet:
    spec, _ = build_spec(
        "range://127.0.0.1:1",
        "file:///none?protocol=parquet",
        {"sink": {"parquet": {k.replace("_", "-"): v for k, v in options.items()}}},
        "feed",
        option_tables,
        sinks=sink_traits,
    )
    found = assemble(spec).format
    assert isinstance(found, Parquet)
    return found


def written(form: Parquet, *rows: Rows, table: TableSchema = ALL) -> bytes:
    target = io.BytesIO()
    file = form.file(table, target.write)
    for one in rows:
        file.add(one)
    file.finish()
    return target.getvalue()


def test_every_type_is_a_column_that_holds_it() -> None:
    found = pq.read_table(pa.BufferReader(written(parquet(), ROWS)))
    assert found.column_names == ["_op", "_commit_ts", "_seq", *FULL]
    first, _, update, delete = found.to_pylist()
    assert {n: first[n] for n in FULL} == TYPED
    assert [r["_op"] for r in found.to_pylist()] == ["insert", "insert", "update", "delete"]
    assert (update["e"], update["s"], update["v"]) == ("", "", "")
    assert {n: delete[n] for n in FULL} == TYPED  # a delete has the row that it took away
    kinds = {n: str(found.schema.field(n).type) for n in ("ti", "bu", "de", "wide", "dt", "ts")}
    assert kinds == {
        "ti": "int64",
        "bu": "decimal128(20, 0)",
        "de": "decimal128(20, 10)",
        "wide": "string",
        "dt": "timestamp[us]",
        "ts": "timestamp[us, tz=UTC]",
    }


@pytest.mark.parametrize("layout", ["flat", "images"])
@pytest.mark.parametrize("temporal", ["native", "string"])
def test_a_file_is_read_back_as_it_was(layout: str, temporal: str) -> None:
    form = parquet(layout=layout, temporal=temporal)
    (back,) = form.decode(written(form, ROWS), ALL)
    assert isinstance(back, Rows)
    assert back.after.to_pylist() == ROWS.after.to_pylist()
    for name in ("op", "commit_ts", "seq"):
        assert back.batch.column(name).to_pylist() == ROWS.batch.column(name).to_pylist()
    old = ROWS.before.to_pylist()
    if layout == "flat":
        old[2] = None  # of an update it has the new row only
    assert back.before.to_pylist() == old


def test_the_same_rows_in_other_chunks_give_the_same_bytes() -> None:
    many = chunk(*((Op.INSERT, None, FULL | {"id": n, "v": f"{n}"}) for n in range(70_000)))
    form = parquet()
    whole = written(form, many)
    pieces = [Rows(ALL, many.batch.slice(n, 999)) for n in range(0, 70_000, 999)]
    assert written(form, *pieces) == whole
    assert pq.ParquetFile(pa.BufferReader(whole)).num_row_groups == 2


@pytest.mark.parametrize("layout", ["flat", "images"])
def test_long_texts_do_not_wait_for_many_rows(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is in memory until it is written; where it ends, the rows decide."""
    monkeypatch.setattr("rowferry.flow.encode.parquet.format._GROUP_BYTES", 5_000)
    many = chunk(*((Op.INSERT, None, FULL | {"id": n, "v": "x" * 5 * n}) for n in range(200)))
    form = parquet(layout=layout)
    whole = written(form, many)
    for size in (1, 7, 64):
        pieces = [Rows(ALL, many.batch.slice(n, size)) for n in range(0, 200, size)]
        assert written(form, *pieces) == whole
    about = pq.ParquetFile(pa.BufferReader(whole)).metadata
    groups = [about.row_group(n).num_rows for n in range(about.num_row_groups)]
    assert sum(groups) == 200 and max(groups[:-1]) > 3 * groups[-2] > 0
    read = [part for part in form.decode(whole, ALL) if isinstance(part, Rows)]
    assert [row for part in read for row in part.after.to_pylist()] == many.after.to_pylist()


def test_a_file_without_rows_has_its_columns() -> None:
    empty = pq.read_table(pa.BufferReader(written(parquet())))
    assert (empty.num_rows, empty.schema.names[3:]) == (0, list(FULL))
    assert list(parquet().decode(written(parquet()), ALL)) == []


@pytest.mark.parametrize("day", ["0000-00-00", "2023-00-10", "2023-02-30"])
def test_a_day_that_never_was_is_refused_or_told(day: str) -> None:
    bad = chunk((Op.INSERT, None, FULL | {"da": day}))
    with pytest.raises(EncodeError, match=rf"d\.t, column 'da': '{day}'.*zero-date"):
        written(parquet(), bad)
    taken = pq.read_table(pa.BufferReader(written(parquet(zero_date="null"), bad)))
    assert taken.column("da").to_pylist() == [None]
    text = pq.read_table(pa.BufferReader(written(parquet(temporal="string"), bad)))
    assert text.column("da").to_pylist() == [day]


def test_a_row_without_all_columns_is_refused() -> None:
    narrow = ROWS.after.type[0]
    images = pa.array([{"id": 1}], pa.struct([narrow]))
    rows = make_rows(
        ALL,
        pa.array([0], pa.int8()),
        pa.array([1], pa.uint64()),
        pa.array([0], pa.int64()),
        pa.nulls(1, images.type),
        images,
    )
    with pytest.raises(EncodeError, match="missing: ti, iu"):
        written(parquet(), rows)


def test_a_column_of_one_of_our_names_needs_the_other_layout() -> None:
    table = parse_create("CREATE TABLE d.u (_op int primary key)")
    with pytest.raises(BadInput, match=r"d\.u has a column '_op'.*images"):
        parquet().check_table(table)
    form = parquet(layout="images")
    form.check_table(table)
    rows = chunk((Op.INSERT, None, {"_op": 7}), table=table)
    (back,) = form.decode(written(form, rows, table=table), table)
    assert isinstance(back, Rows) and back.after.to_pylist() == [{"_op": 7}]


@pytest.mark.parametrize("name", ["zstd", "snappy", "gzip", "none"])
def test_pages_are_compressed_as_asked(name: str) -> None:
    data = written(parquet(compression=name), ROWS)
    used = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).compression
    assert used.lower() == {"none": "uncompressed"}.get(name, name)


def test_what_is_no_such_file_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"d\.t: not a parquet file"):
        list(parquet().decode(b"id,name\n", ALL))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("kafka://127.0.0.1:9092/t?protocol=parquet", "protocol parquet.*kafka sink"),
        ("http://127.0.0.1/?protocol=parquet", "protocol parquet.*http sink"),
        ("blackhole://?protocol=parquet", "protocol parquet.*blackhole sink"),
        ("file:///none?protocol=parquet&compression=gzip", r"sink\.parquet\.compression"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(uri: str, words: str) -> None:
    with pytest.raises(OptionsConflict, match=words):
        assemble(
            build_spec("range://127.0.0.1:1", uri, None, "feed", option_tables, sinks=sink_traits)[
                0
            ]
        )


@pytest.mark.parametrize("layout", ["flat", "images"])
def test_duckdb_reads_it(tmp_path: Path, layout: str) -> None:
    (tmp_path / "CDC1.parquet").write_bytes(written(parquet(layout=layout), ROWS))
    (tmp_path / "CDC2.parquet").write_bytes(written(parquet(layout=layout)))
    lead = "" if layout == "flat" else "_after."
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        found = engine.execute(
            f"SELECT {lead}bu, {lead}de, {lead}dt, epoch_us({lead}ts), {lead}s, {lead}v "
            f"FROM '{tmp_path}/*.parquet' WHERE _op = 'insert' ORDER BY _seq"
        ).fetchall()
    stamp = 1_700_000_000_123_456
    wanted = (Decimal(BIG), Decimal("-0.0000000150"), TYPED["dt"], stamp, "x,z", "é🚢")
    assert found == [wanted, (None,) * 6]


# --- the page's table of types -------------------------------------------------------------------

PAGE = (ROOT / "docs" / "storage.md").read_text()
TYPES = [
    (name, native, plain or native)
    for names, native, plain in table_rows(PAGE, 'column|in the file|with `temporal = "string"`')
    for name in re.findall(r"`([^`]+)`", names)
]


def in_file(kind: str, temporal: str) -> str:
    """Return what a file says about a column of that type."""
    table = parse_create(f"CREATE TABLE d.t (c {kind})")
    data = written(parquet(temporal=temporal), table=table)
    column = pq.ParquetFile(io.BytesIO(data)).schema.column(3)
    logical = column.logical_type
    match logical.type:
        case "NONE":
            return str(column.physical_type)
        case "DECIMAL":
            return f"DECIMAL({column.precision},{column.scale})"
        case "TIMESTAMP":
            told = json.loads(logical.to_json())
            assert told["timeUnit"] == "microseconds"
            return "TIMESTAMP in UTC" if told["isAdjustedToUTC"] else "TIMESTAMP"
        case other:
            return str(other)


@pytest.mark.parametrize(("name", "native", "plain"), TYPES)
def test_types_are_those_of_the_page(name: str, native: str, plain: str) -> None:
    assert (in_file(name, "native"), in_file(name, "string")) == (native, plain)


def test_every_kind_is_on_the_page() -> None:
    named = [parse_create(f"CREATE TABLE d.t (c {name})").columns[0] for name, _, _ in TYPES]
    # No type of MySQL has as many digits as there are: that kind is for other sources.
    assert {column.type.kind for column in named} == set(Kind) - {Kind.NUMERIC}


def test_the_last_change_of_a_key_is_found_by_seq(tmp_path: Path) -> None:
    """A changed unique value gives a delete and an insert of one primary key."""
    table = parse_create("CREATE TABLE d.t (id int primary key, u int unique)")
    update = chunk((Op.UPDATE, {"id": 1, "u": 5}, {"id": 1, "u": 6}), table=table)
    halves, _ = split_in_halves(update)
    (tmp_path / "one.parquet").write_bytes(written(parquet(), halves, table=table))
    last = duckdb.sql(
        f"SELECT _op, u FROM '{tmp_path}/*.parquet' QUALIFY "
        "row_number() OVER (PARTITION BY id ORDER BY _commit_ts DESC, _seq DESC) = 1"
    ).fetchall()
    assert last == [("insert", 6)]
    found = pq.read_table(tmp_path / "one.parquet").column("_seq").to_pylist()
    assert found == sorted(set(found)) and len(found) == 2
