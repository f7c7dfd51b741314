"""The name of a changefeed: its rule, and the one that is made from the two URIs."""

from __future__ import annotations

import hashlib
import re

from rowferry.errors import BadChangefeedId
from rowferry.spec.uri import Uri

_RULE = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
_MOST = 128


def check_changefeed_id(text: str) -> str:
    """Return `text`, which may name a changefeed.

    Raises:
        BadChangefeedId: empty, longer than 128, or not letters and digits joined by single hyphens.
    """
    if len(text) > _MOST:
        raise BadChangefeedId(
            f"changefeed id has {len(text)} characters; at most {_MOST} are allowed"
        )
    if not _RULE.fullmatch(text):
        raise BadChangefeedId(
            f"changefeed id {text!r}: use letters a-z, A-Z, digits and single hyphens between them"
        )
    return text


def default_changefeed_id(source: Uri, sink: Uri) -> str:
    """Return a readable id that is always the same for the same source and sink.

    Only scheme, address and path count: a run with other parameters is the same changefeed, and no
    user, password or parameter shows in the name.
    """
    places = [f"{u.scheme}://{u.address}{u.path.rstrip('/')}" for u in (source, sink)]
    mark = hashlib.sha256("\n".join(places).encode()).hexdigest()[:8]
    words = "-to-".join(_slug(place)[:55].strip("-") for place in places)
    return check_changefeed_id(f"{words}-{mark}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-").lower()
