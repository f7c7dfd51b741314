"""Options of the Kafka sink, and what they amount to for the client library."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rowferry.errors import BadOption, OptionsConflict
from rowferry.flow.sink.queue.topic_sink import DEFAULT_PARTITIONS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    OptionShape,
    Section,
    duration,
    flag,
    go_text,
    matching,
    one_of,
    option,
    size,
    text,
    web_address,
    whole,
)
from rowferry.spec.quarantine import QuarantineOptions

BATCH_OVERHEAD: Final = 128  # bytes of a batch beside its one message, at most
_LARGEST: Final = 10**9 - BATCH_OVERHEAD  # the client library sends no more at once
_INT16, _INT32 = (1 << 15) - 1, (1 << 31) - 1  # brokers count in these
MOST_LANES: Final = 64
_TOPIC: Final = r"[A-Za-z0-9._-]{1,249}"
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]+")
_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "gssapi", "oauthbearer")


def _number(words: str, from_one: str = "", most: int = _INT32) -> OptionShape[int]:
    """A whole number; with `from_one`, the words for a number that is not from 1 to `most`."""
    any_whole = whole()

    def parse(value: Any) -> int:
        try:
            number = any_whole.parse(value)
        except ValueError as err:
            raise ValueError(f"invalid syntax, {err}") from None
        if from_one and not 0 < number <= most:
            raise ValueError(f"{from_one} {number}")
        return number

    return OptionShape(words, parse)


def _message_bytes() -> OptionShape[int]:
    any_size = size()

    def parse(value: Any) -> int:
        try:
            number = int(value) if isinstance(value, str) and value.startswith("-") else None
            number = any_size.parse(value) if number is None else number
        except ValueError as err:
            raise ValueError(f"invalid syntax, {err}") from None
        if number <= 0:
            raise ValueError(f"invalid max-message-bytes {number}")
        return number

    words = f"bytes from 1 to {_LARGEST}, as 1048576 or 1MiB"
    return OptionShape(words, lambda value: min(parse(value), _LARGEST), parse)


def _retries() -> OptionShape[int]:
    any_whole = _number("")

    def parse(value: Any) -> int:
        number = any_whole.parse(value)
        return min(number, _INT32) if number >= 0 else 5

    return OptionShape("a whole number; below 0 means 5", parse)


def _compression() -> OptionShape[str]:
    def parse(value: Any) -> str:
        name = text().parse(value).strip().lower()
        return name if name in _COMPRESSIONS else "none"

    def written(value: Any) -> str:
        return text().parse(value).strip().lower()

    return OptionShape(" | ".join(_COMPRESSIONS), parse, written)


def _acks() -> OptionShape[int]:
    any_whole = _number("")

    def parse(value: Any) -> int:
        number = any_whole.parse(value)
        if number not in (-1, 0, 1):
            raise ValueError(f"invalid required acks {number}")
        return number

    return OptionShape("-1 (all replicas) | 1 (the leader) | 0 (none)", parse)


def _client_id() -> OptionShape[str]:
    def parse(value: Any) -> str:
        client_id = text().parse(value)
        if client_id and not _CLIENT_ID.fullmatch(client_id):
            raise ValueError(f"invalid kafka client ID '{client_id}'")
        return client_id

    return OptionShape("letters, digits, dot, underscore and hyphen", parse)


def _timeout(key: str, least: timedelta, most: timedelta) -> OptionShape[timedelta]:
    """A duration that the client library takes."""
    any_duration = duration()
    bounds = f"from {go_text(least)} to {go_text(most)}"

    def parse(value: Any) -> timedelta:
        timeout = any_duration.parse(value)
        if timeout <= timedelta(0):
            raise ValueError(f"{key} must be greater than zero")
        if not least <= timeout <= most:
            raise ValueError(f"{key} must be {bounds}")
        return timeout

    return OptionShape(f"a duration {bounds}", parse)


def _at_least_a_second() -> OptionShape[timedelta]:
    any_duration = duration()

    def parse(value: Any) -> timedelta:
        timeout = any_duration.parse(value)
        if timeout < timedelta(seconds=1):
            raise ValueError("it must be one second at least")
        return timeout

    return OptionShape("a duration of 1s or more", parse)


def _mechanism() -> OptionShape[str]:
    def parse(value: Any) -> str:
        mechanism = text().parse(value).lower()
        if mechanism and mechanism not in _MECHANISMS:
            raise ValueError(f"unknown SASL mechanism: {value}")
        return mechanism

    return OptionShape(" | ".join(_MECHANISMS), parse)


def _auth_type() -> OptionShape[str]:
    words = one_of("", "user", "keytab")

    def parse(value: Any) -> str:
        try:
            return words.parse(value)
        except ValueError:
            raise ValueError(f"unknown auth type: {value}") from None

    return OptionShape(words.words, parse)


def _never(key: str, why: str) -> OptionShape[str]:
    def parse(value: Any) -> str:
        if value not in ("", None, False, "false"):
            raise ValueError(f"{key} is not supported: {why}")
        return ""

    return OptionShape("empty", parse, kind="none")


def _scopes(value: Any) -> tuple[str, ...]:
    scopes = [value] if isinstance(value, str) else value
    if not isinstance(scopes, list | tuple) or not all(isinstance(v, str) for v in scopes):
        raise ValueError("expected a list of texts")
    if not all(_SCOPE.fullmatch(one) for one in scopes):
        raise ValueError("a scope has letters, digits and -._:/~")
    return tuple(scopes)


_SCOPE: Final = re.compile(r"[A-Za-z0-9._:/~-]+")  # they are sent as they are, inside a form
# The client library makes a command of these for a shell.
_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_KERBEROS_NAME: Final = matching(_NAME, "letters, digits, dot, underscore and hyphen")
_PRINCIPAL: Final = matching(
    f"{_NAME}(/{_NAME})?(@{_NAME})?", "name, name/host or name@REALM, of letters, digits and ._-"
)
_KEYTAB: Final = matching(
    r"/[A-Za-z0-9._/-]+", "an absolute path of letters, digits, dot, underscore, hyphen and /"
)
_TEN_S: Final = timedelta(seconds=10)


class KafkaOptions(Section, section="sink.kafka-config"):
    """The options of the Kafka sink."""

    partition_num = option(
        _number("a whole number above 0", "invalid partition num"),
        0,
        "How many partitions of each topic are written; absent: as many as the topic has, and "
        f"{DEFAULT_PARTITIONS} where the topic is created. The count that a topic had when the "
        "changefeed first wrote to it stays.",
        uri=True,
        alterable=False,
    )
    replication_factor = option(
        _number("a whole number above 0", "invalid replication-factor", _INT16),
        1,
        "Replicas of topics that are created.",
        uri=True,
    )
    kafka_version = option(
        text(),
        "",
        "The broker's version.",
        uri=True,
        no_effect="the client asks the broker what it understands",
    )
    max_message_bytes = option(
        _message_bytes(),
        10 << 20,
        "The largest message. Where the topic (or, for a topic that is created, the broker) takes "
        "less, that counts.",
        uri=True,
    )
    max_retry = option(
        _retries(),
        5,
        "How often the client library repeats a request before the micro-batch is begun anew.",
        uri=True,
    )
    compression = option(
        _compression(), "none", "How the client compresses what it sends.", uri=True
    )
    kafka_client_id = option(
        _client_id(),
        "",
        "The name that the broker sees; absent: rowferry_ and the changefeed's id.",
        uri=True,
    )
    auto_create_topic = option(flag(), True, "Create topics that are missing.", uri=True)
    dial_timeout = option(
        _timeout("dial-timeout", timedelta(seconds=1), timedelta(hours=596)),
        _TEN_S,
        "To connect to a broker.",
        uri=True,
    )
    write_timeout = option(
        _timeout("write-timeout", timedelta.resolution, timedelta(minutes=15)),
        _TEN_S,
        "To wait for a broker's answer to messages.",
        uri=True,
    )
    read_timeout = option(
        _timeout("read-timeout", timedelta.resolution, timedelta(minutes=5)),
        _TEN_S,
        "To wait for a broker's answer to anything else.",
        uri=True,
    )
    required_acks = option(
        _acks(),
        -1,
        "Who must have stored a message before it counts. Anything but -1 can lose messages, or "
        "change their order, when a broker fails.",
        uri=True,
    )
    exactly_once = option(
        flag(),
        False,
        "Send in transactions, each with a note of how far it came: whoever reads with "
        "isolation.level = read_committed sees no message twice.",
        uri=True,
    )
    transaction_timeout = option(
        _at_least_a_second(),
        timedelta(minutes=1),
        "With exactly-once: after this the brokers end a transaction whose sender is gone; until "
        "then its partitions stand still for readers of committed messages. A long micro-batch is "
        "several transactions.",
        uri=True,
    )
    transaction_lanes = option(
        whole(1, MOST_LANES),
        4,
        "With exactly-once: how many transactions may be open side by side; each has its share of "
        "the partitions.",
        uri=True,
    )
    ledger_topic = option(
        matching(_TOPIC, "letters, digits, dot, underscore and hyphen"),
        "",
        "With exactly-once: the topic where the notes are, of this changefeed alone; absent: "
        "__rowferry. and the changefeed's id.",
        uri=True,
        alterable=False,
    )
    sasl_user = option(text(), "", "The user's name (PLAIN, SCRAM).", uri=True)
    sasl_password = option(text(), "", "The user's password (PLAIN, SCRAM).", uri=True, secret=True)
    sasl_mechanism = option(_mechanism(), "", "How the client proves who it is.", uri=True)
    sasl_gssapi_service_name = option(_KERBEROS_NAME, "", "Kerberos: the service's name.", uri=True)
    sasl_gssapi_auth_type = option(_auth_type(), "", "Kerberos: keytab.", uri=True)
    sasl_gssapi_keytab_path = option(
        _KEYTAB, "", "Kerberos: the keytab's file.", uri=True, names="path"
    )
    sasl_gssapi_user = option(_PRINCIPAL, "", "Kerberos: the principal.", uri=True)
    sasl_gssapi_realm = option(_KERBEROS_NAME, "", "Kerberos: the realm.", uri=True)
    sasl_gssapi_password = option(
        _never("sasl-gssapi-password", "use a keytab"),
        "",
        "Not supported: use a keytab.",
        uri=True,
        secret=True,
    )
    sasl_gssapi_kerberos_config_path = option(
        _never("sasl-gssapi-kerberos-config-path", "set KRB5_CONFIG in the environment"),
        "",
        "Not supported: set KRB5_CONFIG in the environment.",
        uri=True,
    )
    sasl_gssapi_disable_pafxfast = option(
        flag(),
        False,
        "Kerberos: read for compatibility.",
        uri=True,
        no_effect="the Kerberos library decides",
    )
    sasl_oauth_client_id = option(
        matching(r"[\x21-\x7e]+", "printable characters without spaces"),
        "",
        "OAuth 2: the client's id.",
    )
    sasl_oauth_client_secret = option(
        text(), "", "OAuth 2: the client's secret, in base64.", secret=True
    )
    sasl_oauth_token_url = option(
        web_address(), "", "OAuth 2: where tokens come from.", names="url"
    )
    sasl_oauth_scopes = option(
        OptionShape("a list of texts", _scopes, kind="texts"), (), "OAuth 2: scopes."
    )
    sasl_oauth_grant_type = option(
        one_of("client_credentials"), "client_credentials", "OAuth 2: grant."
    )
    sasl_oauth_audience = option(
        _never("sasl-oauth-audience", "the client library asks for tokens without one"),
        "",
        "Not supported: the client library asks for tokens without one.",
    )
    enable_tls = option(
        OptionShape("true or false", lambda v: "true" if flag().parse(v) else "false"),
        "",
        "Encrypt connections; absent: as the scheme (kafka+ssl) and the files below say.",
        uri=True,
    )
    ca = option(
        text(), "", "File of the authorities that signed the brokers.", uri=True, names="path"
    )
    cert = option(text(), "", "File of this client's certificate.", uri=True, names="path")
    key = option(text(), "", "File of the certificate's private key.", uri=True, names="path")
    insecure_skip_verify = option(flag(), False, "Trust any broker: for tests only.", uri=True)


@dataclass(frozen=True)
class KafkaSettings:
    """The Kafka sink's options, checked."""

    options: KafkaOptions
    topic: str
    partitions: int | None
    timeout_s: float
    connection: Mapping[str, Any] = field(repr=False)  # for every client; holds secrets
    producing: Mapping[str, Any]  # for producers, besides
    ledger: str = ""  # the topic of an exactly-once changefeed's notes; "": it is none

    @property
    def transaction_s(self) -> float:
        """How long a transaction may be open."""
        return self.options.transaction_timeout.total_seconds()


