"""Source and sink URIs: parsing, parameters, redaction."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from rowferry.errors import BadUri
from rowferry.spec.linear import linear, replaced

_SECRET_WORDS = ("password", "secret", "token", "access-key", "account-key", "credential")
# The word that stands for a password in our own forms is left as it is.
_LOGIN = linear(rb"""(://[^/@:\s]*:)(?:(<password>)@|(?:[^\s"']*|[^/\s]*)@)""")
_HOSTS = re.compile(r"(?:(?:\[[^\s\[\]]+\]|[^\s:@\[\],]*)(?::\d{0,5})?(?:,|$))*")
_PORT = re.compile(r":(\d+)(?:,|$)")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
WEB_FORM = "http://host:port/path or https://host:port/path"
_NOT_IN_URLS = frozenset(' "<>\\^`{|}')
SAMPLE_WEB_ADDRESS = "http://host"  # of nobody
FOREIGN = ("http", "https")  # of their parameters only the receiver knows which are secret


def is_web_address(address: str) -> bool:
    """Return whether a text is http:// or https:// with a host, and nothing that no URL may have.

    Programs read what is no URL differently: where one sees a host, another sees a login.
    """
    try:
        parts = urlsplit(address)
        known = parts.port is None or parts.port > 0  # asking for one out of range raises
    except ValueError:
        return False
    plain = address.isascii() and address.isprintable() and not set(address) & _NOT_IN_URLS
    return known and plain and parts.scheme in FOREIGN and bool(parts.hostname)


def web_host(address: str) -> tuple[str, int | None]:
    """Return whom the address of a web service names, and the port; an empty host: nobody.

    That is so, too, where something is in it that no URL may have; see `is_web_address`.
    """
    if not address.isprintable() or set(address) & _NOT_IN_URLS:
        return "", None
    try:
        parts = urlsplit(address)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return "", None
    return host, port or {"http": 80, "https": 443}.get(parts.scheme)


def is_secret_parameter(key: str) -> bool:
    """Return whether a URI parameter's value must never be printed."""
    name = key.lower()  # a shared access signature is secret, a sasl-mechanism is not
    return any(word in name for word in _SECRET_WORDS) or "sas" in re.split(r"[-_.]", name)


def host_port(host: str, port: int) -> str:
    """Return an address as a URI has it, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_passwords(text: str) -> str:
    """Return a text in which every URL's password is `***`, also one with a slash in it."""
    return replaced(text, _LOGIN, lambda match: match[0] if match[2] else match[1] + b"***@")


def _hidden(key: str, value: str) -> str:
    """Return a parameter's value without its secrets: also a password inside a URL."""
    if is_secret_parameter(key):
        return "***"
    return quote(without_passwords(value), safe="/:,*@")


def _is_cut(parts: SplitResult, pairs: list[tuple[str, str]]) -> bool:
    """Return whether what should be hosts is none: perhaps the half of a login that / or ? cut."""
    address = parts.netloc.rpartition("@")[2]
    if not _HOSTS.fullmatch(address) or any(int(p) > 65535 for p in _PORT.findall(address)):
        return True
    if parts.scheme in FOREIGN or address != parts.netloc or ":" not in address:
        return False
    return any("@" in text for text in (parts.path, *(key for key, _ in pairs)))


@dataclass(frozen=True)
class Uri:
    """A parsed URI; `str()` and `repr()` hide passwords and secret parameters."""

    scheme: str
    user: str
    password: str
    address: str  # host:port[,host:port…], or empty
    path: str  # unquoted, with its leading slash
    parameters: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, what: str) -> Uri:
        """Read a URI; `what` ("source", "sink") is for errors, which never show the password."""
        if _UNPRINTABLE.search(text) or "%00" in text:
            raise BadUri(f"the {what} URI has a character that no URI may have: NUL, line end, …")
        try:
            parts = urlsplit(text)
        except ValueError:
            raise BadUri(f"the {what} URI cannot be parsed") from None
        # A `://` further on belongs to a parameter: what stands before it would be no address.
        if not parts.scheme or not text.lstrip()[len(parts.scheme) :].startswith("://"):
            raise BadUri(f"the {what} URI has no scheme; write it as scheme://…")
        login, at, address = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        if parts.scheme != "file" and _is_cut(parts, pairs):
            raise BadUri(
                f"the {what} URI names no host:port behind ://; in a user or password write / as"
                " %2F, ? as %3F, @ as %40, : as %3A, and an IPv6 address in brackets"
            )
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadUri(f"the {what} URI gives the parameter {key!r} twice")
            seen.add(key)
        if parts.fragment:
            raise BadUri(f"the {what} URI has a fragment (#…); write # in a name as %23")
        return cls(
            scheme=parts.scheme.lower(),
            user=unquote(user),
            password=unquote(password),
            address=address,
            path=unquote(parts.path),
            parameters=tuple(pairs),
        )

    @property
    def is_file(self) -> bool:
        """Whether it names a place of this machine, in whatever form things are kept there."""
        return self.scheme.rpartition("+")[2] == "file"

    @property
    def is_local(self) -> bool:
        """Whether it names a directory of this machine, whatever is kept there: `x+file` too."""
        return self.scheme.rpartition("+")[2] == "file"

    @property
    def is_web(self) -> bool:
        """Whether it names a web service."""
        return self.scheme in FOREIGN

    def parameter(self, key: str, default: str = "") -> str:
        """Return one parameter's text."""
        return dict(self.parameters).get(key, default)

    def with_parameter(self, key: str, value: str | None) -> Uri:
        """Return the URI with a parameter set, in its place; None takes the parameter away."""
        if value is not None and key in dict(self.parameters):
            pairs = [(k, value if k == key else v) for k, v in self.parameters]
        else:
            pairs = [(k, v) for k, v in self.parameters if k != key]
            pairs += [(key, value)] if value is not None else []
        return replace(self, parameters=tuple(pairs))

    def absolute(self, folder: str, what: str) -> Uri:
        """Return a `file` URI, also `x+file`, with a whole, normal path; any other URI as it is.

        `file:///out` and `file://localhost/out` mean `/out`; `file://out` and `file://./out` mean
        `out` inside `folder`, which must be absolute.

        Raises:
            BadUri: it names no directory below the root, or a user, or `~`.
        """
        if not self.is_file:
            return self
        if self.user or self.password:
            raise BadUri(f"the {what} URI names a user, which file:// has not")
        host = "" if self.address == "localhost" else unquote(self.address)
        if host.startswith("~"):
            raise BadUri(f"the {what} URI begins with ~, which is not expanded; write the path out")
        path = os.path.join(folder, host + self.path) if host else self.path
        path = "/" + os.path.normpath(path or "/").lstrip("/")
        if path == "/":
            raise BadUri(f"the {what} URI names no directory; write it as file:///some/directory")
        return replace(self, address="", path=path)

    def _text(self, reveal: bool) -> str:
        login = ""
        if self.user or self.password:
            shown = quote(self.password, safe="") if reveal else "***"
            login = quote(self.user, safe="") + (f":{shown}" if self.password else "") + "@"
        hides_all = not reveal and self.scheme in FOREIGN
        query = "&".join(
            f"{quote(k, safe='')}="
            + (quote(v, safe="/:,") if reveal else "***" if hides_all else _hidden(k, v))
            for k, v in self.parameters
        )
        text = f"{self.scheme}://{login}{self.address}{quote(self.path)}"
        return text + (f"?{query}" if query else "")

    def reveal(self) -> str:
        """Return the whole URI with its secrets."""
        return self._text(reveal=True)

    def __str__(self) -> str:
        return self._text(reveal=False)

    def __repr__(self) -> str:
        return f"Uri({str(self)!r})"
