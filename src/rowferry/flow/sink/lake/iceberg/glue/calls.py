"""AWS Glue's interface: where it is, signed requests with JSON, refusals as errors of catalogs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.exceptions import ForbiddenError, UnauthorizedError

from rowferry.errors import BadOption, OptionsConflict
from rowferry.flow.sink.lake.iceberg.glue.amazon_http import AmazonHttp, NoAnswer
from rowferry.flow.sink.lake.iceberg.glue.amazon_login import AwsKeys, AwsLogin, amazon_address
from rowferry.flow.sink.search.signing import AwsSigner
from rowferry.flow.sink.web_calls import on_one_line
from rowferry.spec.secrets import Hiding
from rowferry.spec.uri import Uri, is_web_address, web_host, without_passwords

_SERVICE: Final = "glue"
_FORM: Final = "glue://REGION or glue://REGION/ACCOUNT"
_REGION: Final = re.compile(r"[a-z]{2,4}(?:-[a-z0-9]+)+")
_ACCOUNT: Final = re.compile(r"/\d{12}|/?")
_HERE: Final = ("127.0.0.1", "localhost", "::1")
_KEYS: Final = ("access-key", "secret-access-key", "session-token", "profile")
_KNOWN: Final = ("endpoint", "allow-http", "ca", *_KEYS)
_THROTTLED: Final = re.compile("Throttl|RequestLimitExceeded|TooManyRequests")
_FOR_NOW: Final = re.compile("InternalService|InternalFailure|ServiceUnavailable|OperationTimeout")
_DENIED: Final = re.compile("AccessDenied|NotAuthorized")
_LOGIN: Final = re.compile(
    "UnrecognizedClient|InvalidSignature|SignatureDoesNotMatch|ExpiredToken|InvalidClientTokenId|"
    "MissingAuthenticationToken|IncompleteSignature|InvalidAccessKeyId|RequestExpired"
)
_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)  # before a request that was throttled is made again


@dataclass(frozen=True, slots=True)
class AwsGiven:
    """A login as the options of a sink have it; empty: none."""

    keys: AwsKeys = AwsKeys()
    profile: str = ""

    def __bool__(self) -> bool:
        return bool(self.keys.access_key or self.profile)


@dataclass(frozen=True, slots=True)
class GlueAddress:
    """Which Glue, and how it is reached.

    Attributes:
        region: as Amazon names it.
        account: whose catalog; empty: that of the login.
        at: the service's address.
        ca: file of the authorities that signed it.
        login: whom it is asked by.
    """

    region: str
    account: str
    at: str
    ca: str
    login: AwsGiven

    @classmethod
    def read(cls, uri: Uri, storage: AwsGiven) -> GlueAddress:
        """Read `glue://REGION/ACCOUNT?…`; a login that it lacks is the storage's.

        Raises:
            BadOption: it names no region, or something that is not known.
            OptionsConflict: half of a login, or an endpoint in plain text elsewhere.
        """
        if not _REGION.fullmatch(uri.address) or uri.user or not _ACCOUNT.fullmatch(uri.path):
            raise BadOption(
                f"sink.lake.catalog = {str(uri)!r}: write {_FORM}, such as glue://eu-central-1, "
                "where ACCOUNT has 12 digits; keys are parameters"
            )
        given = dict(uri.parameters)
        if odd := sorted(set(given) - set(_KNOWN)):
            raise BadOption(
                f"sink.lake.catalog: {odd[0]} is no parameter of glue://; known: "
                f"{', '.join(_KNOWN)}"
            )
        if bool(given.get("access-key")) != bool(given.get("secret-access-key")):
            raise OptionsConflict(
                "sink.lake.catalog: access-key and secret-access-key go together; give both or none"
            )
        key, secret, token, profile = (given.get(name, "") for name in _KEYS)
        own = AwsGiven(AwsKeys(key, secret, token), profile)
        at = _endpoint(given) or amazon_address(_SERVICE, uri.address)
        account = uri.path.strip("/")
        return cls(uri.address, account, at, given.get("ca", ""), own or storage)


def _endpoint(given: Mapping[str, str]) -> str:
    """Return the endpoint that was given, without a slash at its end."""
    endpoint, plain = given.get("endpoint", ""), given.get("allow-http", "false")
    if plain not in ("true", "false"):
        raise BadOption(f"sink.lake.catalog: allow-http = {plain!r}: write true or false")
    if endpoint and not is_web_address(endpoint):
        shown = without_passwords(endpoint)
        raise BadOption(
            f"sink.lake.catalog: endpoint = {shown!r}: write it as https://host or http://host:port"
        )
    if endpoint.startswith("http://") and plain == "false" and web_host(endpoint)[0] not in _HERE:
        raise OptionsConflict(
            f"sink.lake.catalog: endpoint = {without_passwords(endpoint)!r} sends everything in "
            "plain text to another machine; write https://, or add allow-http=true"
        )
    return endpoint.rstrip("/")


class GlueRefusal(Exception):
    """Glue refuses a request; `code`: its own name for that."""

    def __init__(self, action: str, code: str, words: str) -> None:
        super().__init__(f"{action}: {code}: {words}" if words else f"{action}: {code}")
        self.code = code


class GlueCalls:
    """Requests to Glue; one question at a time."""

    def __init__(self, address: GlueAddress) -> None:
        login = address.login
        self._address = address
        self._login = AwsLogin(login.keys, login.profile, address.region)
        self._http = AmazonHttp(address.ca)
        host, port = web_host(address.at)
        shown = f"[{host}]" if ":" in host else host
        plain = {"http": 80, "https": 443}.get(address.at.partition(":")[0])
        self._host = shown if port in (None, plain) else f"{shown}:{port}"

    def begin(self) -> None:
        """Let the answers to the next question have all room and time."""
        self._http.begin()

    def hiding(self, secrets: Iterable[str]) -> Hiding:
        """Return what hides these secrets, and the keys that requests are signed by."""
        return Hiding((*secrets, *self._address.login.keys.secrets, *self._login.secrets))

    def call(self, action: str, **content: Any) -> dict[str, Any]:
        """Ask for something; return the answer.

        Raises:
            GlueRefusal: it cannot be done, such as with a table that is not there.
            ForbiddenError: the login may not do it.
            UnauthorizedError: the login is not taken.
            NoAnswer: not for now, or nobody answers.
        """
        if self._address.account:
            content["CatalogId"] = self._address.account
        for pause in (*_PAUSES_S, 0.0):
            status, answer = self._asked(action, json.dumps(content).encode())
            if status < 300:
                return answer
            name = str(answer.get("__type") or "").rpartition("#")[2] or str(status)
            words = on_one_line(str(answer.get("Message") or answer.get("message") or ""))
            if not (_THROTTLED.search(name) or status == 429) or not pause:
                break
            time.sleep(pause)
        raise self._error(action, status, name, words)

    def pages(self, action: str, listed: str, **content: Any) -> Iterator[dict[str, Any]]:
        """Yield what lists of many pages have under the name `listed`. Raises as `call`."""
        token = ""
        while True:
            answer = self.call(action, **content, **({"NextToken": token} if token else {}))
            rows = answer.get(listed)
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise NoAnswer(f"its answer to {action} has no {listed}")
            yield from rows
            token = str(answer.get("NextToken") or "")
            if not token:
                return

    def close(self) -> None:
        """Let connections go."""
        self._http.close()

    def _asked(self, action: str, body: bytes) -> tuple[int, dict[str, Any]]:
        keys = self._login.keys()
        signer = AwsSigner(
            keys.access_key, keys.secret_key, keys.session_token, self._address.region, _SERVICE
        )
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": f"AWSGlue.{action}",
            **signer.headers("POST", self._host, "/", {}, body),
        }
        try:
            status, content = self._http.ask("POST", f"{self._address.at}/", headers, body)
        except NoAnswer as err:
            raise NoAnswer(f"{err}; correct the region or the endpoint if it stays") from None
        try:
            form = json.loads(content)
        except (ValueError, RecursionError):
            form = None
        if not isinstance(form, dict):
            if status < 300:
                raise NoAnswer(f"its answer to {action} is none of Glue's")
            form = {}
        return status, form

    def _error(self, action: str, status: int, name: str, words: str) -> Exception:
        reason = f"{name}: {words}" if words else name
        if name == str(status):  # a proxy's page
            return NoAnswer(f"it answers {status}")
        if _THROTTLED.search(name) or status == 429:
            return NoAnswer(f"{reason}; it takes no more requests for now")
        if status >= 500 or _FOR_NOW.search(name):
            return NoAnswer(reason)
        if _DENIED.search(name) or (status == 403 and not _LOGIN.search(name)):
            return ForbiddenError(f"glue:{action} is not granted: {reason}")
        if _LOGIN.search(name):
            return UnauthorizedError(reason)
        return GlueRefusal(action, name, words)