def read_settings(spec: ChangefeedSpec) -> KafkaSettings:
    """Check the options against each other.

    Raises:
        BadOption, OptionsConflict: with the key at fault. The topic's name may be empty here.
    """
    options = spec.options(KafkaOptions)
    acks = options.required_acks
    client_id = options.kafka_client_id or "rowferry_" + re.sub(r'[?:,"]', "_", spec.changefeed_id)
    connection = {
        "bootstrap.servers": spec.sink.address,
        "client.id": client_id,
        "socket.connection.setup.timeout.ms": _ms(options.dial_timeout),
        "socket.timeout.ms": max(_ms(options.read_timeout), 10),
        "broker.address.family": "any",
        "reconnect.backoff.max.ms": 1000,
        **_security(spec, options),
    }
    producing: dict[str, Any] = {
        "acks": "all" if acks == -1 else str(acks),
        "compression.type": options.compression,
        "request.timeout.ms": _ms(options.write_timeout),
        "retries": max(options.max_retry, 1) if acks == -1 else options.max_retry,
        "retry.backoff.ms": 100,
        "delivery.report.only.error": True,
    }
    if acks == -1:
        # A message that fails for good fails all behind it: nothing arrives out of its turn.
        producing |= {"enable.idempotence": True, "enable.gapless.guarantee": True}
    else:
        producing |= {"max.in.flight.requests.per.connection": 1}
    return KafkaSettings(
        options=options,
        topic=spec.sink.path.strip("/"),
        partitions=options.partition_num or None,
        timeout_s=options.read_timeout.total_seconds(),
        connection=connection,
        producing=producing,
        ledger=_ledger(spec, options),
    )


