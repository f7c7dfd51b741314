"""Topics that got something: they must be there as they were, and are never made again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import Owner

KEY: Final = "delivered"
ANEW: Final = "begin anew: rowferry changefeed reset --snapshot"


@dataclass(frozen=True, slots=True)
class Known:
    """A topic that got something.

    Attributes:
        id: what the brokers call it, another one after it was made again; "": they do not tell.
        tables: those whose changes it holds. One that no table needs any more may be deleted.
    """

    id: str
    tables: frozenset[TableId] = frozenset()


class DeliveredTopics:
    """What is known of topics by what was published; kept in the sink's state."""

    def __init__(self, service: str, brokers: str, static: Collection[str]) -> None:
        """Know none yet; `static` topics are needed whatever tables there are.

        Args:
            service: what people call the queue, for errors.
            brokers: its address.
            static: the topics that are needed.
        """
        self._brokers, self._static = brokers, frozenset(static)
        self._at = f"{service} at {brokers}"
        self._cluster = ""
        self.known: dict[str, Known] = {}

    def resume(self, owner: Owner, state: Mapping[str, Any], cluster: str) -> None:
        """Know what the last published plan knew, of the tables that are still captured.

        Topics of brokers at another address may have other ids: an operator has moved them there.
        """
        stored = state.get(KEY, {})
        moved = stored.get("cluster") != cluster and stored.get("brokers") != self._brokers
        self._cluster = cluster
        self.known = {}
        for name, (topic_id, *tables) in stored.get("topics", {}).items():
            captured = frozenset(TableId(*table) for table in tables)
            if owner.continues:
                captured &= owner.captured
            self._put(self.known, name, Known("" if moved else topic_id, captured))

    def foresee(
        self,
        ids: Mapping[str, str],
        written: Mapping[str, Iterable[TableId]],
        changes: Iterable[SchemaChange],
    ) -> dict[str, Any]:
        """Return the state's part once a plan is published.

        Args:
            ids: of the topics that the plan sends something to.
            written: the tables of whose rows the plan sends some, by topic.
            changes: the schema changes that follow.
        """
        topics = dict(self.known)
        for name, topic_id in ids.items():
            old = topics.get(name, Known(topic_id))
            more = frozenset(written.get(name, ()))
            self._put(topics, name, Known(old.id or topic_id, old.tables | more))
        for change in changes:
            for name, topic in list(topics.items()):
                self._put(topics, name, Known(topic.id, _left(topic.tables, change)))
        return {
            "cluster": self._cluster,
            "brokers": self._brokers,
            "topics": {
                name: [topic.id, *map(list, sorted(topic.tables))] for name, topic in topics.items()
            },
        }

    def publish(self, state: Mapping[str, Any]) -> None:
        """Take over what a plan foresaw."""
        self.known = {
            name: Known(topic_id, frozenset(TableId(*table) for table in tables))
            for name, (topic_id, *tables) in state.get(KEY, {}).get("topics", {}).items()
        }

    def check(self, ids: Mapping[str, str | None]) -> None:
        """Compare topics with what is known of them; None: there is no such topic.

        Raises:
            TargetLost: one is gone, or was made again.
        """
        for name, topic_id in ids.items():
            if name not in self.known:
                continue
            if topic_id is None:
                raise gone(name, self._at)
            before = self.known[name].id
            if before and topic_id and before != topic_id:
                raise TargetLost(
                    f"{self._at}: topic {name} was deleted and made again (its id "
                    f"was {before} and is {topic_id}): what this changefeed has sent there is "
                    f"gone; {ANEW}"
                )

    def _put(self, topics: dict[str, Known], name: str, topic: Known) -> None:
        """Keep a topic, unless no table needs it."""
        if topic.tables or name in self._static:
            topics[name] = topic
        else:
            topics.pop(name, None)


def gone(name: str, at: str) -> TargetLost:
    """Return the error for a topic that is gone; `at` names the queue and its address."""
    return TargetLost(f"{at}: topic {name} is gone, to which this changefeed has sent; {ANEW}")


def _left(tables: frozenset[TableId], change: SchemaChange) -> frozenset[TableId]:
    """Return the tables of a topic that are left after a schema change."""
    if change.takes_tables:
        return frozenset(t for t in tables if t.database != change.written_as.database)
    gone = change.previous_target or change.previous
    if change.kind is DdlKind.DROP_TABLE:
        gone = change.written_as
    return tables - {gone}
