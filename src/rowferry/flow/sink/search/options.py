"""Options of the search sink, and the settings that they amount to."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from rowferry.errors import BadUri, OptionsConflict
from rowferry.flow.encode.search_documents.options import DocumentOptions
from rowferry.flow.sink.search.index_names import check_rule
from rowferry.flow.sink.search.signing import AwsSigner
from rowferry.flow.sink.web_calls import TlsFiles
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    OptionShape,
    Section,
    duration,
    flag,
    matching,
    one_of,
    option,
    size,
    text,
    whole,
)
from rowferry.spec.secrets import Hiding, secrets_of
from rowferry.spec.uri import Uri, host_port

PORT: Final = 9200
_INDEX_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,200}"
_SETTINGS_WORDS: Final = "an index's name: lower-case letters, digits, '.', '_' and '-'"


def _rule() -> OptionShape[str]:
    def parse(value: Any) -> str:
        return check_rule(text().parse(value))

    return OptionShape("a name of indexes with {schema} and {table}", parse)


class SearchOptions(Section, section="sink.search-config", web_port=PORT):
    """The options of the sink for Elasticsearch and OpenSearch."""

    index = option(
        _rule(),
        "{schema}-{table}",
        "How an index is named: `{schema}` and `{table}` are put in, in lower case; what index "
        "names may not have is written as `%` and two hexadecimal digits. Two tables must not get "
        "one index, unless table routing gives them one name.",
        uri=True,
        alterable=False,
    )
    create_indexes = option(
        flag(),
        True,
        "Make missing indexes, and add the fields of new columns to mappings. Else an index "
        "must be there, and mappings are left alone.",
        uri=True,
    )
    number_of_shards = option(
        whole(1, 1024), 1, "Shards of an index that the sink makes.", uri=True
    )
    number_of_replicas = option(
        whole(0, 100), 1, "Replicas of each shard of an index that the sink makes.", uri=True
    )
    gc_deletes = option(
        duration(timedelta(seconds=1), timedelta(days=30)),
        timedelta(hours=1),
        "How long indexes that the sink makes remember the version of a deleted document "
        "(`index.gc_deletes`). A request that an old process sends later than that could bring a "
        "deleted document back.",
        uri=True,
    )
    on_drop = option(
        one_of("keep", "drop"),
        "keep",
        "What DROP TABLE does to the index: `keep` leaves it as it is, `drop` deletes it.",
        uri=True,
    )
    on_rename = option(
        one_of("stop", "copy"),
        "stop",
        "What RENAME TABLE does: `stop` stops the changefeed, `copy` makes the new index and "
        "copies all documents (`_reindex`); the old one is treated as `on-drop` says.",
        uri=True,
    )
    on_type_change = option(
        one_of("stop", "reindex"),
        "stop",
        "What a column's new type does to an index that the sink made, where the field needs "
        "another type: `stop` stops the changefeed, `reindex` copies all documents to a new index "
        "and puts an alias in the place of the old one, which is deleted.",
        uri=True,
    )
    refresh = option(
        one_of("server", "batch"),
        "server",
        "When searches see new documents: as the server refreshes (`server`), or at the end of "
        "each micro-batch, too (`batch`), before the watermark moves.",
        uri=True,
    )
    max_bulk_rows = option(whole(1, 100_000), 5000, "The most documents in one request.", uri=True)
    max_bulk_bytes = option(
        size(1024, 1 << 30),
        5 << 20,
        "The most bytes in one request; a longer document is sent by itself.",
        uri=True,
    )
    max_document_bytes = option(
        size(1024, 1 << 31),
        90 << 20,
        "A document that is longer stops the changefeed. The server's own limit of a request is "
        "`http.max_content_length`, 100 MB by default.",
        uri=True,
    )
    worker_count = option(
        whole(1, 256),
        4,
        "Into how many lanes each table's keys are divided, and how many requests a task has "
        "under way at once. Requests of one lane are sent one after the other.",
        uri=True,
    )
    compression = option(one_of("none", "gzip"), "none", "How requests are compressed.", uri=True)
    timeout = option(
        duration(timedelta(milliseconds=10), timedelta(minutes=30)),
        timedelta(minutes=1),
        "How long to wait for a connection, for sending, and for the answer, each.",
        uri=True,
    )
    max_retry = option(
        whole(0, 100),
        5,
        "How often a request, or those of its documents that the server had no room for, is "
        "repeated at once (429, 502, 503, 504, a lost connection). After that the changefeed "
        "waits by its own back-off.",
        uri=True,
    )
    backoff = option(
        duration(timedelta(milliseconds=1), timedelta(minutes=1)),
        timedelta(milliseconds=200),
        "The pause before the first repetition; it doubles with each, up to `max-backoff`.",
        uri=True,
    )
    max_backoff = option(
        duration(timedelta(milliseconds=1), timedelta(minutes=10)),
        timedelta(seconds=5),
        "The longest pause between two repetitions.",
        uri=True,
    )
    dead_letter_index = option(
        matching(f"({_INDEX_NAME})?", _SETTINGS_WORDS),
        "",
        "The index that gets documents which a mapping refuses, with the server's words. Empty: "
        "such a document stops the changefeed.",
        uri=True,
    )
    ownership_index = option(
        matching(_INDEX_NAME, _SETTINGS_WORDS),
        "rowferry-ownership",
        "The index in which changefeeds note which indexes are theirs, and how far they are.",
        uri=True,
        alterable=False,
    )
    api_key = option(
        text(), "", "An API key of Elasticsearch: as it was encoded, or `id:key`.", secret=True
    )
    aws_region = option(
        text(), "", "Sign requests for this region of AWS (Signature Version 4).", uri=True
    )
    aws_service = option(
        one_of("es", "aoss"),
        "es",
        "The service that requests are signed for: `es` for domains, `aoss` for serverless "
        "collections.",
        uri=True,
    )
    aws_access_key_id = option(text(), "", "The access key to sign with.", secret=True)
    aws_secret_access_key = option(text(), "", "The secret of the access key.", secret=True)
    aws_session_token = option(text(), "", "The token of a temporary access key.", secret=True)
    ssl_ca = option(
        text(), "", "File with the authorities' certificates (PEM).", uri=True, names="path"
    )
    ssl_cert = option(text(), "", "File with our own certificate (PEM).", uri=True, names="path")
    ssl_key = option(
        text(), "", "File with the key of our own certificate.", uri=True, names="path"
    )
    insecure_skip_verify = option(flag(), False, "Trust any server: for tests only.", uri=True)


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The options of one changefeed, and what they amount to together.

    Attributes:
        hosts: host and port of each node.
        shown: the address for people.
    """

    options: SearchOptions
    documents: DocumentOptions
    hosts: tuple[tuple[str, int], ...]
    encrypted: bool
    tls: TlsFiles
    headers: dict[str, str] = field(repr=False)
    signer: AwsSigner | None
    hiding: Hiding
    shown: str


