"""What a user may write for protocol avro, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from avro_cases import NOWHERE, avro, spec

from codec_kit import codec_for
from rowferry.errors import BadInput, BadOption, OptionsConflict
from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.avro.codec import Avro
from rowferry.flow.encode.avro.options import AvroSettings
from rowferry.flow.encode.avro.schema import Modes
from rowferry.registry import CODECS
from rowferry.spec.build import build_spec

REGISTRY = {"sink": {"schema-registry": NOWHERE}}


def created(query: str, config: dict[str, Any] | None = None) -> AvroSettings:
    """The settings of a changefeed that a user creates with this query of the sink's URI."""
    given = REGISTRY if config is None else config
    sink = f"kafka://broker:9092/topic?{query}"
    found, _ = build_spec("range://127.0.0.1:1", sink, given, tables=Avro.TABLES, sinks=sink_traits)
    assert CODECS.load(found.protocol) is Avro
    return AvroSettings.of(found, sink_traits(found.sink.scheme))


BOTH = pytest.mark.parametrize("protocol", ["avro", "flat-avro"])


@BOTH
def test_protocol(protocol: str) -> None:
    wanted = created(f"protocol={protocol}")
    assert (wanted.modes, wanted.extension, wanted.watermark) == (Modes(), False, False)
    assert created(f"protocol={protocol.upper()}") == wanted


def test_rich_avro_is_reserved() -> None:
    with pytest.raises(BadOption, match="'rich-avro' is reserved"):
        created("protocol=rich-avro")


@BOTH
def test_protocol_with_enable_tidb_extension(protocol: str) -> None:
    assert created(f"protocol={protocol}&enable-tidb-extension=true").extension
    assert not created(f"protocol={protocol}&enable-tidb-extension=false").extension
    with pytest.raises(BadOption, match="enable-tidb-extension = 'yes'.*true or false"):
        created(f"protocol={protocol}&enable-tidb-extension=yes")


@BOTH
def test_protocol_with_avro_decimal_handling_mode(protocol: str) -> None:
    key = "avro-decimal-handling-mode"
    assert not created(f"protocol={protocol}&{key}=precise").modes.decimal_text
    assert created(f"protocol={protocol}&{key}=string").modes.decimal_text
    assert not created(f"protocol={protocol}&{key}=").modes.decimal_text
    with pytest.raises(BadOption, match=f"{key} = 'double'.*precise | string"):
        created(f"protocol={protocol}&{key}=double")


@BOTH
def test_protocol_with_avro_bigint_unsigned_handling_mode(protocol: str) -> None:
    key = "avro-bigint-unsigned-handling-mode"
    assert not created(f"protocol={protocol}&{key}=long").modes.bigint_text
    assert created(f"protocol={protocol}&{key}=string").modes.bigint_text
    with pytest.raises(BadOption, match=f"{key} = 'bytes'.*long | string"):
        created(f"protocol={protocol}&{key}=bytes")


@BOTH
def test_protocol_with_avro_float(protocol: str) -> None:
    assert not created(f"protocol={protocol}&avro-float=double").modes.single_float
    assert created(f"protocol={protocol}&avro-float=FLOAT").modes.single_float
    for wrong in ("single", "", "0"):
        with pytest.raises(BadOption, match=rf"avro-float = '{wrong}'.*double \| float"):
            created(f"protocol={protocol}&avro-float={wrong}")


@BOTH
def test_protocol_with_schema_registry(protocol: str) -> None:
    for url in ("http://host", "https://host:8081", "http://127.0.0.1:1/apis/ccompat/v7"):
        found = created(f"protocol={protocol}&schema-registry={url}/", {})
        assert found.registry.url == url
    for url in ("host:8081", "ftp://host", "http://", "http://host:port", "http://h/?a", "//h"):
        with pytest.raises(BadOption, match="schema-registry.*no address|neither"):
            created(f"protocol={protocol}&schema-registry={url}", {})
    for query in ("", "&schema-registry="):
        with pytest.raises(BadOption, match=r"needs a schema registry: add schema-registry="):
            created(f"protocol={protocol}{query}", {})


