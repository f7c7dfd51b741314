"""What comes twice, late or from an old process leaves the same index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, make_rows
from rowferry.change.plan import Plan, Segment, Stretch, TableSlice, Topic
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import Fenced, TargetUnfit
from rowferry.flow.capture.announcements import created
from rowferry.flow.encode.search_documents.codec import SearchDocuments
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.search.ownership import IndexOwnership
from rowferry.flow.sink.search.sink import SearchSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import OpenSearch

NOON = 1_683_633_600_000 << 18
Change = tuple[Op, int, str | None, int]  # what, key, note, how long after noon


class Target:
    """One index, and sinks that write it."""

    def __init__(self, server: OpenSearch, query: str = "") -> None:
        self.server = server
        name = f"versions{uuid4().hex[:12]}"
        self.index, self.notes = f"{name}-t", f"{name}-notes"
        columns = (
            Column(1, "id", SqlType("int"), nullable=False),
            Column(2, "note", SqlType("varchar", length=20)),
        )
        key = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
        self.table = TableSchema(TableId(name, "t"), 1, 1, columns, (key,))
        uri = f"opensearch://{server.address}?ownership-index={self.notes}&number-of-replicas=0"
        source, sink = Uri.parse("range://127.0.0.1:1", "source"), Uri.parse(uri + query, "sink")
        self._spec = ChangefeedSpec("feed", source, sink)
        self.codec = codec_for(SearchDocuments, self._spec)

    def opened(self, epoch: int = 1) -> SearchSink:
        sink = SearchSink(self._spec, self.codec)
        sink.open(Owner("feed", epoch), None)
        return sink

    def plan(self, sink: SearchSink, number: int = 1, *changes: SchemaChange) -> Plan:
        one = TableSlice(self.table.id, 1, 1)
        segment = Segment(0, {}, (one,), NOON, NOON)
        stretch = Stretch((segment,), changes, {}, watermark=NOON + number)
        outputs, state = sink.allocate(stretch, {one: self.table})
        return Plan(number, 1, 0, stretch, outputs, state)

    def send(self, sink: SearchSink, plan: Plan, *changes: Change, epoch: int = 1) -> None:
        topic = Topic.from_json(plan.outputs[0].target)
        messages = self.codec.batch(self.codec.encode_rows(self._rows(changes), 0, topic), topic)
        sink.deliver(iter([Packet(0, 0, topic, 0, messages, plan.micro_batch, epoch)]))

    def _rows(self, changes: tuple[Change, ...]) -> Rows:
        images = [{"id": key, "note": note} for _, key, note, _ in changes]
        gone = [op is Op.DELETE for op, *_ in changes]
        return make_rows(
            self.table,
            pa.array([int(op) for op, *_ in changes], pa.int8()),
            pa.array([NOON + at for *_, at in changes], pa.uint64()),
            pa.array(range(len(changes)), pa.int64()),
            pa.array([i if d else None for i, d in zip(images, gone, strict=True)], IMAGE),
            pa.array([None if d else i for i, d in zip(images, gone, strict=True)], IMAGE),
        )

    def there(self) -> dict[str, Any]:
        return {k: d["note"] for k, d in self.server.documents(self.index).items()}


IMAGE = pa.struct([("id", pa.int64()), ("note", pa.large_utf8())])


@pytest.fixture
def target(opensearch_server: OpenSearch) -> Iterator[Target]:
    found = Target(opensearch_server)
    yield found
    opensearch_server.ask("DELETE", f"/{found.index},{found.notes}?ignore_unavailable=true")


def test_an_older_change_never_follows_a_newer_one(target: Target) -> None:
    sink = target.opened()
    plan = target.plan(sink)
    newer: tuple[Change, ...] = (
        (Op.UPDATE, 1, "new", 5),
        (Op.DELETE, 2, None, 6),
        (Op.DELETE, 3, None, 6),
        (Op.INSERT, 3, "again", 7),
    )
    target.send(sink, plan, *newer)
    assert target.there() == {"1": "new", "3": "again"}
    target.send(
        sink, plan, (Op.INSERT, 1, "old", 4), (Op.INSERT, 2, "old", 4), (Op.DELETE, 3, None, 6)
    )
    assert target.there() == {"1": "new", "3": "again"}
    target.send(target.opened(), plan, *newer)  # a replay
    assert target.there() == {"1": "new", "3": "again"}


def test_of_a_transaction_the_last_word_counts_on_every_replay(target: Target) -> None:
    sink = target.opened()
    plan = target.plan(sink)
    work: tuple[Change, ...] = (
        (Op.INSERT, 1, "first", 5),
        (Op.DELETE, 1, None, 5),
        (Op.INSERT, 1, "last", 5),
        (Op.INSERT, 2, "came", 5),
        (Op.DELETE, 2, None, 5),
    )
    for _ in range(2):
        target.send(sink, plan, *work)
        assert target.there() == {"1": "last"}


def test_an_old_process_is_held_off(target: Target) -> None:
    old = target.opened(1)
    plan = target.plan(old)
    new = target.opened(2)
    target.send(new, plan, (Op.INSERT, 1, "new", 5), epoch=2)
    with pytest.raises(Fenced, match="taken over with epoch 2"):
        target.send(old, plan, (Op.INSERT, 2, "from the dead", 6), epoch=1)
    with pytest.raises(Fenced):
        old.publish(plan, [], {})
    with pytest.raises(Fenced):
        target.opened(1)
    assert target.there() == {"1": "new"}
    new.publish(plan, [], {})
    note = target.server.ask("GET", f"/{target.notes}/_doc/changefeed:feed")["_source"]
    assert (note["epoch"], note["micro_batch"], note["commit_ts"]) == (2, 1, NOON + 1)


@pytest.mark.parametrize("kind", [DdlKind.DROP_TABLE, DdlKind.TRUNCATE_TABLE])
def test_rows_before_a_schema_change_that_was_begun_do_not_come_back(
    opensearch_server: OpenSearch, kind: DdlKind
) -> None:
    """A process that dies between the schema change and the meta database is run again."""
    target = Target(opensearch_server, "&on-drop=drop")
    first = target.opened()
    change = SchemaChange(NOON + 9, kind, "...", target.table.id, None)
    plan = target.plan(first, 1, change)
    tables = {plan.stretch.segments[0].slices[0]: target.table}
    assert not first.has_rows_of(plan)
    target.send(first, plan, (Op.INSERT, 1, "a", 5))
    first.publish(plan, [], tables)
    second = target.opened(2)
    assert second.has_rows_of(plan)
    other = plan.with_(micro_batch=2)  # one that merely has the same schema change
    assert not second.has_rows_of(other)
    second.publish(plan, [], tables)
    names = {i["index"] for i in opensearch_server.ask("GET", "/_cat/indices?format=json")}
    if kind is DdlKind.DROP_TABLE:
        assert target.index not in names
    else:
        assert target.there() == {}
    gone = f"{target.index},{target.notes}"
    opensearch_server.ask("DELETE", f"/{gone}?ignore_unavailable=true")


@pytest.mark.parametrize("killed_before", [1, 2, 3])
def test_tables_that_trade_their_names_do_not_trade_them_back(
    opensearch_server: OpenSearch, monkeypatch: pytest.MonkeyPatch, killed_before: int
) -> None:
    """RENAME TABLE t TO x, u TO t, x TO u: a process dies in it, the next one behind it."""
    target = Target(opensearch_server, "&on-rename=copy&on-drop=drop")
    first = target.opened()
    t, u, x = (replace(target.table, id=TableId(target.table.id.database, n)) for n in "tux")
    plan = target.plan(first, 1)
    target.send(first, plan, (Op.INSERT, 1, "was in t", 5))
    first.publish(plan, [], {})
    other = f"{target.index[:-1]}u"
    first.publish(target.plan(first, 2, created(u)), [], {})
    form = {"id": 2, "note": "was in u"}
    opensearch_server.ask("PUT", f"/{other}/_doc/2?version=7&version_type=external", form)
    moves = ((t, x), (u, t), (x, u))
    changes = [
        SchemaChange(NOON + 9 + n, DdlKind.RENAME_TABLE, "...", new.id, new, previous=old.id)
        for n, (old, new) in enumerate(moves)
    ]
    trade = target.plan(first, 3, *changes)
    end_change = IndexOwnership.end_change

    def killed(self: IndexOwnership, epoch: int, name: str, number: int) -> None:
        if number == killed_before:
            raise KeyboardInterrupt
        end_change(self, epoch, name, number)

    with monkeypatch.context() as patched:
        patched.setattr(IndexOwnership, "end_change", killed)
        with pytest.raises(KeyboardInterrupt):
            first.publish(trade, [], {})
    for epoch in (2, 3):
        target.opened(epoch).publish(trade, [], {})
        assert {i: d["note"] for i, d in opensearch_server.documents(other).items()} == {
            "1": "was in t"
        }
        assert target.there() == {"2": "was in u"}
    names = {i["index"] for i in opensearch_server.ask("GET", "/_cat/indices?format=json")}
    assert f"{target.index[:-1]}x" not in names
    with pytest.raises(Fenced):
        first.publish(trade, [], {})
    opensearch_server.ask("DELETE", f"/{target.index},{other},{target.notes}")


def test_keys_are_compared_with_those_of_the_same_table(target: Target) -> None:
    sink = target.opened()
    plan = target.plan(sink)
    target.send(sink, plan, (Op.INSERT, 1, "old", 5))
    sink.publish(plan, [], {})
    other = Index(1, "PRIMARY", ("note",), unique=True, primary=True)
    new = replace(target.table, table_id=2, version=NOON + 8, indexes=(other,))
    gone = SchemaChange(NOON + 7, DdlKind.DROP_TABLE, "...", target.table.id)
    sink.publish(target.plan(sink, 2, gone, created(new)), [], {})
    assert target.there() == {}
    first = target.opened(2)  # of which nothing is known but what this plan writes
    altered = SchemaChange(NOON + 9, DdlKind.ADD_PRIMARY_KEY, "...", new.id, new)
    plan = target.plan(first, 3, altered)
    with pytest.raises(TargetUnfit, match=r"has the key \(note\) now"):
        first.publish(plan, [], {plan.stretch.segments[0].slices[0]: target.table})


def test_who_leaves_lets_go_of_its_indexes(target: Target) -> None:
    sink = target.opened()
    target.plan(sink)
    assert "index" in str(target.server.documents(target.notes))
    sink.leave()
    assert target.server.documents(target.notes) == {}


def test_documents_by_a_routing_column(opensearch_server: OpenSearch) -> None:
    target = Target(opensearch_server, "&routing-column=id&number-of-shards=3")
    sink = target.opened()
    plan = target.plan(sink)
    target.send(sink, plan, *((Op.INSERT, key, "a", 5) for key in range(9)))
    target.send(sink, plan, *((Op.DELETE, key, None, 6) for key in range(3)))
    target.send(sink, plan, (Op.UPDATE, 4, "b", 7))
    assert target.there() == {str(k): "b" if k == 4 else "a" for k in range(3, 9)}
    hits = opensearch_server.ask("GET", f"/{target.index}/_doc/4?routing=4")
    assert hits["_routing"] == "4"
    opensearch_server.ask("DELETE", f"/{target.index},{target.notes}")
