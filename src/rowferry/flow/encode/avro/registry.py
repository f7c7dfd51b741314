"""The client of a schema registry: Confluent's API over HTTP.

Foreign errors end here: what may pass is SinkUnavailable (try again), what an operator must change
is SchemaRefused or SinkUnwritable. Passwords are in no text.
"""

from __future__ import annotations

import json
import re
import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Final
from urllib.parse import quote

import urllib3

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.change.remembered import Remembered
from rowferry.errors import BadOption, SchemaRefused, SinkUnavailable, SinkUnwritable
from rowferry.moment import moment
from rowferry.spec.secrets import Hiding

_ACCEPT: Final = (
    "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json"
)
_BODY: Final = "application/vnd.schemaregistry.v1+json"
_TIMEOUT: Final = urllib3.Timeout(connect=10, read=30)
_MOST_ANSWER: Final = 16 << 20  # bytes; a schema has some kB
_WITHIN_S: Final = 60.0
_PASSING: Final = frozenset({408, 425, 429})  # beside every 5xx
_FORBIDDEN: Final = frozenset({401, 403})
_CLIENT_WORDS = re.compile(r"^<?HTTPS?Connection(Pool)?\([^)]*\)>?: ")


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Where a schema registry is and how to be let in. `url` has neither user nor password."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    skip_verify: bool = False


class SchemaRegistry:
    """Registers schemas and reads them back; each answer is remembered for good.

    A schema of a subject keeps its id and an id keeps its schema, so that one process asks once.
    """

    def __init__(self, address: RegistryAddress) -> None:
        self._address = address
        self._ids: Remembered[tuple[str, str], int] = Remembered(kept_s=inf)
        self._schemas: Remembered[int, str] = Remembered(kept_s=inf)

    def probe(self) -> None:
        """Check that a schema registry answers and lets us in; registers nothing.

        Raises:
            SinkUnavailable: nobody answers, or not now.
            SinkUnwritable: we are not let in, or it is something else.
        """
        status, body = self._ask("GET", "")
        if status == 200 and body.strip() == b"{}":
            return  # Confluent's own greeting; others have another, or none, but have subjects
        status, body = self._ask("GET", "/subjects")
        self._refuse(status, body, "subjects")
        if not isinstance(_json(body), list):
            raise SinkUnwritable(f"{self} answers, but not as a schema registry does")

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema, registering it under the subject if it is not yet there.

        Raises:
            SchemaRefused: the registry does not take it, in its own words.
            SinkUnavailable, SinkUnwritable: as `probe`.
        """
        known = self._ids.get((subject, schema))
        if known is not None:
            return known
        path = f"/subjects/{quote(subject, safe='')}/versions"
        status, body = self._ask("POST", path, json.dumps({"schema": schema}).encode())
        self._refuse(status, body, f"subject {subject!r}")
        answer = _json(body)
        number = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(number, int) or number <= 0:
            raise SinkUnwritable(f"{self} registered subject {subject!r} without giving an id")
        self._ids[subject, schema] = number
        return number

    def schema(self, number: int) -> str:
        """Return the JSON of the schema with this id; raises as `register` does."""
        known = self._schemas.get(number)
        if known is not None:
            return known
        status, body = self._ask("GET", f"/schemas/ids/{number}")
        self._refuse(status, body, f"schema id {number}")
        answer = _json(body)
        text = answer.get("schema") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise SinkUnwritable(f"{self} gave no schema for the id {number}")
        self._schemas[number] = text
        return text

    def __str__(self) -> str:
        return f"schema registry {self._address.url}"

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send one request; only a connection that fails raises."""
        moment("ask registry")
        headers = {"Accept": _ACCEPT}
        if body is not None:
            headers["Content-Type"] = _BODY
        if self._address.user:
            login = f"{self._address.user}:{self._address.password}".encode()
            headers["Authorization"] = f"Basic {b64encode(login).decode()}"
        try:
            answer = self._pool.request(
                method,
                self._address.url + path,
                body=body,
                headers=headers,
                redirect=False,
                preload_content=False,
            )
            return answer.status, read_answer(answer, _MOST_ANSWER, _WITHIN_S)
        except UnfitAnswer as err:
            raise SinkUnwritable(f"{self}: {err}; see schema-registry") from None
        except urllib3.exceptions.SSLError as err:
            raise SinkUnwritable(f"{self}: {_words(err)}; see schema-registry-ca") from err
        except urllib3.exceptions.HTTPError as err:
            raise SinkUnavailable(f"{self} does not answer: {_words(err)}") from err

    def _refuse(self, status: int, body: bytes, what: str) -> None:
        """Raise what an answer other than success means."""
        if 200 <= status < 300:
            return
        words = f"{self} answered {status} for {what}: {self._message(body)}"
        if status >= 500 or status in _PASSING:
            raise SinkUnavailable(words)
        if status in _FORBIDDEN:
            raise SinkUnwritable(f"{words}; see schema-registry-user and -password")
        if status == 409 or status == 422:
            raise SchemaRefused(words)
        raise SinkUnwritable(f"{words}; is schema-registry its whole address, with the path?")

    def _message(self, body: bytes) -> str:
        """Return the registry's own words, at most 600 characters of them, without our login."""
        answer = _json(body)
        words = answer.get("message") if isinstance(answer, dict) else None
        hiding = Hiding((self._address.password,), (self._address.user,))
        return hiding.hide(str(words or body.decode("utf-8", "replace") or "no words"))[:600]

    @cached_property
    def _pool(self) -> urllib3.PoolManager:
        tls = self._tls() if self._address.url.startswith("https:") else None
        return urllib3.PoolManager(timeout=_TIMEOUT, retries=False, ssl_context=tls)

    def _tls(self) -> ssl.SSLContext:
        where = self._address
        try:
            context = ssl.create_default_context(cafile=where.ca or None)
        except (OSError, ValueError) as err:
            raise BadOption(f"schema-registry-ca {where.ca!r} cannot be used: {err}") from err
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if where.skip_verify:  # the user said so; saying it at each request helps nobody
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if where.cert:
            try:
                context.load_cert_chain(where.cert, where.key)
            except (OSError, ValueError) as err:
                files = f"schema-registry-cert {where.cert!r} and -key {where.key!r}"
                raise BadOption(f"{files} cannot be used: {err}") from err
        return context


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _words(err: Exception) -> str:
    return _CLIENT_WORDS.sub("", str(err))
