"""The storage sink on object stores: the same files, as objects of a bucket."""

from __future__ import annotations

from typing import ClassVar

from rowferry.flow.sink.storage.buckets import azure_files, gcs_files, s3_files
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.object_options import AZURE_TABLE, GCS_TABLE, S3_TABLE
from rowferry.flow.sink.storage.options import StorageSettings
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable


class S3Sink(StorageSink):
    """Files in a bucket of S3, or of a store that speaks its protocol."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (*StorageSink.TABLES, S3_TABLE)
    in_directory: ClassVar[bool] = False

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
        """Return access to the bucket's prefix."""
        return s3_files(spec, settings.worker_count)


class GcsSink(StorageSink):
    """Files in a bucket of Google Cloud Storage."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (*StorageSink.TABLES, GCS_TABLE)
    in_directory: ClassVar[bool] = False

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
        """Return access to the bucket's prefix."""
        return gcs_files(spec, settings.worker_count)


class AzureSink(StorageSink):
    """Files in a container of Azure Blob Storage."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (*StorageSink.TABLES, AZURE_TABLE)
    in_directory: ClassVar[bool] = False

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
        """Return access to the container's prefix."""
        return azure_files(spec, settings.worker_count)
