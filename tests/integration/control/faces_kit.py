"""The same use cases through every face: each call ends well, or with one of our errors."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpx
import typer

from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.actor import ASKED
from rowferry.control.operator.operations import ChangedSettings, Operations, Wanted
from rowferry.errors import RowferryError, from_text
from rowferry.face.cli import main as cli

Listed = list[tuple[str, str]]


class Face(Protocol):
    """How an operator reaches the verbs. `said` is everything that was answered, as text."""

    said: list[str]

    def create(
        self, name: str, source: str, sink: str, config: Mapping[str, Any], dry_run: bool = False
    ) -> list[str]:
        """Create a changefeed, or explain it; returns the captured tables."""

    def listed(self) -> Listed:
        """Return ids and states."""

    def pause(self, name: str) -> None: ...

    def resume(self, name: str) -> None: ...

    def update(self, name: str, config: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        """Replace the configuration; `more` is what differs from the one before."""

    def add_table(self, name: str, pattern: str) -> None: ...

    def drop_table(self, name: str, pattern: str) -> None: ...

    def reset(self, name: str, position: str | None) -> None:
        """Begin anew at a position, or with a snapshot."""

    def remove(self, name: str) -> None: ...


class Direct:
    """No face at all: what the others are compared with."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self.said: list[str] = []

    def create(
        self, name: str, source: str, sink: str, config: Mapping[str, Any], dry_run: bool = False
    ) -> list[str]:
        made = self._operations.create(Wanted(source, sink, name, config), dry_run)
        return [str(table) for table in made.eligible]

    def listed(self) -> Listed:
        return [(feed.id, str(feed.state)) for feed in self._operations.feeds(tuple(FeedState))]

    def pause(self, name: str) -> None:
        self._operations.pause(name)

    def resume(self, name: str) -> None:
        self._operations.resume(name)

    def update(self, name: str, config: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self._operations.update(name, ChangedSettings(config=config))

    def add_table(self, name: str, pattern: str) -> None:
        self._operations.add_tables(name, [pattern])

    def drop_table(self, name: str, pattern: str) -> None:
        self._operations.drop_tables(name, [pattern])

    def reset(self, name: str, position: str | None) -> None:
        self._operations.reset(name, position=position, snapshot=position is None)

    def remove(self, name: str) -> None:
        self._operations.remove(name)


class Rest:
    """HTTP with TiCDC's paths, and ours beside them."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self.said: list[str] = []

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, f"{self._url}/api/{path}", json=body, timeout=120)
        self.said.append(answer.text)
        found = answer.json()
        if answer.status_code >= 300:
            error = from_text(found["error_msg"])
            assert error is not None, found
            raise error
        return found

    def create(
        self, name: str, source: str, sink: str, config: Mapping[str, Any], dry_run: bool = False
    ) -> list[str]:
        body = {
            "changefeed_id": name,
            "source_uri": source,
            "sink_uri": sink,
            "replica_config": snake_case(config),
        }
        if not dry_run:
            self.ask("POST", "v2/changefeeds", body)
            return []
        found = self.ask("POST", "rowferry/changefeeds/check", body)
        assert found["ok"] is (found["error"] is None)
        if found["error"]:
            raise from_text("[{code}] {message}".format(**found["error"])) or AssertionError(found)
        tables: list[str] = found["tables"]
        return tables

    def listed(self) -> Listed:
        items = self.ask("GET", "v2/changefeeds?state=all")["items"]
        return [(item["id"], item["state"]) for item in items]

    def pause(self, name: str) -> None:
        self.ask("POST", f"v2/changefeeds/{name}/pause")

    def resume(self, name: str) -> None:
        self.ask("POST", f"v2/changefeeds/{name}/resume", {})

    def update(self, name: str, config: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self.ask("PUT", f"v2/changefeeds/{name}", {"replica_config": snake_case(config)})

    def add_table(self, name: str, pattern: str) -> None:
        self.ask("POST", f"rowferry/changefeeds/{name}/tables", {"add": [pattern]})

    def drop_table(self, name: str, pattern: str) -> None:
        self.ask("POST", f"rowferry/changefeeds/{name}/tables", {"drop": [pattern]})

    def reset(self, name: str, position: str | None) -> None:
        body = {"snapshot": True} if position is None else {"position": position}
        self.ask("POST", f"rowferry/changefeeds/{name}/reset", body)

    def remove(self, name: str) -> None:
        self.ask("DELETE", f"v2/changefeeds/{name}")


class Sql:
    """Statements, over HTTP."""

    def __init__(self, url: str, folder: Path) -> None:
        self._rest = Rest(url, folder)
        self.said = self._rest.said

    def run(self, statement: str) -> list[dict[str, Any]]:
        found = self._rest.ask("POST", "rowferry/sql", {"statement": statement})
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    def create(
        self, name: str, source: str, sink: str, config: Mapping[str, Any], dry_run: bool = False
    ) -> list[str]:
        rest = {key: value for key, value in config.items() if key != "filter"}
        rows = self.run(
            f"{'EXPLAIN ' if dry_run else ''}CREATE CHANGEFEED `{name}` "
            f"FOR TABLE {', '.join(config['filter']['rules'])} FROM '{source}' INTO '{sink}'"
            + (f" WITH ({pairs(rest)})" if rest else "")
        )
        return [row["name"] for row in rows if row["what"] == "captured"]

    def listed(self) -> Listed:
        return [(row["id"], row["state"]) for row in self.run("SHOW ALL CHANGEFEEDS")]

    def pause(self, name: str) -> None:
        self.run(f"PAUSE CHANGEFEED {name};")

    def resume(self, name: str) -> None:
        self.run(f"RESUME CHANGEFEED {name}")

    def update(self, name: str, config: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self.run(f"ALTER CHANGEFEED {name} SET ({pairs(more)})")

    def add_table(self, name: str, pattern: str) -> None:
        self.run(f"ALTER CHANGEFEED {name} ADD TABLE {pattern}")

    def drop_table(self, name: str, pattern: str) -> None:
        self.run(f"ALTER CHANGEFEED {name} DROP TABLE {pattern}")

    def reset(self, name: str, position: str | None) -> None:
        where = "SNAPSHOT" if position is None else f"POSITION '{position}'"
        self.run(f"ALTER CHANGEFEED {name} RESET TO {where}")

    def remove(self, name: str) -> None:
        self.run(f"DROP CHANGEFEED IF EXISTS {name}")


class Shell:
    """The command line."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.said: list[str] = []

    def run(self, *words: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                _command()([*words, "--server", self._url], standalone_mode=False)
        except RowferryError as error:
            err.write(str(error))
            raise
        finally:
            self.said.append(out.getvalue() + err.getvalue())
        return out.getvalue()

    def create(
        self, name: str, source: str, sink: str, config: Mapping[str, Any], dry_run: bool = False
    ) -> list[str]:
        told = self.run(
            *("changefeed", "create", "-c", name, "--source", source, "--sink-uri", sink),
            *("--config", self._file(config), *(["--dry-run"] if dry_run else [])),
        )
        return list(json.loads(told)["tables"]) if dry_run else []

    def listed(self) -> Listed:
        found = json.loads(self.run("cli", "changefeed", "list", "--all"))
        return [(item["id"], item["summary"]["state"]) for item in found]

    def pause(self, name: str) -> None:
        self.run("changefeed", "pause", "-c", name)

    def resume(self, name: str) -> None:
        self.run("cli", "changefeed", "resume", "-c", name)

    def update(self, name: str, config: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        words = ("changefeed", "update", "-c", name, "--no-confirm")
        self.run(*words, "--config", self._file(config))

    def add_table(self, name: str, pattern: str) -> None:
        self.run("changefeed", "tables", "-c", name, "--add", pattern)

    def drop_table(self, name: str, pattern: str) -> None:
        self.run("changefeed", "tables", "-c", name, "--drop", pattern)

    def reset(self, name: str, position: str | None) -> None:
        where = ["--snapshot"] if position is None else ["--position", position]
        self.run("changefeed", "reset", "-c", name, "--no-confirm", *where)

    def remove(self, name: str) -> None:
        self.run("changefeed", "remove", "-c", name)

    def _file(self, config: Mapping[str, Any]) -> str:
        path = self._folder / "feed.json"
        path.write_text(json.dumps(config))
        return str(path)


FACES: dict[str, Any] = {"cli": Shell, "rest": Rest, "sql": Sql}


@cache
def _command() -> Any:
    return typer.main.get_command(cli.app)


def snake_case(config: Any) -> Any:
    """Return a configuration as TiCDC's clients send it."""
    if isinstance(config, Mapping):
        return {key.replace("-", "_"): snake_case(value) for key, value in config.items()}
    return config


def pairs(config: Mapping[str, Any], lead: str = "") -> str:
    """Return a configuration as `key = value, …` of a statement."""
    return ", ".join(
        pairs(value, f"{lead}{key}.")
        if isinstance(value, Mapping)
        else f"{lead}{key} = {json.dumps(value)}"
        for key, value in config.items()
    )


def stored(operations: Operations) -> list[dict[str, Any]]:
    """Return what the meta database holds of all changefeeds, but times and who asked."""
    return [
        {
            "id": feed.id,
            "state": str(feed.state),
            "spec": feed.spec.to_json(),
            "spec_version": feed.spec_version,
            "watermark": feed.watermark,
            "micro_batch": feed.micro_batch,
            "error": feed.error,
            "cancel": feed.cancel,
            "notes": sorted(
                note.what for note in operations.store.history(feed.id) if note.what != ASKED
            ),
        }
        for feed in operations.feeds(tuple(FeedState))
    ]


def rules(*tables: str) -> dict[str, Sequence[str]]:
    return {"rules": list(tables)}
