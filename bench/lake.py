"""Changes into lake tables of several sizes, beside how others merge the same changes.

    make bench-lake ARGS="--rows 1000000 10000000 100000000 --docs"

A table is filled through the sink, and its small files are merged, as upkeep would have done by
then. Then micro-batches of changes are committed, each as two segments in two threads, as two tasks
would; half of the turns are measured, after the first ones have warmed what is kept in memory. Rows
are made before the clock starts, and lie in memory: what is measured is finding old rows, writing
files, and the commit. The rivals get the last state of each key as an Arrow table and merge it into
a table that they have written themselves, up to sizes that they can hold (--rival-rows).

With --reading a table of each format takes an hour of 5,000 changes a second, a commit a second, as
fast as they go, with upkeep on; then it is read whole, beside one with the same rows that was just
written.

Each figure is in the file of results as soon as it is measured. With --add a run goes on with that
file: what it has is not measured again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from lake_results import Results
from lake_rivals import Rival, delta_rs, iceberg_table, pyiceberg, spark_merges, timed
from pyiceberg.catalog.sql import SqlCatalog
from report import RESULTS, Figure, best, put_into_page

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Plan, Segment, Stretch, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.sink.contract import Owner
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import Minio

WORKLOADS = ("insert", "update", "mixed", "hot keys")
SEGMENTS = 2
HOT = 1_000
AIM_RATE, AIM_TIMES, AIM_GROWTH, AIM_READING = 200_000, 10, 2.0, 1.3
_FILLED_AT_ONCE = 1_000_000
_NOON = 1_683_633_600_000 << 18
_HOUR_S, _EACH_S = 3600, 5_000
_LONGEST_RIVAL_S = 120.0  # one that took longer is not asked for a larger table
_LARGEST_RIVAL = 10_000_000  # they hold a whole table in memory: 100 million rows need 22 GiB


def table(text_key: bool) -> TableSchema:
    """A table of three columns whose key is a number or a text."""
    key = SqlType("varchar", length=36) if text_key else SqlType("bigint")
    columns = (
        Column(1, "id", key, nullable=False),
        Column(2, "k", SqlType("int")),
        Column(3, "c", SqlType("varchar", length=60)),
    )
    primary = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    return TableSchema(TableId("bench", "t"), 1, 100, columns, (primary,))


def images(schema: TableSchema, numbers: Any, turn: int) -> pa.StructArray:
    """Rows of these numbers, as the log has them."""
    ids = pa.array(numbers)
    if schema.columns[0].type.name != "bigint":
        ids = pa.array(np.char.add("order-", numbers.astype(str)), pa.large_utf8())
    texts = pa.array(np.char.add(f"turn {turn} row ", numbers.astype(str)), pa.large_utf8())
    arrays = [ids, pa.array(np.full(len(numbers), turn)), texts]
    return pa.StructArray.from_arrays(arrays, fields=list(schema.image))


class Load:
    """Changes of a table of so many rows."""

    def __init__(self, schema: TableSchema, size: int) -> None:
        self.schema, self.size = schema, size
        self._dice = np.random.default_rng(7)
        self._next, self._gone = size, size // 2  # new keys; of the old ones, those behind go

    def turn(self, workload: str, count: int) -> tuple[Any, Any]:
        """Return the kinds of changes and the numbers of their rows, in order."""
        if workload == "insert":
            return np.full(count, int(Op.INSERT), np.int8), self._new(count)
        if workload == "hot keys":
            hot = self._dice.integers(0, min(HOT, self.size), count)
            return np.full(count, int(Op.UPDATE), np.int8), hot
        if workload == "update":
            old = self._dice.choice(self.size // 2, count, replace=False)
            return np.full(count, int(Op.UPDATE), np.int8), old
        fifth = count // 5
        ops = np.repeat(
            np.array([Op.UPDATE, Op.INSERT, Op.DELETE], np.int8), [count - 2 * fifth, fifth, fifth]
        )
        gone = np.arange(self._gone, self._gone + fifth)
        self._gone += fifth
        changed = self._dice.choice(self.size // 2, count - 2 * fifth, replace=False)
        numbers = np.concatenate([changed, self._new(fifth), gone])
        order = self._dice.permutation(count)
        return ops[order], numbers[order]

    def _new(self, count: int) -> Any:
        self._next += count
        return np.arange(self._next - count, self._next)

    def rows(self, ops: Any, numbers: Any, turn: int) -> Rows:
        """Changes as a task has them."""
        count = len(numbers)
        new = images(self.schema, numbers, turn)
        nothing = pa.nulls(count, self.schema.image)
        gone, fresh = pa.array(ops == int(Op.DELETE)), pa.array(ops == int(Op.INSERT))
        return make_rows(
            self.schema,
            pa.array(ops),
            pa.array(np.full(count, _NOON, np.uint64)),
            pa.array(np.arange(count)),
            pa.compute.if_else(fresh, nothing, new),
            pa.compute.if_else(gone, nothing, new),
        )

    def plain(self, numbers: Any, turn: int) -> pa.Table:
        """The last state of each row, as others take it."""
        made = images(self.schema, np.unique(numbers), turn)
        narrow = [c.cast(pa.utf8()) if c.type == pa.large_utf8() else c for c in made.flatten()]
        return pa.Table.from_arrays(narrow, names=["id", "k", "c"])


class LakeTable:
    """One table of a lake, written as a changefeed writes it."""

    def __init__(self, uri: str, schema: TableSchema) -> None:
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec("bench", source, Uri.parse(uri, "sink"))
        loaded: Any = SINKS.load(spec.sink.scheme)
        self.sink = loaded(spec, None)
        self.sink.open(Owner("bench", 1), None)
        self._schema = schema
        self._slice = TableSlice(schema.id, 1, schema.version)
        self._number = 0
        self._threads = ThreadPoolExecutor(SEGMENTS)

    def step(self, rows: list[Rows]) -> float:
        """Carry a micro-batch out, each part in a thread; return how long it took."""
        self._number += 1
        parts = tuple(Segment(n, {}, (self._slice,), _NOON, _NOON, 100) for n in range(len(rows)))
        stretch = Stretch(parts, (), {}, watermark=_NOON + self._number)
        began = time.perf_counter()
        outputs, state = self.sink.allocate(stretch, {self._slice: self._schema})
        plan = Plan(self._number, 1, int(time.time() * 1000), stretch, outputs, state)

        def write(part: Segment) -> list[Any]:
            chunks = iter([(0, rows[part.ordinal])])
            mine = plan.outputs_of(part.ordinal)
            return list(self.sink.write_rows(part, mine, [self._schema], chunks))

        receipts = [r for some in self._threads.map(write, parts) for r in some]
        self.sink.publish(plan, receipts, {self._slice: self._schema})
        return time.perf_counter() - began

    def fill(self, load: Load) -> float:
        """Give it its first rows; return how long that took."""
        seconds = 0.0
        for first in range(0, load.size, _FILLED_AT_ONCE):
            numbers = np.arange(first, min(first + _FILLED_AT_ONCE, load.size))
            ops = np.full(len(numbers), int(Op.INSERT), np.int8)
            seconds += self.step(halves(load, ops, numbers, 0))
        return seconds

    def merge_small_files(self) -> float:
        """Do what a changefeed's own upkeep does by and by; return how long that took."""
        began = time.perf_counter()
        for _ in self.sink.upkeep().optimize(int(time.time() * 1000)):
            pass
        return time.perf_counter() - began

    def close(self) -> None:
        """Let go of what was opened."""
        self._threads.shutdown()
        self.sink.close()


