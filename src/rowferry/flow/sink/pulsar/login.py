"""How the sink proves who it is: to brokers by the client library, to the admin interface here."""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pulsar
import urllib3

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.errors import BadOption, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.pulsar.options import PulsarOptions, PulsarSettings
from rowferry.moment import moment
from rowferry.spec.secrets import Hiding
from rowferry.spec.uri import is_web_address

MOST_ANSWER: Final = 16 << 20  # bytes of an answer, of the admin interface too
_LONGEST_S: Final = 3600.0  # a token is asked for again after this, however long it lasts
_EARLY_S: Final = 30.0  # before it ends, a token counts as old


def authentication_of(settings: PulsarSettings) -> pulsar.Authentication | None:
    """Return what the client library logs in with; None: nothing.

    Raises:
        BadOption: the credentials cannot be used.
    """
    options, oauth = settings.options, settings.oauth
    if settings.token:
        return pulsar.AuthenticationToken(settings.token)
    if options.basic_user_name:
        return pulsar.AuthenticationBasic(options.basic_user_name, options.basic_password)
    if options.auth_tls_certificate_path:
        return pulsar.AuthenticationTLS(
            options.auth_tls_certificate_path, options.auth_tls_private_key_path
        )
    if oauth.oauth2_issuer_url:
        credentials_of(settings)
        wanted = {
            "issuer_url": oauth.oauth2_issuer_url,
            "private_key": oauth.oauth2_private_key,
            "audience": oauth.oauth2_audience,
            "scope": oauth.oauth2_scope,
        }
        return pulsar.AuthenticationOauth2(json.dumps({k: v for k, v in wanted.items() if v}))
    return None