def _ledger(spec: ChangefeedSpec, options: KafkaOptions) -> str:
    if not options.exactly_once:
        return ""
    if options.required_acks != -1:
        raise OptionsConflict(
            f"exactly-once = true needs required-acks = -1, and it is {options.required_acks}; "
            "leave it out"
        )
    if spec.options(QuarantineOptions).parks:
        raise OptionsConflict(
            "exactly-once = true shows a micro-batch once, and on-bad-row = quarantine carries it "
            "out again without the rows that it parks; leave one out"
        )
    return options.ledger_topic or f"__rowferry.{spec.changefeed_id}"


def uses_tls(spec: ChangefeedSpec, options: KafkaOptions) -> bool:
    """Return whether connections are encrypted.

    Raises:
        OptionsConflict: files are given, or the scheme says so, although it is switched off; or
            not all files are given.
    """
    asked = options.enable_tls
    files = options.ca, options.cert, options.key
    if any(files) and asked == "false":
        raise OptionsConflict(
            "credential files are supplied, but 'enable-tls' is set to false; remove one"
        )
    if asked == "false" and spec.sink.scheme == "kafka+ssl":
        raise OptionsConflict(
            "the scheme kafka+ssl encrypts connections, but 'enable-tls' is set to false; remove "
            "it, or write kafka://"
        )
    if any(files[1:]) and not all(files):
        raise OptionsConflict(
            "ca, cert and key files should all be supplied (ca alone trusts an authority of yours "
            "without a certificate of this client)"
        )
    return asked == "true" or any(files) or spec.sink.scheme == "kafka+ssl"


