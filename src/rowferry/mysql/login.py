"""Where and how to log in to a server: address, account, TLS, time limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import lru_cache

from rowferry.errors import BadUri
from rowferry.mysql.login_options import LoginOptions
from rowferry.spec.uri import Uri, host_port


@dataclass(frozen=True, slots=True)
class Login:
    """Where and how to connect. `str()` shows no secret.

    Attributes:
        read_timeout_s: how long an answer may take.
        write_timeout_s: how long the server may take to accept bytes; None: as `read_timeout_s`.
        takes_public_key: without TLS, the password goes out under whatever key the server offers.
        public_key_path: a file with the server's key: without TLS, it goes out under no other.
        clear_password_over: `verified-tls`: the password itself goes to a verified server only.
        whose: what is connected to, for errors about its TLS files.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ssl_mode: str = "preferred"
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    write_timeout_s: float | None = None
    takes_public_key: bool = False
    public_key_path: str = ""
    clear_password_over: str = "tls"
    whose: str = "the source"

    @classmethod
    def of(cls, uri: Uri, options: LoginOptions) -> Login:
        """Read a source URI, `mysql://<user>:<password>@<host>:<port>/`.

        Raises:
            BadUri: no user, no host, a port that is no number, or a path.
        """
        address = server_address(uri)
        if address is None:
            raise BadUri(
                f"{uri} is no MySQL source; write mysql://<user>:<password>@<host>:<port>/"
            )
        if uri.path not in ("", "/"):
            raise BadUri(f"{uri} names a database; choose tables with filter.rules instead")
        return cls(
            *address,
            user=uri.user,
            password=uri.password,
            ssl_mode=options.ssl_mode,
            ssl_ca=options.ssl_ca,
            ssl_cert=options.ssl_cert,
            ssl_key=options.ssl_key,
            connect_timeout_s=options.connect_timeout.total_seconds(),
            read_timeout_s=options.read_timeout.total_seconds(),
            takes_public_key=options.get_server_public_key,
            public_key_path=options.server_public_key_path,
            clear_password_over=options.clear_password_over,
        )

    def __str__(self) -> str:
        return f"{self.user}@{host_port(self.host, self.port)}"

    def __repr__(self) -> str:
        return f"Login({self})"


def server_address(uri: Uri) -> tuple[str, int] | None:
    """Return host and port of a URI that names one server and a user; None: it does not."""
    host, _, port = uri.address.rpartition(":") if ":" in uri.address else (uri.address, "", "")
    if not host or "," in host or (port and not port.isdecimal()) or not uri.user:
        return None
    return host.strip("[]"), int(port or 3306)


@lru_cache(maxsize=16)
def tls_context(login: Login) -> ssl.SSLContext | None:
    """Return the TLS settings of a login; None: those of the client, nothing is checked.

    Raises:
        BadUri: the files cannot be used.
    """
    if login.ssl_mode in ("disabled", "preferred") and not (login.ssl_ca or login.ssl_cert):
        return None  # the client uses TLS without checks where the server offers it
    try:
        context = ssl.create_default_context(cafile=login.ssl_ca or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # servers' own certificates are not strict
        context.check_hostname = login.ssl_mode == "verify-identity"
        if login.ssl_mode not in ("verify-ca", "verify-identity"):
            context.verify_mode = ssl.CERT_NONE
        if login.ssl_cert:
            context.load_cert_chain(login.ssl_cert, login.ssl_key or None)
    except (OSError, ssl.SSLError) as err:
        raise BadUri(
            f"TLS files of {login.whose} cannot be used ({err}); check ssl-ca, ssl-cert and ssl-key"
        ) from None
    return context
