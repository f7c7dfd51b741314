from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rowferry.errors import (
    BadChangefeedId,
    BadConfigFile,
    BadInput,
    BadOption,
    BadUri,
    OptionsConflict,
    UnknownOption,
)
from rowferry.flow.assemble import sink_traits
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import ProtocolOptions
from rowferry.spec.option import Option, OptionTable, duration, flag, one_of, text, whole

FLUSH = Option(
    "flush-interval",
    duration(timedelta(milliseconds=100), timedelta(minutes=10), clamp=True),
    timedelta(seconds=5),
    "",
    uri=True,
)
STORAGE = OptionTable("sink.cloud-storage-config", (FLUSH,))
DATES = OptionTable("sink", (Option("date-separator", one_of("day", "none"), "day", ""),))
CSV = OptionTable("sink.csv", (Option("quote", text(), '"', ""), Option("null", text(), "", "")))
RANGES = OptionTable(
    "source",
    (
        Option("cluster-id", whole(0), 0, "", uri=True),
        Option("password", whole(), 0, "", uri=True),
    ),
)
TABLES = [STORAGE, DATES, CSV, RANGES]
SOURCE = "range://h:1"
FILE = "file:///out?protocol=csv"


def build(
    config: Any = None, sink: str = FILE, source: str = SOURCE, **more: Any
) -> tuple[ChangefeedSpec, list[str]]:
    return build_spec(source, sink, config, **{"tables": TABLES, **more}, sinks=sink_traits)


def refusal(kind: type[BadInput], *args: Any, **more: Any) -> str:
    with pytest.raises(kind) as caught:
        build(*args, **more)
    assert type(caught.value) is kind
    return caught.value.words


# --- what comes out ------------------------------------------------------------------------------


def test_the_plain_case() -> None:
    spec, notices = build()
    assert notices == []
    assert spec.changefeed_id == "range-h-1-to-file-out-7d18084c"
    assert (spec.protocol, spec.sink.path, spec.config) == ("csv", "/out", {})
    assert ChangefeedSpec.from_json(spec.to_json()) == spec


def test_uri_wins_over_file_over_default() -> None:
    config = {"sink": {"cloud-storage-config": {"flush-interval": "7s"}}}
    assert build()[0].options(STORAGE)[FLUSH] == timedelta(seconds=5)
    assert build(config)[0].options(STORAGE)[FLUSH] == timedelta(seconds=7)
    spec, notices = build(config, f"{FILE}&flush-interval=9s")
    assert spec.options(STORAGE)[FLUSH] == timedelta(seconds=9)
    path = "sink.cloud-storage-config.flush-interval"
    assert notices == [f"{path} of the file is not used: the URI gives another value"]
    assert build(config, f"{FILE}&flush-interval=7000ms")[1] == []


def test_protocol_from_the_file_and_under_an_old_name() -> None:
    spec, notices = build({"sink": {"protocol": "FLAT-avro"}}, "kafka://h:1/t")
    assert spec.protocol == "avro" == spec.options(ProtocolOptions).protocol
    assert notices == ["protocol 'FLAT-avro' is an old name; it is now 'avro'"]


def test_relative_directory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec, notices = build(sink="file://./out?protocol=csv")
    assert spec.sink.path == f"{tmp_path}/out"
    assert notices == [f"the sink file://./out is {tmp_path}/out"]


def test_tables_may_depend_on_the_choice() -> None:
    seen = []

    def tables(spec: ChangefeedSpec) -> Sequence[OptionTable]:
        seen.append((spec.source.scheme, spec.sink.scheme, spec.protocol))
        return TABLES

    build({"sink": {"protocol": "csv"}}, "file:///out", tables=tables)
    assert seen == [("range", "file", "csv")]