def _security(spec: ChangefeedSpec, options: KafkaOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    tls = uses_tls(spec, options)
    if tls:
        settings["enable.ssl.certificate.verification"] = not options.insecure_skip_verify
        for key, file in (
            ("ssl.ca.location", KafkaOptions.ca),
            ("ssl.certificate.location", KafkaOptions.cert),
            ("ssl.key.location", KafkaOptions.key),
        ):
            path = options[file]
            if path and not Path(path).is_file():
                raise BadOption(f"sink.kafka-config.{file.key} = {path!r}: there is no such file")
            if path:
                settings[key] = path
    sasl = _sasl(spec, options)
    settings["security.protocol"] = (
        "sasl_ssl" if sasl and tls else "sasl_plaintext" if sasl else "ssl" if tls else "plaintext"
    )
    return settings | sasl


def _sasl(spec: ChangefeedSpec, options: KafkaOptions) -> dict[str, Any]:
    mechanism = options.sasl_mechanism
    user = options.sasl_user or spec.sink.user
    password = options.sasl_password or spec.sink.password
    oauth = (
        options.sasl_oauth_client_id,
        options.sasl_oauth_client_secret,
        options.sasl_oauth_token_url,
    )
    if any(oauth) and mechanism != "oauthbearer":
        raise OptionsConflict(
            "OAuth2 is only supported with SASL mechanism type OAUTHBEARER: sasl-oauth-… needs "
            "sasl-mechanism=oauthbearer"
        )
    if not mechanism:
        if user or password:
            raise OptionsConflict(
                "a user without sasl-mechanism: add it, e.g. sasl-mechanism=scram-sha-512"
            )
        return {}
    if mechanism == "oauthbearer":
        return _oauth(options)
    if mechanism == "gssapi":
        return _kerberos(options)
    if not user or not password:
        raise OptionsConflict(f"sasl-mechanism={mechanism} needs sasl-user and sasl-password")
    return {
        "sasl.mechanism": mechanism.upper(),
        "sasl.username": user,
        "sasl.password": password,
    }


def _oauth(options: KafkaOptions) -> dict[str, Any]:
    client, secret, url = (
        options.sasl_oauth_client_id,
        options.sasl_oauth_client_secret,
        options.sasl_oauth_token_url,
    )
    for what, given in (("client id", client), ("client secret", secret), ("token url", url)):
        if not given:
            raise OptionsConflict(
                f"OAuth2 {what} is empty: sasl-mechanism=oauthbearer needs sasl-oauth-client-id, "
                "sasl-oauth-client-secret and sasl-oauth-token-url in [sink.kafka-config]"
            )
    try:
        revealed = base64.b64decode(secret, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise BadOption(
            "sink.kafka-config.sasl-oauth-client-secret: OAuth2 client secret is not base64 encoded"
        ) from None
    settings = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": client,
        "sasl.oauthbearer.client.secret": revealed,
        "sasl.oauthbearer.token.endpoint.url": url,
    }
    scopes = options.sasl_oauth_scopes
    if scopes:
        settings["sasl.oauthbearer.scope"] = " ".join(scopes)
    return settings


def _kerberos(options: KafkaOptions) -> dict[str, Any]:
    if options.sasl_gssapi_auth_type == "user":
        raise BadOption("sasl-gssapi-auth-type = user is not supported: use keytab")
    principal = options.sasl_gssapi_user
    if not (options.sasl_gssapi_service_name and options.sasl_gssapi_keytab_path and principal):
        raise OptionsConflict(
            "sasl-mechanism=gssapi needs sasl-gssapi-service-name, sasl-gssapi-keytab-path and "
            "sasl-gssapi-user"
        )
    realm = options.sasl_gssapi_realm
    if realm and "@" in principal:
        raise OptionsConflict(
            "sasl-gssapi-user names a realm already; remove that or sasl-gssapi-realm"
        )
    whole_principal = f"{principal}@{realm}" if realm else principal
    ticket = f"-t {options.sasl_gssapi_keytab_path} -k {whole_principal}"
    return {
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": options.sasl_gssapi_service_name,
        "sasl.kerberos.keytab": options.sasl_gssapi_keytab_path,
        "sasl.kerberos.principal": whole_principal,
        # Nothing is left for the library to fill in: a shell runs it.
        "sasl.kerberos.kinit.cmd": f"kinit -R {ticket} || kinit {ticket}",
    }


def _ms(value: timedelta) -> int:
    return max(1, round(value.total_seconds() * 1000))
