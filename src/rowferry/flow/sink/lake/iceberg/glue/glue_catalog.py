"""Iceberg tables that AWS Glue knows: each commit replaces a table's form, if nobody else did.

Glue counts the versions of a table's form. A commit reads the form with its version, writes the new
metadata beside the old, and hands Glue the form that names them together with that version: of two
writers that have read the same one, Glue refuses the second.
"""

from __future__ import annotations

from typing import Any, Final

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from rowferry.errors import SinkUnwritable, TargetUnfit
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.glue.amazon_http import NoAnswer
from rowferry.flow.sink.lake.iceberg.glue.calls import GlueCalls, GlueRefusal
from rowferry.flow.sink.lake.iceberg.glue.table_form import (
    METADATA,
    TABLE_TYPE,
    is_iceberg,
    new_form,
    parameter,
    renamed_form,
)
from rowferry.flow.sink.lake.iceberg.programs import without_program

_MISSING: Final = "EntityNotFoundException"
_THERE: Final = "AlreadyExistsException"
_CHANGED: Final = ("ConcurrentModificationException", "VersionMismatchException")
_LONGEST_NAME: Final = 255
_NOBODYS: Final = "rowferry-probe"


class GlueCatalog:
    """The tables that Glue knows and whose files are below one prefix."""

    def __init__(self, calls: GlueCalls, io: FilesIO) -> None:
        self._calls, self._io = calls, io

    # --- reading ---------------------------------------------------------------------------------

    def answers(self) -> None:
        """Raise unless Glue takes the login; a right may be given for some databases only."""
        try:
            self._calls.call("GetTables", DatabaseName=_NOBODYS, MaxResults=1)
        except (GlueRefusal, ForbiddenError):
            return

    def list_namespaces(self) -> list[tuple[str, ...]]:
        """Return the databases."""
        return [(str(one["Name"]),) for one in self._calls.pages("GetDatabases", "DatabaseList")]

    def list_tables(self, namespace: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return the Iceberg tables of a database whose metadata are below the prefix."""
        try:
            tables = list(self._calls.pages("GetTables", "TableList", DatabaseName=namespace[0]))
        except GlueRefusal as err:
            if err.code == _MISSING:
                raise NoSuchNamespaceError(namespace[0]) from None
            raise
        return [
            (namespace[0], str(one["Name"]))
            for one in tables
            if is_iceberg(one) and parameter(one, METADATA).startswith(f"{self._io.base}/")
        ]

    def load_table(self, identifier: tuple[str, str]) -> Table:
        """Return a table with its metadata.

        Raises:
            NoSuchTableError: there is none.
            TargetUnfit: it is no Iceberg table.
        """
        return self._read(identifier, self._form(identifier))

    def _form(self, identifier: tuple[str, str]) -> dict[str, Any]:
        _check_name(identifier)
        try:
            answer = self._calls.call("GetTable", DatabaseName=identifier[0], Name=identifier[1])
        except GlueRefusal as err:
            if err.code == _MISSING:
                raise NoSuchTableError(".".join(identifier)) from None
            raise
        form = answer.get("Table")
        if not isinstance(form, dict):
            raise NoAnswer("its answer to GetTable has no Table")
        return form

    def _read(self, identifier: tuple[str, str], form: dict[str, Any]) -> Table:
        if not is_iceberg(form):
            kind = parameter(form, TABLE_TYPE) or str(form.get("TableType") or "unknown")
            raise TargetUnfit(
                f"the table {'.'.join(identifier)} of AWS Glue is no Iceberg table (its type is "
                f"{kind[:40]!r}); give the source's table another name by a routing rule, or drop "
                "the table in Glue"
            )
        location = parameter(form, METADATA)
        metadata = FromInputFile.table_metadata(self._io.new_input(location))
        io: FileIO = self._io
        catalog: Any = self  # nothing that we use of a table asks it
        return without_program(Table(identifier, metadata, location, io, catalog))

    # --- writing ---------------------------------------------------------------------------------

    def commit_table(
        self,
        table: Any,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Change a table, or make it.

        Raises:
            CommitFailedException, TableAlreadyExistsError, NoSuchTableError: somebody was first.
        """
        identifier = table.name()
        form: dict[str, Any] | None = None
        current: Table | None = None
        try:
            form = self._form(identifier)
            current = self._read(identifier, form)
        except NoSuchTableError:
            pass
        for requirement in requirements:
            requirement.validate(current.metadata if current else None)
        updated = update_table_metadata(
            current.metadata if current else MetastoreCatalog._empty_table_metadata(),
            updates,
            enforce_validation=current is None,
            metadata_location=current.metadata_location if current else None,
        )
        if current is not None and updated == current.metadata:
            return _response(current.metadata, current.metadata_location)
        location = self._new_location(updated, current)
        ToOutputFile.table_metadata(updated, self._io.new_output(location))
        if form is None:
            self._create(identifier, new_form(identifier[1], updated, location, None))
        else:
            self._replace(identifier, new_form(identifier[1], updated, location, form), form)
        return _response(updated, location)

    def _new_location(self, metadata: TableMetadata, current: Table | None) -> str:
        number = 0
        if current is not None:
            number = MetastoreCatalog._parse_metadata_version(current.metadata_location) + 1
        places = load_location_provider(metadata.location, metadata.properties)
        return places.new_table_metadata_file_location(number)

    def _create(self, identifier: tuple[str, str], form: dict[str, Any]) -> None:
        try:
            self._calls.call("CreateTable", DatabaseName=identifier[0], TableInput=form)
        except GlueRefusal as err:
            if err.code == _THERE:
                raise TableAlreadyExistsError(".".join(identifier)) from None
            if err.code == _MISSING:
                raise NoAnswer(f"it has no database {identifier[0]!r} any more") from None
            if err.code in _CHANGED:
                raise CommitFailedException(str(err)) from None
            raise

    def _replace(
        self, identifier: tuple[str, str], form: dict[str, Any], old: dict[str, Any]
    ) -> None:
        version = str(old.get("VersionId") or "")
        if not version:
            raise SinkUnwritable(
                f"AWS Glue tells no version of the table {'.'.join(identifier)}, without which two "
                "writers would undo each other's commits; use another endpoint or catalog"
            )
        try:
            self._calls.call(
                "UpdateTable",
                DatabaseName=identifier[0],
                TableInput=form,
                SkipArchive=True,  # Glue keeps a limited number of old versions
                VersionId=version,
            )
        except GlueRefusal as err:
            if err.code == _MISSING:
                raise NoSuchTableError(".".join(identifier)) from None
            if err.code in _CHANGED:
                raise CommitFailedException(str(err)) from None
            raise

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """Make a database.

        Raises:
            NamespaceAlreadyExistsError: it is there.
            ForbiddenError: it is not, and may not be made.
        """
        name = namespace[0]
        _check_name(namespace)
        try:
            self._calls.call("GetDatabase", Name=name)
        except GlueRefusal as err:
            if err.code != _MISSING:
                raise
        else:
            raise NamespaceAlreadyExistsError(name)
        try:
            self._calls.call("CreateDatabase", DatabaseInput={"Name": name})
        except ForbiddenError as err:
            raise ForbiddenError(
                f"there is no database {name!r}, and the login may not make it ({err}); make it"
            ) from None
        except GlueRefusal as err:
            if err.code == _THERE:
                raise NamespaceAlreadyExistsError(name) from None
            raise

    def drop_table(self, identifier: tuple[str, str]) -> None:
        """Forget a table; its files stay.

        Raises:
            NoSuchTableError: there is none.
        """
        try:
            self._calls.call("DeleteTable", DatabaseName=identifier[0], Name=identifier[1])
        except GlueRefusal as err:
            if err.code == _MISSING:
                raise NoSuchTableError(".".join(identifier)) from None
            raise

    def rename_table(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        """Give a table another name, in two steps; the second time, what is left of them."""
        _check_name(new)
        form = self._form(old)
        here = self._read(old, form)
        try:
            self._create(new, renamed_form(new[1], form))
        except TableAlreadyExistsError:
            self._settle(here, form, new)
        self.drop_table(old)

    def _settle(self, here: Table, form: dict[str, Any], new: tuple[str, str]) -> None:
        """Let the new name of a table that was left with two have its latest metadata."""
        there_form = self._form(new)
        there = self._read(new, there_form)
        if there.metadata.table_uuid != here.metadata.table_uuid:
            raise TargetUnfit(
                f"AWS Glue has another table {'.'.join(new)} already, to which "
                f"{'.'.join(here.name())} cannot be renamed; move it away, then resume"
            )
        if _age(here.metadata) > _age(there.metadata):
            self._replace(new, renamed_form(new[1], form), there_form)

    def _delete_old_metadata(
        self, io: FileIO, base: TableMetadata, metadata: TableMetadata
    ) -> None:
        MetastoreCatalog._delete_old_metadata(io, base, metadata)

    def close(self) -> None:
        """Let connections go."""
        self._calls.close()


def _age(metadata: TableMetadata) -> tuple[int, int]:
    return getattr(metadata, "last_sequence_number", 0), metadata.last_updated_ms


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})


def _check_name(identifier: tuple[str, ...]) -> None:
    """Raise unless Glue keeps names as they are: it folds letters to lower case."""
    for name in identifier:
        if name != name.lower() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise TargetUnfit(
                f"AWS Glue has no names such as {name[:80]!r}: they are in lower case, of up to "
                f"{_LONGEST_NAME} characters; give the table another name by a routing rule"
            )
