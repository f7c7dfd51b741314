"""From a sink URI to the bucket that it names: s3://, gcs://, azure:// and their other names."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from rowferry.errors import BadOption, BadUri, OptionsConflict
from rowferry.flow.sink.storage.aws_profile import aws_profile
from rowferry.flow.sink.storage.object_files import ObjectFiles
from rowferry.flow.sink.storage.object_options import (
    AzureOptions,
    GcsOptions,
    ObjectOptions,
    S3Options,
)
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri, is_web_address, without_passwords

_CONNECT_TIMEOUT: Final = timedelta(seconds=10)
# Short losses are bridged here; what takes longer is the supervisor's to try again.
RETRIES: Final[dict[str, Any]] = {
    "max_retries": 6,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=3),
        "base": 2,
    },
}
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]+")  # it may be part of a host's name
_HERE: Final = ("127.0.0.1", "localhost", "::1")


def s3_files(spec: ChangefeedSpec, parallel: int) -> ObjectFiles:
    """Return the S3 prefix that a sink URI names, for so many requests at once; asks nobody.

    Raises:
        BadUri, BadOption, OptionsConflict: the URI or an option cannot be used.
    """
    options = spec.options(S3Options)
    if bool(options.access_key) != bool(options.secret_access_key):
        raise OptionsConflict("access-key and secret-access-key go together; give both or none")
    config = _given(
        endpoint=options.endpoint,
        access_key_id=options.access_key,
        secret_access_key=options.secret_access_key,
        session_token=options.session_token,
        region=options.region,
        server_side_encryption=options.sse.replace("aes256", "AES256"),
        sse_kms_key_id=options.sse_kms_key_id,
    )
    if "access_key_id" not in config:
        config = {**aws_profile(options.profile), **config}
    config["virtual_hosted_style_request"] = not options.force_path_style
    config["copy_if_not_exists"] = "multipart"
    return _files(spec.sink, parallel, options, S3Store, config)


def gcs_files(spec: ChangefeedSpec, parallel: int) -> ObjectFiles:
    """Return the Google Cloud Storage prefix that a sink URI names; asks nobody. Raises as S3's."""
    options = spec.options(GcsOptions)
    config = _given(base_url=options.endpoint, service_account=options.credentials_file)
    more: dict[str, Any] = {}
    if options.anonymous:
        more["credential_provider"] = _nobody
    return _files(spec.sink, parallel, options, GCSStore, config, more)


def azure_files(spec: ChangefeedSpec, parallel: int) -> ObjectFiles:
    """Return the Azure Blob prefix that a sink URI names; asks nobody. Raises as S3's."""
    options = spec.options(AzureOptions)
    if options.account_key and options.sas_token:
        raise OptionsConflict("account-key and sas-token are two ways to log in; give one")
    config = _given(
        endpoint=options.endpoint,
        account_name=options.account_name,
        account_key=options.account_key,
        sas_key=options.sas_token.removeprefix("?"),
    )
    return _files(spec.sink, parallel, options, AzureStore, config)


def _files(
    uri: Uri,
    parallel: int,
    options: ObjectOptions,
    store: Any,
    config: dict[str, Any],
    more: dict[str, Any] | None = None,
) -> ObjectFiles:
    if not _BUCKET.fullmatch(uri.address) or uri.user:
        raise BadUri(
            f"the sink URI {uri} names no bucket; write {uri.scheme}://bucket/prefix?endpoint=…"
        )
    client: dict[str, Any] = {
        "timeout": options.request_timeout,
        "connect_timeout": min(_CONNECT_TIMEOUT, options.request_timeout),
        "allow_http": _may_be_plain(options),
    }
    if options.ca:
        client["root_certificate"] = _read(options.ca, "ca")
    try:
        made = store(
            uri.address, config=config, client_options=client, retry_config=RETRIES, **(more or {})
        )
    except (BaseError, ValueError, OSError) as err:
        words = " ".join(str(err).split("Debug source:")[0].split())
        raise BadOption(f"the sink URI {uri} cannot be used: {_hidden(words, config)}") from None
    return ObjectFiles(made, f"{uri.scheme}://{uri.address}", uri.path, parallel=parallel)


def _given(**values: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _hidden(words: str, config: dict[str, Any]) -> str:
    """Return words without any value that is long enough to be a secret."""
    for value in config.values():
        if isinstance(value, str) and len(value) >= 8:
            words = words.replace(value, "***")
    return words[:300]


def _may_be_plain(options: ObjectOptions) -> bool:
    """Return whether requests may go without TLS.

    Raises:
        BadOption: the endpoint is no address; the library below would panic at it.
        OptionsConflict: they would go to another machine, and nobody said that this is meant.
    """
    endpoint = options.endpoint
    if endpoint and not is_web_address(endpoint):
        shown = without_passwords(endpoint)
        raise BadOption(f"endpoint = {shown!r}: write it as https://host or http://host:port")
    if not endpoint.startswith("http://"):
        return False
    if urlsplit(endpoint).hostname not in _HERE and not options.allow_http:
        raise OptionsConflict(
            f"endpoint = {endpoint!r} sends everything in plain text to another machine; write "
            "https://, or add allow-http=true"
        )
    return True


def _nobody() -> dict[str, Any]:
    return {"token": "anonymous", "expires_at": None}


def _read(path: str, key: str) -> bytes:
    moment("read credentials")
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise BadOption(f"{key} = {path!r} cannot be read: {err.strerror}") from None