def halves(load: Load, ops: Any, numbers: Any, turn: int) -> list[Rows]:
    """Return changes in so many parts as there are segments, in order."""
    places = np.linspace(0, len(numbers), SEGMENTS + 1).astype(int)
    spans = zip(places[:-1], places[1:], strict=True)
    return [load.rows(ops[a:b], numbers[a:b], turn) for a, b in spans]


@dataclass(frozen=True)
class Setting:
    """Where a table is."""

    kind: str
    storage: str
    mode: str = "upsert"

    def __str__(self) -> str:
        return f"{self.kind}, {self.storage}" + (", changelog" if self.mode != "upsert" else "")

    def uri(self, folder: Path, minio: Minio | None, number: int) -> str:
        """The sink's address; nothing is there yet."""
        own = {"mode": self.mode, "optimize-after": "0"}
        if self.storage == "s3":
            assert minio is not None
            if self.kind == "iceberg":
                own["catalog"] = f"file://{folder}/catalog{number}.db"
            return f"{self.kind}+{minio.uri(f'bench/{number}', **own)}"
        query = "&".join(f"{k}={v}" for k, v in own.items())
        return f"{self.kind}+file://{folder}/lake{number}?{query}"


SETTINGS = (
    Setting("delta", "files"),
    Setting("iceberg", "files"),
    Setting("delta", "s3"),
    Setting("iceberg", "s3"),
    Setting("delta", "files", "changelog"),
    Setting("iceberg", "files", "changelog"),
)