def read_settings(spec: ChangefeedSpec) -> SearchSettings:
    """Read the sink's options.

    Raises:
        BadOption: a value that cannot be used.
        BadUri: the URI names no server.
        OptionsConflict: more than one login, half of one, or half a client certificate.
    """
    options = spec.options(SearchOptions)
    if bool(options.ssl_cert) != bool(options.ssl_key):
        raise OptionsConflict("ssl-cert and ssl-key belong together; give both or none")
    tls = TlsFiles(
        options.ssl_ca, options.ssl_cert, options.ssl_key, not options.insecure_skip_verify
    )
    headers = _login(options, spec.sink)
    words = (part for value in headers.values() for part in (value, value.rpartition(" ")[2]))
    tables = (SearchOptions.TABLE, DocumentOptions.TABLE)
    hiding = Hiding((*secrets_of(spec, tables), *words), (spec.sink.user,))
    hosts = _hosts(spec.sink)
    return SearchSettings(
        options,
        spec.options(DocumentOptions),
        hosts,
        spec.sink.scheme.endswith("+ssl"),
        tls,
        headers,
        _signer(options),
        hiding,
        f"{spec.sink.scheme}://{','.join(host_port(*host) for host in hosts)}",
    )


def _hosts(uri: Uri) -> tuple[tuple[str, int], ...]:
    hosts = []
    for one in uri.address.split(","):
        parts = urlsplit(f"//{one}")
        if not parts.hostname:
            raise BadUri(f"the sink URI names no server; write it as {uri.scheme}://host:9200")
        hosts.append((parts.hostname, parts.port or PORT))
    if uri.path not in ("", "/"):
        raise BadUri(f"{uri} has a path; how indexes are named says the option index")
    return tuple(hosts)


def _login(options: SearchOptions, uri: Uri) -> dict[str, str]:
    """Return the headers that say who we are."""
    ways = {
        "the URI's user": bool(uri.user or uri.password),
        "api-key": bool(options.api_key),
        "aws-region": bool(options.aws_region),
    }
    given = [way for way, is_given in ways.items() if is_given]
    if len(given) > 1:
        raise OptionsConflict(f"{' and '.join(given)} each give a login; keep one")
    if uri.user or uri.password:
        login = base64.b64encode(f"{uri.user}:{uri.password}".encode()).decode()
        return {"Authorization": f"Basic {login}"}
    if options.api_key:
        key = options.api_key
        packed = base64.b64encode(key.encode()).decode() if ":" in key else key
        return {"Authorization": f"ApiKey {packed}"}
    return {}


def _signer(options: SearchOptions) -> AwsSigner | None:
    keys = (options.aws_access_key_id, options.aws_secret_access_key)
    if not options.aws_region:
        if any(keys):
            raise OptionsConflict("aws-access-key-id needs aws-region, where it is valid")
        return None
    if not all(keys):
        raise OptionsConflict(
            "aws-region needs aws-access-key-id and aws-secret-access-key; they may be references "
            "to secrets, such as env:AWS_SECRET_ACCESS_KEY"
        )
    return AwsSigner(*keys, options.aws_session_token, options.aws_region, options.aws_service)
