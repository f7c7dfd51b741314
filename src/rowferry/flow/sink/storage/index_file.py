"""The small files that make work visible: `CDC.index`, `metadata`, and the owner's mark."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rowferry.errors import SinkDamaged
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.paths import data_name, parse_data_name


@dataclass(frozen=True, slots=True)
class Naming:
    """How data files are named: digits of the number, and the suffix with its dot."""

    digits: int
    suffix: str

    def data_name(self, number: int) -> str:
        """Return the base name of the data file of that number."""
        return data_name(number, self.digits, self.suffix)

    def index_content(self, number: int) -> bytes:
        """Return the content of an index file whose last visible number is this one."""
        return f"{self.data_name(number)}\n".encode()

    def read_index(self, content: bytes, shown: str) -> int:
        """Return the number that an index file records; `shown` names the file in the error.

        Raises:
            SinkDamaged: it holds anything but the name of a data file as this feed writes them.
        """
        number, _ = read_any_index(content, shown, self.data_name(1))
        if self.index_content(number).rstrip() != content.rstrip(b"\n"):
            raise _bad_index(content, shown, self.data_name(1))
        return number


def read_any_index(content: bytes, shown: str, example: str = "CDC000001.csv") -> tuple[int, str]:
    """Return number and extension that an index file records, whatever the feed's settings are.

    Raises:
        SinkDamaged: it holds anything but the name of a data file.
    """
    named = parse_data_name(content.decode("utf-8", "replace").removesuffix("\n"))
    if named is None or named[0] < 1:
        raise _bad_index(content, shown, example)
    return named


def _bad_index(content: bytes, shown: str, example: str) -> SinkDamaged:
    name = content[:80].decode("utf-8", "replace").strip()
    return SinkDamaged(
        f"{shown} holds {name!r}, not the name of a data file such as {example}; write the name of "
        "the directory's last complete data file into it, then resume"
    )


def metadata_content(checkpoint_ts: int) -> bytes:
    """Return the content of `metadata`."""
    return f'{{"checkpoint-ts":{checkpoint_ts}}}'.encode()


def metadata_of_epoch(checkpoint_ts: int, epoch: int) -> bytes:
    """Return the same metadata in bytes that no other epoch writes: blanks follow.

    A store's tag may be a hash of the content, so that only other bytes have another tag.
    """
    digits = f"{epoch:b}".translate({ord("0"): " ", ord("1"): "\t"})
    return metadata_content(checkpoint_ts) + digits.encode()


def read_metadata(content: bytes, shown: str) -> int:
    """Return the checkpoint-ts of `metadata`; `shown` names the file in the error.

    Raises:
        SinkDamaged: not a JSON object with a whole number `checkpoint-ts` of at least 0.
    """
    form = _object(content)
    checkpoint_ts = form.get("checkpoint-ts") if form is not None else None
    if type(checkpoint_ts) is not int or checkpoint_ts < 0:
        raise SinkDamaged(
            f'{shown} is not {{"checkpoint-ts":<number>}}; put that into it, with the '
            "changefeed's checkpoint as the number, then resume"
        )
    return checkpoint_ts


@dataclass(frozen=True, slots=True)
class OwnerMark:
    """The content of `rowferry.owner`: who writes here, and how many plans were discarded.

    A plan carries the count of its time; a task of a plan that was discarded meanwhile sees that
    the count has moved on, and creates no file any more.
    """

    owner: Owner
    discards: int = 0

    def content(self) -> bytes:
        """Return the file's content; `read` reads it back."""
        form: dict[str, object] = {
            "changefeed": self.owner.changefeed,
            "epoch": self.owner.epoch,
            "discards": self.discards,
        }
        if self.owner.made_ms:
            form["made"] = self.owner.made_ms
        return json.dumps(form, ensure_ascii=False).encode()

    @classmethod
    def read(cls, content: bytes, shown: str) -> OwnerMark:
        """Read what `content` gave; `shown` names the file in the error.

        Raises:
            SinkDamaged: not what this program writes there.
        """
        form = _object(content) or {}
        changefeed, epoch = form.get("changefeed"), form.get("epoch")
        discards, made_ms = form.get("discards", 0), form.get("made", 0)
        if (
            not isinstance(changefeed, str)
            or type(epoch) is not int
            or type(discards) is not int
            or type(made_ms) is not int
        ):
            raise SinkDamaged(
                f"{shown} does not say which changefeed writes here; if no other one does, put "
                '{"changefeed": "<its id>", "epoch": 0} into it, then resume'
            )
        return cls(Owner(changefeed, epoch, made_ms=made_ms), discards)


def _object(content: bytes) -> dict[str, object] | None:
    try:
        form = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return form if isinstance(form, dict) else None
