"""Pages do not go stale: generated ones are fresh, links lead somewhere, checklists work."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from source_tree import ROOT

from page_examples import toy_codec
from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Output, Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.errors import (
    BadColumnSelector,
    BadOption,
    CorruptLog,
    DecodeError,
    OptionsConflict,
    SourceUnavailable,
    UnknownOption,
)
from rowferry.flow.assemble import Flow, assemble, option_tables, sink_traits
from rowferry.flow.decide.contract import Decision
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.mysql.ddl.statement import parse_create
from rowferry.registry import CODECS, SINKS, SOURCES
from rowferry.spark.job import InProcessRunner
from rowferry.spec.build import build_spec

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["errors.md", "options.md"])
def test_generated_pages_are_fresh(name: str) -> None:
    written = (ROOT / "docs" / name).read_text()
    assert written == _generator().PAGES[name](), "run `make docs`"


def dead_links(text: str, folder: Path) -> list[str]:
    """Return links to files that are not there."""
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    return [t for t in targets if "://" not in t and not (folder / t).exists()]


def dead_paths(text: str) -> list[str]:
    """Return paths in back quotes that do not exist; those with a <placeholder> may not."""
    named = re.findall(r"`((?:src|tests|docs|proto|bench)/[^`\s]*|pyproject\.toml|uv\.lock)`", text)
    return [p for p in named if not (ROOT / p.split("<")[0]).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert dead_links(text, page.parent) == []
    assert dead_paths(text) == []


def test_dead_links_and_paths_are_found() -> None:
    assert dead_links("[a](docs/nope.md) [b](https://x/y)", ROOT) == ["docs/nope.md"]
    assert dead_paths("`src/rowferry/nope.py` and `src/rowferry/<name>.py`") == [
        "src/rowferry/nope.py"
    ]


# --- adding a codec, as the page says ------------------------------------------------------------


@pytest.fixture
def keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Follow `docs/adding-a-codec.md`: the module, its line among the names."""
    name, place, code = toy_codec()
    module = place.split(":")[0]
    (tmp_path / "toy_codec.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(CODECS._places, name, place.replace(module, "toy_codec"))
    yield
    sys.modules.pop("toy_codec", None)


TABLE = parse_create("CREATE TABLE d.t (id bigint primary key, v varchar(9))")


def rows() -> Rows:
    images = [{"id": 7, "v": "a"}, {"id": 8, "v": None}, {"id": 9, "v": "c"}]
    chunk = make_rows(
        TABLE,
        pa.array([Op.INSERT, Op.UPDATE, Op.DELETE, Op.INSERT], pa.int8()),
        pa.array([5, 6, 7, 8], pa.uint64()),
        pa.array(range(4), pa.int64()),
        pa.array([None, images[1], images[2], None], TABLE.image),
        pa.array([images[0], images[1], None, images[0]], TABLE.image),
    )
    return Rows(chunk.table, chunk.batch.slice(1))


@pytest.mark.usefixtures("keys_only")
def test_a_codec_is_added_by_its_checklist(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/out?protocol=keys-only"
    spec, _ = build_spec("range://127.0.0.1:1", uri, None, "feed", option_tables, sinks=sink_traits)
    flow = assemble(spec)
    assert type(flow.encode).__name__ == "KeysOnly"
    encoded = flow.encode.encode_rows(rows(), planned_at_ms=0)
    assert bytes(encoded.value_bytes()) == b"1\t6\t8\n2\t7\t9\n0\t8\t7\n"
    assert encoded.nbytes == len(encoded.value_bytes())
    (back,) = flow.encode.decode(bytes(encoded.value_bytes()), TABLE)
    assert isinstance(back, Rows)
    assert back.batch.column("op").to_pylist() == [1, 2, 0]
    assert back.after.to_pylist() == [{"id": 8}, None, {"id": 7}]
    assert bytes(flow.encode.encode_rows(back, 0).value_bytes()) == bytes(encoded.value_bytes())


@pytest.mark.usefixtures("keys_only")
def test_an_added_codec_has_options_and_errors_like_any_other(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/out?protocol=keys-only"
    config = {"sink": {"keys-only": {"separator": ";"}}}
    spec, _ = build_spec(
        "range://127.0.0.1:1", uri, config, "feed", option_tables, sinks=sink_traits
    )
    codec = assemble(spec).encode
    assert bytes(codec.encode_rows(rows(), 0).value_bytes()).startswith(b"1;6;8\n")
    with pytest.raises(DecodeError, match=r"table d\.t"):
        list(codec.decode(b"what;is;this\n", TABLE))
    wrong = {"sink": {"keys-only": {"seperator": ";"}}}
    with pytest.raises(UnknownOption, match="did you mean 'separator'"):
        build_spec("range://127.0.0.1:1", uri, wrong, "feed", option_tables, sinks=sink_traits)


# --- adding a sink, as the page says -------------------------------------------------------------


@pytest.fixture
def drawer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Follow `docs/adding-a-sink.md`: for each shape the module and the registry's line."""
    page = (ROOT / "docs" / "adding-a-sink.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lines = re.findall(r'`"([\w-]+)": "([\w.]+:\w+)"`', page)
    monkeypatch.syspath_prepend(str(tmp_path))
    for code, (name, place) in zip(codes, lines, strict=True):
        (tmp_path / f"toy_{name}.py").write_text(code)
        monkeypatch.setitem(SINKS._places, name, f"toy_{name}:{place.split(':')[1]}")
    yield
    for name, _ in lines:
        sys.modules.pop(f"toy_{name}", None)


def to_sink(uri: str, config: dict[str, Any] | None = None) -> Flow:
    found = build_spec("range://127.0.0.1:1", uri, config, "feed", option_tables, sinks=sink_traits)
    return assemble(found[0])


def to_drawer(query: str, config: dict[str, Any] | None = None) -> Flow:
    return to_sink(f"drawer://?{query}", config)


class Given:
    """A source whose log is these three rows."""

    def read(self, segment: Segment, tables: object) -> Iterator[Rows]:
        yield rows()

    def facts_read(self, segment: Segment) -> None:
        return None


SLICE = TableSlice(TABLE.id, TABLE.table_id, TABLE.version)
PART = Segment(0, {}, (SLICE,), 6, 8, 100)


def allocated(flow: Flow) -> tuple[Flow, tuple[Output, ...]]:
    flow = replace(flow, capture=Given())  # type: ignore[arg-type]
    flow.sink.probe(Owner("feed", 1))
    flow.sink.open(Owner("feed", 1), None)
    return flow, flow.sink.allocate(Stretch((PART,), (), {}), {SLICE: TABLE})[0]


@pytest.mark.usefixtures("drawer")
@pytest.mark.parametrize(
    "uri", ["drawer://?protocol=csv", "shelf://?protocol=csv", "shelf://?protocol=parquet"]
)
def test_added_sinks_of_bytes_and_of_rows_take_a_segment(uri: str) -> None:
    flow, outputs = allocated(to_sink(uri))
    (receipt,) = flow.run_segment(PART, outputs, {SLICE: TABLE}, planned_at_ms=0)
    assert (receipt.segment, receipt.slice, receipt.rows) == (0, 0, 3)
    assert receipt.bytes > 0


@pytest.mark.usefixtures("drawer")
def test_only_a_sink_of_rows_takes_a_protocol_of_rows() -> None:
    for uri in ("drawer://?protocol=parquet", "bell://?protocol=parquet"):
        with pytest.raises(OptionsConflict, match="a format of whole files"):
            to_sink(uri)


@pytest.mark.usefixtures("drawer")
def test_an_added_sink_of_packets_delivers_them(capsys: pytest.CaptureFixture[str]) -> None:
    flow, outputs = allocated(to_sink("bell://"))
    packed = list(
        flow.pack_segment(PART, outputs, {SLICE: TABLE}, planned_at_ms=0, quarantine=None)
    )
    flow.deliver(iter([one for one in packed if isinstance(one, Packet)]), quarantine=None)
    (receipt,) = (one for one in packed if isinstance(one, Receipt))
    plan = Plan(1, 1, 0, Stretch((PART,), (), {}, watermark=8), outputs, None)
    flow.sink.publish(plan, [receipt], {SLICE: TABLE})
    *told, last = capsys.readouterr().out.splitlines()
    assert receipt.rows == len(told) == 3
    assert all(re.match(r"d\.t [0-3] \{", line) for line in told)
    assert last == "up to 8"
    assert flow.sink.discard(plan)  # who heard it cannot forget it


@pytest.mark.usefixtures("drawer")
@pytest.mark.parametrize("protocol", ["csv", "canal-json", "json"])
def test_an_added_sink_of_files_gets_values_with_terminators(protocol: str) -> None:
    codec = to_drawer(f"protocol={protocol}").encode
    for value in codec.encode_rows(rows(), planned_at_ms=0).values.to_pylist():
        assert value.endswith(b"\r\n")
    for other in ("open-protocol", "avro&schema-registry=http://h:1"):
        with pytest.raises(OptionsConflict, match="files"):
            to_drawer(f"protocol={other}")


@pytest.mark.usefixtures("drawer")
def test_an_added_sink_gets_no_column_that_is_left_out() -> None:
    def deciding(*columns: str) -> Decision:
        rule = {"matcher": ["*.*"], "columns": list(columns)}
        flow = to_drawer("protocol=csv", {"sink": {"column-selectors": [rule]}})
        flow.decide.check_tables([TABLE])
        return flow.decide

    with pytest.raises(BadColumnSelector, match="leave out v of table d.t, and a drawer sink"):
        deciding("*", "!v")
    (passed,) = deciding("*").rows(rows())
    assert passed.table is TABLE


@pytest.mark.usefixtures("drawer")
def test_an_added_sink_can_do_what_it_says_and_nothing_else() -> None:
    with pytest.raises(BadOption, match="a drawer sink needs a protocol"):
        to_drawer("")
    with pytest.raises(BadOption, match="not supported by drawer scheme; allowed: none"):
        to_drawer("protocol=csv&transaction-atomicity=table")
    for key in ("enable-active-active", "enable-sync-point"):
        with pytest.raises(OptionsConflict, match="drawer://"):
            to_drawer("protocol=csv", {key: True})


# --- adding a source, as the page says -----------------------------------------------------------


@pytest.fixture
def growing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Follow `docs/adding-a-source.md`: the module and the registry's line; gives a file."""
    page = (ROOT / "docs" / "adding-a-source.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ((name, place),) = re.findall(r'`"([\w-]+)": "([\w.]+:\w+)"`', page)
    (tmp_path / "toy_source.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(SOURCES._places, name, f"toy_source:{place.split(':')[1]}")
    file = tmp_path / "shop.log"
    file.write_text("CREATE TABLE shop.t (id bigint primary key, v varchar(9))\n")
    yield file
    sys.modules.pop("toy_source", None)


def stamp(day: int) -> int:
    return (1_700_000_000_000 + day * 86_400_000) << PHYSICAL_SHIFT


def delivered(file: Path, folder: Path, rules: str = "*.*") -> list[str]:
    """Run a changefeed until nothing is left to plan; returns the lines of all data files."""
    config = folder / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{rules}']\n[sink.csv]\ninclude-commit-ts = true\n")
    uri = f"file://{folder}/out?protocol=csv&date-separator=day"
    with closing(open_store(f"sqlite:///{folder}/meta.db")) as store:
        feed = store.feed("feed")
        known = feed.spec if feed else None
        prepared = prepare(f"growing-file://{file}", uri, config, "feed", stored=lambda _: known)
        if feed is None:
            store.create_changefeed(prepared.spec, 0)
        claim = store.claim("feed", Holder.here(), 1.0, 0.0)
        with closing(
            Loop("feed", prepared.flow, store, claim, InProcessRunner(), lambda: 1)
        ) as loop:
            while not loop.step().caught_up:
                pass
    files = sorted((folder / "out").rglob("CDC*.csv"), key=lambda p: (p.parent.name, p.name))
    return [line for one in files for line in one.read_text().splitlines()]


def test_a_source_is_added_by_its_checklist(growing_file: Path, tmp_path: Path) -> None:
    with growing_file.open("a") as file:
        file.write(f"{stamp(0)},1,a\n{stamp(0)},2,b\n{stamp(1)},3,c\n")
    first = delivered(growing_file, tmp_path)
    rows = ((0, 1, "a"), (0, 2, "b"), (1, 3, "c"))
    assert first == [f'"I","t","shop",{stamp(day)},{key},"{v}"' for day, key, v in rows]
    with growing_file.open("a") as file:
        file.write(f"{stamp(1) + 1},4,d\n{stamp(1) + 2},half a li")
    again = delivered(growing_file, tmp_path)  # a new process would do the same
    assert again == [*first, f'"I","t","shop",{stamp(1) + 1},4,"d"']


def test_an_added_source_is_filtered_and_refused_like_any_other(
    growing_file: Path, tmp_path: Path
) -> None:
    with growing_file.open("a") as file:
        file.write(f"{stamp(0)},1,a\n")
    assert delivered(growing_file, tmp_path, "other.*") == []
    with growing_file.open("a") as file:
        file.write("no number,2,b\n")
    (tmp_path / "new").mkdir()
    with pytest.raises(CorruptLog, match="no commit-ts in the line b'no number,2,b"):
        delivered(growing_file, tmp_path / "new")
    (tmp_path / "newer").mkdir()
    with pytest.raises(SourceUnavailable, match="No such file"):
        delivered(tmp_path / "gone.log", tmp_path / "newer")
