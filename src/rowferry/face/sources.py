"""Sources that a server knows by itself, for requests that name none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rowferry.errors import BadOption
from rowferry.spec.uri import Uri


@dataclass(frozen=True, slots=True)
class Sources:
    """Source URIs by the cluster's id, and one for everybody else.

    Attributes:
        default: for requests with the id 0, or with one that is not listed; empty: none.
    """

    by_cluster: Mapping[int, str] = field(default_factory=dict, repr=False)
    default: str = field(default="", repr=False)

    @classmethod
    def parse(cls, given: Iterable[str]) -> Sources:
        """Read `URI` (the default) and `ID=URI`.

        Raises:
            BadOption: two for one id, or an id that is no number.
            BadUri: a URI cannot be understood.
        """
        by_cluster: dict[int, str] = {}
        default = ""
        for text in given:
            head, equals, rest = text.partition("=")
            numbered = bool(equals) and "://" not in head
            uri = rest if numbered else text
            Uri.parse(uri, "source")
            if not numbered:
                if default:
                    raise BadOption("--source: two without an id; write the others as ID=URI")
                default = uri
                continue
            if not head.isdecimal() or int(head) == 0:
                raise BadOption(f"--source {head}=…: the id must be a whole number above 0")
            if int(head) in by_cluster:
                raise BadOption(f"--source {head}=…: this id is given twice")
            by_cluster[int(head)] = uri
        return cls(by_cluster, default)

    def calls(self, cluster_id: int, address: str) -> bool:
        """Return whether this server was told to call the source at an address by that id."""
        source = self.by_cluster.get(cluster_id, "")
        return bool(source) and Uri.parse(source, "source").address == address

    def choose(self, cluster_id: int = 0) -> str:
        """Return the source of a cluster.

        Raises:
            BadOption: none is known; the text says how one is given.
        """
        source = self.by_cluster.get(cluster_id, self.default)
        if not source:
            whose = f" for the cluster {cluster_id}" if cluster_id else ""
            raise BadOption(
                f"no source is named, and this server knows none{whose}: give source_uri, or start "
                "the server with --source"
            )
        return source
