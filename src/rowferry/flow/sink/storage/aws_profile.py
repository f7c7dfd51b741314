"""Profiles in the files of AWS's own tools: keys and a region under a name."""

from __future__ import annotations

import configparser
import os
from typing import Final

from rowferry.errors import BadOption

_KEYS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def aws_profile(profile: str) -> dict[str, str]:
    """Return the keys of a profile in AWS's credentials file; none where the environment has some.

    Raises:
        BadOption: the profile was named, and there is none.
    """
    if not profile and "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    name = profile or os.environ.get("AWS_PROFILE", "default")
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    settings = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    keys = _section(file, name)
    more = _section(settings, name if name == "default" else f"profile {name}")
    if profile and not keys:
        raise BadOption(f"profile = {profile!r}: {file} has no such profile with an access key")
    region = "" if "AWS_REGION" in os.environ else keys.get("region") or more.get("region", "")
    stored = {ours: keys.get(theirs, "") for theirs, ours in _KEYS.items()} | {"region": region}
    return {key: value for key, value in stored.items() if value}


def _section(file: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(os.path.expanduser(file), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        raise BadOption(f"{file} is not a file of AWS profiles") from None
    return dict(parser[name]) if parser.has_section(name) else {}