def test_imported_rules_are_stored(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("a.*\n")
    spec, _ = build({"filter": {"rules": [f"@{tmp_path}/rules"]}})
    assert spec.config == {"filter": {"rules": ["a.*"]}}


def test_clamped_value_is_told() -> None:
    (told,) = build(sink=f"{FILE}&flush-interval=1ms")[1]
    assert told.startswith("the sink URI's parameter flush-interval = 1ms is not allowed (")
    assert told.endswith("from 100ms to 10m): 100ms is used")


# --- known to TiCDC, not acted on here -----------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"mounter": {"worker-num": 8}}, "mounter.worker-num"),
        ({"scheduler": {"force-split": True}}, "scheduler.force-split"),
        ({"memory-quota": 1 << 30}, "memory-quota"),
        ({"performance-mode": "low-latency"}, "performance-mode"),
        ({"consistent": {"max-log-size": 64}}, "consistent.max-log-size"),
        ({"sink": {"encoder-concurrency": 16}}, "sink.encoder-concurrency"),
        ({"sink": {"kafka-config": {"whatever": 1}}}, "sink.kafka-config"),
        ({"sink": {"content-compatible": True}}, "sink.content-compatible"),
        ({"sink": {"dispatchers": [{"matcher": ["*.*"], "topic": "t"}]}}, "sink.dispatchers"),
        (
            {"sink": {"cloud-storage-config": {"worker-count": 4}}},
            "sink.cloud-storage-config.worker-count",
        ),
    ],
)
def test_without_effect_is_told(config: dict[str, Any], path: str) -> None:
    (told,) = build(config)[1]
    assert told.startswith(f"{path} has no effect: ")


@pytest.mark.parametrize(
    ("config", "path", "harmless"),
    [
        (
            {"sink": {"csv": {"output-old-value": True}}},
            "sink.csv.output-old-value",
            {"sink": {"csv": {"output-old-value": False}}},
        ),
    ],
)
def test_not_there_yet_is_refused_unless_default(
    config: dict[str, Any], path: str, harmless: dict[str, Any]
) -> None:
    assert refusal(BadOption, config).startswith(f"{path} is not supported yet; leave it out")
    assert build(harmless)[1] == []


def test_integrity_is_refused_where_it_would_matter() -> None:
    asked = {"integrity": {"integrity-check-level": "correctness"}}
    path = "integrity.integrity-check-level"
    queue = "kafka://h:1/t?protocol=canal-json"
    assert refusal(BadOption, asked, queue).startswith(f"{path} is not supported yet")
    assert build(asked)[1] == [f"{path} has no effect: it concerns kafka only"]
    assert build({"integrity": {"integrity-check-level": "NONE"}})[1] == []


def test_settings_of_other_codecs_do_no_harm() -> None:
    config = {"sink": {"kafka-config": {"codec-config": {"encoding-format": "json"}}}}
    _, notices = build(config, "kafka://h:1/t?protocol=canal-json&avro-enable-watermark=false")
    assert notices == [
        "sink.kafka-config.codec-config.encoding-format has no effect: it concerns the protocol "
        "simple only",
        "the sink URI's parameter avro-enable-watermark has no effect: it concerns the protocol "
        "avro or debezium-avro only",
    ]


def test_mysql_settings_as_the_file_of_others_names_them() -> None:
    def section(**given: Any) -> dict[str, Any]:
        named = {key.replace("_", "-"): value for key, value in given.items()}
        return {"sink": {"mysql-config": named}}

    table = OptionTable("sink.mysql-config", (Option("batch-dml-enable", flag(), True, ""),))
    asked = section(enable_batch_dml=False)
    spec, notices = build(asked, "mysql://h:1", tables=[table])
    assert (spec.config, notices) == (section(batch_dml_enable=False), [])
    both = section(enable_batch_dml=False, batch_dml_enable=False)
    assert "keep one" in refusal(OptionsConflict, both, "mysql://h:1", tables=[table])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("sync-point-interval", "29s", "The SyncPointInterval:29s must be larger than 30s"),
        ("sync-point-retention", "59m", "The SyncPointRetention:59m must be larger than 1h"),
    ],
)
def test_sync_points_have_bounds_once_they_are_on(key: str, value: str, words: str) -> None:
    assert build({key: value}, "mysql://h:1", tables=[])[1] == []
    on = {key: value, "enable-sync-point": True}
    assert words in refusal(BadOption, on, "mysql://h:1", tables=[])


