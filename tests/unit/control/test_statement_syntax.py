"""The grammar of statements about changefeeds: what they mean, and what a slip is told."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.control.operator.statements.parsed import (
    AddTables,
    ApplyText,
    CancelResnapshot,
    CreateChangefeed,
    Drop,
    DropTables,
    ExportText,
    ParkedRows,
    Pause,
    Reset,
    ResnapshotTable,
    Resume,
    SetOptions,
    ShowChangefeed,
    ShowChangefeeds,
    ShowResnapshots,
    Statement,
    TraceRow,
)
from rowferry.control.operator.statements.syntax import parse
from rowferry.control.operator.statements.tokens import split
from rowferry.errors import BadStatement


def create(**given: Any) -> CreateChangefeed:
    made: dict[str, Any] = {"name": "x", "tables": (), "source": "s://", "sink": "t://"}
    return CreateChangefeed(**(made | given))


VALUES_OF_A_ROW = TraceRow("x", "a.b", (("id", "5"),), values=True)
ENDS = "FROM 's://' INTO 't://'"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (f"CREATE CHANGEFEED x {ENDS}", create()),
        (f"create changefeed {ENDS};", create(name=None)),
        (f"CREATE CHANGEFEED from {ENDS}", create(name="from")),
        (f"CREATE CHANGEFEED 3f-a1 {ENDS}", create(name="3f-a1")),
        (f"CREATE CHANGEFEED 2024 {ENDS}", create(name="2024")),
        (f"CREATE CHANGEFEED `a b` {ENDS}", create(name="a b")),
        (
            f"CREATE CHANGEFEED x FOR TABLE a.b, c.*, !c.d?, `m y`.`t``1`, '/r,x/.*' {ENDS}",
            create(tables=("a.b", "c.*", "!c.d?", "`m y`.`t``1`", "/r,x/.*")),
        ),
        (f'CREATE CHANGEFEED x FOR TABLE "a b".t[0-9] {ENDS}', create(tables=('"a b".t[0-9]',))),
        (f"EXPLAIN CREATE CHANGEFEED x {ENDS}", create(explain=True)),
        (
            "-- why\nCREATE /* not; this */ CHANGEFEED x # nor this\n FROM 'it''s' INTO \"t\\t\"",
            create(source="it's", sink="t\t"),
        ),
        ("ALTER CHANGEFEED x ADD TABLE a.b, c.d", AddTables("x", ("a.b", "c.d"))),
        ("ALTER CHANGEFEED x DROP TABLES a.*", DropTables("x", ("a.*",))),
        ("ALTER CHANGEFEED x RESET TO SNAPSHOT", Reset("x", snapshot=True)),
        ("ALTER CHANGEFEED x RESET TO TS 470479394591473664", Reset("x", 470479394591473664)),
        ("ALTER CHANGEFEED x RESET TO POSITION 'b.1:4'", Reset("x", position="b.1:4")),
        ("ALTER CHANGEFEED x RESNAPSHOT TABLE a.b", ResnapshotTable("x", "a.b")),
        (
            "alter changefeed x resnapshot table `a`.b keys '1..2' where 'n = ''one''';",
            ResnapshotTable("x", "`a`.b", "1..2", "n = 'one'"),
        ),
        ("ALTER CHANGEFEED x CANCEL RESNAPSHOT '7'", CancelResnapshot("x", "7")),
        ("SHOW CHANGEFEED x RESNAPSHOTS", ShowResnapshots("x")),
        (
            "TRACE CHANGEFEED x TABLE a.b KEY (id = 5)",
            TraceRow("x", "a.b", (("id", "5"),)),
        ),
        (
            "trace changefeed x table `a`.b key (a = 'it''s', b = -7) since 465500000000000000 "
            "until '2026-01-01' limit 3 with log, values",
            TraceRow(
                *("x", "`a`.b", (("a", "it's"), ("b", "-7"))),
                *("465500000000000000", "2026-01-01", 3, True, True),
            ),
        ),
        ("TRACE CHANGEFEED x TABLE a.b KEY (id = 5) WITH VALUES", VALUES_OF_A_ROW),
        ("SHOW CHANGEFEED x QUARANTINE", ParkedRows("x")),
        ("ALTER CHANGEFEED x RETRY QUARANTINE", ParkedRows("x", "retry")),
        (
            "ALTER CHANGEFEED x RETRY QUARANTINE TABLE a.b KEY '7,it''s'",
            ParkedRows("x", "retry", "a.b", "7,it's"),
        ),
        ("alter changefeed x drop quarantine table a.b", ParkedRows("x", "drop", "a.b")),
        ("PAUSE CHANGEFEED x", Pause("x")),
        ("RESUME CHANGEFEED x", Resume("x")),
        ("RESUME CHANGEFEED x FROM TS 5", Resume("x", 5)),
        ("DROP CHANGEFEED x", Drop("x")),
        ("DROP CHANGEFEED IF EXISTS x", Drop("x", if_exists=True)),
        ("DROP CHANGEFEED if", Drop("if")),
        ("SHOW CHANGEFEEDS", ShowChangefeeds()),
        ("SHOW ALL CHANGEFEEDS", ShowChangefeeds(every=True)),
        ("SHOW CHANGEFEED x", ShowChangefeed("x")),
        ("SHOW CHANGEFEED x PROGRESS", ShowChangefeed("x", progress=True)),
        ("SHOW CHANGEFEED progress", ShowChangefeed("progress")),
        ("APPLY 'owner: a'", ApplyText("owner: a")),
        ("APPLY 'a' WITH PRUNE", ApplyText("a", prune=True)),
        ("APPLY 'a' WITH ADOPT, PRUNE;", ApplyText("a", prune=True, adopt=True)),
        ("EXPLAIN APPLY 'a' WITH ADOPT", ApplyText("a", adopt=True, explain=True)),
        ("EXPORT CHANGEFEEDS", ExportText()),
        ("EXPORT CHANGEFEED x AS 'team'", ExportText("x", "team")),
    ],
)
def test_statements_mean(text: str, meant: Statement) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("csv", "csv"),
        ("canal-json", "canal-json"),
        ("5s", "5s"),
        ("64MiB", "64MiB"),
        ("7", 7),
        ("-7", -7),
        ("1.5", 1.5),
        ("9" * 5000, "9" * 5000),
        ("TRUE", True),
        ("false", False),
        ("NULL", None),
        ("DEFAULT", None),
        ("'\\N'", "\\N"),
        ('"\\t\\u00e9"', "\té"),
        ("[]", []),
        ("['a', \"b\", 3]", ["a", "b", 3]),
        ("{}", {}),
        ("[{'matcher': ['a.*'], 'partition': ts}]", [{"matcher": ["a.*"], "partition": "ts"}]),
    ],
)
def test_values(written: str, value: Any) -> None:
    found = parse(f"ALTER CHANGEFEED x SET (sink.csv.null = {written}, 'a.b' = 1)")
    assert found == SetOptions("x", ((("sink", "csv", "null"), value), (("a", "b"), 1)))
    assert isinstance(found, SetOptions)
    assert type(found.settings[0][1]) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "",
            "line 1, column 1: expected CREATE, EXPLAIN, ALTER, PAUSE, RESUME, DROP, SHOW, TRACE, "
            "APPLY or EXPORT",
        ),
        ("SELECT 1", "line 1, column 1: .* found 'SELECT'"),
        ("PAUSE\n  CHANGFEED x", "line 2, column 3: expected CHANGEFEED, found 'CHANGFEED'"),
        ("PAUSE CHANGEFEED", "column 17: expected the changefeed's name, found the end"),
        ("PAUSE CHANGEFEED x y", "column 20: expected the end, found 'y'"),
        ("PAUSE CHANGEFEED x; DROP CHANGEFEED x", "found 'DROP'; one statement .* at a time"),
        ("CREATE CHANGEFEED x FROM s INTO t", "expected the source's URI in quotes, found 's'"),
        ("CREATE CHANGEFEED x FROM 's'", "expected INTO, found the end"),
        ("CREATE CHANGEFEED x FOR TABLE FROM 's'", "column 36: expected FROM, found a text"),
        ("CREATE CHANGEFEED x FOR TABLE , a.b", "expected a table such as db.name or db"),
        ("CREATE CHANGEFEED x FOR TABLE a. b FROM 's'", "expected FROM, found 'b'"),
        ("CREATE CHANGEFEED x FROM 's", "found quotes or a comment without an end"),
        ("PAUSE CHANGEFEED /* x", "found quotes or a comment without an end"),
        ("ALTER CHANGEFEED x SET ()", "expected a key such as sink.protocol, found"),
        ("ALTER CHANGEFEED x SET (a.b = 1, 'a.b' = 2)", "column 34: a.b is given twice"),
        ("ALTER CHANGEFEED x SET (a 1)", "expected '=', found '1'"),
        ("ALTER CHANGEFEED x SET (a = )", "expected a value, found '\\)'"),
        ("ALTER CHANGEFEED x SET (a = 1 b = 2)", "expected '\\)' or a comma, found 'b'"),
        ("ALTER CHANGEFEED x SET (a = [1 2])", "expected ']' or a comma"),
        ("ALTER CHANGEFEED x SET (a = {b: 1})", "expected a key in quotes"),
        ("ALTER CHANGEFEED x SET (a = {'b': 1, 'b': 2})", "is given twice"),
        ("ALTER CHANGEFEED x SET ('a..b' = 1)", "expected a key such as"),
        ("ALTER CHANGEFEED x SET (a = " + "[" * 100_000, "more than 32 deep"),
        ('ALTER CHANGEFEED x SET (a = "\\q")', "an escape that JSON does not know"),
        ("ALTER CHANGEFEED x RESET TO TS 0", "expected a commit-ts.* found '0'"),
        ("ALTER CHANGEFEED x RESET TO TS -5", "expected a commit-ts"),
        ("ALTER CHANGEFEED x RESET SNAPSHOT", "expected TO, found 'SNAPSHOT'"),
        (
            "ALTER CHANGEFEED x RENAME",
            "expected SET, ADD, DROP, RESET, RESNAPSHOT, CANCEL or RETRY, found 'RENAME'",
        ),
        ("APPLY owner", "expected a declaration in quotes, found 'owner'"),
        ("APPLY 'a' WITH PRUNE, PRUNE", "expected ADOPT, found 'PRUNE'"),
        ("EXPORT x", "expected CHANGEFEEDS or CHANGEFEED, found 'x'"),
        ("SHOW TABLES", "expected ALL, CHANGEFEEDS or CHANGEFEED, found 'TABLES'"),
        ("PAUSE CHANGEFEED " + "x" * 500 + " y" * 2, "expected the end"),
    ],
)
def test_a_slip_is_told_with_its_place(text: str, words: str) -> None:
    with pytest.raises(BadStatement, match=words) as told:
        parse(text)
    assert len(told.value.words) < 300


def test_texts_in_quotes_are_never_repeated() -> None:
    with pytest.raises(BadStatement) as told:
        parse("CREATE CHANGEFEED x FROM 'a' 'mysql://me:hush@h'")
    assert "hush" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "complete", "rest"),
    [
        ("", (), ""),
        (" ; ;\n", (), ""),
        ("a b;", ("a b",), ""),
        ("a; b", ("a",), "b"),
        ("a ';' b; `;`;\n-- c;\n/* d; */", ("a ';' b", "`;`"), ""),
        ("a; b 'c;\n", ("a",), "b 'c;\n"),
        ("a; /* b;", ("a",), "/* b;"),
    ],
)
def test_texts_are_split_at_semicolons(text: str, complete: tuple[str, ...], rest: str) -> None:
    assert split(text) == (complete, rest)
