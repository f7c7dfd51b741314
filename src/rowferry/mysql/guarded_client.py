"""The client library's connection, with its password kept from whoever merely asks for it.

A server decides how a client logs in. One that is not the real one may ask for the password in
plain text, or offer a public key of its own to encrypt it with. Both are answered only where the
server's certificate was verified; the exchange of a key also where the user asked for it.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import Any, Final

import pymysql
from pymysql.constants import CR

from rowferry.mysql.wary_connection import WaryConnection

_IN_PLAIN: Final = frozenset({b"mysql_clear_password", b"dialog"})
_BROKEN: Final = frozenset({b"mysql_old_password"})
_NO_KEY: Final = (
    "the server wants the password encrypted with a public key of its own, and nobody vouches for "
    "that: set ssl-mode=verify-identity and ssl-ca (ssl-mode=required keeps out those who only "
    "listen), or trust the key by get-server-public-key=true"
)


class GuardedClient(WaryConnection):
    """A connection; TLS settings are made once, not for every connection."""

    def __init__(self, *args: Any, takes_public_key: bool = False, **named: Any) -> None:
        """Connect, as the library does.

        Args:
            args: as the library's.
            takes_public_key: the user trusts whatever key the server offers for the password.
            named: as the library's; `ssl` may be a whole context.

        Raises:
            OperationalError: also for a login that would give the password away.
        """
        self._takes_public_key = takes_public_key
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
        found = self._sock  # type: ignore[attr-defined]
        return isinstance(found, ssl.SSLSocket) and found.context.verify_mode == ssl.CERT_REQUIRED

    @property
    def server_public_key(self) -> bytes | None:
        """The key that the password is encrypted with; the library looks before it asks for one."""
        if self.password and not self._takes_public_key:
            raise _refusal(_NO_KEY)
        return self._public_key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key and not self._takes_public_key:
            raise _refusal(_NO_KEY)
        self._public_key = key


def _refusal(words: str) -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(CR.CR_SSL_CONNECTION_ERROR, words)


@lru_cache(maxsize=1)
def any_certificate() -> ssl.SSLContext:
    """Return the settings of `preferred`: encrypted where the server can, nothing is checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
