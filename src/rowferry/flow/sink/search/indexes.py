"""The indexes of a cluster: which there are, and how they are made and changed."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from rowferry.change.table import TableSchema
from rowferry.errors import SinkUnwritable, TargetUnfit
from rowferry.flow.encode.search_documents.mapping import mapping
from rowferry.flow.sink.search.client import Answer, Cluster
from rowferry.flow.sink.search.ownership import IndexOwnership

_PATH_BYTES: Final = 3000  # of names in one request's address; servers take a line of 4096
_COMMA_BYTES: Final = 3  # as it is sent: %2C
_FIELDS: Final = 900  # the servers' own limit is 1000
_POLL_S: Final = 0.2
_OPENSEARCH: Final = "flat_object"
_ELASTICSEARCH: Final = "flattened"
_OLDEST: Final = 7
_NUMBERED: Final = re.compile(r"-v(\d+)")
_MARK: Final = "rowferry"  # in the mapping of an index that the sink made
_COPY_OF: Final = "copy_of"  # in the mark: the number of the index whose documents it gets


class Indexes:
    """What is asked of indexes, and done to them, by the driver."""

    def __init__(self, cluster: Cluster, ownership: IndexOwnership) -> None:
        self._cluster, self._ownership = cluster, ownership
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
        for part in _paths(names):
            there |= self._numbers(part)
        return there

    def _numbers(self, names: list[str]) -> dict[str, str]:
        query = {"ignore_unavailable": "true", "filter_path": "*.aliases,*.settings.index.uuid"}
        answer = self._cluster.ask("GET", (",".join(names),), query=query)
        there: dict[str, str] = {}
        if answer.status == 404:
            return there
        if not answer.is_good:
            raise self._refused(f"asking for index {names[0]}", answer)
        for index, facts in (answer.body or {}).items():
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

    def may_become_copy(self, name: str, number: str) -> bool:
        """Return whether an index may get the documents of the one with this number.

        Nobody has ever written it, or an earlier try has made it for them.
        """
        own, _, mark = self._fields(name)
        if mark is not None and mark.get(_COPY_OF) == number:
            return True
        query = {"level": "shards", "filter_path": "indices.*.shards.*.seq_no.max_seq_no"}
        answer = self._cluster.ask("GET", (own, "_stats"), query=query)
        if not answer.is_good:
            raise self._refused(f"reading the statistics of index {name}", answer)
        shards = answer.body["indices"][own]["shards"].values()
        return all(copy["seq_no"]["max_seq_no"] < 0 for shard in shards for copy in shard)

    # --- deeds ------------------------------------------------------------------------------------

    def ensure(self, name: str, table: TableSchema, copy_of: str = "") -> None:
        """Make an index that is missing, and give one that is there the fields that it lacks.

        With `copy_of`, the number of another index, one that is made is marked as its copy.

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
        self._make(name, table, copy_of)

    def _make(self, name: str, table: TableSchema, copy_of: str = "") -> None:
        own = self._mapping(table)
        settings: dict[str, Any] = {
            "number_of_shards": self._options.number_of_shards,
            "number_of_replicas": self._options.number_of_replicas,
            "gc_deletes": _time(self._options.gc_deletes),
        }
        if len(own["properties"]) * 2 > _FIELDS:  # a text has a keyword, too
            settings["mapping.total_fields.limit"] = 4 * len(own["properties"])
        # Whoever made the mapping may change it: this mark says that it was the sink.
        mark = {_COPY_OF: copy_of} if copy_of else {}
        form = {"settings": {"index": settings}, "mappings": {**own, "_meta": {_MARK: mark}}}
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
        own, there, mark = self._fields(name)
        wanted = self._mapping(table)["properties"]
        ours = wanted if mark is not None else ()
        changed = [f for f in ours if f in there and not _alike(there[f], wanted[f])]
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
        """Put an alias for a new index, with all documents, in the place of an old index.

        Raises:
            TargetUnfit: there is an index of the new one's name that no earlier try has made.
            SinkOwned: another changefeed writes an index of that name.
        """
        match = _NUMBERED.fullmatch(own.removeprefix(name))
        new = f"{name}-v{int(match[1]) + 1 if match else 2}"
        number = self.numbers([own])[own]
        self._ownership.take(new)
        if new not in self.numbers([new]):
            self._make(new, table, copy_of=number)
        if (self._fields(new)[2] or {}).get(_COPY_OF) != number:
            raise TargetUnfit(
                f"{self._cluster.settings.shown}: table {table.id} needs an index of other types "
                f"in the place of {own}, but there is an index {new} already, which is not its "
                "copy: delete it, then resume"
            )
        self.copy(own, new)
        swap = [{"remove_index": {"index": own}}, {"add": {"index": new, "alias": name}}]
        answer = self._cluster.ask("POST", ("_aliases",), {"actions": swap})
        # Where the first answer was lost, a repeat does not find the old index.
        if not answer.is_good and self._fields(name)[0] != new:
            raise self._refused(f"putting index {new} in the place of {own}", answer)
        if own != name:
            self._ownership.let_go([own])

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
        own, _, _ = self._fields(name)
        answer = self._cluster.ask("DELETE", (own,))
        if not answer.is_good and answer.status != 404:
            raise self._refused(f"deleting index {name}", answer)
        if own != name:
            self._ownership.let_go([own])

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
        query = {"ignore_unavailable": "true"}
        for part in _paths(names):
            answer = self._cluster.ask("POST", (",".join(part), "_refresh"), query=query)
            if not answer.is_good and answer.status != 404:
                raise self._refused(f"refreshing index {part[0]}", answer)

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

    def _fields(self, name: str) -> tuple[str, Mapping[str, Any], Mapping[str, Any] | None]:
        """Return an index's own name, its fields, and the sink's mark; None: others made it."""
        answer = self._cluster.ask("GET", (name, "_mapping"))
        if not answer.is_good:
            raise self._refused(f"reading the mapping of index {name}", answer)
        ((own, facts),) = answer.body.items()
        mapped = facts["mappings"]
        return own, mapped.get("properties", {}), mapped.get("_meta", {}).get(_MARK)

    def _mapping(self, table: TableSchema) -> dict[str, Any]:
        if not self._flattened:
            self.check_server()
        return mapping(table, self._cluster.settings.documents, self._flattened)

    def _refused(self, doing: str, answer: Answer) -> SinkUnwritable:
        return SinkUnwritable(
            f"{self._cluster.settings.shown}: {doing} is refused ({answer.status}: "
            f"{self._cluster.hidden(str(answer.body))})"
        )


def _paths(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names in parts that fit into a request's address, where most letters take 3 bytes."""
    part: list[str] = []
    size = 0
    for name in sorted(set(names)):
        more = len(quote(name, safe="")) + _COMMA_BYTES
        if part and size + more > _PATH_BYTES:
            yield part
            part, size = [], 0
        part.append(name)
        size += more
    if part:
        yield part


def _alike(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return bool(there.get("type", "object") == wanted["type"])


def _time(duration: timedelta) -> str:
    return f"{int(duration.total_seconds())}s"