def credentials_of(settings: PulsarSettings) -> tuple[str, str]:
    """Return the client's id and secret for OAuth 2, from their file.

    Raises:
        BadOption: the file does not hold them, or those of another client.
    """
    oauth = settings.oauth
    place = "sink.pulsar-config.oauth2.oauth2-private-key"
    path = oauth.oauth2_private_key.removeprefix("file://")
    try:
        stored = json.loads(Path(path).read_text())
        client, secret = str(stored["client_id"]), str(stored["client_secret"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadOption(
            f"{place} = {path!r} must be a file of JSON with client_id and client_secret"
        ) from None
    if oauth.oauth2_client_id not in ("", client):
        raise BadOption(
            f"{place} = {path!r} is of the client {client!r}, and oauth2-client-id is "
            f"{oauth.oauth2_client_id!r}; correct one of them"
        )
    return client, secret


class WebLogin:
    """The connections to the admin interface, and the header by which they log in."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings
        options = settings.options
        wait = options.operation_timeout.total_seconds()
        if options.insecure_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # as asked for
        self.http = urllib3.PoolManager(
            retries=False,
            timeout=urllib3.Timeout(connect=options.connection_timeout.total_seconds(), read=wait),
            ssl_context=tls_of(options),
        )
        self._token, self._until = "", 0.0

    def headers(self) -> dict[str, str]:
        """Return the header that logs in; none where nothing is asked for.

        Raises:
            SinkUnavailable, SinkUnwritable: whoever gives tokens does not answer, or refuses.
        """
        options = self._settings.options
        if self._settings.oauth.oauth2_issuer_url:
            return {"Authorization": f"Bearer {self._granted()}"}
        if self._settings.token:
            return {"Authorization": f"Bearer {self._settings.token}"}
        if options.basic_user_name:
            login = f"{options.basic_user_name}:{options.basic_password}"
            return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        return {}

    @property
    def hiding(self) -> Hiding:
        """What hides the login in words of others: also one that a file holds, or that was got."""
        options, oauth = self._settings.options, self._settings.oauth
        secret = credentials_of(self._settings)[1] if oauth.oauth2_issuer_url else ""
        secrets = (self._settings.token, self._token, secret, options.basic_password)
        return Hiding(secrets, (options.basic_user_name,))

    def asked(
        self, method: str, url: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return status and content of an answer; no redirection is followed.

        Raises:
            urllib3.exceptions.HTTPError: there is none.
            UnfitAnswer: it is too long, takes too long, or is compressed.
        """
        answer = self.http.request(
            method, url, body=body, headers=headers, redirect=False, preload_content=False
        )
        wait = self._settings.options.operation_timeout.total_seconds()
        return answer.status, read_answer(answer, MOST_ANSWER, wait)

    def close(self) -> None:
        """Let connections go."""
        self.http.clear()

    def _granted(self) -> str:
        if self._token and time.monotonic() < self._until:
            return self._token
        oauth = self._settings.oauth
        issuer = oauth.oauth2_issuer_url.rstrip("/")
        client, secret = credentials_of(self._settings)
        place = self._ask("GET", f"{issuer}/.well-known/openid-configuration", "token_endpoint")
        # Whoever answers in the issuer's place must not get the secret in clear.
        if not is_web_address(place) or issuer.startswith("https:") > place.startswith("https:"):
            raise SinkUnwritable(
                f"OAuth 2 for Pulsar at {self._settings.at}: {issuer} names no address that begins "
                "with https:// as its token_endpoint; correct oauth2-issuer-url"
            )
        wanted = {
            "grant_type": "client_credentials",
            "client_id": client,
            "client_secret": secret,
            "audience": oauth.oauth2_audience,
            "scope": oauth.oauth2_scope,
        }
        form = urlencode({key: value for key, value in wanted.items() if value})
        self._token = self._ask("POST", place, "access_token", form)
        return self._token

    def _ask(self, method: str, url: str, wanted: str, form: str | None = None) -> str:
        """Return a text of an answer; how long a token counts is noted."""
        lead = f"OAuth 2 for Pulsar at {self._settings.at}"
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if form else None
        moment("ask for a token")
        try:
            status, content = self.asked(method, url, form, headers)
        except (urllib3.exceptions.HTTPError, UnfitAnswer) as err:
            why = err if isinstance(err, UnfitAnswer) else "it does not answer"
            raise SinkUnavailable(f"{lead}: {url}: {why}; correct oauth2-issuer-url") from None
        if status in (400, 401, 403):
            raise SinkUnwritable(
                f"{lead}: {url} answered {status}; correct oauth2-private-key, "
                "oauth2-audience or oauth2-scope"
            )
        if status != 200:
            raise SinkUnavailable(f"{lead}: {url} answered {status}")
        try:
            parsed = json.loads(content)
            text, lasts = parsed[wanted], float(parsed.get("expires_in") or 0)
            if not isinstance(text, str) or not text or lasts != lasts:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            raise SinkUnavailable(
                f"{lead}: {url} does not answer with {wanted}; correct oauth2-issuer-url"
            ) from None
        self._until = time.monotonic() + min(max(lasts - _EARLY_S, 1.0), _LONGEST_S)
        return text


def tls_of(options: PulsarOptions) -> ssl.SSLContext:
    """Return how certificates are checked and shown where the client library does not do it.

    Raises:
        BadOption: a file holds no certificate, or no key.
    """
    # An authority of one's own counts alone, as with the client library.
    try:
        context = ssl.create_default_context(cafile=options.tls_trust_certs_file_path or None)
        own = options.auth_tls_certificate_path or options.tls_certificate_file
        if own:
            key = options.auth_tls_private_key_path or options.tls_key_file_path
            context.load_cert_chain(own, key)
    except (OSError, ssl.SSLError) as err:
        raise BadOption(
            f"[sink.pulsar-config]: a file of certificates or keys cannot be used: {err.strerror}"
        ) from None
    trusts_all = options.insecure_skip_verify
    context.check_hostname = options.tls_validate_hostname and not trusts_all
    context.verify_mode = ssl.CERT_NONE if trusts_all else ssl.CERT_REQUIRED
    return context
