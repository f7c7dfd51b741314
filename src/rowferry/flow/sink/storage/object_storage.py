"""The storage sink on object stores: the same files, as objects of a bucket."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rowferry.flow.sink.storage.buckets import azure_files, gcs_files, s3_files
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.object_options import AzureOptions, GcsOptions, S3Options
from rowferry.flow.sink.storage.options import StorageSettings
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.uri_form import UriPart, bucket_form


class S3Sink(StorageSink):
    """Files in a bucket of S3, or of a store that speaks its protocol."""

    TRAITS: ClassVar[SinkTraits] = replace(StorageSink.TRAITS, form=bucket_form("S3 bucket"))
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*StorageSink.TABLES, S3Options.TABLE)
    in_directory: ClassVar[bool] = False

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
        """Return access to the bucket's prefix."""
        return s3_files(spec, settings.storage.worker_count)


class GcsSink(StorageSink):
    """Files in a bucket of Google Cloud Storage."""

    TRAITS: ClassVar[SinkTraits] = replace(
        StorageSink.TRAITS, form=bucket_form("Google Cloud Storage bucket")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*StorageSink.TABLES, GcsOptions.TABLE)
    in_directory: ClassVar[bool] = False

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
        """Return access to the bucket's prefix."""
        return gcs_files(spec, settings.storage.worker_count)


class AzureSink(StorageSink):
    """Files in a container of Azure Blob Storage."""

    TRAITS: ClassVar[SinkTraits] = replace(
        StorageSink.TRAITS, form=bucket_form("Azure container", UriPart("Container", "lake"))
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*StorageSink.TABLES, AzureOptions.TABLE)
    in_directory: ClassVar[bool] = False

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
        """Return access to the container's prefix."""
        return azure_files(spec, settings.storage.worker_count)