class Bench:
    """All that is measured in one run."""

    def __init__(
        self, folder: Path, minio: Minio | None, asked: argparse.Namespace, results: Results
    ) -> None:
        self._folder, self._minio, self._asked = folder, minio, asked
        self._schema = table(asked.text_key)
        self._number = 0
        self._results = results

    def run(self) -> None:
        """Measure all sizes, ours and the rivals'."""
        for size in self._asked.rows:
            for setting in SETTINGS:
                # The largest tables are for how a commit grows with the table.
                plain = setting.storage == "files" and setting.mode == "upsert"
                if plain or size == self._asked.rows[0]:
                    self._ours(setting, size)
        if not self._asked.alone:
            self._rivals()

    def _ours(self, setting: Setting, size: int) -> None:
        place = f"{setting}, {size:,} rows"
        filled = f"{place}: filled"
        steps = [(w, c) for w in WORKLOADS for c in self._asked.changes]
        names = {step: f"{place}: {step[0]}, {step[1]:,}" for step in steps}
        if self._results.has(filled, *names.values()):
            return  # all or nothing: the turns of one workload lead to the next one's table
        self._number += 1
        one = LakeTable(setting.uri(self._folder, self._minio, self._number), self._schema)
        load = Load(self._schema, size)
        took = one.fill(load)
        merged = one.merge_small_files()
        about: dict[str, Any] = {"s": round(took, 1), "then merged s": round(merged, 1)}
        self._note(filled, size / took, about)
        turns = self._asked.turns
        for (workload, count), name in names.items():
            made = [load.turn(workload, count) for _ in range(2 * turns)]
            times = [one.step(halves(load, *m, n + 1)) for n, m in enumerate(made)]
            seconds = median(times[turns:])
            about = {"ms": round(seconds * 1000), "kind": setting.kind, "rows": size}
            self._note(name, count / seconds, {**about, "changes": count, "work": workload})
        one.close()
        shutil.rmtree(self._folder / f"lake{self._number}", ignore_errors=True)

    def _rivals(self) -> None:
        if not rival_rows(self._asked.rows, self._asked.rival_rows):
            return  # nor is a Spark begun, which may have to be fetched first
        least = [min(self._asked.changes)]  # its filter has a term for each row: many never end
        self._rival("delta-rs merge", delta_rs, self._asked.changes)
        self._rival("pyiceberg upsert", pyiceberg, least)
        # The one that needs most of the machine comes last.
        with spark_merges(self._folder) as merges:
            for name, rival in merges.items():
                self._rival(name, rival, self._asked.changes)

    def _rival(self, name: str, rival: Rival, changes: list[int]) -> None:
        for size in rival_rows(self._asked.rows, self._asked.rival_rows):
            load = Load(self._schema, size)
            longest = 0.0
            for count in changes:
                text = f"{name}, {size:,} rows: update, {count:,}"
                if self._results.has(text):
                    continue
                turns = [load.plain(load.turn("update", count)[1], n + 1) for n in range(3)]
                self._number += 1
                folder = self._folder / f"rival{self._number}"
                times = timed(rival, folder, load.plain(np.arange(size), 0), turns)
                shutil.rmtree(folder, ignore_errors=True)
                seconds = min(times[1:])
                longest = max(longest, *times)
                kind = "iceberg" if "iceberg" in name.lower() else "delta"
                about = {"ms": round(seconds * 1000), "kind": kind, "rows": size, "rival": name}
                self._note(text, count / seconds, {**about, "changes": count, "work": "update"})
            if longest > _LONGEST_RIVAL_S:
                return

    def reading(self) -> None:
        """Measure how a table of each format reads that was changed for an hour."""
        for kind, reader in (("delta", "delta-rs"), ("iceberg", "pyiceberg")):
            place = self._folder / f"read-{kind}"
            self._reading(kind, reader, place)
            shutil.rmtree(place, ignore_errors=True)

    def _reading(self, kind: str, reader: str, place: Path) -> None:
        commits, size = self._asked.reading, self._asked.rows[0]
        name = f"{reader} reads a table of {size:,} rows "
        name += f"after {commits:,} commits of {_EACH_S:,} changes"
        if self._results.has(name):
            return
        load = Load(self._schema, size)
        one = LakeTable(f"{kind}+file://{place}/changed?optimize-after=48", self._schema)
        one.fill(load)
        longest = 0.0
        for turn in range(commits):
            longest = max(longest, one.step(halves(load, *load.turn("mixed", _EACH_S), turn + 1)))
        one.close()
        read = whole_delta if kind == "delta" else whole_iceberg
        rows = read(place / "changed")
        fresh = place / "fresh"
        if kind == "delta":
            write_deltalake(str(fresh / "bench" / "t"), rows)
        else:
            iceberg_table(fresh, rows)
        changed_s = best(lambda: read(place / "changed"))
        fresh_s = best(lambda: read(fresh))
        figure = Figure(
            name,
            rows.num_rows / changed_s,
            baseline="a table just written",
            ratio=changed_s / fresh_s,
            other={"kind": kind, "rows": rows.num_rows, "longest commit s": round(longest, 2)},
        )
        self._results.note(figure)
        print(f"{name}: {figure.ratio:.2f} times as long", file=sys.stderr, flush=True)

    def _note(self, name: str, rate: float, other: dict[str, Any]) -> None:
        self._results.note(Figure(name, rate, other=other))
        print(f"{name}: {rate:,.0f}/s ({other})", file=sys.stderr, flush=True)


