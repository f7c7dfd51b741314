"""What changefeeds may name of the machine that runs them, and which addresses they may talk to.

Whoever may create changefeeds at a server is not its operator: a path, a variable or an address of
theirs is used with the server's rights and from the server's place in the network. So a server
allows only what its operator listed when it was started. `rowferry run` is the operator himself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

from rowferry.errors import BadOption, NotAllowed
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import NamedKind, Option, OptionTable
from rowferry.spec.sealing import refuse_locked
from rowferry.spec.secret_reference import references_of
from rowferry.spec.uri import FOREIGN, WEB_FORM, Uri, is_web_address, web_host

# Parameters of a storage that is named inside an option; those of sinks say it in their tables.
_STORAGE: Final[dict[str, NamedKind]] = {
    "endpoint": "url",
    "ca": "path",
    "credentials-file": "path",
    "profile": "profile",
}
# Parameters of a PostgreSQL database: of those that its library knows, only these, since others
# lead to another host or have it write files.
_POSTGRES: Final[dict[str, NamedKind]] = {
    **dict.fromkeys(("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile"), "path"),
    **dict.fromkeys(("sslmode", "channel_binding", "connect_timeout", "application_name"), ""),
    **dict.fromkeys(("target_session_attrs", "gssencmode", "keepalives"), ""),
}
_OF_THE_MACHINE: Final = ("sslrootcert", "system")  # a word, not a file
_AWS_FILE: Final = "AWS_SHARED_CREDENTIALS_FILE"


@dataclass(frozen=True, slots=True)
class Reach:
    """What is allowed; by itself nothing.

    Attributes:
        roots: directories below which `file://` sinks and claim checks may be.
        hosts: who may be talked to over HTTP: `host`, `host:port`, `*.domain`, `10.0.0.0/8`, `*`.
        env: environment variables that options may name.
        files: files, and directories of files, that options may name.
        vault: paths of the secret store, `MOUNT/PATH`, that references may name, or lie below.
        limited: False: everything is allowed.
    """

    roots: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    vault: tuple[str, ...] = ()
    limited: bool = True

    def __post_init__(self) -> None:
        for host in self.hosts:
            _check_pattern(host)

    def check(self, spec: ChangefeedSpec, tables: Iterable[OptionTable]) -> None:
        """Refuse settings that name something else. Nothing that they name is looked at.

        Args:
            spec: the changefeed.
            tables: all option tables whose options it may have.

        Raises:
            NotAllowed: the text names the option, and how an operator would allow it.
            BadOption: it names what is no address.
            SecretsLocked: its secrets are encrypted, and the key is not here.
        """
        refuse_locked(spec)
        if not self.limited:
            return
        tables = tuple(tables)
        for reference, what in references_of(spec, tables):
            match reference.kind:
                case "env":
                    self._check_variable(reference.name, what)
                case "file":
                    self._check_file(reference.name, what)
                case "vault":
                    self._check_stored(reference.name, what)
        self._check_place(spec.sink, "the sink URI")
        for table in tables:
            for host in spec.sink.address.split(",") if table.web_port else ():
                named = urlsplit(f"//{host}").port is not None
                port = "" if named else f":{table.web_port}"
                self._check_address(f"//{host}{port}", "the sink URI")
            uri = spec.source if table.section.split(".")[0] == "source" else spec.sink
            values = spec.options(table, uri)
            for option in table.options:
                if option.names and (value := values[option]):
                    self._check_option(option, value, table.path(option.key))

    def _check_option(self, option: Option[Any], value: Any, path: str) -> None:
        match option.names:
            case "path":
                self._check_file(str(value), path)
            case "env":
                self._check_variable(str(value), path)
            case "profile":
                self._check_profile(path)
            case "url":
                self._check_url(str(value), path)
            case "storage":
                self._check_storage(Uri.parse(str(value), path), path)

    def _check_storage(self, uri: Uri, what: str) -> None:
        """Check a place that has its own login in its parameters."""
        self._check_place(uri, what)
        is_postgres = uri.scheme == "postgresql"
        known = _POSTGRES if is_postgres else _STORAGE
        for key, value in uri.parameters:
            if is_postgres and key not in known:
                raise NotAllowed(
                    f"{what}, {key}: this server takes only {', '.join(known)} in the address of a "
                    "database; leave it out"
                )
            if (key, value) == _OF_THE_MACHINE:
                continue
            match known.get(key):
                case "path":
                    self._check_file(value, f"{what}, {key}")
                case "url":
                    self._check_url(value, f"{what}, {key}")
                case "profile":
                    self._check_profile(f"{what}, {key}")

    def _check_place(self, uri: Uri, what: str) -> None:
        """Check where a sink, or what a sink leaves for readers, is written to."""
        if uri.is_local:
            place = replace(uri, scheme="file").absolute(os.getcwd(), what).path
            if not any(_is_below(place, root) for root in self.roots):
                raise NotAllowed(
                    f"{what}: this server does not write to {place}; an operator allows a "
                    "directory by --allow-root"
                )
        elif (web := uri.scheme.rpartition("+")[2]) in FOREIGN:  # also a queue's, asked over HTTP
            for one in uri.address.split(","):
                self._check_address(f"{web}://{one}", what)

    def _check_url(self, address: str, what: str) -> None:
        if not is_web_address(address):  # whom it leads to would depend on who reads it
            raise BadOption(f"{what}: no address of a web service; write it as {WEB_FORM}")
        self._check_address(address, what)

    def _check_address(self, address: str, what: str) -> None:
        host, port = web_host(address)
        if not any(_matches(pattern, host, port) for pattern in self.hosts):
            shown = host if port is None else f"{host}:{port}"
            raise NotAllowed(
                f"{what}: this server does not talk to {shown or 'such an address'}; an operator "
                "allows a host by --allow-host"
            )

    def _check_file(self, path: str, what: str) -> None:
        if not any(_is_below(os.path.expanduser(path), root) for root in self.files):
            raise NotAllowed(
                f"{what}: this server does not let changefeeds name this file; an operator allows "
                "files by --allow-file"
            )

    def _check_profile(self, what: str) -> None:
        self._check_file(os.environ.get(_AWS_FILE) or "~/.aws/credentials", what)

    def _check_stored(self, path: str, what: str) -> None:
        if not any(f"{path}/".startswith(prefix.strip("/") + "/") for prefix in self.vault):
            raise NotAllowed(
                f"{what}: this server does not let changefeeds name {path} of the secret store; an "
                "operator allows it by --allow-vault"
            )

    def _check_variable(self, name: str, what: str) -> None:
        if name not in self.env:
            raise NotAllowed(
                f"{what}: this server does not let changefeeds name this environment variable; an "
                "operator allows it by --allow-env"
            )


ANYWHERE: Final = Reach(limited=False)


def _is_below(path: str, root: str) -> bool:
    """Return whether a path is a root, or lies below it, wherever links lead."""
    whole, above = os.path.realpath(path), os.path.realpath(root)
    return whole == above or whole.startswith(above.rstrip("/") + "/")


def _check_pattern(pattern: str) -> None:
    host, _ = _split_pattern(pattern)
    if not host or ("*" in host.removeprefix("*.") and host != "*") or " " in host:
        raise BadOption(
            f"--allow-host {pattern!r}: write HOST, HOST:PORT, *.DOMAIN, a network as 10.0.0.0/8, "
            "or * for all"
        )
    if "/" in host:
        try:
            ip_network(host)
        except ValueError as err:
            raise BadOption(f"--allow-host {pattern!r}: {err}") from None


def _split_pattern(pattern: str) -> tuple[str, int | None]:
    """Return the host of a pattern and its port; None: any."""
    text = pattern.strip().lower()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:]) if rest[1:].isdecimal() else None
    host, colon, port = text.rpartition(":")
    if colon and ":" not in host and port.isdecimal():
        return host.rstrip("."), int(port)
    return text.rstrip("."), None


def _matches(pattern: str, host: str, port: int | None) -> bool:
    wanted, only_port = _split_pattern(pattern)
    if not host or (only_port is not None and only_port != port):
        return False
    if wanted == "*":
        return True
    if wanted.startswith("*."):
        return host.endswith(wanted[1:]) and host != wanted[2:]
    try:
        address = ip_address(host)
    except ValueError:
        return host == wanted  # a name, or a number in a form that only some read as an address
    try:
        return address in ip_network(wanted)
    except ValueError:
        return False