def test_an_empty_old_name_says_nothing() -> None:
    rule = {"matcher": ["a.*"], "dispatcher": "", "partition": "ts"}
    spec, _ = build({"sink": {"dispatchers": [rule]}}, "kafka://h:1/t?protocol=canal-json")
    assert spec.section("sink")["dispatchers"] == [{"matcher": ["a.*"], "partition": "ts"}]


def test_an_empty_parameter_is_a_value_and_wins_over_the_file() -> None:
    config = {"sink": {"protocol": "csv"}}
    words = refusal(BadOption, config, sink="file:///out?protocol=")
    assert words.startswith("unknown '' message protocol for sink: a file sink needs a protocol")
    assert build(config, sink="file:///out")[0].protocol == "csv"
    spec = build({"source": {"cluster-id": 7}}, source="range://h:1?cluster-id=0")[0]
    assert spec.written(spec.source, "source", "cluster-id") == "0"
    assert spec.written(spec.sink, "sink", "date-separator") is None


@pytest.mark.parametrize("written", [0, False, [], {}])
@pytest.mark.parametrize("key", ["protocol", "transaction-atomicity"])
def test_an_untrue_value_of_the_wrong_type_is_no_absence(key: str, written: Any) -> None:
    assert key in refusal(
        BadOption, {"sink": {"protocol": "csv", key: written}}, sink="file:///out"
    )


def test_an_empty_name_of_a_file_is_refused() -> None:
    assert refusal(BadConfigFile, "").startswith(": unknown file type ''")


def test_key_of_another_protocol_matters_only_there() -> None:
    config = {"sink": {"csv": {"anything": 1}}}
    assert build(config, "file:///out?protocol=canal-json", tables=[STORAGE])[1] == [
        "sink.csv has no effect: it concerns csv only"
    ]
    assert "unknown option 'sink.csv.anything'" in refusal(UnknownOption, config)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"case_sensitive": True},
            "unknown option 'case_sensitive'; did you mean 'case-sensitive'?",
        ),
        ({"filter": {"rule": []}}, "unknown option 'filter.rule'; did you mean 'rules'?"),
        ({"sink": {"csv": {"qoute": ""}}}, "did you mean 'quote'?; known here: "),
        ({"sinks": {}}, "unknown option 'sinks'; did you mean 'sink'?"),
        ({"sink": {"dispatchers": [{"topics": 1}]}}, "'sink.dispatchers[0].topics'"),
        ({"sink.csv": {"quote": ""}}, "unknown option 'sink.csv': a key is not empty and has no"),
        ({"integrity.integrity-check-level": "none"}, "unknown option 'integrity.integrity-check"),
        ({"sink": {"kafka-config.codec-config": {}}}, "'sink.kafka-config.codec-config'"),
        ({"": {"force-replicate": True}}, "unknown option ''"),
    ],
)
def test_unknown_keys(config: dict[str, Any], words: str) -> None:
    assert words in refusal(UnknownOption, config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"case-sensitive": 1}, "case-sensitive = 1: expected true or false, got a whole number"),
        ({"filter": {"rules": "a.*"}}, "filter.rules = 'a.*': expected a list of texts"),
        ({"filter": []}, "filter must be a section with keys of its own: "),
        ({"memory-quota": "much"}, "memory-quota = 'much': expected a whole number"),
        ({"performance-mode": "fast"}, "allowed: throughput | low-latency"),
        ({"sink": {"date-separator": "week"}}, "sink.date-separator = 'week'"),
        ({"sink": {"dispatchers": "x"}}, "sink.dispatchers = 'x': expected a list of rules"),
    ],
)
def test_wrong_values(config: dict[str, Any], words: str) -> None:
    assert words in refusal(BadOption, config)


def test_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "feed.toml"
    file.write_text("[filter]\nrules = 3\n")
    words = (
        "filter.rules = 3: expected a list of texts, got a whole number; allowed: a list of texts"
    )
    assert refusal(BadOption, str(file)) == f"{file}: {words}"
    file.write_text("[filter\n")
    assert refusal(BadConfigFile, file).count(str(file)) == 1


