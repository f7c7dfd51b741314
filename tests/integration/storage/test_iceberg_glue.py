"""Iceberg tables that AWS Glue knows, as moto has it: commits, races, lost answers, bad tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from uuid import uuid4

import pytest

from iceberg_kit import IcebergLake
from lake_kit import FEED, PLAIN, Changes, Model, ordered
from page_examples import all_blocks, commands
from rowferry.change.chunk import DdlKind
from rowferry.change.plan import Plan
from rowferry.change.table import Column, TableId
from rowferry.errors import (
    RowferryError,
    SinkOwned,
    SinkUnavailable,
    TargetUnfit,
    Verdict,
)
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.lake.iceberg.updates import settings_changed
from rowferry.moment import watched
from rowferry.testing.servers import Relay
from rowferry.testing.servers.queues.amazon import Amazon

SECRET = "the-secret-of-the-access-key"


class GlueLake(IcebergLake):
    """Tables that Glue knows, reached through a relay; the region is the lake's own."""

    def __init__(self, root: Path, server: Amazon, port: int, parameters: str = "") -> None:
        self.server = server
        self.region = f"test-{uuid4().hex}"
        self.model = Model(PLAIN, 5)
        login = f"&access-key=of-tests&secret-access-key={SECRET}"
        catalog = f"glue://{self.region}?endpoint=http://127.0.0.1:{port}{login}"
        super().__init__(root, f"&catalog={quote(catalog, safe='')}{parameters}")

    def catalog(self) -> Any:
        """The catalog as pyiceberg opens it, by the shortest way."""
        return others_catalog(self.server, self.region)

    def glue(self, action: str, **content: Any) -> dict[str, Any]:
        """Ask Glue by hand."""
        return self.server.ask("glue", f"AWSGlue.{action}", content, self.region)

    def equals_model(self, table: str = "shop/orders") -> bool:
        return ordered(self.rows(name=table), ["id"]) == self.model.expected()

    def micro_batches(self, table: str = "shop/orders") -> list[int]:
        """The micro-batch of each snapshot, in their order."""
        return [int(s["rowferry.micro-batch"]) for s in self.summaries(table)]

    def until_published(self, plan: Plan, content: list[Changes]) -> int:
        """Publish as a supervisor does, which tries again; return how often it failed."""
        receipts = self.write(plan, PLAIN, content)
        for failures in range(20):
            try:
                self.publish(plan, PLAIN, receipts)
            except RowferryError as err:
                assert err.verdict is Verdict.RETRY, err
                continue
            return failures
        raise AssertionError("it never comes to an end")


def others_catalog(server: Amazon, region: str, **more: str) -> Any:
    """Return pyiceberg's own Glue catalog, with the library of Amazon that moto brought."""
    login = {"glue.access-key-id": "of-others", "glue.secret-access-key": "of-others"}
    at = {"glue.endpoint": server.endpoint, "glue.region": region}
    place = str(Amazon.ensure())
    sys.path.append(place)
    try:
        from pyiceberg.catalog.glue import GlueCatalog

        return GlueCatalog("others", **login, **at, **more)
    finally:  # other tests look at what is installed here
        sys.path.remove(place)


@pytest.fixture
def relay(amazon_server: Amazon) -> Iterator[Relay]:
    with Relay(amazon_server.port) as running:
        yield running


@pytest.fixture
def lake(amazon_server: Amazon, relay: Relay, tmp_path: Path) -> Iterator[GlueLake]:
    made = GlueLake(tmp_path / "lake", amazon_server, relay.port)
    yield made
    made.sink.close()


def at_request(number: int, act: Callable[[], object]) -> Callable[[str], None]:
    """Return a hook that acts before the so-many-th request of the first commit that it sees."""
    count = -1

    def look(name: str) -> None:
        nonlocal count
        if name == "commit iceberg snapshot" and count < 0:
            count = 0
        elif name == "ask amazon service" and count >= 0:
            count += 1
            if count == number:
                act()

    return look


# --- tables -------------------------------------------------------------------------------------


