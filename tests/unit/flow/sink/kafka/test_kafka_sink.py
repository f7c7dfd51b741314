"""Topics and partitions that a Kafka sink asks for, makes, remembers and writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka_kit import FakeBroker, kafka_of, stretch_of, table, words

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan, Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SinkUnavailable, SinkUnwritable, TargetLost, TopicRefused
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.kafka.sink import KafkaSink

ME = Owner("feed", 1)
EXTENDED = "protocol=canal-json&enable-tidb-extension=true"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    found = FakeBroker()
    found.install(monkeypatch)
    return found


def plan_of(kafka: KafkaSink, *tables: TableSchema, **more: Any) -> Plan:
    stretch, slices = stretch_of(*tables, **more)
    outputs, state = kafka.allocate(stretch, slices)
    return Plan.from_json(Plan(1, 1, 0, stretch, outputs, state).to_json())


def test_a_probe_asks_for_every_topic_that_is_foreseen(broker: FakeBroker) -> None:
    broker.counts = {"x_shop_t": 2, "other": 1}
    kafka = kafka_of(topic="x_{schema}_{table}")
    kafka.check_tables([table("t"), table("u")])
    kafka.probe(ME)
    assert broker.asked == ["write x_shop_t", "create x_shop_u 3", "create fallback 3"]
    assert broker.made == []


def test_a_fixed_partition_must_be_there_in_every_topic(broker: FakeBroker) -> None:
    broker.counts = {"x_shop_t": 2, "other": 1}
    with pytest.raises(TopicRefused, match=r"partition = 2: x_shop_t has 2 partitions in use"):
        kafka_of(topic="x_{schema}_{table}", partition=2).probe(ME)
    with pytest.raises(TopicRefused, match="a topic that will be created has 3"):
        kafka_of(topic="y_{schema}_{table}", partition=3).probe(ME)
    kafka_of(topic="x_{schema}_{table}", partition=1).probe(ME)


def test_replicas_must_suffice_for_the_acknowledgement(broker: FakeBroker) -> None:
    broker.in_sync = 2
    with pytest.raises(
        TopicRefused, match=r"fallback would be created with replication-factor = 1"
    ):
        kafka_of().probe(ME)
    kafka_of("protocol=canal-json&required-acks=1").probe(ME)
    kafka_of("protocol=canal-json&replication-factor=2").probe(ME)
    broker.counts = {"fallback": 1}
    kafka_of().probe(ME)


def test_topics_are_made_when_they_are_met_and_remembered(broker: FakeBroker) -> None:
    kafka = kafka_of(EXTENDED + "&partition-num=2", topic="{schema}.{table}")
    kafka.open(ME, None)
    assert broker.made == [("fallback", 2)]
    broker.limits = {"shop.t": 500}
    plan = plan_of(kafka, table("t"), watermark=9)
    assert broker.made[1:] == [("shop.t", 2)]
    assert Topic.from_json(plan.outputs[0].target) == Topic("shop.t", 2, 500)
    assert plan.sink_state == {
        "topics": {"fallback": 2, "shop.t": 2},
        "owners": {},
        "delivered": {
            "cluster": "c",
            "brokers": "b:1",
            "topics": {"fallback": ["1"], "shop.t": ["1", ["shop", "t"]]},
        },
    }
    kafka.publish(plan, (), {})
    # The default topic comes last: whoever waits for its watermark has all the others'.
    assert [(t, p) for t, p, _ in broker.sent] == [
        ("shop.t", 0),
        ("shop.t", 1),
        ("fallback", 0),
        ("fallback", 1),
    ]
    assert all(json.loads(v[0] or b"")["_tidb"] == {"watermarkTs": 9} for *_, v in broker.sent)


def test_the_count_in_use_stays(broker: FakeBroker) -> None:
    broker.counts = {"fallback": 9}
    kafka = kafka_of()
    kafka.open(ME, {"topics": {"fallback": 4}, "owners": {}})
    plan = plan_of(kafka, table("t"))
    assert Topic.from_json(plan.outputs[0].target).partitions == 4
    broker.counts = {"fallback": 3}
    with pytest.raises(TargetLost, match="has 3 partitions, and this changefeed has written to 4"):
        kafka_of().open(ME, {"topics": {"fallback": 4}, "owners": {}})
    broker.counts = {}
    kafka_of().open(ME, {"topics": {"fallback": 4}, "owners": {}})
    assert broker.made == [("fallback", 4)]


def test_another_process_publishes_what_was_planned(broker: FakeBroker) -> None:
    """It opens with what was published, and learns of new topics from the plan itself."""
    change = SchemaChange(5, DdlKind.ADD_COLUMN, "ALTER", TableId("shop", "t"), table("t"))
    first = kafka_of(EXTENDED + "&partition-num=2", topic="{schema}.{table}")
    first.open(ME, None)
    plan = plan_of(first, table("t"), changes=(change,), watermark=9)
    second = kafka_of(EXTENDED + "&partition-num=2", topic="{schema}.{table}")
    second.open(Owner("feed", 2), {"topics": {"fallback": 2}, "owners": {}})
    second.publish(plan, (), {})
    assert [(t, p) for t, p, _ in broker.sent] == [
        ("shop.t", 0),  # the schema change
        ("shop.t", 0),
        ("shop.t", 1),
        ("fallback", 0),
        ("fallback", 1),
    ]


def test_the_count_of_a_plan_stays_whoever_carries_it_out(broker: FakeBroker) -> None:
    """The first plan was recorded, its process died, and the topic was given more partitions."""
    broker.counts = {"fallback": 4}
    first = kafka_of(EXTENDED)
    first.open(ME, None)
    plan = plan_of(first, table("t"), watermark=9)
    broker.counts = {"fallback": 9}
    second = kafka_of(EXTENDED)
    second.open(Owner("feed", 2), None)
    second.publish(plan, (), {})
    assert [(t, p) for t, p, _ in broker.sent] == [("fallback", p) for p in range(4)]
    following = plan_of(second, table("t"), watermark=10)
    assert Topic.from_json(following.outputs[0].target).partitions == 4
    assert following.sink_state is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("protocol=canal-json", [0]),
        ("protocol=open-protocol", [0, 1, 2]),
        ("protocol=avro&schema-registry=http://r:1", []),
        (
            "protocol=avro&schema-registry=http://r:1&enable-tidb-extension=true"
            "&avro-enable-watermark=true",
            [0, 1, 2],
        ),
    ],
)
def test_where_schema_changes_go(broker: FakeBroker, query: str, expected: list[int]) -> None:
    change = SchemaChange(5, DdlKind.ADD_COLUMN, "ALTER", TableId("shop", "t"), table("t"))
    kafka = kafka_of(query)
    kafka.open(ME, None)
    kafka.publish(plan_of(kafka, changes=(change,)), (), {})
    assert [(t, p) for t, p, _ in broker.sent] == [("fallback", p) for p in expected]


def test_a_plan_that_is_made_anew_is_another_attempt(broker: FakeBroker) -> None:
    """By that a codec knows that what it has sent before may never have arrived."""

    def attempt(plan: Plan) -> str:
        (output,) = plan.outputs
        return Topic.from_json(output.target).attempt

    kafka = kafka_of("protocol=simple")
    kafka.open(ME, None)
    first, second = (plan_of(kafka, table("t")) for _ in range(2))
    assert attempt(first) == attempt(second) != ""
    kafka.discard(second)
    anew = attempt(plan_of(kafka, table("t")))
    kafka.open(ME, None)
    assert len({attempt(first), anew, attempt(plan_of(kafka, table("t")))}) == 3
    other = kafka_of()  # a codec that does not ask
    other.open(ME, None)
    assert attempt(plan_of(other, table("t"))) == ""


def test_a_statement_that_changes_two_tables_is_sent_once(broker: FakeBroker) -> None:
    """A consumer would exchange partitions twice, and so not at all."""
    text, kind = "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u", DdlKind.EXCHANGE_PARTITION
    changes = [
        SchemaChange(5, kind, query, TableId("shop", name), table(name))
        for name, query in (("t", text), ("u", ""))
    ]
    kafka = kafka_of("protocol=canal-json&partition-num=1", topic="{schema}.{table}")
    kafka.open(ME, None)
    kafka.publish(plan_of(kafka, changes=tuple(changes)), (), {})
    assert [(t, json.loads(v[0])["sql"]) for t, _, v in broker.sent] == [("shop.t", text)]


def test_a_renamed_table_tells_it_where_its_rows_were(broker: FakeBroker) -> None:
    here, old = TableId("shop", "new"), TableId("shop", "old")
    change = SchemaChange(5, DdlKind.RENAME_TABLE, "RENAME", here, table("new"), previous=old)
    kafka = kafka_of("protocol=open-protocol&partition-num=1", topic="{schema}.{table}")
    kafka.open(ME, None)
    kafka.publish(plan_of(kafka, changes=(change,)), (), {})
    assert [t for t, *_ in broker.sent] == ["shop.old"]


# --- rows ----------------------------------------------------------------------------------------


def packet(topic: str, partition: int, *values: bytes, limit: int = 1000) -> Packet:
    return Packet(0, 0, Topic(topic, 2, limit), partition, words(*values))


def test_packets_are_sent_as_they_come(broker: FakeBroker) -> None:
    broker.counts = {"a": 2, "b": 2}
    packets = [packet("a", 1, b"1", b"2"), packet("b", 0, b"3", limit=5), packet("a", 1, b"4")]
    kafka_of().deliver(iter(packets))
    assert broker.sent == [("a", 1, [b"1", b"2"]), ("b", 0, [b"3"]), ("a", 1, [b"4"])]
    assert broker.given_up == 0


def test_after_a_fault_nothing_more_arrives_and_all_is_sent_again(broker: FakeBroker) -> None:
    broker.counts = {"a": 2}
    broker.faults = [None, SinkUnavailable("away")]
    kafka, packets = kafka_of(), [packet("a", 0, b"1"), packet("a", 1, b"2")]
    with pytest.raises(SinkUnavailable):
        kafka.deliver(iter(packets))
    assert broker.given_up == 1
    assert broker.made == []
    kafka.deliver(iter(packets))
    assert [v for *_, v in broker.sent] == [[b"1"], [b"1"], [b"2"]]


def test_a_topic_that_is_gone_is_not_made_anew(broker: FakeBroker) -> None:
    broker.faults = [SinkUnavailable("no such topic")]
    with pytest.raises(TargetLost, match="topic a is gone, .*reset --snapshot"):
        kafka_of().deliver(iter([packet("a", 0, b"1")]))
    broker.faults = [SinkUnwritable("no right")]
    with pytest.raises(SinkUnwritable):
        kafka_of().deliver(iter([packet("a", 0, b"1")]))
    assert broker.made == []


CONTINUED = Owner("feed", 2, micro_batch=1, continues=True, captured=frozenset([table("t").id]))


def published(broker: FakeBroker, **rule: Any) -> dict[str, Any]:
    """The state of a feed that has sent rows of a table."""
    kafka = kafka_of(EXTENDED + "&partition-num=2", **rule)
    kafka.open(ME, None)
    plan = plan_of(kafka, table("t"), watermark=9)
    kafka.publish(plan, (), {})
    assert plan.sink_state is not None
    again, state = kafka.allocate(*stretch_of(table("t"), watermark=10))
    assert again and state is None, "it is as before"
    return plan.sink_state


def test_a_topic_that_was_made_again_is_another_one(broker: FakeBroker) -> None:
    state = published(broker, topic="{schema}.{table}")
    broker.ids_of = {"shop.t": "2"}
    with pytest.raises(TargetLost, match=r"shop\.t was deleted and made again \(its id was 1 and"):
        kafka_of(EXTENDED, topic="{schema}.{table}").open(CONTINUED, state)
    # All is sent anew after a reset to a snapshot.
    anew = kafka_of(EXTENDED, topic="{schema}.{table}")
    anew.open(Owner("feed", 3, micro_batch=1), {**state, "delivered": {}})
    plan = plan_of(anew, table("t"))
    assert plan.sink_state is not None
    assert plan.sink_state["delivered"]["topics"]["shop.t"] == ["2", ["shop", "t"]]
    # A login that may not see ids, brokers that have none, and others to which it was moved.
    broker.ids_of = {"shop.t": ""}
    kafka_of(EXTENDED, topic="{schema}.{table}").open(CONTINUED, state)
    broker.ids_of, broker.cluster = {"shop.t": "7"}, "d"
    with pytest.raises(TargetLost):
        kafka_of(EXTENDED, topic="{schema}.{table}").open(CONTINUED, state)
    told = {**state["delivered"], "brokers": "elsewhere:1"}
    kafka_of(EXTENDED, topic="{schema}.{table}").open(CONTINUED, {**state, "delivered": told})


def test_a_topic_that_nobody_needs_may_be_gone(broker: FakeBroker) -> None:
    state = published(broker, topic="{schema}.{table}")
    broker.counts = {"fallback": 2}
    for owner in (CONTINUED, Owner("feed", 2, micro_batch=1)):
        with pytest.raises(TargetLost, match=r"topic shop\.t is gone"):
            kafka_of(EXTENDED, topic="{schema}.{table}").open(owner, state)
    left_out = Owner("feed", 2, micro_batch=1, continues=True)
    kafka_of(EXTENDED, topic="{schema}.{table}").open(left_out, state)
    # The default topic is needed whatever tables there are.
    broker.counts = {"shop.t": 2}
    with pytest.raises(TargetLost, match="topic fallback is gone"):
        kafka_of(EXTENDED + "&auto-create-topic=false").open(left_out, state)
    assert broker.made == [("fallback", 2), ("shop.t", 2)]


@pytest.mark.parametrize(
    "change",
    [
        SchemaChange(5, DdlKind.DROP_TABLE, "DROP", TableId("shop", "t")),
        SchemaChange(5, DdlKind.DROP_DATABASE, "DROP", TableId("shop", "")),
        SchemaChange(
            5, DdlKind.RENAME_TABLE, "R", TableId("shop", "u"), previous=TableId("shop", "t")
        ),
    ],
)
def test_a_table_that_goes_lets_its_topic_go(broker: FakeBroker, change: SchemaChange) -> None:
    kafka = kafka_of(EXTENDED + "&partition-num=2", topic="{schema}.{table}")
    kafka.open(ME, None)
    kafka.publish(plan_of(kafka, table("t"), watermark=9), (), {})
    plan = plan_of(kafka, changes=(change,), watermark=10)
    kafka.publish(plan, (), {})
    assert plan.sink_state is not None
    assert list(plan.sink_state["delivered"]["topics"]) == ["fallback"]
    # It still gets watermarks, until somebody deletes it.
    broker.sent.clear()
    kafka.publish(plan_of(kafka, watermark=11), (), {})
    assert {t for t, *_ in broker.sent} == {"shop.t", "fallback"}
    broker.counts, broker.faults = {"fallback": 2}, [SinkUnavailable("no such topic")]
    plan = plan_of(kafka, watermark=12)
    with pytest.raises(SinkUnavailable):
        kafka.publish(plan, (), {})
    broker.sent.clear()
    kafka.publish(plan, (), {})
    assert {t for t, *_ in broker.sent} == {"fallback"}
    assert broker.counts == {"fallback": 2}


def after_a_drop(broker: FakeBroker) -> KafkaSink:
    """A sink whose table was dropped, with the topic that it had."""
    kafka = kafka_of(EXTENDED + "&partition-num=2", topic="{schema}.{table}")
    kafka.open(ME, None)
    kafka.publish(plan_of(kafka, table("t"), watermark=9), (), {})
    drop = SchemaChange(5, DdlKind.DROP_TABLE, "DROP", TableId("shop", "t"))
    kafka.publish(plan_of(kafka, changes=(drop,), watermark=10), (), {})
    broker.made.clear()
    broker.sent.clear()
    return kafka


AGAIN = SchemaChange(12, DdlKind.CREATE_TABLE, "CREATE", TableId("shop", "t"), table("t", 12))


def test_a_table_that_comes_again_gets_a_topic_again(broker: FakeBroker) -> None:
    """Whoever deleted the topic of a dropped table has taken nothing from anybody."""
    kafka = after_a_drop(broker)
    broker.counts = {"fallback": 2}
    kafka.publish(plan_of(kafka, changes=(AGAIN,), watermark=12), (), {})
    assert broker.made == [("shop.t", 2)]
    assert ("shop.t", 0) in {(t, p) for t, p, _ in broker.sent}
    # Where the protocol sends no schema change, its rows are the first to need one.
    kafka = after_a_drop(broker)
    broker.counts = {"fallback": 2}
    (output,) = plan_of(kafka, table("t", 12), watermark=13).outputs
    assert broker.made == [("shop.t", 2)]
    assert Topic.from_json(output.target).name == "shop.t"


def test_a_topic_that_was_made_again_before_its_table_came_again(broker: FakeBroker) -> None:
    """Its id and its partitions are those of now, else it would count as lost for ever."""
    kafka = after_a_drop(broker)
    broker.counts, broker.ids_of = {"fallback": 2, "shop.t": 2}, {"shop.t": "2"}
    plan = plan_of(kafka, table("t", 12), watermark=12)
    kafka.publish(plan, (), {})
    assert plan.sink_state is not None
    assert plan.sink_state["delivered"]["topics"]["shop.t"] == ["2", ["shop", "t"]]
    kafka.open(CONTINUED, plan.sink_state)


@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_topic_that_goes_before_a_create_is_sent(
    broker: FakeBroker, is_new_process: bool
) -> None:
    kafka = after_a_drop(broker)
    plan = plan_of(kafka, changes=(AGAIN,), watermark=12)
    broker.counts, broker.faults = {"fallback": 2}, [SinkUnavailable("no such topic")]
    with pytest.raises(SinkUnavailable):
        kafka.publish(plan, (), {})
    if is_new_process:
        kafka = kafka_of(EXTENDED + "&partition-num=2", topic="{schema}.{table}")
        kafka.open(CONTINUED, plan.sink_state)
    kafka.publish(plan, (), {})
    assert broker.made == [("shop.t", 2)]
    assert "shop.t" in {t for t, *_ in broker.sent}


def test_what_was_sent_to_a_topic_is_missed_if_that_goes(broker: FakeBroker) -> None:
    """Rows of the plan itself, or another change before the CREATE TABLE."""
    drop = SchemaChange(11, DdlKind.DROP_TABLE, "DROP", TableId("shop", "t"))
    for tables, changes in (((table("t"),), (AGAIN,)), ((), (drop, AGAIN))):
        kafka = after_a_drop(broker)
        plan = plan_of(kafka, *tables, changes=changes, watermark=12)
        broker.counts, broker.faults = {"fallback": 2}, [SinkUnavailable("no such topic")]
        with pytest.raises(TargetLost, match=r"topic shop\.t is gone"):
            kafka.publish(plan, (), {})


# --- one table in a topic ------------------------------------------------------------------------

AVRO = "protocol=avro&schema-registry=http://r:1"


def test_the_owner_of_a_topic_is_remembered(broker: FakeBroker) -> None:
    kafka = kafka_of(AVRO)
    with pytest.raises(TopicRefused, match=r"fallback would hold shop\.t and shop\.u"):
        kafka.check_tables([table("t"), table("u")])
    kafka = kafka_of(AVRO)
    kafka.check_tables([table("t")])
    kafka.open(ME, None)
    plan = plan_of(kafka, table("t"))
    assert plan.sink_state is not None
    assert plan.sink_state["owners"] == {"fallback": ["shop", "t"]}
    later = kafka_of(AVRO)
    later.open(ME, plan.sink_state)
    plan_of(later, table("t", 200))
    with pytest.raises(TopicRefused, match='add a dispatcher with topic = "{schema}_{table}"'):
        plan_of(later, table("u"))
