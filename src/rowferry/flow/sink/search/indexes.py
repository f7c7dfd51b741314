"""The indexes of a cluster: which there are, and how they are made and changed."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from rowferry.change.table import TableSchema
from rowferry.errors import SinkUnwritable, TargetUnfit
from rowferry.flow.encode.search_documents.mapping import mapping
from rowferry.flow.sink.search.client import Answer, Cluster

_AT_ONCE: Final = 40  # names in one request: they stand in its address
_FIELDS: Final = 900  # the servers' own limit is 1000
_POLL_S: Final = 0.2
_OPENSEARCH: Final = "flat_object"
_ELASTICSEARCH: Final = "flattened"
_OLDEST: Final = 7
_NUMBERED: Final = re.compile(r"-v(\d+)")


class Indexes:
    """What is asked of indexes, and done to them, by the driver."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._options = cluster.settings.options
        self._flattened = ""

    # --- questions --------------------------------------------------------------------------------

    def check_server(self) -> None:
        """Ask which server it is.

        Raises:
            SinkUnwritable: it is one that does not know what we need, or refuses the login.
        """
        answer = self._cluster.ask("GET", ())
        version = answer.body.get("version", {}) if isinstance(answer.body, dict) else {}
        if answer.status == 404:  # a serverless collection says nothing about itself
            self._flattened = _OPENSEARCH
            return
        number = version.get("number")
        if not answer.is_good or not number:
            raise SinkUnwritable(
                f"{self._cluster.settings.shown} does not answer as Elasticsearch or OpenSearch do"
            )
        is_opensearch = version.get("distribution") == "opensearch"
        self._flattened = _OPENSEARCH if is_opensearch else _ELASTICSEARCH
        if not is_opensearch and int(str(number).partition(".")[0]) < _OLDEST:
            raise SinkUnwritable(
                f"{self._cluster.settings.shown} is Elasticsearch {number}; 7.0 is the oldest that "
                "can be written"
            )

    def numbers(self, names: Collection[str]) -> dict[str, str]:
        """Return the unique number of each index that is there, also behind an alias."""
        there: dict[str, str] = {}
        ordered = sorted(set(names))
        for start in range(0, len(ordered), _AT_ONCE):
            there |= self._numbers(ordered[start : start + _AT_ONCE])
        return there

    def _numbers(self, names: list[str]) -> dict[str, str]:
        query = {"ignore_unavailable": "true", "filter_path": "*.aliases,*.settings.index.uuid"}
        answer = self._cluster.ask("GET", (",".join(names),), query=query)
        there: dict[str, str] = {}
        for index, facts in (answer.body or {}).items() if answer.is_good else ():
            number = facts["settings"]["index"]["uuid"]
            for name in (index, *facts.get("aliases", ())):
                if name in names:
                    if there.get(name, number) != number:
                        raise TargetUnfit(
                            f"{self._cluster.settings.shown}: alias {name} stands for several "
                            "indexes; a document must have one place"
                        )
                    there[name] = number
        return there

    # --- deeds ------------------------------------------------------------------------------------

    def ensure(self, name: str, table: TableSchema) -> None:
        """Make an index that is missing, and give one that is there the fields that it lacks.

        Raises:
            TargetUnfit: it is missing and must not be made, or a field has another type.
        """
        if name in self.numbers([name]):
            self.add_fields(name, table)
            return
        if not self._options.create_indexes:
            raise TargetUnfit(
                f"{self._cluster.settings.shown}: there is no index {name} for table {table.id}; "
                "make it, or set create-indexes = true"
            )
        self._make(name, table)

    def _make(self, name: str, table: TableSchema) -> None:
        own = self._mapping(table)
        settings: dict[str, Any] = {
            "number_of_shards": self._options.number_of_shards,
            "number_of_replicas": self._options.number_of_replicas,
            "gc_deletes": _time(self._options.gc_deletes),
        }
        if len(own["properties"]) * 2 > _FIELDS:  # a text has a keyword, too
            settings["mapping.total_fields.limit"] = 4 * len(own["properties"])
        # Whoever made the mapping may change it: this mark says that it was the sink.
        form = {"settings": {"index": settings}, "mappings": {**own, "_meta": {"rowferry": {}}}}
        answer = self._cluster.ask("PUT", (name,), form)
        if answer.kind == "resource_already_exists_exception":
            self.add_fields(name, table)
        elif not answer.is_good:
            raise self._refused(f"making index {name} for table {table.id}", answer)

    def add_fields(self, name: str, table: TableSchema) -> None:
        """Put fields into a mapping that lacks them; those that are there stay as they are.

        Raises:
            TargetUnfit: a field that the sink has made must have another type now.
        """
        if not self._options.create_indexes:
            return
        own, there, is_ours = self._fields(name)
        wanted = self._mapping(table)["properties"]
        changed = [f for f in wanted if is_ours and f in there and not _alike(there[f], wanted[f])]
        if changed and self._options.on_type_change == "reindex":
            self._replace(name, own, table)
            return
        for field in changed:
            raise TargetUnfit(
                f"{self._cluster.settings.shown}: column {field} of table {table.id} is "
                f"{wanted[field]['type']} now, and {there[field].get('type', 'object')} in index "
                f"{name}, which cannot be changed: set on-type-change = reindex, or pause the "
                "changefeed, delete the index, and begin anew with rowferry changefeed reset "
                "--snapshot"
            )
        missing = {field: kind for field, kind in wanted.items() if field not in there}
        if not missing:
            return
        answer = self._cluster.ask("PUT", (name, "_mapping"), {"properties": missing})
        if not answer.is_good:
            raise self._refused(f"adding fields to index {name}", answer)

    def _replace(self, name: str, own: str, table: TableSchema) -> None:
        """Put an alias for a new index, with all documents, in the place of an old index."""
        match = _NUMBERED.fullmatch(own.removeprefix(name))
        new = f"{name}-v{int(match[1]) + 1 if match else 2}"
        self._make(new, table)
        self.copy(own, new)
        swap = [{"remove_index": {"index": own}}, {"add": {"index": new, "alias": name}}]
        answer = self._cluster.ask("POST", ("_aliases",), {"actions": swap})
        if not answer.is_good:
            raise self._refused(f"putting index {new} in the place of {own}", answer)

    def empty(self, name: str) -> None:
        """Delete all documents that are there now; ones that are written meanwhile stay."""
        self._cluster.ask("POST", (name, "_refresh"))
        query = {"conflicts": "proceed", "refresh": "true", "wait_for_completion": "false"}
        form: dict[str, Any] = {"query": {"match_all": {}}}
        self._run(f"emptying index {name}", (name, "_delete_by_query"), form, query)

    def drop(self, name: str) -> None:
        """Delete an index, also one behind an alias. On repeat: nothing."""
        if name not in self.numbers([name]):
            return
        answer = self._cluster.ask("DELETE", (self._fields(name)[0],))
        if not answer.is_good and answer.status != 404:
            raise self._refused(f"deleting index {name}", answer)

    def copy(self, old: str, new: str) -> None:
        """Copy all documents with their versions. On repeat: the same."""
        self._cluster.ask("POST", (old, "_refresh"))
        form = {
            "conflicts": "proceed",
            "source": {"index": old},
            "dest": {"index": new, "version_type": "external"},
        }
        query = {"refresh": "true", "wait_for_completion": "false"}
        self._run(f"copying index {old} to {new}", ("_reindex",), form, query)

    def refresh(self, names: Iterable[str]) -> None:
        """Let searches see all documents."""
        ordered = sorted(set(names))
        for start in range(0, len(ordered), _AT_ONCE):
            part = ",".join(ordered[start : start + _AT_ONCE])
            self._cluster.ask("POST", (part, "_refresh"), query={"ignore_unavailable": "true"})

    # --- pieces -----------------------------------------------------------------------------------

    def _run(self, doing: str, path: tuple[str, ...], form: Any, query: Mapping[str, str]) -> None:
        """Let the cluster do what takes long, and wait for its end."""
        answer = self._cluster.ask("POST", path, form, query)
        if not answer.is_good:
            raise self._refused(doing, answer)
        task = answer.body["task"]
        while True:
            state = self._cluster.ask("GET", ("_tasks", task))
            if not state.is_good:  # its node is gone, and with it the task
                raise self._cluster.unavailable(f"{doing}: the cluster has lost the task")
            if state.body["completed"]:
                break
            threading.Event().wait(_POLL_S)
        failed = state.body.get("error") or state.body["response"].get("failures")
        if failed:
            raise self._refused(doing, Answer(400, failed))

    def _fields(self, name: str) -> tuple[str, Mapping[str, Any], bool]:
        """Return an index's own name, its fields, and whether the sink made it."""
        answer = self._cluster.ask("GET", (name, "_mapping"))
        if not answer.is_good:
            raise self._refused(f"reading the mapping of index {name}", answer)
        ((own, facts),) = answer.body.items()
        mapped = facts["mappings"]
        return own, mapped.get("properties", {}), "rowferry" in mapped.get("_meta", {})

    def _mapping(self, table: TableSchema) -> dict[str, Any]:
        if not self._flattened:
            self.check_server()
        return mapping(table, self._cluster.settings.documents, self._flattened)

    def _refused(self, doing: str, answer: Answer) -> SinkUnwritable:
        return SinkUnwritable(
            f"{self._cluster.settings.shown}: {doing} is refused ({answer.status}: "
            f"{self._cluster.hidden(str(answer.body))})"
        )


def _alike(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return bool(there.get("type", "object") == wanted["type"])


def _time(duration: timedelta) -> str:
    return f"{int(duration.total_seconds())}s"
