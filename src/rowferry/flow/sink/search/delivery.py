"""Sends bulks, and judges what came of each document."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rowferry.change.event_counts import DROPPED, RETRIES
from rowferry.errors import RowRejected, SinkError, SinkUnwritable, TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.search.bulk import Bulk
from rowferry.flow.sink.search.client import Cluster

DEAD_LETTERS: Final = f"{DROPPED}.dead-letter"
_ANSWERED: Final = {"filter_path": "errors,items.*.status,items.*.error"}
_NO_ROOM: Final = frozenset({429, 502, 503, 504})
_KEY_SHOWN: Final = 100


class Delivery:
    """Brings items into the cluster; on return of `send` all of a bulk are there."""

    def __init__(self, cluster: Cluster, changefeed: str) -> None:
        self._cluster, self._changefeed = cluster, changefeed
        self._options = cluster.settings.options

    def send(self, bulk: Bulk, stop: threading.Event) -> None:
        """Send a bulk in requests within the limits, one after the other.

        Raises:
            SinkUnavailable: the cluster does not answer, or has no room.
            RowRejected: a mapping refuses a document.
            SinkUnwritable: an index is read-only, or a right is missing.
            TargetLost: an index is gone.
        """
        for part in bulk.parts(self._options.max_bulk_rows, self._options.max_bulk_bytes):
            if stop.is_set():
                return
            self._send_part(part, stop)

    def _send_part(self, part: Bulk, stop: threading.Event) -> None:
        for tried in range(self._options.max_retry + 1):
            self._cluster.counts.add(RETRIES, int(tried > 0))
            answer = self._cluster.ask("POST", ("_bulk",), part.body(), _ANSWERED, stop)
            if not answer.is_good:
                raise SinkUnwritable(
                    f"{self._cluster.settings.shown}: a bulk request is refused "
                    f"({answer.status}: {self._cluster.hidden(str(answer.body))})"
                )
            if not answer.body.get("errors"):
                return
            items = answer.body.get("items", [])
            waiting, words = self._judge(part, items, stop)
            if not waiting:
                return
            part = part.take(np.array(waiting, np.int64))
            if tried == self._options.max_retry or stop.wait(self._cluster.pause_s(tried)):
                break
        raise self._cluster.unavailable(
            f"it has no room for {len(part)} documents of {part.index[0].as_py()}: {words}"
        )

    def _judge(
        self, part: Bulk, items: Sequence[Mapping[str, Any]], stop: threading.Event
    ) -> tuple[list[int], str]:
        """Return the places of the items to send again, and the server's words about one.

        Raises:
            SinkError: one of them can never be taken.
        """
        waiting, refused, words = [], [], ""
        for place, item in enumerate(items):
            (outcome,) = item.values()
            error, status = outcome.get("error"), int(outcome["status"])
            # 409: a newer version is there. 404 without an error: there was nothing to delete.
            if error is None or status == 409:
                continue
            if status in _NO_ROOM:
                waiting.append(place)
                words = str(error.get("reason", error.get("type", status)))
            else:
                refused.append((place, status, error))
        if refused:
            self._refuse(part, refused, stop)
        return waiting, words

    def _refuse(
        self,
        part: Bulk,
        refused: list[tuple[int, int, Mapping[str, Any]]],
        stop: threading.Event,
    ) -> None:
        letters = self._options.dead_letter_index
        for one in refused:
            if one[1] != 400 or not letters or part.index[one[0]].as_py() == letters:
                raise self._error(part, *one)
        places = np.array([place for place, _, _ in refused], np.int64)
        misfits = part.take(places)
        bodies = [self._dead_letter(part, *one) for one in refused]
        names = pa.array([letters] * len(bodies), pa.string())
        items = pa.array(bodies, pa.large_binary())
        self._send_part(Bulk(part.seat, names, misfits.ids, misfits.versions, items), stop)
        self._cluster.counts.add(DEAD_LETTERS, len(bodies))

    def _error(self, part: Bulk, place: int, status: int, error: Mapping[str, Any]) -> SinkError:
        index, shown = part.index[place].as_py(), self._cluster.settings.shown
        if error.get("type") == "index_not_found_exception":
            return TargetLost(
                f"{shown}: index {index} is gone, to which this changefeed has delivered; {RESTORE}"
            )
        words = self._cluster.hidden(_reason(error))
        key = part.ids[place].as_py().decode()[:_KEY_SHOWN]
        if status == 400:
            return RowRejected(
                f"{shown}: index {index} refuses the document of key {key!r}: {words}; change its "
                "mapping, or set dead-letter-index"
            )
        if status >= 500:
            return self._cluster.unavailable(f"index {index}, document {key!r}: {words}")
        return SinkUnwritable(f"{shown}: index {index} cannot be written ({status}: {words})")

    def _dead_letter(self, part: Bulk, place: int, status: int, error: Mapping[str, Any]) -> bytes:
        index, document_id = part.index[place].as_py(), part.ids[place].as_py().decode()
        version = int(part.versions[place])
        _, _, document = part.items[place].as_py().decode().partition("\n")
        letter = {
            "changefeed": self._changefeed,
            "index": index,
            "id": document_id,
            "version": version,
            "reason": self._cluster.hidden(_reason(error)),
            "document": document.rstrip("\n"),
        }
        name = hashlib.sha256(json.dumps([index, document_id, version]).encode()).hexdigest()
        action = {"index": {"_index": self._options.dead_letter_index, "_id": name}}
        return b"".join(json.dumps(line).encode() + b"\n" for line in (action, letter))


def _reason(error: Mapping[str, Any]) -> str:
    """Return the server's reasons, the cause last: it names the field."""
    words = [str(error.get("reason", error.get("type", "")))]
    cause = error.get("caused_by")
    while isinstance(cause, Mapping) and len(words) < 4:
        words.append(str(cause.get("reason", "")))
        cause = cause.get("caused_by")
    return ": ".join(dict.fromkeys(word for word in words if word))
