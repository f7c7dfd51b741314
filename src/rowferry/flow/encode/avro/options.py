"""The options of the avro protocol, and what they amount to together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from rowferry.errors import BadOption, OptionsConflict
from rowferry.flow.encode.avro.registry import RegistryAddress
from rowferry.flow.encode.avro.schema import Modes
from rowferry.flow.encode.large_message import (
    LargeMessageOptions,
    check_large_messages,
    refuse_compression,
)
from rowferry.flow.encode.options import CODEC_SECTION, EXTENSION, CodecOptions, one_of_or_empty
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.option import (
    OptionShape,
    Section,
    flag,
    one_of,
    option,
    text,
)
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.uri import is_web_address


def _address() -> OptionShape[str]:
    def parse(value: Any) -> str:
        address = text().parse(value).strip().rstrip("/")
        if not address:
            return ""
        if not is_web_address(address):
            raise ValueError("no address of a schema registry")
        parts = urlsplit(address)
        if parts.query or parts.fragment:
            raise ValueError("an address has neither ? nor #")
        return address

    return OptionShape("http://host:port or https://host:port, with a path where it has one", parse)


def _nothing(why: str) -> OptionShape[None]:
    def parse(value: Any) -> None:
        raise ValueError(why)

    return OptionShape("nothing; leave it out", parse, kind="none")


class RecordOptions(Section, section="sink"):
    """What TiCDC has for Avro in the section of the sink."""

    enable_tidb_extension = CodecOptions.enable_tidb_extension
    schema_registry = option(
        _address(),
        "",
        "avro, debezium-avro: the address of a schema registry that speaks Confluent's API. A user "
        "and password may stand in it, before the host.",
        uri=True,
        secret=True,
        names="url",
    )


class RegistryOptions(Section, section="sink.kafka-config"):
    """Where schemas are registered."""

    schema_registry = RecordOptions.schema_registry
    user = option(
        text(),
        "",
        "avro, debezium-avro: the user at the schema registry.",
        uri=True,
        key="schema-registry-user",
    )
    password = option(
        text(),
        "",
        "avro, debezium-avro: the user's password at the schema registry.",
        uri=True,
        secret=True,
        key="schema-registry-password",
    )
    ca = option(
        text(),
        "",
        "avro, debezium-avro: a file with the certificates that the schema registry's own must be "
        "signed by; "
        "without it the system's count.",
        uri=True,
        names="path",
        key="schema-registry-ca",
    )
    cert = option(
        text(),
        "",
        "avro, debezium-avro: a file with the certificate that is shown to the schema registry.",
        uri=True,
        names="path",
        key="schema-registry-cert",
    )
    key = option(
        text(),
        "",
        "avro, debezium-avro: a file with the private key of that one.",
        uri=True,
        names="path",
        key="schema-registry-key",
    )
    skip_verify = option(
        flag(),
        False,
        "avro, debezium-avro: trust any certificate of the schema registry. For trying out only.",
        uri=True,
        key="schema-registry-insecure-skip-verify",
    )
    glue_schema_registry_config = option(
        _nothing("AWS Glue is not yet there; use schema-registry"),
        None,
        "avro, debezium-avro: AWS Glue as the schema registry. Not yet there: refused.",
        secret=True,
    )


class AvroOptions(Section, section=CODEC_SECTION):
    """How rows are written as Avro."""

    avro_decimal_handling_mode = option(
        one_of_or_empty("precise", "string"),
        "precise",
        "avro: DECIMAL as Avro's exact `decimal` or as text.",
        uri=True,
        alterable=False,
    )
    avro_bigint_unsigned_handling_mode = option(
        one_of_or_empty("long", "string"),
        "long",
        "avro: BIGINT UNSIGNED as `long`, in which numbers from 2^63 on turn negative, or as text.",
        uri=True,
        alterable=False,
    )
    avro_float = option(
        one_of("double", "float"),
        "double",
        "avro: FLOAT as Avro's `double`, or as its `float`, the only one that TiCDC's own consumer "
        "reads.",
        uri=True,
        alterable=False,
    )
    avro_enable_watermark = option(
        flag(),
        False,
        "avro, debezium-avro: also send DDL and watermarks. In avro they are messages of their own "
        "form, and deletes have their commit-ts; in debezium-avro they have schemas of their own, "
        "under their own names. Needs enable-tidb-extension.",
        uri=True,
    )
    avro_include_before_value = option(
        flag(),
        False,
        "avro: the old row beside the new one. Not yet there: `true` is refused.",
        uri=True,
    )
    enable_tidb_extension = CodecOptions.enable_tidb_extension


@dataclass(frozen=True, slots=True)
class AvroSettings:
    """How rows are written as Avro, and where their schemas are registered."""

    registry: RegistryAddress
    modes: Modes
    extension: bool
    watermark: bool

    @classmethod
    def of(cls, spec: ChangefeedSpec, sink: SinkTraits) -> AvroSettings:
        """Read the options of a spec.

        Raises:
            BadOption: an option that is missing, of a wrong value or not yet there.
            OptionsConflict: options that exclude each other.
        """
        codec = spec.options(AvroOptions)
        section = spec.options(RecordOptions)
        extension = section.enable_tidb_extension or codec.enable_tidb_extension
        if codec.avro_include_before_value:
            raise BadOption("avro-include-before-value is not yet there; leave it out")
        if codec.avro_enable_watermark and not extension:
            raise OptionsConflict(f"avro-enable-watermark needs {EXTENSION} = true as well")
        _check_surroundings(spec, sink)
        modes = Modes(
            decimal_text=codec.avro_decimal_handling_mode == "string",
            bigint_text=codec.avro_bigint_unsigned_handling_mode == "string",
            single_float=codec.avro_float == "float",
        )
        return cls(registry_address(spec, "avro"), modes, extension, codec.avro_enable_watermark)


def refuse_other_messages(spec: ChangefeedSpec, sink: SinkTraits, protocol: str) -> None:
    """Refuse what no message of Avro can be: one of a file, compressed, or in another form.

    Raises:
        OptionsConflict: the sink or the settings ask for it.
    """
    large = spec.options(LargeMessageOptions)
    check_large_messages(large, protocol, None, extension=False)
    refuse_compression(large, protocol)
    if sink.takes_files:
        raise OptionsConflict(
            f"protocol {protocol} is for message queues, not for files; with {spec.sink.scheme}:// "
            "use csv or canal-json"
        )


def _check_surroundings(spec: ChangefeedSpec, sink: SinkTraits) -> None:
    refuse_other_messages(spec, sink, "avro")
    if spec.options(FeedOptions).force_replicate:
        raise OptionsConflict(
            "force-replicate cannot be used with protocol avro: a table without a key has "
            "no message key; remove force-replicate"
        )


def registry_address(spec: ChangefeedSpec, protocol: str) -> RegistryAddress:
    """Read where schemas are registered.

    Raises:
        BadOption: it is not said.
        OptionsConflict: options that exclude each other.
    """
    options = spec.options(RegistryOptions)
    key = RegistryOptions.schema_registry.key
    url = _one_of_two(spec, options.schema_registry, protocol)
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user and (options.user or options.password):
        raise OptionsConflict(
            f"{key} has a user in it already; remove that or schema-registry-user"
        )
    if options.password and not options.user:
        raise OptionsConflict("schema-registry-password needs schema-registry-user as well")
    if bool(options.cert) != bool(options.key):
        raise OptionsConflict(
            "schema-registry-cert and schema-registry-key go together; give both or neither"
        )
    given_options = {
        "schema-registry-ca": options.ca,
        "schema-registry-cert": options.cert,
        "schema-registry-insecure-skip-verify": options.skip_verify,
    }
    given = [key for key, value in given_options.items() if value]
    if given and parts.scheme != "https":
        raise OptionsConflict(f"{given[0]} needs a {key} that begins with https://")
    return RegistryAddress(
        url=parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        user=user or options.user,
        password=password or options.password,
        ca=options.ca,
        cert=options.cert,
        key=options.key,
        skip_verify=options.skip_verify,
    )


def _one_of_two(spec: ChangefeedSpec, kafka: str, protocol: str) -> str:
    """Return the address, which may stand in two sections; a URI parameter is read as both."""
    sink = spec.options(RecordOptions).schema_registry
    if sink and kafka and sink != kafka:
        ours = RecordOptions.path(RecordOptions.schema_registry)
        theirs = RegistryOptions.path(RegistryOptions.schema_registry)
        raise OptionsConflict(f"{ours} and {theirs} differ; keep one of them")
    if not (sink or kafka):
        raise BadOption(
            f"protocol {protocol} needs a schema registry: add "
            f"{RegistryOptions.schema_registry.key}=http://host:port to the sink URI"
        )
    return sink or kafka
