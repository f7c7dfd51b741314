"""What the master knows of a range, and why a request about one can be refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rowferry.change.json_form import HEX, FormRules, JsonForm
from rowferry.wire import range_cdc_pb2 as cdc
from rowferry.wire import store_pb2 as wire

Fault = wire.StoreFault


@dataclass(frozen=True, slots=True)
class RangeMeta(JsonForm):
    """One range: its keys [start, end), its epoch and its leader's address ("" for none)."""

    FORM = FormRules(ways={"start": HEX, "end": HEX})

    range_id: int
    start: bytes
    end: bytes
    physical_id: int
    conf_ver: int = 1
    version: int = 1
    leader: str = ""
    parent_range_id: int = 0
    split_index: int = 0
    dropped: bool = False

    @property
    def folder(self) -> str:
        """The name of its folder: a split starts new ones."""
        return f"{self.range_id:06d}-{self.version}"

    def led_by(self, address: str) -> RangeMeta:
        """Return the range with another leader and the epoch that goes with it."""
        return replace(self, leader=address, conf_ver=self.conf_ver + 1)

    def halves(self, key: bytes, new_range_id: int, index: int) -> tuple[RangeMeta, RangeMeta]:
        """Return both parts of a split at `key`: the left one keeps the id."""
        left = replace(self, end=key, version=self.version + 1)
        right = replace(
            left,
            range_id=new_range_id,
            start=key,
            end=self.end,
            parent_range_id=self.range_id,
            split_index=index,
        )
        return left, right

    def holds(self, key: bytes) -> bool:
        """Return whether a key lies in the range."""
        return self.start <= key < self.end

    def route(self) -> cdc.RangeRoute:
        """Return the wire form."""
        return cdc.RangeRoute(
            range_id=self.range_id,
            epoch=cdc.RangeEpoch(conf_ver=self.conf_ver, version=self.version),
            start_key=self.start,
            end_key=self.end,
            leader=self.leader,
            parent_range_id=self.parent_range_id,
            split_index=self.split_index,
            physical_id=self.physical_id,
            dropped=self.dropped,
        )

    def target(self) -> wire.RangeTarget:
        """Return how a request names this range."""
        epoch = cdc.RangeEpoch(conf_ver=self.conf_ver, version=self.version)
        return wire.RangeTarget(range_id=self.range_id, epoch=epoch)

    @classmethod
    def of(cls, route: cdc.RangeRoute) -> RangeMeta:
        """Read the wire form."""
        return cls(
            range_id=route.range_id,
            start=route.start_key,
            end=route.end_key,
            physical_id=route.physical_id,
            conf_ver=route.epoch.conf_ver,
            version=route.epoch.version,
            leader=route.leader,
            parent_range_id=route.parent_range_id,
            split_index=route.split_index,
            dropped=route.dropped,
        )


class RequestRefused(Exception):
    """A request cannot be served as it is; the code says what the asker should do."""

    def __init__(self, code: wire.StoreFault.Code, words: str) -> None:
        super().__init__(words)
        self.code = code

    def fault(self) -> wire.StoreFault:
        """Return the wire form."""
        return wire.StoreFault(code=self.code, message=str(self))
