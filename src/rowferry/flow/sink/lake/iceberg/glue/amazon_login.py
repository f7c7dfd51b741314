"""Who asks Amazon's services: keys that were given, those of a profile, or the machine's role.

What is not given is taken from where Amazon's own tools have it, as the library of object stores
does it too: the environment, the default profile, a role by a web identity, the role of a
container, the role of the machine.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from rowferry.errors import SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.lake.iceberg.glue.amazon_http import AmazonHttp, NoAnswer
from rowferry.flow.sink.storage.aws_profile import aws_profile
from rowferry.moment import moment

_EARLIER_S: Final = 300.0  # keys are asked for anew so long before they end
_CONTAINERS: Final = "169.254.170.2"
_MACHINE: Final = "169.254.169.254"
_ROLES: Final = "/latest/meta-data/iam/security-credentials/"
_ROLE: Final = re.compile(r"[\w+=,.@-]{1,128}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,4096}")
_PATIENCE_S: Final = (2.0, 10.0)
_ENDLESS: Final = float("inf")


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """An access key; `until`: the second at which it ends."""

    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    until: float = _ENDLESS

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be printed."""
        return self.access_key, self.secret_key, self.session_token


class AwsLogin:
    """Finds keys when they are first needed, and again before they end.

    Args:
        given: keys of the changefeed; where they are empty, others are looked for.
        profile: the profile that has them.
        region: where roles are asked for.
    """

    def __init__(self, given: AwsKeys, profile: str, region: str) -> None:
        self._profile, self._region = profile, region
        self._held = given if given.access_key else None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be printed."""
        return self._held.secrets if self._held is not None else ()

    def keys(self) -> AwsKeys:
        """Return keys that can be used now.

        Raises:
            SinkUnwritable: there are none.
            SinkUnavailable: whoever has them does not give them.
        """
        if self._held is None or time.time() > self._held.until - _EARLIER_S:
            self._held = self._looked_up()
        return self._held

    def _looked_up(self) -> AwsKeys:
        here = _of_environment() if not self._profile else None
        if (keys := here or _of_profile(self._profile)) is not None:
            return keys
        environ = os.environ
        http = AmazonHttp("", *_PATIENCE_S)
        try:
            if (file := environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")) and "AWS_ROLE_ARN" in environ:
                return _of_web_identity(http, file, self._region)
            if relative := environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
                return _of_container(http, f"http://{_CONTAINERS}{relative}")
            if whole := environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
                return _of_container(http, whole)
            return _of_machine(http)
        except NoAnswer as err:
            raise SinkUnavailable(f"no keys for Amazon's services are given: {err}") from None
        finally:
            http.close()


def _of_environment() -> AwsKeys | None:
    key, secret = (os.environ.get(f"AWS_{n}", "") for n in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    if not (key and secret):
        return None
    return AwsKeys(key, secret, os.environ.get("AWS_SESSION_TOKEN", ""))


def _of_profile(profile: str) -> AwsKeys | None:
    moment("read AWS profile")
    stored = aws_profile(profile)
    if "access_key_id" not in stored or "secret_access_key" not in stored:
        return None
    return AwsKeys(
        stored["access_key_id"], stored["secret_access_key"], stored.get("session_token", "")
    )


def _of_web_identity(http: AmazonHttp, file: str, region: str) -> AwsKeys:
    """Return the keys of the role that a token in a file stands for."""
    asked = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": os.environ["AWS_ROLE_ARN"],
        "RoleSessionName": os.environ.get("AWS_ROLE_SESSION_NAME") or "rowferry",
        "WebIdentityToken": _content(file, "AWS_WEB_IDENTITY_TOKEN_FILE"),
    }
    at = os.environ.get("AWS_ENDPOINT_URL_STS") or amazon_address("sts", region)
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    status, content = http.ask("POST", f"{at.rstrip('/')}/", kind, urlencode(asked).encode())
    text = content.decode("utf-8", "replace")
    if status != 200:
        code = _element(text, "Code") or str(status)
        raise SinkUnwritable(
            f"{at} does not give the role {asked['RoleArn']} to the token of "
            f"AWS_WEB_IDENTITY_TOKEN_FILE: {code[:60]}; let the role trust its issuer"
        )
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    return _keys(*(_element(text, name) for name in names))


def _element(text: str, name: str) -> str:
    match = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return match[1].strip() if match else ""


def _of_container(http: AmazonHttp, url: str) -> AwsKeys:
    """Return the keys of a container's role."""
    token = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    if file := os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        token = _content(file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    if token and not _TOKEN.fullmatch(token):
        raise SinkUnwritable("the token of AWS_CONTAINER_AUTHORIZATION_TOKEN(_FILE) is no word")
    return _of_json(*http.ask("GET", url, {"Authorization": token} if token else {}))


def _of_machine(http: AmazonHttp) -> AwsKeys:
    """Return the keys of the machine's role, by the second version of its metadata service."""
    environ = os.environ
    named = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or environ.get("AWS_METADATA_ENDPOINT")
    at = (named or f"http://{_MACHINE}").rstrip("/")
    nobody = SinkUnwritable(
        "there is no login for Amazon's services: no access-key and secret-access-key are given, "
        "and neither the environment nor a profile nor a role of this machine has any"
    )
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise nobody
    lives = {"X-aws-ec2-metadata-token-ttl-seconds": "600"}
    try:
        status, token = http.ask("PUT", f"{at}/latest/api/token", lives)
    except NoAnswer:
        raise nobody from None
    word = token.decode("ascii", "replace").strip()
    if status != 200 or not _TOKEN.fullmatch(word):
        raise nobody
    shown = {"X-aws-ec2-metadata-token": word}
    status, listed = http.ask("GET", at + _ROLES, shown)
    role = listed.decode("ascii", "replace").partition("\n")[0].strip()
    if status != 200 or not _ROLE.fullmatch(role):
        raise nobody
    return _of_json(*http.ask("GET", at + _ROLES + role, shown))


def _of_json(status: int, content: bytes) -> AwsKeys:
    try:
        form = json.loads(content)
        if status == 200 and isinstance(form, dict):
            names = ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")
            return _keys(*(str(form.get(name) or "") for name in names))
    except (ValueError, RecursionError):
        pass
    raise NoAnswer(f"whoever gives the role's keys answers {status}, without keys")


def _keys(access_key: str, secret_key: str, token: str, until: str) -> AwsKeys:
    try:
        end = datetime.fromisoformat(until.replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise NoAnswer("the role's keys do not tell when they end") from None
    if not (access_key and secret_key and _TOKEN.fullmatch(access_key)):
        raise NoAnswer("whoever gives the role's keys gives none")
    return AwsKeys(access_key, secret_key, token, end)


def _content(file: str, name: str) -> str:
    moment("read token of a role")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        words = getattr(err, "strerror", None) or "it is no text"
        raise SinkUnwritable(f"{name} = {file!r} cannot be read: {words}") from None


def amazon_address(service: str, region: str) -> str:
    """Return where Amazon has a service of a region."""
    return f"https://{service}.{region}.amazonaws.com" + (".cn" if region[:3] == "cn-" else "")
