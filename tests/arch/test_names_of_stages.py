"""A fact about a sink, source or protocol stands on its class: nobody else asks for its name."""

from __future__ import annotations

import pytest
from names_of_stages import Exempt, kinds_asked, owners, said_elsewhere
from source_tree import read_sources

from rowferry.names import OWN_CODECS, protocols
from rowferry.registry import CODECS, ROW_FORMATS, SINKS, SOURCES
from rowferry.spec.ticdc_keys import BROUGHT, BROUGHT_PARAMETERS
from rowferry.spec.uri import Uri

OWNED = owners([r._places for r in (SOURCES, CODECS, ROW_FORMATS, SINKS)])

EXEMPT = (
    # Where names are made.
    Exempt("names", " ".join(OWNED), "the tables of names themselves"),
    Exempt("registry", "kafka mysql nats pulsar rabbitmq redis", "names of extras"),
    # The same word for another thing.
    Exempt("change.sqltype", "json", "a column's type"),
    Exempt("change.table", "mysql", "the dialect of forms that name none"),
    Exempt("flow.encode.debezium*", "json file", "a column's type, and a field of `source`"),
    Exempt("flow.encode.simple*", "json avro", "its encodings"),
    Exempt("mysql*", "mysql mariadb tidb json range file", "servers, and words of their SQL"),
    Exempt("control.store*", "mysql mariadb postgresql", "databases that hold the meta data"),
    Exempt("control.operator.statements.execute", "range", "a column of SHOW"),
    Exempt("downstream.verify.rendezvous", "file", "a key of a log position"),
    Exempt("face.cli.downstream.verify_sync", "file", "a key of a log position"),
    Exempt("control.operator.trace*", "file range", "keys of log positions and of what is told"),
    Exempt("downstream.trace.files", "file", "a key of what is told"),
    Exempt("face.cli.remote.trace", "json", "a form of output"),
    Exempt("face.cli.output", "json es", "a form of output; the end of a word"),
    Exempt("face.cli.refstore", "range", "a column of what is printed"),
    Exempt("face.cli.demo", "json range file csv delta+file", "the demo says what it shows"),
    Exempt("flow.capture.binlog*", "file json", "a key of a log position; a column's type"),
    Exempt("flow.encode.canal_json*", "json es", "a column's type; a key of canal-json"),
    Exempt("downstream.storage_check.canal_rows", "es", "a key of canal-json"),
    Exempt("refstore*", "range json", "a part of the store; a column's type"),
    Exempt("flow.sink.lake.delta.actions", "parquet", "a word in the log of a Delta table"),
    Exempt("flow.sink.lake.iceberg.*", "file http https", "addresses of catalogs and files"),
    Exempt("flow.sink.lake.iceberg.catalog", "postgresql", "the address of a catalog"),
    Exempt("flow.sink.postgresql*", "json", "a column's type"),
    Exempt("testing.servers.postgres", "postgresql", "the address of a database"),
    Exempt("flow.sink.lake.iceberg.object_sinks", "s3 gs", "how readers name a bucket"),
    Exempt("secrets.sources", "file", "a kind of place that holds a secret"),
    Exempt(
        "control.operator.settings.form_facts", "json file", "a field's kind; where a secret is"
    ),
    Exempt("spec.reach", "file", "a kind of place that holds a secret"),
    Exempt("spec.reach", "postgresql", "the address of a catalog"),
    Exempt("spec.secret_reference", "file", "a kind of place that holds a secret"),
    # URLs of the web that are no sinks.
    Exempt("secrets.vault", "https", "the address of a secret store"),
    Exempt("face.cli.remote.client", "http https", "the address of our own server"),
    Exempt("face.rest.*", "http https", "our own server"),
    Exempt("face.bearer", "http https", "the address of an issuer's keys"),
    Exempt("flow.encode.avro*", "http https", "the address of a schema registry"),
    Exempt("flow.sink.storage.buckets", "http", "the address of an object store"),
    Exempt("flow.sink.pulsar.options", "https", "the address of brokers' web service"),
    Exempt("flow.sink.queue.amazon", "http https", "the address of Amazon's services"),
    Exempt("flow.sink.pulsar.login", "file", "how the client library may name a file"),
    # Facts that are not about our classes.
    Exempt(
        "spec.ticdc_keys",
        "avro canal-json csv debezium debezium-avro http json kafka mysql open-protocol pulsar "
        "simple",
        "which protocol or sink a key of TiCDC concerns is TiCDC's fact; see the test below",
    ),
    Exempt(
        "spec.uri",
        "file http https",
        "rules of URIs: a file has no host, a URL's parameters are its receiver's; see below",
    ),
    Exempt(
        "downstream.storage_check.file_kind",
        "csv canal-json json parquet",
        "the check shares nothing with what it checks, so it has its own names of formats",
    ),
    Exempt("spark.table_request", "mysql", "an example in an error"),
    # What stands outside of the product.
    Exempt(
        "testing*",
        "avro azure canal-json csv es file gcs http https json kafka kinesis mariadb mysql nats "
        "open-protocol pulsar range s3 sqs tidb",
        "the kit of the tests starts servers and reads outputs by name",
    ),
)


