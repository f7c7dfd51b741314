"""Subscriptions: the changefeeds that they make, the rows that they return, and their errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from rowferry.change.plan import Plan, Stretch
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.control.feed.lease import Holder
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.errors import BadOption
from rowferry.face.gate import Gate, Tls
from rowferry.face.rpc import serve
from rowferry.face.sources import Sources
from rowferry.face.subscription import Subscription, check_subscriber_name
from rowferry.spec.changefeed import check_changefeed_id
from rowferry.testing.servers.certificates import Certificates
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire.range_cdc_pb2 import RequestHeader
from rowferry.wire.subscribe_pb2_grpc import SubscriptionsStub

ANY = "127.0.0.1:0"
ORDERS = TableId("shop", "orders")


def subscription(name: str = "copy", kind: str = "storage", **config: str) -> Any:
    return wire.SubscribeCDCRequest(
        header=RequestHeader(cluster_id=0),
        db_name="shop",
        table_name="orders",
        subscriber_name=name,
        sink=wire.CDCSink(type=kind, config=config),
    )


@contextmanager
def talking(operations: Operations, **settings: Any) -> Iterator[Any]:
    with serve(operations, ANY, **settings) as serving:
        with grpc.insecure_channel(serving.address) as channel:
            yield SubscriptionsStub(channel)


def refused(call: Callable[[], Any], code: grpc.StatusCode, words: str) -> None:
    with pytest.raises(grpc.RpcError) as found:
        call()
    assert found.value.code() is code, found.value.details()  # type: ignore[attr-defined]
    text = found.value.details()  # type: ignore[attr-defined]
    assert text.startswith("[RF-") and words in text and "\n" not in text


def test_a_subscription_is_a_changefeed(
    operations: Operations, source: str, tmp_path: Path
) -> None:
    word = secrets.token_hex(8)
    uri = f"file://{tmp_path}/out?protocol=csv"
    with talking(operations, sources=Sources.parse([f"7={source}"])) as stub:
        request = subscription(uri=uri, source_uri=source, **{"sink.csv.include-commit-ts": "true"})
        row = stub.SubscribeCDC(request, timeout=60).subscriber
        assert (row.db_name, row.table_name, row.subscribe_name) == ("shop", "orders", "copy")
        assert row.master_addrs == source.removeprefix("range://")
        assert (row.sink, row.cancel, row.owner) == (uri, 0, "")
        feed = operations.store.feed("copy")
        assert feed is not None and feed.spec.config == {
            "case-sensitive": True,
            "filter": {"rules": ["shop.orders"]},
            "sink": {"csv": {"include-commit-ts": "true"}},
        }
        again = subscription(uri=uri, source_uri=source)
        refused(
            lambda: stub.SubscribeCDC(again, timeout=60), grpc.StatusCode.ALREADY_EXISTS, "copy"
        )
        by_cluster = subscription("second", uri="blackhole:///?protocol=csv")
        unknown = grpc.StatusCode.INVALID_ARGUMENT
        refused(lambda: stub.SubscribeCDC(by_cluster, timeout=60), unknown, "--source")
        by_cluster.header.cluster_id = 7
        row = stub.SubscribeCDC(by_cluster, timeout=60).subscriber
        (stored,) = operations.store.subscribed("second")
        assert (row.cluster_id, row.table_id) == (stored.cluster_id, stored.table_id)
        assert row.cluster_id > 0 and row.table_id > 0
        for wrong, words in (
            (subscription("a b", uri=uri), "a b"),
            (subscription("x", "pigeon", uri=uri), "http, kafka, mysql, pulsar, storage"),
            (subscription("x", "kafka", brokers="b:1"), "topic"),
            (subscription("x", uri=uri, source_uri=source, nonsense="1"), "nonsense"),
            (wire.SubscribeCDCRequest(subscriber_name="x"), "table_name"),
        ):
            wrong.header.cluster_id = 7
            refused(lambda r=wrong: stub.SubscribeCDC(r, timeout=60), unknown, words)
        far = subscription("x", "http", url=f"http://me:{word}@127.0.0.1:1/", source_uri=source)
        with pytest.raises(grpc.RpcError) as found:
            stub.SubscribeCDC(far, timeout=60)
        assert word not in found.value.details()  # type: ignore[attr-defined]
        assert {f.id for f in operations.store.feeds()} == {"copy", "second"}


def test_a_subscription_ends(operations: Operations, source: str) -> None:
    asked: list[str] = []
    request_cancel = operations.store.request_cancel
    operations.store.request_cancel = lambda name: (  # type: ignore[method-assign]
        asked.append(name),
        request_cancel(name),
    )[1]
    with talking(operations, sources=Sources(default=source)) as stub:
        stub.SubscribeCDC(subscription(uri="blackhole:///?protocol=csv"), timeout=60)
        other = wire.UnsubscribeCDCRequest(
            db_name="shop", table_name="items", subscriber_name="copy"
        )
        missing = grpc.StatusCode.NOT_FOUND
        refused(lambda: stub.UnsubscribeCDC(other, timeout=60), missing, "shop.items")
        assert asked == [] and operations.store.feed("copy") is not None
        end = wire.UnsubscribeCDCRequest(
            db_name="shop", table_name="orders", subscriber_name="copy"
        )
        row = stub.UnsubscribeCDC(end, timeout=60).subscriber
        assert (row.cancel, row.subscribe_name, row.table_name) == (1, "copy", "orders")
        assert asked == ["copy"] and operations.store.feeds() == ()
        refused(lambda: stub.UnsubscribeCDC(end, timeout=60), missing, "copy")


def test_a_header_with_another_cluster_is_for_another_source(
    operations: Operations, source: str
) -> None:
    wrong, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    with talking(operations, sources=Sources.parse([source, f"7={source}"])) as stub:
        asked = subscription(uri="blackhole:///?protocol=csv")
        for cluster in (4711, 2**64 - 1):
            asked.header.cluster_id = cluster
            refused(lambda: stub.SubscribeCDC(asked, timeout=60), wrong, str(cluster))
        named = subscription(uri="blackhole:///?protocol=csv", source_uri=source)
        named.header.cluster_id = 4711
        refused(lambda: stub.SubscribeCDC(named, timeout=60), wrong, "4711")
        assert operations.store.feeds() == ()
        asked.header.cluster_id = 7  # what the server calls it
        own = stub.SubscribeCDC(asked, timeout=60).subscriber.cluster_id
        end = wire.UnsubscribeCDCRequest(subscriber_name="copy")
        end.header.cluster_id = 4711
        refused(lambda: stub.UnsubscribeCDC(end, timeout=60), missing, "a table of cluster 4711")
        asked.header.cluster_id, asked.subscriber_name = own, "second"
        assert stub.SubscribeCDC(asked, timeout=60).subscriber.cluster_id == own
        assert {f.id for f in operations.store.feeds()} == {"copy", "second"}


def test_a_changefeed_of_another_cluster_is_not_removed(
    operations: Operations, source: str
) -> None:
    wanted = Wanted(source, "blackhole:///?protocol=csv", "whole")
    feed = operations.create(wanted).feed
    claim = operations.store.claim(feed.id, Holder("h", 1, "r", 1, "i"), time.time(), 60.0)
    table = TableSchema(ORDERS, 7, 10, (Column(1, "id", SqlType("bigint"), nullable=False),))
    plan = Plan(1, feed.spec_version, 0, Stretch((), (), {}, watermark=20))
    operations.store.record(claim, plan, (table,))
    operations.store.publish(claim, plan)
    operations.store.release(claim, "done")
    missing = grpc.StatusCode.NOT_FOUND
    with talking(operations, sources=Sources(default=source)) as stub:
        end = wire.UnsubscribeCDCRequest(subscriber_name="whole")
        end.header.cluster_id = 4711
        refused(lambda: stub.UnsubscribeCDC(end, timeout=60), missing, "4711")
        assert operations.store.feed("whole") is not None
        (row,) = operations.store.subscribed("whole")
        end.header.cluster_id = row.cluster_id
        assert stub.UnsubscribeCDC(end, timeout=60).subscriber.cancel == 1
        assert operations.store.feeds() == ()


def test_a_long_error_is_told(operations: Operations, source: str) -> None:
    """It is a header of the answer, and clients take no long ones."""
    with talking(operations, sources=Sources(default=source)) as stub:
        for letter in ("t", "表"):
            asked = subscription(uri="blackhole:///?protocol=csv")
            asked.table_name = letter * 20_000
            missing = grpc.StatusCode.NOT_FOUND
            refused(lambda r=asked: stub.SubscribeCDC(r, timeout=60), missing, letter * 600)


def test_errors_inside_and_logins(
    operations: Operations, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    word = secrets.token_hex(8)

    def fail(*given: Any) -> Any:
        raise ZeroDivisionError(word)

    monkeypatch.setattr(operations, "see", fail)
    end = wire.UnsubscribeCDCRequest(subscriber_name="copy")
    made = Certificates.make(tmp_path)
    tls = Tls(made.server, made.server, made.ca)
    with serve(operations, ANY, tls, Gate.of(word)) as serving:
        trust = grpc.ssl_channel_credentials(
            made.ca.read_bytes(), made.client_key.read_bytes(), made.client.read_bytes()
        )
        with grpc.secure_channel(serving.address, trust) as channel:
            stub = SubscriptionsStub(channel)
            closed = grpc.StatusCode.UNAUTHENTICATED
            for login in ((), (("authorization", f"Bearer x{word}"),)):
                refused(
                    lambda m=login: stub.UnsubscribeCDC(end, timeout=60, metadata=m), closed, ""
                )
            login = (("authorization", f"Bearer {word}"),)
            inside = grpc.StatusCode.INTERNAL
            refused(lambda: stub.UnsubscribeCDC(end, timeout=60, metadata=login), inside, "its log")
        with pytest.raises(BadOption, match="--grpc-addr"):
            serve(operations, serving.address)


# --- configurations of sinks ---------------------------------------------------------------------


def made(kind: str, **config: str) -> Any:
    return Subscription("copy", ORDERS, kind, config).wanted("range://a:1", "copy")


def test_mysql_keys_are_the_documented_ones() -> None:
    word = secrets.token_hex(4) + "/@:"
    found = made(
        "mysql",
        mysql_host="db1",
        mysql_user="cdc",
        mysql_password=word,
        mysql_db="copy",
        mysql_table="orders_2",
        worker_count="4",
    )
    quoted = word[:8] + "%2F%40%3A"
    assert found.sink_uri == f"mysql://cdc:{quoted}@db1:3306/?worker-count=4"
    assert found.config["sink"] == {
        "dispatchers": [
            {"matcher": ["shop.orders"], "target-schema": "copy", "target-table": "orders_2"}
        ]
    }
    assert found.source_uri == "range://a:1" and found.changefeed_id == "copy"
    six = made("mysql", mysql_host="::1", mysql_port="3307", mysql_db="copy")
    assert six.sink_uri == "mysql://[::1]:3307/"
    assert six.config["sink"]["dispatchers"] == [
        {"matcher": ["shop.orders"], "target-schema": "copy"}
    ]
    assert made("mysql", mysql_host="x", uri="mysql://y:1/").sink_uri == "mysql://y:1/"
    for port in ("x", "-1", "65536", "1/2"):
        with pytest.raises(BadOption, match="mysql_port"):
            made("mysql", mysql_host="x", mysql_port=port)


def test_other_sinks() -> None:
    found = made(
        "kafka", brokers="a:1,b:2", topic="t", protocol="canal-json", force_replicate="true"
    )
    assert found.sink_uri == "kafka://a:1,b:2/t?protocol=canal-json"
    assert found.config["force-replicate"] == "true"
    assert (
        made("http", url="https://h/x?a=b", timeout="3s").sink_uri == "https://h/x?a=b&timeout=3s"
    )
    assert made("storage", uri="s3://b/p?protocol=csv").sink_uri == "s3://b/p?protocol=csv"
    odd = Subscription("copy", TableId("a b", "c`d"), "storage", {"uri": "file:///x"})
    assert odd.wanted("range://a:1", "copy").config["filter"] == {"rules": ["`a b`.`c``d`"]}


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("mysql", {}, "mysql_host"),
        ("kafka", {"topic": "t"}, "brokers"),
        ("http", {}, "url"),
        ("storage", {}, "uri"),
        ("", {}, "sink.type"),
        ("kafka", {"brokers": "a", "topic": "t", "mysql_db": "x"}, "mysql_db"),
        ("storage", {"uri": "x", "filter.rules": "*.*"}, "filter.rules"),
        ("storage", {"uri": "x", "case-sensitive.x": "1"}, "case-sensitive.x"),
        ("storage", {"uri": "x", "case_sensitive": "false"}, "case_sensitive"),
        ("mysql", {"mysql_host": "h", "worker_count": "4", "worker-count": "8"}, "worker.count"),
    ],
)
def test_what_a_sink_lacks(kind: str, config: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        made(kind, **config)


@pytest.mark.parametrize("key", ["bdr_mode", "on-bad-row", "enable_sync_point"])
def test_options_of_the_top_level_are_no_parameters(key: str) -> None:
    found = made("http", url="https://h/x", **{key: "true"})
    assert found.sink_uri == "https://h/x"  # the receiver gets every other parameter
    assert found.config[key.replace("_", "-")] == "true"


def test_names_of_subscribers() -> None:
    for good in ("a", "_", "a_b", "a-b.c", "x" * 255, "0"):
        assert check_subscriber_name(good) == good
        *_, made = Subscription(good, ORDERS, "storage", {}).changefeed_ids
        assert check_changefeed_id(made) == made
    for wrong in ("", "a b", "-a", "a-", "a/b", "ä", "a\n", "x" * 256):
        with pytest.raises(BadOption, match="subscriber_name"):
            check_subscriber_name(wrong)


def test_the_changefeeds_of_a_subscriber_have_ids_of_their_own() -> None:
    def ids(name: str, table: TableId = ORDERS, cluster: int = 0) -> tuple[str, ...]:
        return Subscription(name, table, "storage", {}, cluster).changefeed_ids

    assert ids("copy")[0] == "copy" and len(ids("my_app")) == 1
    made = [ids("copy"), ids("my_app"), ids("my-app"), ids("copy", TableId("shop", "items"))]
    assert len({one[-1] for one in [*made, ids("copy", cluster=7)]}) == 5
    assert ids("my_app")[0].startswith("my-app-") and ids("my_app") == ids("my_app")
