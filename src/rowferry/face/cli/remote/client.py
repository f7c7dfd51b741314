"""How commands talk to a server: the flags that all of them have, and requests over HTTP."""

from __future__ import annotations

import inspect
import json
import os
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import typer
import urllib3
from urllib3.exceptions import (
    HTTPError,
    LocationParseError,
    NewConnectionError,
    ProtocolError,
    SSLError,
    TimeoutError,
)

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.errors import (
    AccessDenied,
    BadOption,
    RowferryError,
    ServerError,
    ServerUnavailable,
    from_text,
)
from rowferry.face.cli.options.address import given_secret
from rowferry.face.cli.output import Printer

API: Final = ("api", "v2")

DEFAULT_SERVER: Final = "http://127.0.0.1:8300"
_SERVER_FORM: Final = f"--server: write http://HOST:PORT or https://HOST:PORT ({DEFAULT_SERVER})"
_MOST_ANSWER: Final = 256 << 20  # bytes
_WITHIN_S: Final = 600.0
_PATIENCE_S: Final = (10.0, 300.0)  # a creation asks source and sink, which takes its time
_AT_A_KEY_S: Final = (0.5, 1.5)
_MOST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Access:
    """Where the server is, and as whom it is asked."""

    server: str = DEFAULT_SERVER
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


class Client:
    """Sends requests to one server, each once: a creation must not happen twice.

    Raises (every request):
        ServerUnavailable: nobody answers there; the text names the address and how to start one.
        AccessDenied: a token, or user and password, are missing or wrong.
        RowferryError: what the server says, with its own code.
    """

    def __init__(self, access: Access, patience_s: tuple[float, float] = _PATIENCE_S) -> None:
        """Ask a server; `patience_s`: for a connection, and for an answer."""
        self.address = _address(access)
        secured = self.address.startswith("https:")
        try:
            self._pool = urllib3.connection_from_url(
                self.address,
                timeout=urllib3.Timeout(*patience_s),
                retries=False,
                **({"ssl_context": _context(access)} if secured else {}),
            )
        except LocationParseError:
            raise BadOption(_SERVER_FORM) from None
        self._lead = urlsplit(self.address).path
        self._headers = _headers(access)

    def get(self, *path: str, **query: str | Sequence[str]) -> Any:
        """Return the JSON of a GET; `path` are its segments, a list in `query` comes repeated."""
        return self._ask("GET", path, None, query)

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that a POST answers."""
        return self._ask("POST", path, body or {})

    def put(self, *path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON that a PUT answers."""
        return self._ask("PUT", path, body)

    def delete(self, *path: str, **query: str) -> Any:
        """Return the JSON that a DELETE answers."""
        return self._ask("DELETE", path, None, query)

    def close(self) -> None:
        """Let connections go."""
        self._pool.close()

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        body: Mapping[str, Any] | None,
        query: Mapping[str, str | Sequence[str]] | None = None,
    ) -> Any:
        url = self._lead + "/" + "/".join(quote(part, safe="") for part in path)
        url += f"?{urlencode(query, doseq=True)}" if query else ""
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                redirect=False,
                preload_content=False,
            )
            data = read_answer(answer, _MOST_ANSWER, _WITHIN_S)
        except HTTPError as err:
            raise self._unavailable(err) from err
        except UnfitAnswer as err:
            raise ServerError(f"{self.address}: {err}") from None
        return self._judged(answer.status, data)

    def _judged(self, status: int, data: bytes) -> Any:
        try:
            answer = json.loads(data) if data else None
        except (ValueError, RecursionError) as err:
            if status < 300:
                words = f"{self.address} did not answer with JSON: {_start(data)}"
                raise ServerError(words) from err
            answer = None
        if status < 300:
            return answer
        words = str(answer.get("error_msg", "")) if isinstance(answer, Mapping) else _start(data)
        if status == 401:
            raise AccessDenied(
                f"{self.address} refuses: give --token, or --user and --password, that it knows"
            )
        known = from_text(words)
        if known is not None:
            raise known
        raise ServerError(f"{self.address} answered {status}: {words or 'no words'}")

    def _unavailable(self, err: HTTPError) -> ServerError:
        if isinstance(err, SSLError):
            words = "check --ca, --cert and --key, or use http://"
            return ServerUnavailable(f"{self.address}: TLS failed: {err}; {words}")
        if isinstance(err, NewConnectionError):
            return ServerUnavailable(
                f"no server answers at {self.address}: start one with `rowferry server`, or name "
                "another with --server"
            )
        if isinstance(err, ProtocolError):
            other = "http://" if self.address.startswith("https:") else "https://"
            return ServerUnavailable(
                f"the server at {self.address} did not answer but closed the connection: does it "
                f"want {other}, or a certificate (--cert)?"
            )
        if isinstance(err, TimeoutError):
            return ServerUnavailable(f"the server at {self.address} did not answer in time")
        return ServerUnavailable(f"the server at {self.address} did not answer: {err}")


