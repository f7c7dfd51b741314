"""Error codes: unique, in their block, documented; classes say what they mean."""

from __future__ import annotations

import inspect
import re

import pytest
from source_tree import ROOT

from rowferry import errors
from rowferry.errors import BY_CODE, RowferryError, Verdict

BLOCKS = {"1": "BadInput", "2": "StateError", "3": "SourceError", "4": "SinkError"}
BLOCKS |= {"5": "EncodeError", "6": "StoreError", "7": "EngineError", "8": "ServerError"}


def wrong_errors(classes: list[type[RowferryError]], page: str) -> list[str]:
    """Return one line for each class that breaks a rule."""
    found = []
    seen: dict[str, str] = {}
    for error in classes:
        name = error.__name__
        if not re.fullmatch(r"RF-\d{4}", error.code):
            found.append(f"{name}: {error.code!r} is no code")
        if "code" not in vars(error):
            found.append(f"{name}: shares the code {error.code} with its parent")
        elif seen.setdefault(error.code, name) != name:
            found.append(f"{name}: {error.code} belongs to {seen[error.code]}")
        if not vars(error).get("__doc__"):
            found.append(f"{name}: no docstring")
        if f"| {error.code} | {name} |" not in page:
            found.append(f"{name}: docs/errors.md does not know it; run `make docs`")
    return found


def all_errors() -> list[type[RowferryError]]:
    return [
        c
        for _, c in inspect.getmembers(errors, inspect.isclass)
        if issubclass(c, RowferryError) and c.__module__ == errors.__name__
    ]


PAGE = (ROOT / "docs" / "errors.md").read_text()


def test_errors_keep_the_rules() -> None:
    assert wrong_errors(all_errors(), PAGE) == []


def test_every_error_can_be_found_by_its_code() -> None:
    assert set(BY_CODE.values()) == set(all_errors())


@pytest.mark.parametrize("error", all_errors(), ids=lambda e: e.__name__)
def test_codes_stand_in_their_block(error: type[RowferryError]) -> None:
    block = error.code[3]
    if block != "0":
        assert issubclass(error, getattr(errors, BLOCKS[block])) or error.__name__ == "DecodeError"


@pytest.mark.parametrize("error", all_errors(), ids=lambda e: e.__name__)
def test_text_becomes_the_same_error_again(error: type[RowferryError]) -> None:
    first = error("broker k1\nrefused  it")
    assert "\n" not in str(first)
    again = errors.from_text(f"Traceback …\nrowferry.errors.{error.__name__}: {first}\n")
    assert type(again) is error
    assert str(again) == str(first)
    assert error.verdict in Verdict


def test_planted_violations_are_found() -> None:
    parent = errors.RowferryError
    same_code = type("SameCode", (parent,), {"code": "RF-4001", "__doc__": "Same."})
    inherited = type("Inherited", (parent,), {"__doc__": "No code of its own."})
    silent = type("Silent", (parent,), {"code": "RF-9001", "__doc__": None})
    odd = type("Odd", (parent,), {"code": "E5", "__doc__": "Odd."})
    found = wrong_errors([errors.SinkUnavailable, same_code, inherited, silent, odd], PAGE)
    assert "SameCode: RF-4001 belongs to SinkUnavailable" in found
    assert "Inherited: shares the code RF-0000 with its parent" in found
    assert "Silent: no docstring" in found
    assert "Odd: 'E5' is no code" in found
    assert sum("docs/errors.md" in line for line in found) == 4
    for planted in (same_code, inherited, silent, odd):
        assert planted not in BY_CODE.values()
