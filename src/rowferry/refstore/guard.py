"""Who may talk to the store's servers: certificates and tokens, as the command line gives them."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

import grpc

from rowferry.errors import BadOption
from rowferry.flow.capture.range_log.client_access import PLAIN, RangeAccess, content


@dataclass(frozen=True, slots=True)
class StoreGuard:
    """How a server of the store is reached, and how it reaches the others.

    Attributes:
        access: what it shows to the other servers; its certificate is also its own.
        mutual: only clients with a certificate of the same authority are heard.
        tokens: those that are known; without any, none is asked for.
    """

    access: RangeAccess = PLAIN
    mutual: bool = False
    tokens: tuple[str, ...] = field(default=(), repr=False)

    def bind(self, server: grpc.Server, address: str) -> int:
        """Let a server listen; returns the port.

        Raises:
            BadOption: a file cannot be used.
            RuntimeError: the address cannot be used.
        """
        if not self.access.tls:
            return server.add_insecure_port(address)
        key, cert = content(self.access.key, "--tls-key"), content(self.access.cert, "--tls-cert")
        if key is None or cert is None:
            raise BadOption("TLS needs both --tls-cert and --tls-key")
        trusted = content(self.access.ca, "--tls-ca") if self.mutual else None
        credentials = grpc.ssl_server_credentials([(key, cert)], trusted, self.mutual)
        return server.add_secure_port(address, credentials)

    def interceptors(self) -> list[grpc.ServerInterceptor[Any, Any]]:
        """Return what looks at calls before they are carried out."""
        return [_TokenCheck(self.tokens)] if self.tokens else []


OPEN: Final = StoreGuard()


def read_guard(
    cert: Path | None, key: Path | None, ca: Path | None, mutual: bool, token_file: Path | None
) -> StoreGuard:
    """Return what a command line says.

    Raises:
        BadOption: options do not go together, or a file cannot be used.
    """
    if bool(cert) != bool(key):
        raise BadOption("--tls-cert and --tls-key belong together; give both or none")
    if cert and ca is None:
        raise BadOption("--tls-cert needs --tls-ca: whom the other servers' are signed by")
    if mutual and not cert:
        raise BadOption("--tls-mutual needs --tls-cert, --tls-key and --tls-ca")
    tokens = read_tokens(token_file)
    access = RangeAccess(
        tls=ca is not None,
        ca=str(ca or ""),
        cert=str(cert or ""),
        key=str(key or ""),
        token=tokens[0] if tokens else "",
    )
    return StoreGuard(access, mutual, tokens)


def read_tokens(file: Path | None) -> tuple[str, ...]:
    """Return the tokens of a file, one in each line; the first is the one that we show.

    Raises:
        BadOption: it cannot be read, others can read it, or there is none in it.
    """
    if file is None:
        return ()
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "not ASCII text"
        raise BadOption(f"--token-file {file} cannot be read: {why}") from None
    if stat.S_IMODE(mode) & 0o007:
        raise BadOption(f"--token-file {file}: every user can reach it; run: chmod 600 {file}")
    tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not tokens:
        raise BadOption(f"--token-file {file} is empty")
    return tokens


# The library's class takes no parameters when it runs; its types do.
class _TokenCheck(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Lets only calls through that bring a known token."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._known = tuple(f"Bearer {token}".encode() for token in tokens)
        self._refused = grpc.unary_unary_rpc_method_handler(_refuse)

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> Any:
        """Return who answers a call."""
        metadata = dict(handler_call_details.invocation_metadata or ())
        word = str(metadata.get("authorization", "")).encode()
        fits = [compare_digest(word, known) for known in self._known]
        return continuation(handler_call_details) if any(fits) else self._refused


def _refuse(request: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "a known token is needed")
