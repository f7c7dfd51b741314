"""Statements about changefeeds as files declare them: APPLY and EXPORT."""

from __future__ import annotations

import json
from typing import Any, Final

from rowferry.control.operator.declared.apply import (
    Action,
    ApplyRequest,
    Outcome,
    Step,
    apply_declared,
)
from rowferry.control.operator.declared.export import export_declared
from rowferry.control.operator.operations import Operations
from rowferry.control.operator.statements.parsed import ApplyText, ExportText
from rowferry.spec.config_file import parse_config, write_config
from rowferry.spec.declared import read_declaration

# The column whose text is a file: where secrets would stand it has references, or stars.
DECLARATION: Final = "declaration"
_STEPS: Final = ("changefeed", "action", "outcome", "setting", "before", "after", "error")
_YAML: Final = "yaml"


def applied(operations: Operations, asked: ApplyText) -> tuple[Any, Any, str]:
    """Return columns, rows and words of what was done, or with `explain` would be."""
    content = parse_config(asked.text, _YAML, DECLARATION)
    declared = read_declaration(content, DECLARATION)
    request = ApplyRequest((declared,), asked.explain, asked.prune, asked.adopt)
    steps = apply_declared(operations, request)
    rows = tuple(row for step in steps for row in _rows(step))
    refused = sum(step.outcome is Outcome.REFUSED for step in steps)
    left = sum(step.action in (Action.NOTHING, Action.LEAVE) for step in steps)
    words = f"{len(steps) - left} of {len(steps)} changefeeds differ"
    if refused:
        words += f"; {refused} refused, nothing was done"
    elif asked.explain:
        words += "; nothing was changed"
    return _STEPS, rows, words


def _rows(step: Step) -> list[tuple[Any, ...]]:
    head = (step.changefeed, str(step.action), str(step.outcome))
    error = None if step.error is None else str(step.error)
    changes: list[tuple[str | None, ...]]
    changes = [(one.key, _cell(one.before), _cell(one.after)) for one in step.differences]
    return [(*head, *one, error) for one in changes or [(None, None, None)]]


def _cell(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def exported(operations: Operations, asked: ExportText) -> tuple[Any, Any, str]:
    """Return a file that declares one changefeed, or all, and words about it."""
    names = [asked.name] if asked.name else []
    export = export_declared(operations, names, name=asked.owner)
    text = write_config(export.declaration.to_json(), _YAML, DECLARATION)
    words = f"{len(export.declaration.feeds)} changefeeds"
    if export.hidden:
        words += f"; *** stands in the place of secrets: {', '.join(export.hidden)}"
    if export.left_out:
        words += f"; left out, as subscriptions: {', '.join(export.left_out)}"
    return (DECLARATION,), ((text,),), words
