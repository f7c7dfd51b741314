"""Compiled replacements are those of RE2, for whatever patterns and texts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rowferry.flow.decide.pattern_kernels import compiled_replacement

LETTERS = "abcz19_ -@.,é漢😀\n"
PLAIN = ("a", "b", "c", "z", "1", "9", "_", " ", "-", "@", r"\.", ",", "é", "漢", "😀", r"\n")
SETS = (r"\d", r"\w", r"\s", r"\D", r"\W", r"\S")
MEMBERS = (*PLAIN, *SETS, "a-c", "0-9", "b-é", "é-漢", "漢-😀", r"\--a", r"\]", "^", "é-ü")
COUNTS = ("*", "+", "?", "{2}", "{0,2}", "{1,3}", "{0}", "{2,}", "{0,}")
SOLID_COUNTS = ("+", "{2}", "{1,3}", "{2,}")

lazy = st.sampled_from(("", "", "?"))
checks = st.sampled_from(("^", "$", r"\A", r"\z", r"\b"))
classes = st.builds(
    lambda no, first, members, last: f"[{no}{first}{''.join(members)}{last}]",
    st.sampled_from(("", "^")),
    st.sampled_from(("", "", "-")),
    st.lists(st.sampled_from([m for m in MEMBERS if m not in ("-", "^")]), min_size=1, max_size=3),
    st.sampled_from(("", "", "-", "^")),
)
characters = st.sampled_from((*PLAIN, *SETS, ".", "a", "b")) | classes
groups = st.sampled_from(("(", "(?:"))


def joined(kind: str, parts: list[str], between: str) -> str:
    return f"{kind}{between.join(parts)})"


def larger(solid: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Parts that match no empty text, of such parts."""
    row = st.builds(
        lambda before, part, after: before + part + after,
        st.just("") | checks | st.builds(str.__add__, solid, st.sampled_from(("?", "*"))),
        solid,
        st.just("") | checks | st.builds(str.__add__, solid, st.sampled_from(("?", "*?"))),
    )
    return (
        st.builds(joined, groups, st.lists(row, min_size=1, max_size=2), st.just(""))
        | st.builds(joined, groups, st.lists(row, min_size=2, max_size=3), st.just("|"))
        | st.builds("(?:{}{}{})".format, solid, st.sampled_from(SOLID_COUNTS), lazy)
    )


solids = st.recursive(characters, larger, max_leaves=4)
pieces = (
    solids
    | checks
    | st.builds("{}{}{}".format, solids, st.sampled_from(COUNTS), lazy)
    | st.builds("(|{})".format, solids)
)
patterns = st.builds(
    lambda flag, rows: flag + "|".join(map("".join, rows)),
    st.sampled_from(("", "", "(?s)")),
    st.lists(st.lists(pieces, max_size=4), min_size=1, max_size=3),
)
texts = st.lists(st.none() | st.text(LETTERS, max_size=12), max_size=12)


@settings(max_examples=500)
@given(
    st.lists(patterns, min_size=4, max_size=4),
    texts,
    st.text(LETTERS, max_size=3),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_compiled_replacements_are_those_of_re2(
    several: list[str], values: list[str | None], new: str, start: int, length: int
) -> None:
    compiled = {pattern: compiled_replacement(pattern, new) for pattern in several}
    assume(all(compiled.values()))  # else nothing would be compared
    whole = pa.array(values, pa.large_utf8())
    for part in (whole, whole.slice(start, length)):
        for pattern, replacement in compiled.items():
            assert replacement is not None
            result = replacement.of(part)
            assert result is not None
            result.validate(full=True)
            wanted = pc.replace_substring_regex(part, pattern=pattern, replacement=new)
            assert result.equals(wanted), (pattern, part, result, wanted)
