"""Options of the object stores: where they are, and how to log in.

Names are those of TiDB's external storage URIs. What is not given is taken from the environment, as
each store's own tools do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from rowferry.spec.option import Section, duration, flag, matching, one_of, option, text

_SECTION: Final = "sink.cloud-storage-config"


class ObjectOptions(Section, section=_SECTION):
    """The options of every object store."""

    endpoint = option(
        text(),
        "",
        "Address of the object store, for one that is not the cloud's own; http:// only on this "
        "machine, or with `allow-http`.",
        uri=True,
        alterable=False,
        names="url",
    )
    allow_http = option(
        flag(), False, "The endpoint may be http:// on other machines, too.", uri=True
    )
    ca = option(
        text(),
        "",
        "PEM file of the authority that signed the store's certificate.",
        uri=True,
        names="path",
    )
    request_timeout = option(
        duration(timedelta(milliseconds=100), timedelta(hours=1)),
        timedelta(minutes=2),
        "How long one request to the object store may take, such as the upload of a file of up to "
        "96 MiB.",
        uri=True,
    )


class S3Options(ObjectOptions, section=_SECTION):
    """The options of S3."""

    access_key = option(text(), "", "S3: the id of the access key.", uri=True, secret=True)
    secret_access_key = option(
        text(), "", "S3: the secret of the access key.", uri=True, secret=True
    )
    session_token = option(text(), "", "S3: the token of a temporary key.", uri=True, secret=True)
    profile = option(
        text(), "", "S3: the profile in AWS's own credentials file.", uri=True, names="profile"
    )
    # These become part of a host's name.
    region = option(
        matching(r"[A-Za-z0-9-]+", "letters, digits and hyphen"),
        "",
        "S3: the bucket's region.",
        uri=True,
    )
    force_path_style = option(
        flag(), True, "S3: the bucket is part of the path; false: of the host name.", uri=True
    )
    sse = option(
        one_of("", "aes256", "aws:kms", "aws:kms:dsse"),
        "",
        "S3: how the server encrypts what it keeps.",
        uri=True,
    )
    sse_kms_key_id = option(text(), "", "S3: the id of the key for `sse`.", uri=True)


class GcsOptions(ObjectOptions, section=_SECTION):
    """The options of Google Cloud Storage."""

    credentials_file = option(
        text(), "", "GCS: the JSON file of a service account.", uri=True, names="path"
    )
    anonymous = option(flag(), False, "GCS: do not log in, for emulators.", uri=True)


class AzureOptions(ObjectOptions, section=_SECTION):
    """The options of Azure Blob Storage."""

    account_name = option(
        matching(r"[A-Za-z0-9-]+", "letters, digits and hyphen"),
        "",
        "Azure: the storage account.",
        uri=True,
    )
    account_key = option(text(), "", "Azure: the account's shared key.", uri=True, secret=True)
    sas_token = option(text(), "", "Azure: a shared access signature.", uri=True, secret=True)