def test_tables_are_made_changed_renamed_and_dropped(lake: GlueLake) -> None:
    lake.sink.probe(Owner(FEED, 1))  # before anything is there
    lake.open()
    for _ in range(3):
        lake.step(PLAIN, lake.model.changes(30))
        assert lake.equals_model()
    lake.sink.close()
    lake.open()
    more = Column(3, "more", PLAIN.columns[0].type, comment="one\nmore " + "x" * 300)
    wider = replace(PLAIN, columns=(*PLAIN.columns, more), version=101)
    lake.step(PLAIN, lake.model.changes(9), changes=[lake.change(DdlKind.ADD_COLUMN, wider)])
    assert lake.column_names() == ["id", "note", "more"]
    known = lake.glue("GetTable", DatabaseName="shop", Name="orders")["Table"]
    columns = known["StorageDescriptor"]["Columns"]
    assert [(c["Name"], c["Type"]) for c in columns] == [
        *(("id", "bigint"), ("note", "string"), ("more", "bigint")),
    ]
    assert columns[2]["Comment"].startswith("one more x") and len(columns[2]["Comment"]) == 255
    new = replace(wider, id=TableId("shop", "sales"), version=102)
    lake.step(wider, changes=[lake.change(DdlKind.RENAME_TABLE, new, previous=wider.id)])
    assert not lake.has("shop/orders") and lake.has("shop/sales")
    lake.step(new, changes=[lake.change(DdlKind.DROP_TABLE, new)])
    assert lake.has("shop/sales"), "it is kept, without asking"


def uri_of_page(bucket: str, catalog: str) -> str:
    """Return the sink URI of docs/lake.md, with another bucket, and the whole of the catalog."""
    (block,) = [b for b in all_blocks("sh") if b.page == "lake.md" and "glue://" in b.text]
    ((*_, uri, _, _),) = commands(block)
    parts = urlsplit(uri)
    told = dict(parse_qsl(parts.query))
    assert (parts.scheme, told["catalog"]) == ("iceberg+s3", f"glue://{told['region']}")
    query = urlencode({**told, "catalog": catalog})
    return parts._replace(netloc=bucket, query=query).geturl()


