"""Options of the Pulsar sink, and what they amount to together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rowferry.errors import BadOption, BadUri, OptionsConflict
from rowferry.flow.dispatch.topics import TopicForm
from rowferry.flow.sink.queue.topic_sink import DEFAULT_PARTITIONS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    OptionShape,
    Section,
    duration,
    flag,
    one_of,
    option,
    size,
    text,
    web_address,
    whole,
)
from rowferry.spec.uri import FOREIGN

LARGEST_BATCH: Final = 1000  # messages: their places in a batch are ten bits of a sequence id
TOPIC_FORM: Final = TopicForm(
    lead=r"persistent://[A-Za-z0-9._{}=-]+/[A-Za-z0-9._{}=-]+/",
    home="persistent://public/default/",
    words="persistent://tenant/namespace/topic",
)
_NON_PERSISTENT: Final = "non-persistent://"
_COMPRESSIONS: Final = ("none", "lz4", "zlib", "zstd", "snappy")


def _time(unit: timedelta, words: str) -> OptionShape[timedelta]:
    """A duration, or a bare number in the unit that TiCDC has for it."""
    any_duration, number = duration(), re.compile("[0-9]+")

    def parse(value: Any) -> timedelta:
        if isinstance(value, str) and number.fullmatch(value):
            value = int(value)
        bare = isinstance(value, int) and not isinstance(value, bool)
        try:
            time = value * unit if bare else any_duration.parse(value)
        except OverflowError:
            raise ValueError("too long a duration") from None
        if time <= timedelta(0):
            raise ValueError("it must be above 0")
        return time

    return OptionShape(words, parse)


_SECONDS: Final = _time(timedelta(seconds=1), "seconds above 0, or a duration such as 10s")
_MILLISECONDS: Final = _time(
    timedelta(milliseconds=1), "milliseconds above 0, or a duration such as 10ms"
)


class PulsarOptions(Section, section="sink.pulsar-config"):
    """The options of the Pulsar sink."""

    web_service_url = option(
        web_address(),
        "",
        "Where the brokers' admin interface is, such as http://HOST:8080. It makes topics that "
        "are missing, switches deduplication on, and tells when a topic is gone. Absent: the "
        "URI's own address where its scheme is pulsar+http or pulsar+https, else there is none.",
        uri=True,
        names="url",
    )
    partition_num = option(
        whole(1, 10_000),
        0,
        "How many partitions of each topic are written; absent: as many as the topic has, and "
        f"{DEFAULT_PARTITIONS} where the topic is created. The count that a topic had when the "
        "changefeed first wrote to it stays.",
        uri=True,
        alterable=False,
    )
    auto_create_topic = option(
        flag(), True, "Create topics that are missing, by the admin interface.", uri=True
    )
    deduplication = option(
        one_of("auto", "required", "off"),
        "auto",
        "Whether the brokers leave out what they have already. `auto` switches it on for each "
        "topic where the admin interface allows that, and goes on without it elsewhere: then a "
        "replay may repeat messages. `required` refuses the changefeed there. `off` changes no "
        "setting of a topic.",
        uri=True,
    )
    max_message_bytes = option(
        size(1024, 1 << 30),
        5 << 20,
        "The largest message. Where the brokers take less, that counts.",
        uri=True,
    )
    compression_type = option(
        one_of(*_COMPRESSIONS), "none", "How the client compresses what it sends.", uri=True
    )
    batching_max_messages = option(
        whole(1),
        LARGEST_BATCH,
        f"The most messages in one batch; more than {LARGEST_BATCH} means that many.",
        uri=True,
    )
    batching_max_bytes = option(
        size(1, 4 << 20), 128 << 10, "The most bytes of messages in one batch.", uri=True
    )
    batching_max_publish_delay = option(
        _MILLISECONDS,
        timedelta(milliseconds=10),
        "How long messages wait for a batch.",
        uri=True,
        no_effect="batches are cut by the changefeed, and none waits",
    )
    max_pending_messages = option(
        whole(1, 10_000_000),
        100_000,
        "How many messages of one task may be under way; further ones wait.",
        uri=True,
    )
    connection_timeout = option(_SECONDS, timedelta(seconds=5), "To connect to a broker.", uri=True)
    operation_timeout = option(
        _SECONDS,
        timedelta(seconds=30),
        "To find a topic's broker and to begin sending to it; also for the admin interface.",
        uri=True,
    )
    send_timeout = option(
        _SECONDS,
        timedelta(seconds=30),
        "To wait until a message is stored, before the micro-batch is begun anew.",
        uri=True,
    )
    authentication_token = option(
        text(), "", "A token to log in with (JSON Web Token).", secret=True
    )
    token_from_file = option(
        text(), "", "A file with the token, in every process that sends.", names="path"
    )
    basic_user_name = option(text(), "", "The user's name for basic authentication.")
    basic_password = option(text(), "", "The user's password.", secret=True)
    auth_tls_certificate_path = option(
        text(), "", "File of this client's certificate, by which it logs in.", names="path"
    )
    auth_tls_private_key_path = option(
        text(), "", "File of the private key of that certificate.", names="path"
    )
    tls_trust_certs_file_path = option(
        text(), "", "File of the authorities that signed the brokers.", uri=True, names="path"
    )
    tls_certificate_file = option(
        text(), "", "File of this client's certificate, for TLS alone.", uri=True, names="path"
    )
    tls_key_file_path = option(
        text(), "", "File of the private key of that certificate.", uri=True, names="path"
    )
    tls_validate_hostname = option(
        flag(), True, "Whether a broker's certificate must name its host.", uri=True
    )
    insecure_skip_verify = option(flag(), False, "Trust any broker: for tests only.", uri=True)
    pulsar_version = option(
        text(),
        "",
        "The broker's version.",
        uri=True,
        no_effect="the client asks the broker what it understands",
    )
    pulsar_producer_cache_size = option(
        whole(1),
        10240,
        "How many producers are kept.",
        uri=True,
        no_effect="a producer ends with its micro-batch, so that another process can go on",
    )


class OAuthOptions(Section, section="sink.pulsar-config.oauth2"):
    """How a token is got by OAuth 2, with client credentials."""

    oauth2_issuer_url = option(
        web_address(), "", "Who gives tokens; its discovery document is asked for.", names="url"
    )
    oauth2_audience = option(text(), "", "For whom the token is.")
    oauth2_private_key = option(
        text(),
        "",
        "The file with the client's credentials: JSON with client_id and client_secret.",
        names="path",
    )
    oauth2_client_id = option(
        text(), "", "The client's id; it must be the one of the file.", uri=False
    )
    oauth2_scope = option(text(), "", "The scope that is asked for.")


@dataclass(frozen=True)
class PulsarSettings:
    """The Pulsar sink's options, checked.

    Attributes:
        service_url: what the client library is given.
        web_url: the admin interface; "": there is none.
        at: the brokers' address, for the words of errors.
    """

    options: PulsarOptions
    oauth: OAuthOptions
    service_url: str
    web_url: str
    at: str
    topic: str
    token: str = field(repr=False)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.service_url.partition(":")[0].endswith(("+ssl", "https"))

    @property
    def batch_messages(self) -> int:
        """The most messages in one batch."""
        return min(self.options.batching_max_messages, LARGEST_BATCH)


def read_settings(spec: ChangefeedSpec) -> PulsarSettings:
    """Check the options against each other.

    Raises:
        BadUri: the URI names no broker or no topic.
        BadOption, OptionsConflict: with the key at fault.
    """
    options, oauth = spec.options(PulsarOptions), spec.options(OAuthOptions)
    sink = spec.sink
    form = f"{sink.scheme}://host:6650/{TOPIC_FORM.words}"
    if not sink.address:
        raise BadUri(f"the sink URI names no broker; write it as {form}")
    topic = sink.path.strip("/")
    if not topic:
        raise BadUri(f"no topic is specified in sink-uri; write it as {form}")
    if topic.startswith(_NON_PERSISTENT):
        raise BadUri(
            f"the sink URI names the topic {topic}: a topic that is not persistent keeps nothing "
            f"for readers who are away; write it as {form}"
        )
    # Lookups go by HTTP where the scheme says so; other schemes are the library's own.
    by_web = sink.scheme.removeprefix("pulsar+")
    is_web = by_web in FOREIGN
    service_url = f"{by_web if is_web else sink.scheme}://{sink.address}"
    _check_files(options)
    return PulsarSettings(
        options=options,
        oauth=oauth,
        service_url=service_url,
        web_url=options.web_service_url.rstrip("/") or (service_url if is_web else ""),
        at=sink.address,
        topic=topic,
        token=_token(spec, options, oauth),
    )


def _token(spec: ChangefeedSpec, options: PulsarOptions, oauth: OAuthOptions) -> str:
    """Return the token to log in with; "": another way, or none.

    Raises:
        OptionsConflict: there are two ways to log in, or half of one.
    """
    if bool(oauth.oauth2_issuer_url) != bool(oauth.oauth2_private_key):
        raise OptionsConflict(
            "sink.pulsar-config.oauth2 needs oauth2-issuer-url and oauth2-private-key"
        )
    if spec.sink.user or spec.sink.password:
        raise OptionsConflict(
            "the sink URI has a user: write authentication-token, or basic-user-name and "
            "basic-password, in [sink.pulsar-config]"
        )
    ways: Mapping[str, str] = {
        "authentication-token": options.authentication_token,
        "token-from-file": options.token_from_file,
        "basic-user-name": options.basic_user_name,
        "auth-tls-certificate-path": options.auth_tls_certificate_path,
        "oauth2": oauth.oauth2_issuer_url,
    }
    given = [way for way, value in ways.items() if value]
    if len(given) > 1:
        raise OptionsConflict(
            f"{' and '.join(given)} of [sink.pulsar-config] are each a way to log in; keep one"
        )
    for one, other in (
        ("basic_user_name", "basic_password"),
        ("auth_tls_certificate_path", "auth_tls_private_key_path"),
        ("tls_certificate_file", "tls_key_file_path"),
    ):
        if bool(getattr(options, one)) != bool(getattr(options, other)):
            words = f"{one} and {other}".replace("_", "-")
            raise OptionsConflict(f"{words} belong together; give both or none")
    if options.token_from_file:
        return Path(options.token_from_file).read_text().strip()
    return options.authentication_token


def _check_files(options: PulsarOptions) -> None:
    for named in PulsarOptions.TABLE.options:
        path = options[named] if named.names == "path" else ""
        if path and not Path(path).is_file():
            raise BadOption(f"{PulsarOptions.path(named)} = {path!r}: there is no such file")