def rival_rows(rows: Iterable[int], asked: list[int] | None) -> list[int]:
    """Return the sizes at which rivals run: those that were asked for, or those that they hold."""
    return sorted(asked if asked is not None else (n for n in rows if n <= _LARGEST_RIVAL))


def whole_delta(root: Path) -> pa.Table:
    """A Delta table as delta-rs reads it."""
    query = QueryBuilder().register("t", DeltaTable(str(root / "bench" / "t")))
    return pa.table(query.execute("SELECT * FROM t").read_all())


def whole_iceberg(root: Path) -> pa.Table:
    """An Iceberg table as pyiceberg reads it."""
    with closing(SqlCatalog("rowferry", uri=f"sqlite:///{root}/catalog.db")) as catalog:
        return catalog.load_table("bench.t").scan().to_arrow()


def page(figures: list[Figure], about: dict[str, Any]) -> str:
    """Return the tables of the page: ours, the rivals', and what was aimed at."""
    lines = [
        f"{about['cpu']}, {about['cores']} cores, load {about['load_average']} before the run.\n",
        "| what | changes/s | a commit, ms |",
        "|---|---|---|",
    ]
    for f in figures:
        if f.ratio:
            continue
        lines.append(f"| {f.name} | {f.rows_per_s:,.0f} | {f.other.get('ms', '')} |")
    lines += ["", "| aim | measured | reached |", "|---|---|---|"]
    for words, measured, reached in _aims(figures):
        lines.append(f"| {words} | {measured} | {'yes' if reached else 'no'} |")
    return "\n".join(lines) + "\n"


