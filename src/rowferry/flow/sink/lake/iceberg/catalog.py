"""The catalog that knows where the metadata of each Iceberg table is, and lets one commit in."""

from __future__ import annotations

import os.path
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import inspect
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from rowferry.errors import (
    BadOption,
    OptionsConflict,
    SinkDamaged,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
)
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.glue.calls import AwsGiven, GlueAddress, GlueCalls, GlueRefusal
from rowferry.flow.sink.lake.iceberg.glue.glue_catalog import GlueCatalog
from rowferry.flow.sink.lake.iceberg.options import IcebergOptions
from rowferry.flow.sink.lake.iceberg.programs import without_program
from rowferry.flow.sink.lake.iceberg.rest_catalog import WaryCalls, WaryRest
from rowferry.flow.sink.lake.layout import table_at
from rowferry.moment import moment
from rowferry.spec.uri import Uri

T = TypeVar("T")
DEFAULT_FILE: Final = "catalog.db"
_NAME: Final = "rowferry"
_GLUE: Final = "glue"
_STRANGE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
)
_REFUSED: Final = (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError)


class _Sql(SqlCatalog):
    """A SQL catalog whose metadata files are ours to read and write."""

    def __init__(self, name: str, io: FilesIO, **properties: str) -> None:
        self._ours = io
        super().__init__(name, **properties)

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> FileIO:
        return self._ours

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return a table whose settings name no program: the library would begin it."""
        return without_program(super().load_table(identifier))


@dataclass(frozen=True, slots=True)
class _NewTable:
    """As much of a table as a commit needs that makes it."""

    identifier: tuple[str, ...]
    config: dict[str, str]

    def name(self) -> tuple[str, ...]:
        return self.identifier


class IcebergCatalog:
    """One catalog. Opened when it is first asked; one call at a time.

    Args:
        options: which one, and the login.
        io: the prefix below which tables are.
        folder: the prefix as a directory; empty: it is none.
        login: the storage's login at Amazon, if it has one.
    """

    def __init__(
        self, options: IcebergOptions, io: FilesIO, folder: str, login: AwsGiven | None = None
    ) -> None:
        self.io = io
        self._options = options
        text = options.catalog or (f"file://{quote(folder)}/{DEFAULT_FILE}" if folder else "")
        if not text:
            raise BadOption(
                "sink.lake.catalog is not set: Iceberg tables in an object store need one; write "
                "file:///path/catalog.db, postgresql://host/database, https://host/path or "
                "glue://region"
            )
        self._uri = Uri.parse(text, "catalog").absolute(os.getcwd(), "catalog")
        if self._uri.scheme not in ("file", "postgresql", "http", "https", _GLUE):
            raise BadOption(
                f"sink.lake.catalog = {str(self._uri)!r}: no catalog of that kind is known here; "
                "known: file (SQLite), postgresql, http and https (REST), glue (AWS Glue)"
            )
        if options.catalog_token and options.catalog_credential:
            raise BadOption("catalog-token and catalog-credential are two ways to log in; give one")
        self._opened: _Sql | WaryRest | GlueCatalog | None = None
        self._turn = threading.RLock()
        self._rest = WaryCalls()
        self._glue: GlueCalls | None = None
        if self._uri.scheme == _GLUE:
            self._glue = GlueCalls(_glue_address(self._uri, options, login))
        self._calls = self._glue or self._rest

    @property
    def shown(self) -> str:
        """The catalog as users know it, without a password."""
        return str(self._uri)

    # --- reading ---------------------------------------------------------------------------------

    def load(self, directory: str) -> Table | None:
        """Return a table; None: there is none."""
        return self._reading(lambda c: _loaded(c, _identifier(directory)), None)

    @property
    def file(self) -> str:
        """The path of the catalog itself; empty: it is no file."""
        return self._uri.path if self._uri.is_file else ""

    def tables(self, database: str = "", whole: bool = False) -> list[tuple[str, str]]:
        """Return the names of all tables, or of those of one database.

        Databases that the login may not see are left out; `whole`: they are an error.
        """

        def listed(catalog: Any) -> list[tuple[str, str]]:
            spaces = [(database,)] if database else catalog.list_namespaces()
            names: list[tuple[str, str]] = []
            for space in spaces:
                try:
                    names += [(one[0], one[-1]) for one in catalog.list_tables(space[:1])]
                except NoSuchNamespaceError:
                    continue
                except ForbiddenError:
                    if database or whole:
                        raise
                    continue  # somebody else's
            return names

        return self._reading(listed, [])

    def check(self) -> None:
        """Raise unless the catalog answers; writes nothing."""
        if self._glue is not None:
            self._reading(lambda catalog: catalog.answers(), None)
        else:
            self.tables("rowferry-probe")

    # --- writing ---------------------------------------------------------------------------------

    def commit(
        self,
        directory: str,
        table: Table | None,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> bool:
        """Commit to a table, or make it; False: somebody else was first.

        Raises:
            SinkUnavailable: whether it was committed is not known.
        """

        def done(catalog: Any) -> bool:
            if table is None:
                self._have_database(catalog, _identifier(directory)[0])
            target = table or _NewTable(_identifier(directory), {})
            try:
                response = catalog.commit_table(target, requirements, updates)
            except (CommitFailedException, TableAlreadyExistsError, NoSuchTableError):
                return False
            if table is not None:
                catalog._delete_old_metadata(self.io, table.metadata, response.metadata)
            return True

        moment("commit iceberg snapshot")
        committed = self._writing(done)
        moment("iceberg snapshot committed")
        return committed

    def drop(self, directory: str) -> None:
        """Forget a table; its files stay."""

        def done(catalog: Any) -> None:
            try:
                catalog.drop_table(_identifier(directory))
            except NoSuchTableError:
                return

        moment("drop iceberg table")
        self._writing(done)

    def rename(self, old: str, new: str) -> None:
        """Give a table another name; its files stay where they are."""

        def done(catalog: Any) -> None:
            self._have_database(catalog, _identifier(new)[0])
            try:
                catalog.rename_table(_identifier(old), _identifier(new))
            except NoSuchTableError:
                if _loaded(catalog, _identifier(new)) is None:  # else its answer was lost
                    raise TargetLost(f"{self.shown} has no table {old}; {RESTORE}") from None

        moment("rename iceberg table")
        self._writing(done)

    def _have_database(self, catalog: Any, name: str) -> None:
        try:
            catalog.create_namespace((name,))
        except NamespaceAlreadyExistsError:
            return

    def close(self) -> None:
        """Let connections go."""
        with self._turn:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    # --- the connection --------------------------------------------------------------------------

    def _reading(self, ask: Callable[[Any], T], nothing: T) -> T:
        moment("ask iceberg catalog")
        with self._turn, self._wrapped():
            if self._opened is None:
                if self._uri.is_file and not os.path.exists(self._uri.path):
                    return nothing
                catalog = self._open(make=False)
                if isinstance(catalog, _Sql) and not _has_tables(catalog):
                    catalog.close()
                    return nothing
                self._opened = catalog
            return ask(self._opened)

    def _writing(self, do: Callable[[Any], T]) -> T:
        with self._turn, self._wrapped():
            if self._opened is None:
                self._opened = self._open(make=True)
            return do(self._opened)

    def _open(self, make: bool) -> _Sql | WaryRest | GlueCatalog:
        options, uri = self._options, self._uri
        if self._glue is not None:
            return GlueCatalog(self._glue, self.io)
        if uri.is_web:
            given = {
                "uri": uri.reveal(),
                "warehouse": options.catalog_name,
                "token": options.catalog_token,
                "credential": options.catalog_credential,
                "oauth2-server-uri": options.catalog_token_uri
                or f"{uri.reveal().rstrip('/')}/v1/oauth/tokens",
                "scope": options.catalog_scope,
            }
            return WaryRest(_NAME, self.io, self._rest, **{k: v for k, v in given.items() if v})
        if uri.is_file:
            address = f"sqlite:///{uri.path}"
        else:
            address = uri.reveal().replace("postgresql://", "postgresql+psycopg://", 1)
        more = {
            **self.io.settings,
            "uri": address,
            "init_catalog_tables": "true" if make else "false",
        }
        return _Sql(options.catalog_name or _NAME, self.io, **more)

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Turn what libraries raise into our words; passwords are never in them."""
        at = f"the Iceberg catalog {self.shown}"
        self._calls.begin()
        try:
            yield
        except FileNotFoundError as err:
            raise SinkDamaged(
                f"{at} names {err.args[0]}, which is gone; restore it as it was and resume, or "
                "drop the table there and begin anew: rowferry changefeed reset --snapshot"
            ) from None
        except ValidationError as err:
            raise SinkDamaged(
                f"{at} names metadata that cannot be read: {self._line(err)}; restore them as they "
                "were and resume, or drop the table there and begin anew: rowferry changefeed "
                "reset --snapshot"
            ) from None
        except _REFUSED as err:
            login = "access-key" if self._glue else "catalog-token or catalog-credential"
            raise SinkUnwritable(
                f"{at} refuses the login: {self._line(err)}; correct {login}, or the rights"
            ) from None
        except GlueRefusal as err:
            raise SinkUnwritable(f"{at} refuses {self._line(err)}") from None
        except (ArgumentError, NoSuchModuleError, BadRequestError) as err:
            raise BadOption(f"{at} cannot be used: {self._line(err)}") from None
        except (RESTError, OSError) as err:
            raise SinkUnavailable(f"{at} did not do what was asked: {self._line(err)}") from None
        except _STRANGE as err:
            # What the library says of an answer that is none of a catalog's, such as a proxy's, and
            # of metadata that are none.
            raise SinkUnavailable(f"{at} gave a strange answer: {self._line(err)}") from None
        except SQLAlchemyError as err:
            raise SinkUnavailable(
                f"{at}: {self._line(getattr(err, 'orig', None) or err)}"
            ) from None

    def _line(self, err: BaseException) -> str:
        """Return the words of others on one line, without what they were sent as a login."""
        options = self._options
        credential = options.catalog_credential
        secrets = (options.catalog_token, credential, credential.partition(":")[2])
        hiding = self._calls.hiding((*secrets, self._uri.password))
        return " ".join(hiding.hide(str(err)).split())[:300]


def _glue_address(uri: Uri, options: IcebergOptions, login: AwsGiven | None) -> GlueAddress:
    given = {
        "catalog-name": options.catalog_name,
        "catalog-token": options.catalog_token,
        "catalog-credential": options.catalog_credential,
        "catalog-token-uri": options.catalog_token_uri,
        "catalog-scope": options.catalog_scope,
    }
    if odd := [key for key, value in given.items() if value]:
        raise OptionsConflict(
            f"{odd[0]} says nothing to AWS Glue; leave it out, and log in by access-key and "
            "secret-access-key"
        )
    return GlueAddress.read(uri, login or AwsGiven())


def _loaded(catalog: Any, identifier: tuple[str, ...]) -> Table | None:
    try:
        table: Table = catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    return table


def _has_tables(catalog: Any) -> bool:
    return bool(inspect(catalog.engine).has_table("iceberg_tables"))


def _identifier(directory: str) -> tuple[str, str]:
    name = table_at(directory)
    return name.database, name.table