def test_no_name_stands_outside_of_its_owner() -> None:
    assert said_elsewhere(read_sources(), OWNED, EXEMPT) == []


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("rowferry/control/x.py", 'if uri.scheme == "mysql":\n    pass\n', "'mysql' belongs"),
        ("rowferry/downstream/x.py", 'Q = ("kafka", "kafka+ssl")\n', "'kafka' belongs"),
        ("rowferry/face/x.py", 'def f(h):\n    return f"s3://{h}/"\n', "'s3' belongs"),
        ("rowferry/flow/sink/http/x.py", 'match p:\n    case "csv":\n        pass\n', "'csv'"),
        ("rowferry/spec/x.py", 'P = tuple("avro csv".split())\n', "'avro' belongs"),
        ("rowferry/flow/sink/blackholes.py", 'K = "blackhole"\n', "'blackhole' belongs"),
    ],
)
def test_a_planted_name_is_found(path: str, text: str, found: str) -> None:
    assert found in said_elsewhere({path: text}, OWNED, ())[0]


KINDS = {SINKS.load(name).TRAITS.kind for name in SINKS.names()}


def test_nobody_asks_a_sink_for_its_kind() -> None:
    assert kinds_asked(read_sources(), KINDS) == []


@pytest.mark.parametrize(
    "text",
    ['a = traits.kind == "lake"', 'if "kafka" != t.kind: ...', 'b = s.kind in ("http", "queue")'],
)
def test_a_planted_question_for_a_kind_is_found(text: str) -> None:
    assert len(kinds_asked({"rowferry/face/x.py": text}, KINDS)) == 1


def test_other_kinds_may_be_asked_for() -> None:
    sources = {"rowferry/face/x.py": 'a = node.kind == "column"\nb = one.kind == other.kind'}
    assert kinds_asked(sources, KINDS) == []


def test_an_owner_and_a_default_protocol_are_not_found() -> None:
    sources = {
        "rowferry/flow/sink/kafka/deep/x.py": 'A = "kafka+ssl"\n',
        "rowferry/flow/sink/blackhole.py": 'T = SinkTraits(default_protocol="json")\n',
        "rowferry/control/x.py": '"""In prose: mysql:// and csv."""\nB = "not mysql"\n',
    }
    assert said_elsewhere(sources, OWNED, ()) == []


def test_an_exemption_that_nobody_needs_is_found() -> None:
    (found,) = said_elsewhere({}, OWNED, [Exempt("control*", "csv", "it was once needed")])
    assert "no more" in found


def test_keys_of_ticdc_concern_what_is_known() -> None:
    """A sink or protocol that gets another name must not leave keys behind that concern nobody."""
    known = {*KINDS, *protocols()}
    named = {reader for key in (*BROUGHT, *BROUGHT_PARAMETERS) for reader in key.readers}
    assert named <= known
    own = {SINKS.load(n).TRAITS.default_protocol for n in SINKS.names()} - {*protocols(), ""}
    assert own == set(OWN_CODECS)


def test_parameters_that_belong_to_the_target_are_hidden() -> None:
    """Only the receiver knows which of them are secret."""
    forwarding = [name for name in SINKS.names() if SINKS.load(name).TRAITS.forwards_parameters]
    shown = [str(Uri.parse(f"{scheme}://h/x?unheard=sesame", "sink")) for scheme in forwarding]
    assert shown and not any("sesame" in text for text in shown)
