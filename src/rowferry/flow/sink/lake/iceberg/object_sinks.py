"""The Iceberg sink on object stores: the same tables, as objects of a bucket."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rowferry.errors import BadOption
from rowferry.flow.sink.lake.iceberg.glue.amazon_login import AwsKeys
from rowferry.flow.sink.lake.iceberg.glue.calls import AwsGiven
from rowferry.flow.sink.lake.iceberg.sink import IcebergSink
from rowferry.flow.sink.storage.buckets import azure_files, gcs_files, s3_files
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.object_options import AzureOptions, GcsOptions, S3Options
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.uri_form import UriPart, bucket_form


class _ObjectSink(IcebergSink):
    named: ClassVar[str]  # the scheme of locations, as readers of Iceberg know it

    @classmethod
    def folder_of(cls, spec: ChangefeedSpec) -> str:
        """Return no directory."""
        return ""

    @classmethod
    def location_of(cls, spec: ChangefeedSpec) -> str:
        """Return bucket and prefix."""
        return f"{cls.named}://{spec.sink.address}{spec.sink.path.rstrip('/')}"


class IcebergS3Sink(_ObjectSink):
    """Iceberg tables in a bucket of S3, or of a store that speaks its protocol."""

    TRAITS: ClassVar[SinkTraits] = replace(
        IcebergSink.TRAITS, form=bucket_form("Iceberg tables in an S3 bucket")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*IcebergSink.TABLES, S3Options.TABLE)
    named: ClassVar[str] = "s3"

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the bucket's prefix."""
        return s3_files(spec, workers)

    @classmethod
    def login_of(cls, spec: ChangefeedSpec) -> AwsGiven:
        """Return the bucket's login."""
        options = spec.options(S3Options)
        keys = AwsKeys(options.access_key, options.secret_access_key, options.session_token)
        return AwsGiven(keys, options.profile)


class IcebergGcsSink(_ObjectSink):
    """Iceberg tables in a bucket of Google Cloud Storage."""

    TRAITS: ClassVar[SinkTraits] = replace(
        IcebergSink.TRAITS, form=bucket_form("Iceberg tables in Google Cloud Storage")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*IcebergSink.TABLES, GcsOptions.TABLE)
    named: ClassVar[str] = "gs"

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the bucket's prefix."""
        return gcs_files(spec, workers)


class IcebergAzureSink(_ObjectSink):
    """Iceberg tables in a container of Azure Blob Storage."""

    TRAITS: ClassVar[SinkTraits] = replace(
        IcebergSink.TRAITS,
        form=bucket_form("Iceberg tables in an Azure container", UriPart("Container", "lake")),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*IcebergSink.TABLES, AzureOptions.TABLE)
    named: ClassVar[str] = "abfss"

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the container's prefix."""
        return azure_files(spec, workers)

    @classmethod
    def location_of(cls, spec: ChangefeedSpec) -> str:
        """Return the container at its account, as Hadoop's driver writes it."""
        account = spec.options(AzureOptions).account_name
        if not account:
            raise BadOption("account-name is needed: locations of Iceberg's files name the account")
        host = f"{spec.sink.address}@{account}.dfs.core.windows.net"
        return f"{cls.named}://{host}{spec.sink.path.rstrip('/')}"
