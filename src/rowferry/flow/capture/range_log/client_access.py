"""How a range store is reached: in plain, over TLS, with a certificate or a token of our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from rowferry.errors import BadOption, OptionsConflict
from rowferry.moment import moment

_AT_HOME: Final = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class RangeAccess:
    """What a client of the range protocol shows, and what it wants to see.

    Attributes:
        tls: whether the servers speak TLS.
        ca: file with the authorities that their certificates must be signed by; empty: those that
            gRPC brings along.
        cert: file with our own certificate chain; empty: none.
        key: file with its key.
        token: sent with every call; empty: none.
    """

    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    token: str = field(default="", repr=False)

    def check(self, master: str) -> None:
        """Refuse what does not go together, before anything is sent.

        Raises:
            OptionsConflict: certificates, or a token for another machine, without TLS; or half a
                certificate of our own.
            BadOption: a token with characters that none has.
        """
        given = [name for name in ("ca", "cert", "key") if getattr(self, name)]
        if given and not self.tls:
            raise OptionsConflict(f"{given[0]} needs TLS: write range+ssl:// in place of range://")
        if bool(self.cert) != bool(self.key):
            raise OptionsConflict("cert and key belong together; give both or none")
        if self.token and not self.tls and master.rpartition(":")[0] not in _AT_HOME:
            raise OptionsConflict(
                "token needs TLS, or everybody on the way reads it: write range+ssl:// in place of "
                "range://"
            )
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            raise BadOption("token: has characters that no header may have")

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """Open a channel.

        Raises:
            BadOption: a file cannot be read.
        """
        if not self.tls:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(
                content(self.ca, "ca"), content(self.key, "key"), content(self.cert, "cert")
            ),
            options=options,
        )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes along with each call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


PLAIN: Final = RangeAccess()


def content(path: str, what: str) -> bytes | None:
    """Return what a file holds; None where there is none.

    Raises:
        BadOption: it cannot be read.
    """
    if not path:
        return None
    moment("read certificate")
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise BadOption(f"{what}: the file {path} cannot be read: {err.strerror}") from None


def refusal(err: grpc.RpcError) -> str:
    """Return why a server and we do not let each other in; empty: that is not what is wrong."""
    code = err.code() if hasattr(err, "code") else None
    details = str(err.details() or "") if hasattr(err, "details") else ""
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return "it does not know our token; give the source URI its parameter token"
    if "CERTIFICATE_VERIFY_FAILED" in details or "Peer name" in details:
        return (
            "its certificate is not signed by one of the authorities in ca, or is that of another "
            "host"
        )
    if "WRONG_VERSION_NUMBER" in details:
        return "it does not speak TLS; write range:// in place of range+ssl://"
    if "CERTIFICATE_REQUIRED" in details or "HANDSHAKE_FAILURE" in details:
        return "it wants a certificate of ours; give cert and key"
    return ""