def _address(access: Access) -> str:
    text = access.server.strip().rstrip("/")
    if "://" not in text:
        secured = access.ca or access.cert
        text = f"{'https' if secured else 'http'}://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        port = 0
    if (
        port == 0
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username is not None
    ):
        raise BadOption(_SERVER_FORM)
    return text


def _context(access: Access) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        if access.ca:
            context.load_verify_locations(cafile=str(access.ca))
        if access.cert:
            context.load_cert_chain(str(access.cert), str(access.key) if access.key else None)
    except (OSError, ssl.SSLError) as err:
        raise BadOption(f"--ca, --cert or --key cannot be read: {err}") from None
    return context


def _headers(access: Access) -> dict[str, str]:
    if access.token and access.user:
        raise BadOption("--token and --user cannot be used together")
    if not access.token.isascii() or not access.token.isprintable():
        raise BadOption("--token: holds characters that no token has")
    if access.token:
        return {"Authorization": f"Bearer {access.token}"}
    if access.user:
        login = f"{access.user}:{access.password}".encode(errors="surrogateescape")
        return {"Authorization": f"Basic {b64encode(login).decode()}"}
    return {}


def _start(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return repr(text[:_MOST_SHOWN]) if text else ""


# --- flags that every command has ----------------------------------------------------------------

_PANEL: Final = "The server"
_FLAGS: Final[dict[str, Any]] = {
    "server": Annotated[
        str | None,
        typer.Option(
            help=f"Its address; or ROWFERRY_SERVER; default {DEFAULT_SERVER}",
            rich_help_panel=_PANEL,
        ),
    ],
    "ca": Annotated[
        Path | None,
        typer.Option(help="Certificates that are trusted, PEM", rich_help_panel=_PANEL),
    ],
    "cert": Annotated[
        Path | None, typer.Option(help="Our own certificate, PEM", rich_help_panel=_PANEL)
    ],
    "key": Annotated[Path | None, typer.Option(help="Its key, PEM", rich_help_panel=_PANEL)],
    "user": Annotated[
        str | None, typer.Option(help="Log in as; or ROWFERRY_USER", rich_help_panel=_PANEL)
    ],
    "password": Annotated[
        str | None,
        typer.Option(help="Or ROWFERRY_PASSWORD, or a reference", rich_help_panel=_PANEL),
    ],
    "token": Annotated[
        str | None,
        typer.Option(help="Or ROWFERRY_TOKEN, or a reference", rich_help_panel=_PANEL),
    ],
    "output": Annotated[
        str | None,
        typer.Option(help="`table` or `json`; default: table on a terminal, else json"),
    ],
    "keyspace": Annotated[str | None, typer.Option("-k", "--keyspace", hidden=True)],
    "pd": Annotated[str | None, typer.Option(hidden=True)],
    "log_level": Annotated[str | None, typer.Option(hidden=True)],
}
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


_CLIENT_KEY: Final = Annotated[
    Path | None,
    typer.Option("--client-key", help="The certificate's key, PEM", rich_help_panel=_PANEL),
]


def connected(function: Callable[..., None], own_key: bool = False) -> Callable[..., None]:
    """Return a command with the flags of all; `function` gets a Client and a Printer first.

    A flag wins over the same one before the subcommand (`rowferry cli --server …`), and that over
    the environment. `own_key`: the command itself has a flag `--key`, and the key of our
    certificate is called `--client-key`.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[2:]

    def command(context: typer.Context, **given: Any) -> None:
        flags = {name: given.pop(name) for name in _FLAGS}
        before = context.obj if isinstance(context.obj, dict) else {}
        chosen = {n: v if v is not None else before.get(n) for n, v in flags.items()}
        printer = Printer(chosen["output"])
        with closing(Client(_access(chosen))) as client:
            function(client, printer, **given)

    flags = {"key": _CLIENT_KEY} if own_key else {}
    return _with_flags(command, own, function.__name__, function.__doc__, instead=flags)


def with_access(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the flags that say which server is asked; `access` is given first."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    names = [name for name in _FLAGS if name not in ("output", "keyspace", "pd", "log_level")]

    def command(context: typer.Context, **given: Any) -> None:
        flags = {name: given.pop(name, None) for name in _FLAGS if name != "output"}
        function(_access(flags), **given)

    return _with_flags(command, own, function.__name__, function.__doc__, names)


def known_changefeeds(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names that a shell may complete; none where no server answers at once."""
    flags: dict[str, Any] = dict.fromkeys(_FLAGS)
    at: Any = context
    while at is not None:  # flags may also stand before the subcommand
        flags |= {n: v for n, v in at.params.items() if n in flags and flags[n] is None}
        at = at.parent
    try:
        with closing(Client(_access(flags), _AT_A_KEY_S)) as client:
            items = client.get(*API, "changefeeds", state="all")["items"] or ()
    except RowferryError:
        return []
    return sorted(item["id"] for item in items if item["id"].startswith(incomplete))


def remember_flags() -> Callable[..., None]:
    """Return a callback of a group of commands: flags may also stand before the subcommand."""

    def remember(context: typer.Context, **given: Any) -> None:
        context.obj = given

    return _with_flags(remember, [], "flags", None)


def _with_flags(
    command: Callable[..., None],
    own: list[inspect.Parameter],
    name: str,
    doc: str | None,
    names: Sequence[str] = tuple(_FLAGS),
    instead: Mapping[str, Any] | None = None,
) -> Callable[..., None]:
    context = inspect.Parameter("context", _KEYWORD, annotation=typer.Context)
    own = [p.replace(kind=_KEYWORD) for p in own]
    known = {**_FLAGS, **(instead or {})}
    flags = [inspect.Parameter(n, _KEYWORD, default=None, annotation=known[n]) for n in names]
    every = [context, *own, *flags]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    command.__name__, command.__doc__ = name, doc
    return command


def _access(chosen: Mapping[str, Any]) -> Access:
    if chosen["pd"] is not None:
        raise BadOption("--pd: there is no PD here; name a Rowferry server with --server")
    if chosen["keyspace"] not in (None, "", "default"):
        raise BadOption(f"--keyspace {chosen['keyspace']!r}: there is only the keyspace default")

    def text(name: str, default: str = "") -> str:
        return chosen[name] or os.environ.get(f"ROWFERRY_{name.upper()}") or default

    token, user = chosen["token"], chosen["user"]
    if token is None and user is None:
        token, user = text("token"), text("user")
    return Access(
        server=text("server", DEFAULT_SERVER),
        ca=chosen["ca"],
        cert=chosen["cert"],
        key=chosen["key"],
        user=user or "",
        password=given_secret(text("password"), "--password"),
        token=given_secret(token or "", "--token"),
    )


OURS: Final = ("api", "rowferry")
Id = Annotated[
    str,
    typer.Option(
        "-c",
        "--changefeed-id",
        help="The changefeed's name",
        autocompletion=known_changefeeds,
    ),
]
