"""`rowferry changefeed …`: TiCDC's verbs and flags, on a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from rowferry.change.position import physical_ms
from rowferry.errors import BadOption, ServerError
from rowferry.face.cli.options.address import given_address, given_meta
from rowferry.face.cli.options.secrets import SecretKeyFile, given_keys
from rowferry.face.cli.output import CAUGHT_UP_MS, Printer
from rowferry.face.cli.progress.feed_view import FeedView
from rowferry.face.cli.remote.changefeed_forms import (
    changes,
    line,
    list_item,
    query_form,
    raise_if_wrong,
    reported_error,
    show,
    show_check,
    show_list,
    show_sample,
)
from rowferry.face.cli.remote.client import API, OURS, Client, Id, connected
from rowferry.face.cli.remote.quarantine import app as quarantine
from rowferry.face.cli.remote.resnapshot import resnapshot
from rowferry.face.cli.remote.tso import commit_ts_now
from rowferry.face.cli.signals import stop_on_signal
from rowferry.spec.config_file import inline_rule_files, read_config
from rowferry.spec.uri import Uri

_WATCH_EVERY_S: Final = 1.0
_HIDDEN_STATES: Final = ("finished", "removed")

app = typer.Typer(help="Create changefeeds on a server, watch and change them.")

Wait = Annotated[
    bool, typer.Option("--wait", help="Watch it until snapshots are done and it caught up")
]
NoConfirm = Annotated[bool, typer.Option("--no-confirm", help="Ask nothing")]
Source = Annotated[
    str | None,
    typer.Option(
        callback=given_address,
        help="Where to read: mysql://…, mariadb://… or range://HOST:PORT",
    ),
]
SinkUri = Annotated[
    str | None,
    typer.Option(callback=given_address, help="Where to write, with ?protocol=… and more"),
]
Config = Annotated[
    Path | None, typer.Option(help="Settings with TiCDC's key names: .toml, .yaml or .json")
]
StartTs = Annotated[
    int | None, typer.Option(help="Begin in the log, behind this commit-ts; no snapshot", min=1)
]
TargetTs = Annotated[
    int | None, typer.Option(help="End when everything up to this commit-ts was delivered", min=1)
]
Registry = Annotated[
    str | None, typer.Option(help="Of avro: the registry's address, http://HOST:PORT")
]
# Flags that scripts for TiCDC bring along; there is nothing here that they could change.
Unused = Annotated[bool, typer.Option("--disable-gc-check", "-v", hidden=True)]
UnusedText = Annotated[
    list[str] | None, typer.Option("--sort-engine", "--sort-dir", "--tz", hidden=True)
]


@app.command("create")
@connected
def create(
    server: Client,
    out: Printer,
    source: Source = None,
    sink_uri: SinkUri = None,
    config: Config = None,
    changefeed_id: Annotated[
        str | None,
        typer.Option("-c", "--changefeed-id", help="Its name; default: made from source and sink"),
    ] = None,
    start_ts: StartTs = None,
    target_ts: TargetTs = None,
    schema_registry: Registry = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and show it; store nothing")
    ] = False,
    wait: Wait = False,
    no_confirm: NoConfirm = False,
    unused: Unused = False,
    unused_text: UnusedText = None,
) -> None:
    """Create a changefeed; it begins at once."""
    if not sink_uri:
        raise BadOption("--sink-uri is needed: where to write")
    settings = _settings(config)
    if no_confirm:  # TiCDC would ask whether to leave out tables without a key
        settings.setdefault("ignore-ineligible-table", True)
    wanted: dict[str, Any] = {
        "changefeed_id": changefeed_id or "",
        "source_uri": _absolute(source, "source") if source else "",
        "sink_uri": _sink(sink_uri, schema_registry),
        "start_ts": start_ts or 0,
        "target_ts": target_ts or 0,
        "replica_config": settings,
    }
    check = server.post(*OURS, "changefeeds", "check", body=wanted)
    raise_if_wrong(check)
    for notice in check.get("notices", ()):
        out.note(notice)
    if dry_run:
        show_check(out, check)
        return
    made = server.post(*API, "changefeeds", body=wanted)
    eligible, ineligible = len(check["tables"]), len(check["ineligible"])
    out.text(
        f"Create changefeed successfully!\nID: {made['id']}\nInfo: {line(made)}\n"
        f"IneligibleTablesCount: {ineligible}\nEligibleTablesCount: {eligible}\n"
        f"AllTablesCount: {eligible + ineligible}\n"
    )
    if wait:
        _watch(server, out, made["id"], until_caught_up=True)


@app.command("list")
@connected
def list_(
    server: Client,
    out: Printer,
    every: Annotated[
        bool, typer.Option("-a", "--all", help="Also finished and removed ones")
    ] = False,
) -> None:
    """List changefeeds with their state and how far they are."""
    if out.as_json:
        answer = server.get(*API, "changefeeds", **({"state": "all"} if every else {}))
        out.value([list_item(item) for item in answer["items"] or ()])
        return
    feeds = server.get(*OURS, "overview")["changefeeds"]
    show_list(out, [feed for feed in feeds if every or feed["state"] not in _HIDDEN_STATES])


@app.command("query")
@connected
def query(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    simple: Annotated[
        bool, typer.Option("-s", "--simple", help="Only state and checkpoint")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay and show its progress, until Ctrl-C")
    ] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="Only the last changes that it has delivered")
    ] = False,
) -> None:
    """Tell all that is known about a changefeed."""
    if sample:
        show_sample(out, server.get(*OURS, "changefeeds", changefeed_id, "sample"))
        return
    if watch:
        _watch(server, out, changefeed_id, until_caught_up=False)
        return
    if simple:
        items = server.get(*API, "changefeeds", state="all")["items"] or ()
        own_item = next((item for item in items if item["id"] == changefeed_id), None)
        if own_item is None:
            server.get(*API, "changefeeds", changefeed_id)  # the server says it in its words
            raise ServerError(f"changefeed {changefeed_id!r} came between two requests; ask again")
        show(out, own_item)
        return
    form = query_form(server.get(*API, "changefeeds", changefeed_id))
    seen = server.get(*OURS, "changefeeds", changefeed_id)
    form |= {key: seen.get(key) for key in ("position", "kept_ms", "owner", "table_counts")}
    show(out, form)


@app.command("log")
@connected
def log(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many lines")] = 100,
) -> None:
    """Tell the last lines that servers logged about a changefeed, newest first."""
    lines = server.get(*OURS, "changefeeds", changefeed_id, "log", limit=str(limit))["lines"]
    out.table(
        ("time", "level", "server", "message"),
        [(_at(e["at"]), e["level"], e["server"], e["message"]) for e in lines],
    )


@app.command("schema-changes")
@connected
def schema_changes(server: Client, out: Printer, changefeed_id: Id) -> None:
    """Tell the last schema changes that a changefeed delivered, newest first."""
    changes = server.get(*OURS, "changefeeds", changefeed_id)["schema_changes"]
    out.table(
        ("time", "commit_ts", "table", "kind", "statement"),
        [(_at(c["at"]), c["commit_ts"], c["table"], c["kind"], c["query"]) for c in changes],
    )


def _at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).isoformat(" ", "milliseconds")


@app.command("pause")
@connected
def pause(server: Client, out: Printer, changefeed_id: Id) -> None:
    """Stop a changefeed at the next border."""
    server.post(*API, "changefeeds", changefeed_id, "pause")
    out.text(f"Pause changefeed successfully! \nID: {changefeed_id}\n")


@app.command("resume")
@connected
def resume(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    overwrite_checkpoint_ts: Annotated[
        str | None, typer.Option(help="Go on from here instead: `now`, or a commit-ts")
    ] = None,
    wait: Wait = False,
    no_confirm: NoConfirm = False,
) -> None:
    """Let a changefeed run again."""
    body: dict[str, Any] = {}
    if overwrite_checkpoint_ts is not None:
        chosen = _checkpoint(server, overwrite_checkpoint_ts)
        question = (
            f"Changefeed {changefeed_id} will go on behind {chosen}: changes may come again, or "
            "be left out. Do it? [Y/N]"
        )
        if not no_confirm and not _agreed(question):
            out.text("Nothing was changed.\n")
            return
        body["overwrite_checkpoint_ts"] = chosen
    server.post(*API, "changefeeds", changefeed_id, "resume", body=body)
    out.text(f"Resume changefeed successfully! \nID: {changefeed_id}\n")
    if wait:
        _watch(server, out, changefeed_id, until_caught_up=True)


@app.command("update")
@connected
def update(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    source: Source = None,
    sink_uri: SinkUri = None,
    config: Config = None,
    start_ts: StartTs = None,
    target_ts: TargetTs = None,
    schema_registry: Registry = None,
    no_confirm: NoConfirm = False,
    unused: Unused = False,
    unused_text: UnusedText = None,
) -> None:
    """Change a stopped or failed changefeed; `--config` replaces all its settings."""
    if start_ts is not None:
        raise BadOption("start_ts can not be updated; use `resume --overwrite-checkpoint-ts`")
    if schema_registry and not sink_uri:
        raise BadOption("--schema-registry needs --sink-uri beside it")
    body: dict[str, Any] = {}
    if source:
        body["source_uri"] = _absolute(source, "source")
    if sink_uri:
        body["sink_uri"] = _sink(sink_uri, schema_registry)
    if target_ts:
        body["target_ts"] = target_ts
    if config:
        body["replica_config"] = _settings(config)
    old = server.get(*OURS, "changefeeds", changefeed_id)
    diff = changes(old, body)
    if not diff:
        out.text("changefeed config is the same with the old one, do nothing\n")
        return
    out.text("Diff of changefeed config:\n" + "".join(f"{one}\n" for one in diff))
    question = "Could you agree to apply changes above to changefeed [Y/N]"
    if not no_confirm and not _agreed(question):
        out.text("No update to changefeed.\n")
        return
    made = server.put(*API, "changefeeds", changefeed_id, body=body)
    out.text(f"Update changefeed config successfully! \nID: {changefeed_id}\nInfo: {line(made)}\n")


@app.command("remove")
@connected
def remove(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    local: Annotated[
        bool, typer.Option("--local", help="One that `rowferry run` made here; asks no server")
    ] = False,
    meta: Annotated[
        str | None,
        typer.Option(
            callback=given_meta,
            help="With --local: its meta database; default: sqlite:///.rowferry/<changefeed id>.db",
        ),
    ] = None,
    secret_key_file: SecretKeyFile = None,
) -> None:
    """Stop a changefeed and forget it; what it wrote stays."""
    if meta and not local:
        raise BadOption("--meta is for --local: a server knows its own meta database")
    if local:
        _remove_local(out, changefeed_id, meta, secret_key_file)
        return
    items = server.get(*API, "changefeeds", state="all")["items"] or ()
    if not any(item["id"] == changefeed_id for item in items):
        out.text(f"Changefeed not found.\nID: {changefeed_id}\n")
        return
    feed = server.get(*API, "changefeeds", changefeed_id)
    server.delete(*API, "changefeeds", changefeed_id)
    out.text(
        f"Changefeed remove successfully.\nID: {changefeed_id}\n"
        f"CheckpointTs: {feed['checkpoint_ts']}\nSinkURI: {feed['sink_uri']}\n"
    )


def _remove_local(
    out: Printer, changefeed: str, meta: str | None, secret_key_file: str | None
) -> None:
    # Imported here: other commands ask a server, and need no stages.
    from rowferry.control.operator.local_removal import remove_local
    from rowferry.face.cli.run import WORK_DIR
    from rowferry.secrets.environment import sources_of_environment
    from rowferry.spec.changefeed import check_changefeed_id

    name = check_changefeed_id(changefeed)
    url = meta or f"sqlite:///{WORK_DIR.absolute() / (name + '.db')}"
    removed = remove_local(url, name, given_keys(secret_key_file), sources_of_environment())
    if removed is None:
        out.text(f"Changefeed not found.\nID: {changefeed}\n")
        return
    out.text(
        f"Changefeed remove successfully.\nID: {changefeed}\n"
        f"CheckpointTs: {removed.watermark}\nSinkURI: {removed.spec.sink}\n"
    )


@app.command("reset")
@connected
def reset(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Read all tables anew, then their changes")
    ] = False,
    ts: Annotated[
        int | None, typer.Option(help="Go on in the log, behind this commit-ts", min=1)
    ] = None,
    position: Annotated[
        str | None, typer.Option(help="Go on in the log, at FILE:OFFSET or behind these GTIDs")
    ] = None,
    no_confirm: NoConfirm = False,
) -> None:
    """Let a changefeed that does not run begin anew when it is resumed."""
    if [snapshot, ts is not None, position is not None].count(True) != 1:
        raise BadOption("give one of --snapshot, --ts and --position")
    where = "with a new snapshot" if snapshot else f"at {ts or position}"
    question = f"Changefeed {changefeed_id} will begin anew {where}: changes may come again. [Y/N]"
    if not no_confirm and not _agreed(question):
        out.text("Nothing was changed.\n")
        return
    body = {"snapshot": snapshot, "commit_ts": ts, "position": position}
    server.post(*OURS, "changefeeds", changefeed_id, "reset", body=body)
    out.text(f"Reset changefeed successfully! \nID: {changefeed_id}\n")


@app.command("tables")
@connected
def tables(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    add: Annotated[
        list[str] | None, typer.Option(help="Capture these, too: db.table, db.*; may be repeated")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Capture these no more; may be repeated")
    ] = None,
) -> None:
    """Tell which tables are captured; or add or drop some, also while it runs."""
    if add and drop:
        raise BadOption("--add and --drop: one at a time")
    path = (*OURS, "changefeeds", changefeed_id)
    body = {"add": add} if add else {"drop": drop}
    page = server.post(*path, "tables", body=body) if add or drop else server.get(*path)
    rules_and_tables = {
        "rules": (page["config"].get("filter") or {}).get("rules", ["*.*"]),
        "captured": page["captured"],
    }
    rows = [("rule", rule) for rule in rules_and_tables["rules"]]
    rows += [("captured", name) for name in rules_and_tables["captured"]]
    out.answer(rules_and_tables, ("what", "name"), rows)


app.command("resnapshot")(resnapshot)
app.add_typer(quarantine, name="quarantine")


@app.command("statistics")
@connected
def statistics(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    interval: Annotated[
        float, typer.Option("-I", "--interval", help="Seconds between two lines", min=0.1)
    ] = 10,
    times: Annotated[int, typer.Option(help="How many; 0: until Ctrl-C", min=0)] = 0,
) -> None:
    """Tell again and again how far the sink is behind the source."""
    with stop_on_signal() as stop:
        done = 0
        while not times or done < times:
            if done and stop.wait(interval):
                break
            status = server.get(*API, "changefeeds", changefeed_id, "status")
            now = server.post(*API, "tso")["timestamp"]
            resolved, checkpoint = (
                physical_ms(status[key] or 0) for key in ("resolved_ts", "checkpoint_ts")
            )
            ahead = {"sink_gap": resolved, "replication_gap": now}
            # Without a checkpoint (a first snapshot is under way) there is nothing to count from.
            out.value(
                {k: f"{ts - checkpoint}ms" if checkpoint else "unknown" for k, ts in ahead.items()}
            )
            done += 1


# --- what is asked for ---------------------------------------------------------------------------


def _settings(config: Path | None) -> dict[str, Any]:
    """Return the file's content; the server does not have our files, so imports are put in."""
    return inline_rule_files(read_config(config)) if config else {}