def _aims(figures: list[Figure]) -> Iterator[tuple[str, str, bool]]:
    updates = [f for f in figures if f.other.get("work") == "update" and "changelog" not in f.name]
    mine = [f for f in updates if "rival" not in f.other and ", files," in f.name]
    for kind in ("delta", "iceberg"):
        here = [f for f in mine if f.other["kind"] == kind]
        for f in here:
            if f.other["rows"] == 10_000_000 and f.other["changes"] >= 100_000:
                words = f"{kind}: {AIM_RATE:,} changes/s into 10 million rows"
                yield words, f"{f.rows_per_s:,.0f}", f.rows_per_s >= AIM_RATE
        for f in here:
            rivals = [
                r.rows_per_s
                for r in updates
                if "rival" in r.other and (r.other["rows"], r.other["changes"]) == _place(f)
            ]
            if rivals:
                times = f.rows_per_s / max(rivals)
                place = f"{f.other['changes']:,} changes into {f.other['rows']:,} rows"
                words = f"{kind}: {AIM_TIMES} times the fastest rival, {place}"
                yield words, f"{times:.1f}", times >= AIM_TIMES
        for count in sorted({f.other["changes"] for f in here}):
            by_size = sorted((f.other["rows"], f.other["ms"]) for f in here if _count(f) == count)
            (small, first), (large, last) = by_size[0], by_size[-1]
            if large > small:
                words = f"{kind}: a commit of {count:,} changes into {large:,} rows takes at most "
                words += f"{AIM_GROWTH:.0f} times as long as into {small:,}"
                yield words, f"{last / first:.1f}", last <= AIM_GROWTH * first
    for f in figures:
        if f.ratio:
            words = f"{f.name}, at most {AIM_READING} times as long as one just written"
            yield words, f"{f.ratio:.2f}", f.ratio <= AIM_READING


def _place(f: Figure) -> tuple[int, int]:
    return f.other["rows"], f.other["changes"]


def _count(f: Figure) -> int:
    return int(f.other["changes"])


@contextmanager
def _scratch(given: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-lake-", dir=given))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--changes", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--text-key", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without the rivals")
    parser.add_argument(
        "--rival-rows",
        type=int,
        nargs="*",
        help=f"sizes at which rivals run; those of --rows up to {_LARGEST_RIVAL:,} without it",
    )
    parser.add_argument("--reading", type=int, nargs="?", const=_HOUR_S, default=0)
    parser.add_argument("--folder", type=Path, help="where to work")
    parser.add_argument("--docs", action="store_true", help="put the tables into the docs")
    parser.add_argument("--results", type=Path, help="the file of results")
    parser.add_argument("--add", action="store_true", help="go on with the file of results")
    asked = parser.parse_args()
    name = "lake-text-key.json" if asked.text_key else "lake.json"
    results = Results(asked.results or RESULTS / name, asked.add)
    with _scratch(asked.folder) as folder, Minio.start(folder / "minio") as minio:
        bench = Bench(folder, minio, asked, results)
        bench.run()
        if asked.reading:
            bench.reading()
    text = page(results.figures, results.about)
    print(text)
    if asked.docs:
        put_into_page("lake", text)


if __name__ == "__main__":
    main()
