"""The Delta sink on object stores: the same tables, as objects of a bucket."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rowferry.flow.sink.lake.delta.sink import DeltaSink
from rowferry.flow.sink.storage.buckets import azure_files, gcs_files, s3_files
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.object_options import AzureOptions, GcsOptions, S3Options
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.uri_form import UriPart, bucket_form


class DeltaS3Sink(DeltaSink):
    """Delta tables in a bucket of S3, or of a store that speaks its protocol."""

    TRAITS: ClassVar[SinkTraits] = replace(
        DeltaSink.TRAITS, form=bucket_form("Delta tables in an S3 bucket")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*DeltaSink.TABLES, S3Options.TABLE)

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the bucket's prefix."""
        return s3_files(spec, workers)


class DeltaGcsSink(DeltaSink):
    """Delta tables in a bucket of Google Cloud Storage."""

    TRAITS: ClassVar[SinkTraits] = replace(
        DeltaSink.TRAITS, form=bucket_form("Delta tables in Google Cloud Storage")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*DeltaSink.TABLES, GcsOptions.TABLE)

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the bucket's prefix."""
        return gcs_files(spec, workers)


class DeltaAzureSink(DeltaSink):
    """Delta tables in a container of Azure Blob Storage."""

    TRAITS: ClassVar[SinkTraits] = replace(
        DeltaSink.TRAITS,
        form=bucket_form("Delta tables in an Azure container", UriPart("Container", "lake")),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*DeltaSink.TABLES, AzureOptions.TABLE)

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the container's prefix."""
        return azure_files(spec, workers)
