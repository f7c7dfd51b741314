"""What operators may say about single DDLs that a downstream database cannot run as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowferry.errors import OptionsConflict
from rowferry.spec.option import OptionShape, texts


def replacements() -> OptionShape[tuple[str, ...]]:
    """Return the shape of a list of statements, each behind the commit-ts of a DDL."""

    def parse(value: Any) -> tuple[str, ...]:
        given = texts().parse(value)
        for one in given:
            at, _, statement = one.strip().partition(" ")
            if not at.isdecimal() or not statement.strip():
                raise ValueError("each is a commit-ts, a space and the statement to run instead")
        return given

    return OptionShape('a list such as ["<commit-ts> ALTER TABLE …"]', parse, kind="texts")


def commit_stamps() -> OptionShape[tuple[str, ...]]:
    """Return the shape of a list of DDLs' commit-ts."""

    def parse(value: Any) -> tuple[str, ...]:
        given = [str(v) if type(v) is int else v for v in value] if type(value) is list else value
        stamps = texts().parse(given)
        if not all(one.isdecimal() for one in stamps):
            raise ValueError("each is the commit-ts of a DDL")
        return stamps

    return OptionShape('a list of commit-ts such as ["433305438660591626"]', parse, kind="texts")


def replaced_ddl(skipped: Sequence[str], replaced: Sequence[str]) -> dict[int, str]:
    """Return, by commit-ts, what to run instead of a DDL ("": nothing).

    Raises:
        OptionsConflict: a DDL is named twice.
    """
    choices = {int(at): "" for at in skipped}
    for one in replaced:
        at, _, statement = one.strip().partition(" ")
        if int(at) in choices:
            raise OptionsConflict(f"the DDL of commit-ts {at} is named twice; skip or replace it")
        choices[int(at)] = statement.strip()
    return choices
