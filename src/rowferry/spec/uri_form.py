"""How people fill in the URI of a source or sink; its class says so, and forms are made of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UriPart:
    """One part of a URI as a field.

    Attributes:
        label: what people call it there.
        example: what stands in the field before anything does.
        needed: there is no such URI without it.
    """

    label: str
    example: str = ""
    needed: bool = True


@dataclass(frozen=True, slots=True)
class UriForm:
    """The parts of a URI; None: it has no such part. What a class does not say is offered.

    Attributes:
        title: what people call the source or sink; "": its scheme.
        address: what stands behind `://`.
        path: what stands behind the address.
        login: it may name a user and a password.
    """

    title: str = ""
    address: UriPart | None = UriPart("Address", "host:port", needed=False)
    path: UriPart | None = UriPart("Path", needed=False)
    login: bool = True


HOST = UriPart("Host and port", "db.example:3306")
DIRECTORY = UriPart("Directory", "/data/out")
_BUCKET, _PREFIX = UriPart("Bucket", "lake"), UriPart("Prefix", "shop", needed=False)
EVERY_PART = UriForm()


def bucket_form(title: str, bucket: UriPart = _BUCKET) -> UriForm:
    """Return the form of what lies in a bucket of an object store."""
    return UriForm(title, address=bucket, path=_PREFIX, login=False)
