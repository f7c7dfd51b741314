"""`rowferry apply` and `rowferry export`: changefeeds as files declare them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from rowferry.errors import BadOption
from rowferry.face.cli.options.address import given_meta
from rowferry.face.cli.options.secrets import SecretKeyFile, given_keys
from rowferry.face.cli.output import Printer, counted
from rowferry.face.cli.remote.client import Client, connected, known_changefeeds
from rowferry.spec.config_file import write_config
from rowferry.spec.declared import Declaration, declared_files, parse_declared, read_declared

if TYPE_CHECKING:
    from rowferry.control.operator.operations import Operations

_OURS: Final = ("api", "rowferry")
_SIGNS: Final = {"create": "+", "change": "~", "remove": "-", "leave": "!", "nothing": "="}
_COLOURS: Final = {"+": "green", "~": "yellow", "-": "red", "!": "magenta", "=": "dim"}
_DONE: Final = {"create": "created", "change": "changed", "remove": "removed"}
_LONGEST: Final = 200

Meta = Annotated[
    str | None,
    typer.Option(
        callback=given_meta,
        help="Work on this meta database instead of asking a server; @FILE, env:NAME",
    ),
]


@connected
def apply_command(
    server: Client,
    out: Printer,
    file: Annotated[
        list[str],
        typer.Option("-f", "--file", help="A file or a folder; - is standard input; repeatable"),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and show the difference")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove what the owner's files had declared and do no more"),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Take over changefeeds that no file, or another, looks after"),
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --dry-run: exit code 1 if there is any")
    ] = False,
    file_type: Annotated[
        str, typer.Option("--type", help="Of standard input: yaml, toml or json")
    ] = "yaml",
    meta: Meta = None,
    secret_key_file: SecretKeyFile = None,
) -> None:
    """Create, change and remove changefeeds until they are as files declare them.

    Exit code: 0 they are so, 1 some of it failed, 2 it was refused and nothing was done.
    """
    if exit_code and not dry_run:
        raise BadOption("--exit-code is for --dry-run")
    declarations = _declared(file, file_type)
    wanted = {"dry_run": dry_run, "prune": prune, "adopt": adopt}
    if meta:
        steps = _apply_here(meta, secret_key_file, declarations, wanted)
    else:
        body = {"declarations": [d.to_json() for d in declarations], **wanted}
        steps = server.post(*_OURS, "apply", body=body)["steps"]
    _show(out, steps, dry_run)
    outcomes = {step["outcome"] for step in steps}
    if "refused" in outcomes:
        raise typer.Exit(2)
    differs = any(step["action"] not in ("nothing", "leave") for step in steps)
    if "failed" in outcomes or (exit_code and differs):
        raise typer.Exit(1)


@connected
def export_command(
    server: Client,
    out: Printer,
    changefeed_id: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--changefeed-id",
            help="Only this one; repeatable",
            autocompletion=known_changefeeds,
        ),
    ] = None,
    owner: Annotated[str, typer.Option(help="Only those that this owner's files declare")] = "",
    name: Annotated[str, typer.Option("--as", help="The owner that the new file names")] = "",
    file_type: Annotated[str, typer.Option("--type", help="yaml or json")] = "yaml",
    meta: Meta = None,
    secret_key_file: SecretKeyFile = None,
) -> None:
    """Write changefeeds that exist in the form that `apply` reads, to standard output."""
    write_config({}, file_type, "--type")  # a wrong word is told before anybody is asked
    if meta:
        export = _export_here(meta, secret_key_file, changefeed_id or (), owner, name)
    else:
        query = {"changefeeds": ",".join(changefeed_id or ()), "owner": owner, "as": name}
        export = server.get(*_OURS, "export", **{k: v for k, v in query.items() if v})
    out.text(write_config(export["declaration"], file_type, "--type"))
    for place in export["hidden"]:
        out.note(
            f"{place}: its secret is not shown; write env:NAME, file:/PATH or "
            "vault:MOUNT/PATH#FIELD in the place of ***, which `apply` refuses"
        )
    for left in export["left_out"]:
        out.note(f"{left} is left out: it belongs to a subscription, which no file declares")


# --- files ---------------------------------------------------------------------------------------


def _declared(places: Sequence[str], file_type: str) -> list[Declaration]:
    folder = os.getcwd()
    if "-" not in places:
        return read_declared(declared_files(map(Path, places)), folder)
    if len(places) > 1:
        raise BadOption("-f -: standard input cannot be mixed with files")
    return parse_declared(sys.stdin.read(), file_type, "standard input", folder)


# --- without a server ----------------------------------------------------------------------------


@contextmanager
def _operations(meta: str, key_file: str | None) -> Iterator[Operations]:
    # Imported here: who asks a server need not wait for the stages of a changefeed.
    from rowferry.control.operator.operations import Operations
    from rowferry.control.store.sql_store import open_store
    from rowferry.secrets.environment import sources_of_environment

    store = open_store(meta, keys=given_keys(key_file))
    try:
        yield Operations(store, secrets=sources_of_environment())
    finally:
        store.close()


def _apply_here(
    meta: str, key_file: str | None, declarations: Sequence[Declaration], wanted: Mapping[str, bool]
) -> list[Any]:
    from rowferry.control.operator.declared.apply import ApplyRequest, apply_declared, to_json

    with _operations(meta, key_file) as operations:
        request = ApplyRequest(tuple(declarations), **wanted)
        return [to_json(step) for step in apply_declared(operations, request)]


def _export_here(
    meta: str, key_file: str | None, changefeeds: Sequence[str], owner: str, name: str
) -> Mapping[str, Any]:
    from rowferry.control.operator.declared.export import export_declared

    with _operations(meta, key_file) as operations:
        export = export_declared(operations, changefeeds, owner, name)
    return {
        "declaration": export.declaration.to_json(),
        "hidden": export.hidden,
        "left_out": export.left_out,
    }


# --- what is shown -------------------------------------------------------------------------------


def _show(out: Printer, steps: Sequence[Mapping[str, Any]], dry_run: bool) -> None:
    if out.as_json:
        out.value({"steps": steps, "dry_run": dry_run})
        return
    for step in steps:
        if step["action"] != "nothing" or step["error"]:
            _show_step(out, step)
    refused = any(step["outcome"] == "refused" for step in steps)
    out.out.print(Text(_sum(steps, dry_run, refused)), soft_wrap=True)


def _show_step(out: Printer, step: Mapping[str, Any]) -> None:
    sign = _SIGNS[step["action"]]
    head = Text.assemble((f"{sign} {step['changefeed']}", f"bold {_COLOURS[sign]}"))
    head.append(f"  {_words(step)}", "dim")
    out.out.print(head, soft_wrap=True)
    for one in step["differences"]:
        line = f"    {one['key']}: "
        if step["action"] == "create":
            line += _value(one["after"])
        else:
            line += f"{_value(one['before'])} -> {_value(one['after'])}"
        out.out.print(Text(line), soft_wrap=True)
    if step["tables"]:
        names = ", ".join(step["tables"][:20])
        more = len(step["tables"]) - 20
        out.out.print(Text(f"    tables: {names}" + (f", and {more} more" if more > 0 else "")))
    for notice in step["notices"]:
        out.out.print(Text(f"    note: {notice}", "dim"), soft_wrap=True)
    if step["error"]:
        error = step["error"]
        out.out.print(Text(f"    [{error['code']}] {error['message']}", "red"), soft_wrap=True)


def _words(step: Mapping[str, Any]) -> str:
    action, outcome = step["action"], step["outcome"]
    if outcome == "done":
        return _DONE[action]
    if outcome != "planned":
        return f"{outcome}: nothing was done" if outcome == "refused" else "failed"
    if action == "leave":
        return f"not declared by {step['owner']} any more; --prune removes it"
    return {"create": "to create", "change": "to change", "remove": "to remove"}[action]


def _value(value: Any) -> str:
    if value is None:
        return "(default)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _sum(steps: Sequence[Mapping[str, Any]], dry_run: bool, refused: bool) -> str:
    def count(action: str, outcome: str) -> int:
        return sum(s["action"] == action and s["outcome"] == outcome for s in steps)

    same = counted(count("nothing", "planned"), "changefeed") + " as declared"
    if dry_run or refused:
        parts = [f"{count(a, 'planned')} to {a}" for a in _DONE]
        lead = "refused, nothing was done: " if refused else ""
        wrong = sum(s["outcome"] == "refused" for s in steps)
        return lead + ", ".join([*parts, same, *([f"{wrong} wrong"] if wrong else [])])
    parts = [f"{count(a, 'done')} {word}" for a, word in _DONE.items()]
    failed = sum(s["outcome"] == "failed" for s in steps)
    return ", ".join([*parts, same, *([f"{failed} FAILED"] if failed else [])])
