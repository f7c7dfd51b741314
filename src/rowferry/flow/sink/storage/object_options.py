"""Options of the object stores: where they are, and how to log in.

Names are those of TiDB's external storage URIs. What is not given is taken from the environment, as
each store's own tools do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from rowferry.spec.option import Option, OptionTable, duration, flag, matching, one_of, text

_SECTION: Final = "sink.cloud-storage-config"

ENDPOINT = Option(
    "endpoint",
    text(),
    "",
    "Address of the object store, for one that is not the cloud's own; http:// only on this "
    "machine, or with `allow-http`.",
    uri=True,
    alterable=False,
    names="url",
)
ALLOW_HTTP = Option(
    "allow-http", flag(), False, "The endpoint may be http:// on other machines, too.", uri=True
)
CA = Option(
    "ca",
    text(),
    "",
    "PEM file of the authority that signed the store's certificate.",
    uri=True,
    names="path",
)
REQUEST_TIMEOUT = Option(
    "request-timeout",
    duration(timedelta(milliseconds=100), timedelta(hours=1)),
    timedelta(minutes=2),
    "How long one request to the object store may take, such as the upload of a file of up to "
    "96 MiB.",
    uri=True,
)
_COMMON: Final = (ENDPOINT, ALLOW_HTTP, CA, REQUEST_TIMEOUT)

ACCESS_KEY = Option(
    "access-key", text(), "", "S3: the id of the access key.", uri=True, secret=True
)
SECRET_ACCESS_KEY = Option(
    "secret-access-key", text(), "", "S3: the secret of the access key.", uri=True, secret=True
)
SESSION_TOKEN = Option(
    "session-token", text(), "", "S3: the token of a temporary key.", uri=True, secret=True
)
PROFILE = Option(
    "profile",
    text(),
    "",
    "S3: the profile in AWS's own credentials file.",
    uri=True,
    names="profile",
)
# These become part of a host's name.
REGION = Option(
    "region",
    matching(r"[A-Za-z0-9-]+", "letters, digits and hyphen"),
    "",
    "S3: the bucket's region.",
    uri=True,
)
PATH_STYLE = Option(
    "force-path-style",
    flag(),
    True,
    "S3: the bucket is part of the path; false: of the host name.",
    uri=True,
)
SSE = Option(
    "sse",
    one_of("", "aes256", "aws:kms", "aws:kms:dsse"),
    "",
    "S3: how the server encrypts what it keeps.",
    uri=True,
)
SSE_KEY = Option("sse-kms-key-id", text(), "", "S3: the id of the key for `sse`.", uri=True)
S3_TABLE: Final = OptionTable(
    _SECTION,
    (
        *_COMMON,
        ACCESS_KEY,
        SECRET_ACCESS_KEY,
        SESSION_TOKEN,
        PROFILE,
        REGION,
        PATH_STYLE,
        SSE,
        SSE_KEY,
    ),
)

CREDENTIALS_FILE = Option(
    "credentials-file",
    text(),
    "",
    "GCS: the JSON file of a service account.",
    uri=True,
    names="path",
)
ANONYMOUS = Option("anonymous", flag(), False, "GCS: do not log in, for emulators.", uri=True)
GCS_TABLE: Final = OptionTable(_SECTION, (*_COMMON, CREDENTIALS_FILE, ANONYMOUS))

ACCOUNT_NAME = Option(
    "account-name",
    matching(r"[A-Za-z0-9-]+", "letters, digits and hyphen"),
    "",
    "Azure: the storage account.",
    uri=True,
)
ACCOUNT_KEY = Option(
    "account-key", text(), "", "Azure: the account's shared key.", uri=True, secret=True
)
SAS_TOKEN = Option(
    "sas-token", text(), "", "Azure: a shared access signature.", uri=True, secret=True
)
AZURE_TABLE: Final = OptionTable(_SECTION, (*_COMMON, ACCOUNT_NAME, ACCOUNT_KEY, SAS_TOKEN))