def _absolute(uri: str, what: str) -> str:
    """Return a URI whose relative path starts here, not where the server runs."""
    parsed = Uri.parse(uri, what)
    absolute = parsed.absolute(os.getcwd(), what)
    return uri if absolute == parsed else absolute.reveal()


def _sink(uri: str, schema_registry: str | None) -> str:
    more = f"schema-registry={quote(schema_registry, safe='')}" if schema_registry else ""
    uri += ("&" if "?" in uri else "?") + more if more else ""
    return _absolute(uri, "sink")


def _checkpoint(server: Client, text: str) -> int:
    if text == "now":
        return commit_ts_now(server)
    if not text.isdecimal() or not 0 < int(text) < 1 << 63:
        raise BadOption(f"--overwrite-checkpoint-ts {text!r}: allowed: now, or a commit-ts")
    return int(text)


def _agreed(question: str) -> bool:
    answer: str = typer.prompt(question, prompt_suffix="\n")
    return answer.strip().lower() in ("y", "yes")


# --- watching -------------------------------------------------------------------------------------


def _watch(server: Client, out: Printer, changefeed: str, until_caught_up: bool) -> None:
    """Show the progress until Ctrl-C, the changefeed's end or, if asked, that it has caught up."""
    seen: Mapping[str, Any] = {}
    with stop_on_signal() as stop, FeedView(out.err) as view:
        while not stop.is_set():
            seen = server.get(*OURS, "changefeeds", changefeed)
            view.show(seen)
            if seen["state"] not in ("normal", "warning", "pending"):
                break
            if until_caught_up and _caught_up(seen):
                break
            stop.wait(_WATCH_EVERY_S)
    if seen and seen["state"] == "failed":
        raise reported_error(seen.get("error"))


def _caught_up(seen: Mapping[str, Any]) -> bool:
    lag_ms = seen.get("lag_ms")
    under_way = seen.get("snapshots") or seen.get("snapshot")
    return not under_way and lag_ms is not None and lag_ms <= CAUGHT_UP_MS
