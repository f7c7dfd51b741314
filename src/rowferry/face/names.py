"""Under which names a server may be asked, and where it may listen.

A page of another site can let its own name lead to our address, and is then, for the browser, a
page of ours. Where nobody must log in, a request is therefore answered only under a name that is
known to be the server's own. An address cannot be made to lead elsewhere, so each one counts.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias
from urllib.parse import urlsplit

from rowferry.errors import BadOption
from rowferry.face.gate import split_address

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ServerNames:
    """The names of one server.

    Attributes:
        own: beside `localhost` and every address.
        proxies: whose `X-Forwarded-Host` and `X-Forwarded-For` are believed.
    """

    own: frozenset[str] = frozenset()
    proxies: tuple[Network, ...] = ()

    @classmethod
    def read(
        cls, addresses: Iterable[str], names: Iterable[str] = (), proxies: Iterable[str] = ()
    ) -> Self:
        """Read addresses `HOST:PORT`, further names, and proxies as addresses or networks.

        Raises:
            BadOption: one has another form.
        """
        own = {_host(address) for address in addresses}
        for name in names:
            if not name or _host(name) != name.lower():
                raise BadOption(f"--server-name {name!r}: write a name without a port")
            own.add(name.lower())
        networks = []
        for text in proxies:
            try:
                networks.append(ipaddress.ip_network(text))
            except ValueError:
                raise BadOption(
                    f"--trusted-proxy {text!r}: write an address or a network, such as 10.0.0.0/24"
                ) from None
        return cls(frozenset(own - {""}), tuple(networks))

    def asked_as(self, headers: Mapping[str, str], peer: str) -> str:
        """Return the name and port under which a request asks, as its sender wrote them."""
        return self._forwarded(headers, "x-forwarded-host", peer) or headers.get("host", "")

    def asker(self, headers: Mapping[str, str], peer: str) -> str:
        """Return the address from which a request comes."""
        return self._forwarded(headers, "x-forwarded-for", peer) or peer

    def knows(self, asked_as: str) -> bool:
        """Return whether a request that asks under this name is meant for this server."""
        name = _host(asked_as)
        return name == "localhost" or name in self.own or _is_address(name)

    def _forwarded(self, headers: Mapping[str, str], header: str, peer: str) -> str:
        """Return what a proxy says of its client; the last word is the proxy's own."""
        forwarded = headers.get(header, "")
        if not forwarded or not _is_address(peer):
            return ""
        at = ipaddress.ip_address(peer)
        believed = any(at in network for network in self.proxies)
        return forwarded.rpartition(",")[2].strip() if believed else ""


def refuse_open_door(address: str, flag: str) -> None:
    """Refuse to serve others than this machine at `HOST:PORT` where nobody must log in.

    Raises:
        BadOption: somebody elsewhere could reach the address; `flag` names the setting.
    """
    host, port = split_address(address, flag)
    try:
        addresses = {str(one[4][0]) for one in socket.getaddrinfo(host, port)}
    except OSError:
        raise BadOption(f"{flag} {address}: the name cannot be resolved") from None
    if not all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses):
        raise BadOption(
            f"{flag} {address} can be reached from elsewhere, and nobody must log in: give "
            "--token-file, --users-file or --tls-ca, listen at 127.0.0.1, or say --open-to-all"
        )


def _host(address: str) -> str:
    try:
        return (urlsplit(f"//{address}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
