"""Iceberg's REST catalog, which may be somebody else's: what it answers is read with distrust.

The library would take any setting from an answer, also the name of a class to make, follow every
redirection, and wait for an answer of any length for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.errors import BadOption
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.spec.secrets import Hiding
from rowferry.spec.uri import web_host

# All of a catalog's answers to one question: a list of tables may come in many pages.
_MOST_BYTES: Final = 64 << 20
_WITHIN_S: Final = 600.0
_PATIENCE_S: Final = (10.0, 60.0)  # to connect, and between two bytes
_PIECE: Final = 65536
_TOKENS_KEPT: Final = 8
# What a catalog may decide about our requests to it. Everything else is for the changefeed to say:
# other settings name programs, files and whom the login goes to.
_DECIDED: Final[tuple[str, ...]] = (
    "prefix",
    "namespace-separator",
    "rest-page-size",
    "view-endpoints-supported",
)


class CatalogUnfit(OSError):
    """A catalog's answer is not read to its end; the text says why."""


class _Body:
    """The body of an answer; what ends it too early is an error of requests, an OSError."""

    def __init__(self, answer: Response) -> None:
        self.headers: Mapping[str, str] = answer.headers
        self.close = answer.close
        self._pieces = answer.iter_content(_PIECE)

    def read(self, amt: int, decode_content: bool) -> bytes:
        return next(self._pieces, b"")

    def release_conn(self) -> None:
        """Nothing: at its end the body has done so."""


class WaryCalls(HTTPAdapter):
    """Requests to one catalog and to whoever gives its tokens; one question at a time."""

    def __init__(self) -> None:
        super().__init__(max_retries=0)
        self._tokens: deque[str] = deque(maxlen=_TOKENS_KEPT)
        self.begin()

    def begin(self) -> None:
        """Let the answers to the next question have all room and time."""
        self._left, self._until = _MOST_BYTES, time.monotonic() + _WITHIN_S

    def hiding(self, secrets: Iterable[str]) -> Hiding:
        """Return what hides these secrets, and the tokens that were sent."""
        return Hiding((*secrets, *self._tokens))

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> Response:
        """Return an answer that was read to its end.

        Raises:
            CatalogUnfit: it is too long, takes too long, is compressed, or leads elsewhere.
        """
        self._remember(request)
        answer = super().send(request, True, _PATIENCE_S, verify, cert, proxies)
        if answer.is_redirect:
            answer.close()
            raise CatalogUnfit(f"it answers {answer.status_code} and leads to another address")
        try:
            left_s = max(self._until - time.monotonic(), 0.0)
            content = read_answer(_Body(answer), self._left, left_s)
        except UnfitAnswer as err:
            raise CatalogUnfit(str(err)) from None
        self._left -= len(content)
        answer._content, answer._content_consumed = content, True
        answer.encoding = "utf-8"  # as JSON is; the library would guess, for minutes
        return answer

    def _remember(self, request: PreparedRequest) -> None:
        word = str(request.headers.get("Authorization", "")).rpartition(" ")[2]
        if word not in ("", "None", *self._tokens):  # None: what the library sends for no token
            self._tokens.append(word)


class WaryRest(RestCatalog):
    """A REST catalog; files are reached by the sink's own login, not by one that it gives."""

    def __init__(self, name: str, io: FilesIO, calls: WaryCalls, **properties: str) -> None:
        self._ours, self._calls = io, calls
        super().__init__(name, **properties)

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> FileIO:
        return self._ours

    def _config_headers(self, session: Session) -> None:
        # The first thing that happens to each of the library's sessions.
        super()._config_headers(session)
        session.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            session.mount(scheme, self._calls)

    def _fetch_config(self) -> None:
        given, asked = dict(self.properties), self.uri
        super()._fetch_config()
        # Its answer may name another address, to which the login would go.
        if not web_host(self.uri)[0] or _place(self.uri) != _place(asked):
            raise BadOption(
                f"the Iceberg catalog {web_host(asked)[0]} sends its clients to another host, "
                f"{web_host(self.uri)[0]!r}; name that one as sink.lake.catalog"
            )
        decided = {key: self.properties[key] for key in _DECIDED if key in self.properties}
        if odd := [key for key, value in decided.items() if not isinstance(value, str)]:
            raise CatalogUnfit(f"its configuration has no text as {odd[0]}")
        self.properties = {**given, **decided}


def _place(address: str) -> tuple[object, ...]:
    return address.partition(":")[0].lower(), *web_host(address)
