"""Bearer tokens that somebody else has signed: OpenID Connect, JSON Web Tokens.

A token counts when it is signed by a key of the issuer's set, names issuer and audience, has not
ended, and says a role. Only signatures with a public key are taken: whoever can check a token
cannot make one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from urllib3.exceptions import HTTPError

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.control.operator.actor import Role
from rowferry.errors import BadOption
from rowferry.face.credentials import read_text
from rowferry.face.fresh import Fresh

LOG = logging.getLogger(__name__)
ROLE_PREFIX: Final = "rowferry-"  # an admin of something else is not one here
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519"),
)
_LEEWAY_S: Final = 30
_FETCHED_S: Final = 600.0
_AGAIN_S: Final = 30.0  # between two looks for a key that is not known
_PATIENCE_S: Final = 5.0
_WHOLE_S: Final = 10.0  # for all of an answer
_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_MOST_BYTES: Final = 1 << 20
_LONGEST: Final = 16 << 10  # of a token


class TokenIssuer:
    """Whose signed tokens are believed. Safe for use from several threads.

    Attributes:
        issuer: the claim `iss`, exactly.
        audience: must be among the claim `aud`.
        role_claim: where roles stand; dots lead into objects (`realm_access.roles`).
    """

    def __init__(
        self, issuer: str, audience: str, jwks: str | None = None, role_claim: str = "roles"
    ) -> None:
        """Believe the keys of a JWKS file or of an `https://` address.

        Without one, the issuer itself is asked where its keys are (OpenID Connect Discovery).

        Raises:
            BadOption: the file cannot be used, or the address is none.
        """
        self.issuer, self.audience, self.role_claim = issuer, audience, role_claim
        self._keys = _keys(jwks) if jwks else _discovered_keys(issuer)

    def who(self, word: str) -> tuple[str, Role, float] | None:
        """Return name and role of whoever brings a token, and until when it counts."""
        if len(word) > _LONGEST or word.count(".") != 2:
            return None
        claims = self._claims(word, False) or self._claims(word, True)
        if claims is None:
            return None
        name, role = claims.get("sub"), self._role(claims)
        if not isinstance(name, str) or not name or role is None:
            return None
        return name, role, float(claims["exp"])

    def _claims(self, word: str, anew: bool) -> Mapping[str, Any] | None:
        """Return what a token says; None: it is not to be believed."""
        keys = self._keys(anew)
        if keys is None:
            return None
        rules = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self.audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            token = jwt.decode(word, keys, algorithms=ALGORITHMS)
            rules.validate(token.claims)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return token.claims

    def _role(self, claims: Mapping[str, Any]) -> Role | None:
        value: Any = claims
        for part in self.role_claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        words = value.split() if isinstance(value, str) else value
        known = {f"{ROLE_PREFIX}{role}": role for role in Role}
        roles = [known[w] for w in words if w in known] if _are_texts(words) else []
        return max(roles, default=None)


def _are_texts(words: object) -> bool:
    return isinstance(words, list) and all(isinstance(w, str) for w in words)


def _keys(jwks: str) -> Callable[[bool], KeySet | None]:
    """Return what gives the keys; True asks for newer ones, and None says that there are none."""
    if "://" not in jwks:
        path = Path(jwks)
        fresh = Fresh([path], lambda: _key_set(read_text(path), jwks))
        return lambda anew: None if anew else fresh.get()
    if not _is_safe(jwks):
        raise BadOption("--oidc-jwks: name a file, or an address that begins with https://")
    return _Fetched(lambda: jwks).keys


def _discovered_keys(issuer: str) -> Callable[[bool], KeySet | None]:
    """Return what gives the keys of an issuer that tells where they are."""
    if not _is_safe(issuer) or urlsplit(issuer).query or urlsplit(issuer).fragment:
        raise BadOption(
            "--oidc-issuer: only an issuer that is an address and begins with https:// tells where "
            "its keys are; name them by --oidc-jwks"
        )
    return _Fetched(lambda: _jwks_uri(issuer)).keys


def _is_safe(address: str) -> bool:
    """Return whether nobody on the way can change what an address answers."""
    try:
        at_home = urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        return False
    return address.startswith(("https://", "http://") if at_home else "https://")


def _jwks_uri(issuer: str) -> str:
    """Return where an issuer says that its keys are.

    Raises:
        BadOption: it says nothing, or speaks for another issuer, or names an address that is not
            as safe as its own.
        HTTPError: it cannot be reached.
    """
    where = issuer.rstrip("/") + _WELL_KNOWN
    try:
        document = json.loads(_got(where))
        named_issuer, uri = document["issuer"], document["jwks_uri"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadOption(f"{where}: is no OpenID Connect configuration") from None
    if named_issuer != issuer:
        raise BadOption(f"{where}: is that of another issuer")
    safe = isinstance(uri, str) and _is_safe(uri)
    if not safe or (issuer.startswith("https://") and not uri.startswith("https://")):
        raise BadOption(f"{where}: its jwks_uri does not begin with https://")
    return str(uri)


class _Fetched:
    """Keys from an address, asked again now and then, and when a key is not known."""

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._asked_at = -_FETCHED_S

    def keys(self, anew: bool) -> KeySet | None:
        """Return the keys; None: none were ever got or, with `anew`, there are no newer ones."""
        with self._lock:
            age = time.monotonic() - self._asked_at
            if age < (_AGAIN_S if anew or self._keys is None else _FETCHED_S):
                return None if anew else self._keys
            self._asked_at = time.monotonic()
            try:
                url = self._where()
                self._keys = _key_set(_got(url), url)
            except (HTTPError, BadOption) as err:
                LOG.warning("the keys of signed tokens cannot be got: %s", err)
                return None if anew else self._keys
            return self._keys


def _got(url: str) -> str:
    answer = urllib3.request(
        "GET", url, timeout=_PATIENCE_S, retries=False, redirect=False, preload_content=False
    )
    try:
        text = read_answer(answer, _MOST_BYTES, _WHOLE_S)
    except UnfitAnswer as err:
        raise BadOption(f"{url}: {err}") from None
    if answer.status != 200:
        raise BadOption(f"{url}: answered {answer.status}")
    return text.decode("utf-8", "replace")


def _key_set(text: str, where: str) -> KeySet:
    """Return the public keys of a JWKS.

    Raises:
        BadOption: it has none that can be used.
    """
    try:
        document = json.loads(text)
        public = [key for key in document["keys"] if key.get("kty") != "oct"]
        return KeySet.import_key_set({"keys": public})
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadOption(f"{where}: is no set of public keys (JWKS)") from None