def test_uri_parameters() -> None:
    words = refusal(UnknownOption, sink=f"{FILE}&flush-intervall=1s")
    assert words.startswith("the sink URI: unknown parameter 'flush-intervall'; did you mean")
    assert "known for file: " in words and "protocol" in words
    words = refusal(BadOption, sink=f"{FILE}&flush-interval=5")
    assert words.startswith(
        "the sink URI's parameter flush-interval = '5': a duration needs its unit"
    )
    # A key of the file only, and a parameter of the other URI, are unknown here.
    assert "date-separator" in refusal(UnknownOption, sink=f"{FILE}&date-separator=day")
    assert "cluster-id" in refusal(UnknownOption, sink=f"{FILE}&cluster-id=1")
    assert build(source=f"{SOURCE}?cluster-id=1")[1] == []
    words = refusal(UnknownOption, source=f"{SOURCE}?cluster=1")
    assert words.endswith("known for range: cluster-id, password")
    assert "hunter2" not in refusal(BadOption, source=f"{SOURCE}?password=hunter2")
    assert build(sink=f"{FILE}&worker-count=16")[1] == [
        "the sink URI's parameter worker-count has no effect: Spark divides the work"
    ]


@pytest.mark.parametrize(
    ("kind", "sink", "words"),
    [
        (BadOption, "file:///out", "a file sink needs a protocol"),
        (
            BadOption,
            "file:///out?protocol=cvs",
            "unknown 'cvs' message protocol for sink; did you mean 'csv'?",
        ),
        (BadOption, "file:///out?protocol=rich-avro", "reserved"),
        (BadUri, "ftp://h/out?protocol=csv", "unknown scheme 'ftp'; known: azblob"),
        (BadUri, "file://?protocol=csv", "names no directory"),
        (OptionsConflict, "mysql://h:1?protocol=csv", "protocol csv is incompatible with mysql"),
        (
            BadOption,
            "kafka://h/t?protocol=csv&transaction-atomicity=table",
            "table level atomicity is not supported by kafka scheme; allowed: none",
        ),
    ],
)
def test_sinks(kind: type[BadInput], sink: str, words: str) -> None:
    assert words in refusal(kind, sink=sink)


def test_contradictions() -> None:
    old = {"matcher": ["*.*"], "dispatcher": "ts"}
    words = refusal(OptionsConflict, {"sink": {"dispatchers": [{**old, "partition": "ts"}]}})
    assert words.startswith(
        "sink.dispatchers[0]: dispatcher and partition cannot be configured both"
    )


def test_old_name_of_partition() -> None:
    config = {"sink": {"dispatchers": [{"matcher": ["*.*"], "dispatcher": "ts"}]}}
    spec, notices = build(config)
    assert spec.config == {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "ts"}]}}
    assert notices[0] == "sink.dispatchers[0].dispatcher is an old name; it is now partition"


def test_bad_changefeed_id() -> None:
    refusal(BadChangefeedId, changefeed_id="a_b")
    refusal(BadChangefeedId, changefeed_id="")
    assert build(changefeed_id="mine")[0].changefeed_id == "mine"


def test_a_stage_may_read_a_key_without_effect() -> None:
    option = Option("worker-count", whole(1), 16, "", uri=True, no_effect="there are no workers")
    tables = [OptionTable("sink.cloud-storage-config", (option,))]
    config = {"sink": {"cloud-storage-config": {"worker-count": 4}}}
    assert build(config, f"{FILE}&worker-count=4", tables=tables)[1] == [
        "sink.cloud-storage-config.worker-count has no effect: there are no workers",
        "the sink URI's parameter worker-count has no effect: there are no workers",
    ]
    refusal(BadOption, sink=f"{FILE}&worker-count=0", tables=tables)


def test_a_stage_may_take_over_a_key() -> None:
    table = OptionTable("", (Option("bdr-mode", flag(), False, ""),))
    assert build({"bdr-mode": True}, tables=[table])[1] == []
