"""The client library's connection, with its password kept from whoever merely asks for it.

A server decides how a client logs in. One that is not the real one may ask for the password in
plain text, or offer a public key of its own to encrypt it with. Both are answered only where the
server's certificate was verified; the exchange of a key also where the user asked for it, or has
given the key. Inside TLS that nobody verified MySQL 8 wants the password itself, at the first login
after its start: that is how its own clients log in, so that it is warned of, and refused on demand.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pymysql
from cryptography.hazmat.primitives import serialization
from pymysql.constants import CLIENT, CR

from rowferry.errors import LoginUnverified
from rowferry.mysql.wary_connection import WaryConnection

LOG = logging.getLogger(__name__)
_IN_PLAIN: Final = frozenset({b"mysql_clear_password", b"dialog"})
_BROKEN: Final = frozenset({b"mysql_old_password"})
_NO_KEY: Final = (
    "the server wants the password encrypted with a public key of its own, and nobody vouches for "
    "that: set ssl-mode=verify-identity and ssl-ca (ssl-mode=required keeps out those who only "
    "listen), give the key by server-public-key-path, or trust any by get-server-public-key=true"
)
_NOT_VERIFIED: Final = (
    "the server wants the password itself inside TLS, and its certificate was not verified, which "
    "clear-password-over=verified-tls asks for: set ssl-mode=verify-identity and ssl-ca"
)
_warned: set[str] = set()


class GuardedClient(WaryConnection):
    """A connection; TLS settings are made once, not for every connection."""

    def __init__(
        self,
        *args: Any,
        takes_public_key: bool = False,
        public_key_path: str = "",
        clear_password_over: str = "tls",
        **named: Any,
    ) -> None:
        """Connect, as the library does.

        Args:
            args: as the library's.
            takes_public_key: the user trusts whatever key the server offers for the password.
            public_key_path: a file with the server's key: without TLS the password is encrypted
                with it, and with no other. (Inside TLS servers take the password itself only.)
            clear_password_over: `verified-tls`: without a verified certificate the password itself
                is not sent inside TLS.
            named: as the library's; `ssl` may be a whole context.

        Raises:
            OperationalError: also for a login that would give the password away.
        """
        self._takes_public_key = takes_public_key
        self._only_verified = clear_password_over == "verified-tls"
        self._given_key = _read_key(public_key_path) if public_key_path else None
        self._covered = False
        super().__init__(*args, **named)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        return sslp if isinstance(sslp, ssl.SSLContext) else any_certificate()

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        name = plugin_name.decode("ascii", "replace")
        if plugin_name in _BROKEN:
            raise _refusal(f"the server asks for a login by {name}, which was broken long ago")
        if plugin_name in _IN_PLAIN and not self._is_verified:
            raise _refusal(
                f"the server asks for the password in plain text ({name}), and its certificate was "
                "not verified: set ssl-mode=verify-identity and ssl-ca"
            )
        return super()._process_auth(plugin_name, auth_packet, handler)  # type: ignore[misc]

    @property
    def _is_verified(self) -> bool:
        """Whether the server has shown a certificate that was checked."""
        sock = self._sock  # type: ignore[attr-defined]
        return isinstance(sock, ssl.SSLSocket) and sock.context.verify_mode == ssl.CERT_REQUIRED

    def _get_server_information(self) -> None:
        super()._get_server_information()  # type: ignore[misc]
        tls = self.ssl and self.server_capabilities & CLIENT.SSL  # type: ignore[attr-defined]
        if tls and self._auth_plugin_name == "sha256_password":  # type: ignore[has-type]
            # The library would send the password at once; so it is asked for, and looked at first.
            self._auth_plugin_name = "caching_sha2_password"

    @property
    def _secure(self) -> bool:
        """Whether the password itself may be sent; the library looks right before it does so."""
        if not self._covered or not self.password:
            return False
        if isinstance(self._sock, ssl.SSLSocket) and not self._is_verified:  # type: ignore[attr-defined]
            if self._only_verified:
                raise _refusal(_NOT_VERIFIED)
            self._warn()
        return True

    @_secure.setter
    def _secure(self, covered: bool) -> None:
        self._covered = covered

    def _warn(self) -> None:
        where = f"{self.host}:{self.port}"
        if where not in _warned and not _is_loopback(self._sock.getpeername()[0]):  # type: ignore[attr-defined]
            _warned.add(where)
            words = (
                f"{where}: it was given the password inside TLS, and nobody verified that it is "
                "the real one; set ssl-mode=verify-identity and ssl-ca. "
                "clear-password-over=verified-tls refuses such logins"
            )
            LOG.warning("%s", LoginUnverified(words))

    @property
    def server_public_key(self) -> bytes | None:
        """The key that the password is encrypted with; the library looks before it asks for one."""
        if self._given_key:
            return self._given_key
        if self.password and not self._takes_public_key:
            raise _refusal(_NO_KEY)
        return self._public_key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key and not self._takes_public_key:
            raise _refusal(_NO_KEY)
        self._public_key = key


def _read_key(path: str) -> bytes:
    try:
        key = Path(path).read_bytes()
    except OSError as err:
        raise _refusal(f"server-public-key-path {path}: {err.strerror}") from None
    try:
        serialization.load_pem_public_key(key)
    except ValueError:
        raise _refusal(f"server-public-key-path {path}: it holds no public key (PEM)") from None
    return key


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _refusal(words: str) -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(CR.CR_SSL_CONNECTION_ERROR, words)


@lru_cache(maxsize=1)
def any_certificate() -> ssl.SSLContext:
    """Return the settings of `preferred`: encrypted where the server can, nothing is checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
