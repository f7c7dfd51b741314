"""The options of the avro protocol, and what they amount to together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from rowferry.errors import BadOption, OptionsConflict
from rowferry.flow.encode.avro.registry import RegistryAddress
from rowferry.flow.encode.avro.schema import Modes
from rowferry.flow.encode.large_message import COMPRESSION, LARGE, check_large_messages
from rowferry.flow.encode.options import TIDB_EXTENSION, one_of_or_empty
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FORCE_REPLICATE, TOP
from rowferry.spec.option import (
    Option,
    OptionShape,
    OptionTable,
    flag,
    one_of,
    text,
)
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.uri import is_web_address


def _address() -> OptionShape[str]:
    def parse(value: Any) -> str:
        found = text().parse(value).strip().rstrip("/")
        if not found:
            return ""
        if not is_web_address(found):
            raise ValueError("no address of a schema registry")
        parts = urlsplit(found)
        if parts.query or parts.fragment:
            raise ValueError("an address has neither ? nor #")
        return found

    return OptionShape("http://host:port or https://host:port, with a path where it has one", parse)


def _nothing(why: str) -> OptionShape[None]:
    def parse(value: Any) -> None:
        raise ValueError(why)

    return OptionShape("nothing; leave it out", parse)


SCHEMA_REGISTRY = Option(
    "schema-registry",
    _address(),
    "",
    "avro: the address of a schema registry that speaks Confluent's API. A user and password may "
    "stand in it, before the host.",
    uri=True,
    secret=True,
    names="url",
)
USER = Option(
    "schema-registry-user", text(), "", "avro: the user at the schema registry.", uri=True
)
PASSWORD = Option(
    "schema-registry-password",
    text(),
    "",
    "avro: the user's password at the schema registry.",
    uri=True,
    secret=True,
)
CA = Option(
    "schema-registry-ca",
    text(),
    "",
    "avro: a file with the certificates that the schema registry's own must be signed by; without "
    "it the system's count.",
    uri=True,
    names="path",
)
CERT = Option(
    "schema-registry-cert",
    text(),
    "",
    "avro: a file with the certificate that is shown to the schema registry.",
    uri=True,
    names="path",
)
KEY = Option(
    "schema-registry-key",
    text(),
    "",
    "avro: a file with the private key of that one.",
    uri=True,
    names="path",
)
SKIP_VERIFY = Option(
    "schema-registry-insecure-skip-verify",
    flag(),
    False,
    "avro: trust any certificate of the schema registry. For trying out only.",
    uri=True,
)
GLUE = Option(
    "glue-schema-registry-config",
    _nothing("AWS Glue is not yet there; use schema-registry"),
    None,
    "avro: AWS Glue as the schema registry. Not yet there: refused.",
    secret=True,
)
DECIMAL_MODE = Option(
    "avro-decimal-handling-mode",
    one_of_or_empty("precise", "string"),
    "precise",
    "avro: DECIMAL as Avro's exact `decimal` or as text.",
    uri=True,
    alterable=False,
)
BIGINT_MODE = Option(
    "avro-bigint-unsigned-handling-mode",
    one_of_or_empty("long", "string"),
    "long",
    "avro: BIGINT UNSIGNED as `long`, in which numbers from 2^63 on turn negative, or as text.",
    uri=True,
    alterable=False,
)
FLOAT_MODE = Option(
    "avro-float",
    one_of("double", "float"),
    "double",
    "avro: FLOAT as Avro's `double`, or as its `float`, the only one that TiCDC's own consumer "
    "reads.",
    uri=True,
    alterable=False,
)
WATERMARK = Option(
    "avro-enable-watermark",
    flag(),
    False,
    "avro: also send DDL and watermarks, as messages of their own form, and deletes with their "
    "commit-ts. Needs enable-tidb-extension.",
    uri=True,
)
BEFORE_VALUE = Option(
    "avro-include-before-value",
    flag(),
    False,
    "avro: the old row beside the new one. Not yet there: `true` is refused.",
    uri=True,
)
SINK: Final = OptionTable("sink", (TIDB_EXTENSION, SCHEMA_REGISTRY))
KAFKA: Final = OptionTable(
    "sink.kafka-config",
    (SCHEMA_REGISTRY, USER, PASSWORD, CA, CERT, KEY, SKIP_VERIFY, GLUE),
)
CODEC: Final = OptionTable(
    "sink.kafka-config.codec-config",
    (DECIMAL_MODE, BIGINT_MODE, FLOAT_MODE, WATERMARK, BEFORE_VALUE, TIDB_EXTENSION),
)


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
        codec = spec.options(CODEC)
        extension = spec.options(SINK)[TIDB_EXTENSION] or codec[TIDB_EXTENSION]
        if codec[BEFORE_VALUE]:
            raise BadOption(f"{BEFORE_VALUE.key} is not yet there; leave it out")
        if codec[WATERMARK] and not extension:
            raise OptionsConflict(f"{WATERMARK.key} needs {TIDB_EXTENSION.key} = true as well")
        _check_surroundings(spec, sink)
        modes = Modes(
            decimal_text=codec[DECIMAL_MODE] == "string",
            bigint_text=codec[BIGINT_MODE] == "string",
            single_float=codec[FLOAT_MODE] == "float",
        )
        return cls(_registry(spec), modes, extension, codec[WATERMARK])


def _check_surroundings(spec: ChangefeedSpec, sink: SinkTraits) -> None:
    large = spec.options(LARGE)
    check_large_messages(large, "avro", None, extension=False)
    if large[COMPRESSION] != "none":
        path = LARGE.path(COMPRESSION.key)
        raise OptionsConflict(f"{path}: protocol avro has no compressed messages; set it to none")
    if sink.takes_files:
        raise OptionsConflict(
            f"protocol avro is for message queues, not for files; with {spec.sink.scheme}:// use "
            "csv or canal-json"
        )
    if spec.options(TOP)[FORCE_REPLICATE]:
        raise OptionsConflict(
            f"{FORCE_REPLICATE.key} cannot be used with protocol avro: a table without a key has "
            f"no message key; remove {FORCE_REPLICATE.key}"
        )


def _registry(spec: ChangefeedSpec) -> RegistryAddress:
    options = spec.options(KAFKA)
    url = _one_of_two(spec.options(SINK)[SCHEMA_REGISTRY], options[SCHEMA_REGISTRY])
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user and (options[USER] or options[PASSWORD]):
        raise OptionsConflict(
            f"{SCHEMA_REGISTRY.key} has a user in it already; remove that or {USER.key}"
        )
    if options[PASSWORD] and not options[USER]:
        raise OptionsConflict(f"{PASSWORD.key} needs {USER.key} as well")
    if bool(options[CERT]) != bool(options[KEY]):
        raise OptionsConflict(f"{CERT.key} and {KEY.key} go together; give both or neither")
    told = {CA.key: options[CA], CERT.key: options[CERT], SKIP_VERIFY.key: options[SKIP_VERIFY]}
    given = [key for key, value in told.items() if value]
    if given and parts.scheme != "https":
        raise OptionsConflict(f"{given[0]} needs a {SCHEMA_REGISTRY.key} that begins with https://")
    return RegistryAddress(
        url=parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        user=user or options[USER],
        password=password or options[PASSWORD],
        ca=options[CA],
        cert=options[CERT],
        key=options[KEY],
        skip_verify=options[SKIP_VERIFY],
    )


def _one_of_two(sink: str, kafka: str) -> str:
    """Return the address, which may stand in two sections; a URI parameter is read as both."""
    if sink and kafka and sink != kafka:
        ours, theirs = SINK.path(SCHEMA_REGISTRY.key), KAFKA.path(SCHEMA_REGISTRY.key)
        raise OptionsConflict(f"{ours} and {theirs} differ; keep one of them")
    if not (sink or kafka):
        raise BadOption(
            f"protocol avro needs a schema registry: add {SCHEMA_REGISTRY.key}=http://host:port to "
            "the sink URI"
        )
    return sink or kafka