def test_the_registry_may_stand_in_two_sections() -> None:
    kafka = {"sink": {"kafka-config": {"schema-registry": "http://two"}}}
    assert created("protocol=avro", kafka).registry.url == "http://two"
    assert created("protocol=avro&schema-registry=http://one", kafka).registry.url == "http://one"
    kafka["sink"]["schema-registry"] = "http://one"  # type: ignore[assignment]
    with pytest.raises(OptionsConflict, match=r"sink\.kafka-config\.schema-registry differ"):
        created("protocol=avro", kafka)


def test_modes_may_stand_in_the_file() -> None:
    section = {"avro-decimal-handling-mode": "string", "avro-enable-watermark": True}
    section |= {"avro-float": "float"}
    sink = {"schema-registry": NOWHERE, "enable-tidb-extension": True}
    config = {"sink": {**sink, "kafka-config": {"codec-config": section}}}
    found = created("protocol=avro", config)
    assert (found.modes.decimal_text, found.watermark, found.extension) == (True, True, True)
    assert found.modes.single_float


def test_a_password_in_the_address_is_never_printed() -> None:
    word = "open" + "sesame"
    for url in (f"http://alice:{word}@host:port", f"http://alice:{word}@host:1?a"):
        with pytest.raises(BadOption) as found:
            created(f"protocol=avro&schema-registry={url}", {})
        assert word not in str(found.value)
    good = spec(schema_registry=f"http://alice:{word}@host:1")
    assert word not in str(good.sink) and "alice" in str(good.sink) and word in good.sink.reveal()
    assert word not in repr(AvroSettings.of(good, sink_traits(good.sink.scheme)))
    assert AvroSettings.of(good, sink_traits(good.sink.scheme)).registry.url == "http://host:1"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"avro_enable_watermark": "true"}, "avro-enable-watermark needs enable-tidb-extension"),
        ({"avro_include_before_value": "true"}, "avro-include-before-value is not yet there"),
        ({"schema_registry_password": "x"}, "schema-registry-password needs schema-registry-user"),
        ({"schema_registry_cert": "x"}, "schema-registry-cert and schema-registry-key go together"),
        ({"schema_registry_key": "x"}, "schema-registry-cert and schema-registry-key go together"),
        ({"schema_registry_ca": "x"}, "schema-registry-ca needs .*https"),
        ({"schema_registry_insecure_skip_verify": "true"}, "skip-verify needs .*https"),
        (
            {"schema_registry": "http://bob@host", "schema_registry_user": "x"},
            "has a user in it already",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(parameters: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        avro(**parameters)


def test_what_is_not_yet_there_is_refused_by_name() -> None:
    glue = {"region": "eu", "secret-access-key": "hid" + "den"}
    config = {"sink": {**REGISTRY["sink"], "kafka-config": {"glue-schema-registry-config": glue}}}
    with pytest.raises(BadOption, match="glue-schema-registry-config.*not yet there") as found:
        created("protocol=avro", config)
    assert "hidden" not in str(found.value)
    checked = {**REGISTRY, "integrity": {"integrity-check-level": "correctness"}}
    with pytest.raises(BadOption, match="integrity-check-level is not supported yet"):
        created("protocol=avro", checked)


@pytest.mark.parametrize(
    "handling",
    [{"large-message-handle-option": "handle-key-only"}]
    + [{"large-message-handle-compression": "lz4"}],
)
def test_large_messages_have_no_other_form(handling: dict[str, str]) -> None:
    config = {"sink": {**REGISTRY["sink"], "kafka-config": {"large-message-handle": handling}}}
    with pytest.raises(OptionsConflict, match="large-message-handle.*protocol avro"):
        created("protocol=avro", config)


def test_force_replicate_is_refused() -> None:
    with pytest.raises(OptionsConflict, match="force-replicate cannot be used with protocol avro"):
        created("protocol=avro", {**REGISTRY, "force-replicate": True})


def test_files_are_refused() -> None:
    with pytest.raises(OptionsConflict, match=r"not for files; with file:// use csv or canal-json"):
        codec_for(Avro, spec(REGISTRY, sink="file:///data?protocol=avro"))