@pytest.mark.parametrize("login", ["options", "environment"])
def test_a_bucket_is_read_by_others(
    login: str, amazon_server: Amazon, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login of the bucket is that of Glue, where the catalog's address has none."""
    bucket = f"lake-{uuid4().hex}"
    amazon_server.make_bucket(bucket)
    given = {"optimize-after": "0", "endpoint": amazon_server.endpoint}
    if login == "options":
        given |= {"access-key": "of-tests", "secret-access-key": SECRET}
    else:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-tests")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    class InBucket(GlueLake):
        scheme = "iceberg+s3"

        def __init__(self) -> None:
            super().__init__(Path(bucket) / "prefix", amazon_server, relay.port)
            catalog = f"glue://{self.region}/123456789012?endpoint=http://127.0.0.1:{relay.port}"
            self.uri = f"{uri_of_page(bucket, catalog)}&{urlencode(given)}"

        def catalog(self) -> Any:
            keys = {"s3.access-key-id": "of-others", "s3.secret-access-key": "of-others"}
            at = {"s3.endpoint": amazon_server.endpoint, "s3.region": "us-east-1"}
            return others_catalog(self.server, self.region, **keys, **at)

        def rows(self, columns: str = "*", name: str = "shop/orders") -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self.iceberg(name).scan().to_arrow().to_pylist()
            return found

    lake = InBucket()
    lake.open()
    for _ in range(2):
        lake.step(PLAIN, lake.model.changes(30))
        assert lake.equals_model()
    assert lake.micro_batches() == [1, 2]
    assert lake.iceberg().location().startswith(f"s3://{bucket}/shop/shop/orders-")
    lake.sink.close()


def test_the_settings_of_others_stay(lake: GlueLake) -> None:
    """What somebody has written about the table in Glue is not ours to remove."""
    lake.open()
    lake.step(PLAIN, lake.model.changes(9))
    form = lake.glue("GetTable", DatabaseName="shop", Name="orders")["Table"]
    kept = {key: form[key] for key in ("Name", "TableType", "StorageDescriptor")}
    mine = {**kept, "Owner": "ann", "Parameters": {**form["Parameters"], "team": "sales"}}
    lake.glue("UpdateTable", DatabaseName="shop", TableInput=mine)
    lake.step(PLAIN, lake.model.changes(9))
    form = lake.glue("GetTable", DatabaseName="shop", Name="orders")["Table"]
    assert (form["Owner"], form["Parameters"]["team"]) == ("ann", "sales")
    assert lake.equals_model()


# --- races --------------------------------------------------------------------------------------


def test_somebody_else_commits_between_reading_and_committing(lake: GlueLake) -> None:
    """Glue refuses ours, which then follows theirs: both are in the table."""
    lake.open()
    lake.step(PLAIN, lake.model.changes(30))
    seen: list[str] = []

    def look(name: str) -> None:
        seen.append(name)
        if name == "put iceberg metadata" and "commit iceberg snapshot" in seen:
            if seen.count("theirs") == 0:
                seen.append("theirs")
                with lake.iceberg().transaction() as change:
                    change.set_properties({"theirs": "kept"})

    with watched(look):
        lake.step(PLAIN, lake.model.changes(30))
    assert seen.count("commit iceberg snapshot") == 2, "the first try is refused"
    assert lake.iceberg().properties["theirs"] == "kept"
    assert lake.equals_model() and lake.micro_batches() == [1, 2]


def test_two_writers_race_and_nothing_is_lost(lake: GlueLake) -> None:
    """Both have read the same version: one of them hears of it, each time."""
    lake.open()
    lake.step(PLAIN, lake.model.changes(9))
    catalogs = [lake.built()._catalog for _ in range(2)]
    both = Barrier(2)

    def meet(name: str) -> None:
        if name == "put iceberg metadata":
            both.wait(60)

    def commit(writer: int, number: int) -> bool:
        catalog = catalogs[writer]
        update = settings_changed({f"writer-{writer}": str(number)}, ())
        done: bool = catalog.commit("shop/orders", catalog.load("shop/orders"), (), tuple(update))
        return done

    with ThreadPoolExecutor(2) as pool:
        for number in range(5):
            with watched(meet):
                first = [pool.submit(commit, writer, number) for writer in range(2)]
                done = [one.result(60) for one in first]
            assert sorted(done) == [False, True]
            assert commit(done.index(False), number)
    kept = lake.iceberg().properties
    assert [kept[f"writer-{writer}"] for writer in range(2)] == ["4", "4"]
    for catalog in catalogs:
        catalog.close()


# --- answers that are lost ----------------------------------------------------------------------


# The requests of a commit: GetTable, UpdateTable; before that of a new table GetDatabase and
# CreateDatabase.
@pytest.mark.parametrize(("known", "number"), [(False, 4), (True, 2)], ids=["first", "later"])
def test_the_answer_of_a_commit_is_lost(
    lake: GlueLake, relay: Relay, known: bool, number: int
) -> None:
    """Glue has it, nobody heard of it: it is found done, not done twice."""
    lake.open()
    for _ in range(known):
        lake.step(PLAIN, lake.model.changes(30))
    plan, content = lake.plan(PLAIN), [lake.model.changes(30)]
    with watched(at_request(number, lambda: relay.lose_answers(1))):
        assert lake.until_published(plan, content) == 1
    assert relay.broken
    assert lake.equals_model()
    lake.step(PLAIN, lake.model.changes(30))
    assert lake.equals_model()
    assert lake.micro_batches() == list(range(1, lake.micro_batch + 1))


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_rename_is_cut_in_its_middle(lake: GlueLake, relay: Relay, number: int) -> None:
    """Glue has no rename: a table may be left with two names, of which one goes."""
    lake.open()
    lake.step(PLAIN, lake.model.changes(30))
    new = replace(PLAIN, id=TableId("shop", "sales"), version=102)
    moved = lake.change(DdlKind.RENAME_TABLE, new, previous=PLAIN.id)
    plan = lake.plan(PLAIN, 0, [moved])
    count = -1

    def look(name: str) -> None:
        nonlocal count
        if name == "rename iceberg table" and count < 0:
            count = 0
        elif name == "ask amazon service" and count >= 0:
            if count == number:  # GetDatabase, GetTable, CreateTable, DeleteTable, and after it
                relay.lose_answers(1)
            count += 1

    with watched(look):
        with pytest.raises(SinkUnavailable):
            lake.publish(plan, PLAIN, [])
        lake.publish(plan, PLAIN, [])
    assert not lake.has("shop/orders") and lake.equals_model("shop/sales")
    lake.step(new, lake.model.changes(9))
    assert lake.equals_model("shop/sales")


@pytest.mark.parametrize("step", ["ask iceberg catalog", "commit iceberg snapshot"])
def test_glue_is_away_for_a_while(lake: GlueLake, relay: Relay, step: str) -> None:
    lake.open()
    lake.step(PLAIN, lake.model.changes(30))

    def cut(name: str) -> None:
        if name == step:
            relay.cut()

    plan, content = lake.plan(PLAIN), [lake.model.changes(30)]
    receipts = lake.write(plan, PLAIN, content)
    words = r"the Iceberg catalog glue://test-.*; correct the region or the endpoint if it stays"
    with pytest.raises(SinkUnavailable, match=words) as said, watched(cut):
        lake.publish(plan, PLAIN, receipts)
    assert SECRET not in str(said.value)
    with pytest.raises(SinkUnavailable):
        lake.built().probe(Owner(FEED, lake.epoch))
    relay.heal()
    lake.publish(plan, PLAIN, receipts)
    assert lake.equals_model() and lake.micro_batches() == [1, 2]


# --- tables that are not ours -------------------------------------------------------------------


def test_a_table_that_is_no_iceberg_table(lake: GlueLake) -> None:
    """It is not touched; beside it others are written."""
    lake.glue("CreateDatabase", DatabaseInput={"Name": "shop"})
    theirs = {"Name": "orders", "TableType": "EXTERNAL_TABLE", "Parameters": {"a": "b"}}
    lake.glue("CreateTable", DatabaseName="shop", TableInput=theirs)
    lake.open()
    words = r"table shop.orders of AWS Glue is no Iceberg table \(its type is 'EXTERNAL_TABLE'\)"
    with pytest.raises(TargetUnfit, match=words):
        lake.step(PLAIN, lake.model.changes(9))
    table = lake.glue("GetTable", DatabaseName="shop", Name="orders")["Table"]
    assert table["Parameters"] == {"a": "b"} and table["VersionId"] == "1"
    other = replace(PLAIN, id=TableId("shop", "sales"))
    model = Model(other, 5)
    lake.step(other, model.changes(9))
    assert ordered(lake.rows(name="shop/sales"), ["id"]) == model.expected()


def test_an_iceberg_table_of_somebody_else(lake: GlueLake) -> None:
    lake.open()
    lake.step(PLAIN, lake.model.changes(9))
    with lake.iceberg().transaction() as change:
        change.set_properties({"rowferry.changefeed": "another"})
    with pytest.raises(SinkOwned, match="belongs to changefeed 'another'"):
        lake.step(PLAIN, lake.model.changes(9))


@pytest.mark.parametrize("name", ["Orders", "o" * 256])
def test_names_that_glue_would_change(lake: GlueLake, name: str) -> None:
    lake.open()
    schema = replace(PLAIN, id=TableId("shop", name))
    words = "AWS Glue has no names such as 'O?o?.*give the table another name by a routing rule"
    with pytest.raises(TargetUnfit, match=words):
        lake.step(schema, Model(schema, 5).changes(9))


def test_a_database_that_went_away(lake: GlueLake) -> None:
    """It is made again by the next try."""
    lake.open()
    plan, content = lake.plan(PLAIN), [lake.model.changes(9)]
    gone = at_request(4, lambda: lake.glue("DeleteDatabase", Name="shop"))
    with watched(gone):
        assert lake.until_published(plan, content) == 1
    assert lake.equals_model()
