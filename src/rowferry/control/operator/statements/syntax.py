"""SQL statements about changefeeds: text in, one frozen value for each statement out. Pure.

    CREATE CHANGEFEED x FOR TABLE a.b, c.* FROM 'source' INTO 'sink' WITH (key = value, …)
    EXPLAIN CREATE CHANGEFEED …
    ALTER CHANGEFEED x SET (key = value, …) | ADD TABLE … | DROP TABLE …
    ALTER CHANGEFEED x RESET TO SNAPSHOT | TS n | POSITION '…'
    ALTER CHANGEFEED x RESNAPSHOT TABLE a.b [KEYS 'first..last'] [WHERE 'expression']
    ALTER CHANGEFEED x CANCEL RESNAPSHOT 'id'                      SHOW CHANGEFEED x RESNAPSHOTS
    ALTER CHANGEFEED x RETRY | DROP QUARANTINE [TABLE a.b [KEY 'key']]
    SHOW CHANGEFEED x QUARANTINE
    PAUSE CHANGEFEED x        RESUME CHANGEFEED x [FROM TS n]      DROP CHANGEFEED [IF EXISTS] x
    SHOW [ALL] CHANGEFEEDS    SHOW CHANGEFEED x                    SHOW CHANGEFEED x PROGRESS
    SHOW CHANGEFEED x TABLES  SHOW CHANGEFEED x SCHEMA CHANGES     SHOW CHANGEFEED x LOG
    SHOW CHANGEFEED x SAMPLE
    [EXPLAIN] APPLY 'declaration' [WITH PRUNE, ADOPT]
    EXPORT CHANGEFEEDS | CHANGEFEED x [AS 'owner']

Words count in any case. 'Text' is taken as it stands ('' is one quote); "text" is a JSON string
with its escapes. A value is a text, a number, TRUE, FALSE, NULL (or DEFAULT), a bare word such as
csv, 5s or 64MiB, or a JSON list or object of such values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

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
    Setting,
    ShowChangefeed,
    ShowChangefeeds,
    ShowOfChangefeed,
    ShowResnapshots,
    Statement,
    TraceRow,
)
from rowferry.control.operator.statements.tokens import StatementToken, TokenKind, tokens
from rowferry.errors import BadStatement

_DEEPEST: Final = 32  # lists and objects inside one another


def parse(text: str) -> Statement:
    """Return the one statement that `text` holds; a semicolon may end it.

    Raises:
        BadStatement: one line that names the word, its place, and what was expected there.
    """
    return _Parser(text).statement()


@dataclass(slots=True)
class _Parser:
    text: str
    _tokens: list[StatementToken] = field(init=False)
    _at: int = 0

    def __post_init__(self) -> None:
        self._tokens = list(tokens(self.text))

    def statement(self) -> Statement:
        verbs: dict[str, Callable[[], Statement]] = {
            "CREATE": self._create,
            "EXPLAIN": self._explain,
            "ALTER": self._alter,
            "PAUSE": lambda: Pause(self._changefeed()),
            "RESUME": self._resume,
            "DROP": self._drop,
            "SHOW": self._show,
            "TRACE": self._trace,
            "APPLY": self._apply,
            "EXPORT": self._export,
        }
        statement = verbs[self._word(*verbs)]()
        self._symbol_if(";")
        if self._now.kind is not TokenKind.END:
            more = "" if self._before.text != ";" else "; one statement is carried out at a time"
            self._refuse(f"expected the end, found {self._now.shown}{more}")
        return statement

    def _create(self) -> CreateChangefeed:
        self._word("CHANGEFEED")
        begins_clause = self._is_word("FOR", "FROM") and not self._is_word_at(1, "FOR", "FROM")
        name = None if begins_clause else self._name()
        tables = self._patterns() if self._word("FOR", "FROM") == "FOR" else ()
        if tables:
            self._word("FROM")
        source = self._string("the source's URI in quotes")
        self._word("INTO")
        sink = self._string("the sink's URI in quotes")
        settings = self._settings() if self._word_if("WITH") else ()
        return CreateChangefeed(name, tables, source, sink, settings)

    def _explain(self) -> CreateChangefeed | ApplyText:
        if self._word("CREATE", "APPLY") == "APPLY":
            return self._apply(explain=True)
        made = self._create()
        return CreateChangefeed(
            made.name, made.tables, made.source, made.sink, made.settings, explain=True
        )

    def _apply(self, explain: bool = False) -> ApplyText:
        text = self._string("a declaration in quotes")
        how: list[str] = []
        if self._word_if("WITH"):
            how.append(self._word("PRUNE", "ADOPT"))
            if self._symbol_if(","):
                how.append(self._word(*({"PRUNE", "ADOPT"} - set(how))))
        return ApplyText(text, "PRUNE" in how, "ADOPT" in how, explain)

    def _export(self) -> ExportText:
        one = self._word("CHANGEFEEDS", "CHANGEFEED") == "CHANGEFEED"
        name = self._name() if one else ""
        return ExportText(name, self._string("an owner in quotes") if self._word_if("AS") else "")

    def _alter(self) -> Statement:
        name = self._changefeed()
        match self._word("SET", "ADD", "DROP", "RESET", "RESNAPSHOT", "CANCEL", "RETRY"):
            case "SET":
                return SetOptions(name, self._settings())
            case "ADD":
                return AddTables(name, self._patterns())
            case "DROP" if not self._is_word("QUARANTINE"):
                return DropTables(name, self._patterns())
            case ("DROP" | "RETRY") as verb:
                return self._parked(name, verb.lower())
            case "RESNAPSHOT":
                return self._resnapshot(name)
            case "CANCEL":
                self._word("RESNAPSHOT")
                return CancelResnapshot(name, self._string("its id in quotes"))
        self._word("TO")
        match self._word("SNAPSHOT", "TS", "POSITION"):
            case "SNAPSHOT":
                return Reset(name, snapshot=True)
            case "TS":
                return Reset(name, commit_ts=self._commit_ts())
        return Reset(name, position=self._string("FILE:OFFSET or GTIDs in quotes"))

    def _resnapshot(self, name: str) -> ResnapshotTable:
        self._word("TABLE")
        table = self._pattern()
        keys = self._string("FIRST..LAST in quotes") if self._word_if("KEYS") else ""
        where = self._string("an expression in quotes") if self._word_if("WHERE") else ""
        return ResnapshotTable(name, table, keys, where)

    def _trace(self) -> TraceRow:
        name = self._changefeed()
        self._word("TABLE")
        table = self._pattern()
        self._word("KEY")
        key = tuple((".".join(path), self._key_text(value)) for path, value in self._settings())
        since = self._moment() if self._word_if("SINCE") else ""
        until = self._moment() if self._word_if("UNTIL") else ""
        limit = self._commit_ts("how many") if self._word_if("LIMIT") else None
        log = values = False
        if self._word_if("WITH"):
            log = self._word("LOG", "VALUES") == "LOG"
            values = not log or (self._symbol_if(",") and self._word("VALUES") == "VALUES")
        return TraceRow(name, table, key, since, until, limit, log, values)

    def _key_text(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._refuse("expected a number, or a text in quotes", self._before)
        return str(value)

    def _moment(self) -> str:
        """Read a commit-ts, or a time in quotes."""
        if self._now.kind is TokenKind.TEXT:
            return self._string("a time in quotes")
        return str(self._commit_ts("a commit-ts, or a time in quotes"))

    def _parked(self, name: str, verb: str) -> ParkedRows:
        self._word("QUARANTINE")
        table = self._pattern() if self._word_if("TABLE") else ""
        key = self._string("a key in quotes") if table and self._word_if("KEY") else ""
        return ParkedRows(name, verb, table, key)

    def _resume(self) -> Resume:
        name = self._changefeed()
        if not self._word_if("FROM"):
            return Resume(name)
        self._word("TS")
        return Resume(name, self._commit_ts())

    def _drop(self) -> Drop:
        self._word("CHANGEFEED")
        # `IF` may also be the name of one.
        if_exists = self._is_word("IF") and self._is_word_at(1, "EXISTS")
        if if_exists:
            self._at += 2
        return Drop(self._name(), if_exists)

    def _show(self) -> Statement:
        match self._word("ALL", "CHANGEFEEDS", "CHANGEFEED"):
            case "ALL":
                self._word("CHANGEFEEDS")
                return ShowChangefeeds(every=True)
            case "CHANGEFEEDS":
                return ShowChangefeeds()
        name = self._name()
        for what in ("TABLES", "LOG"):
            if self._word_if(what):
                return ShowOfChangefeed(name, what.lower())
        if self._word_if("SCHEMA"):
            self._word("CHANGES")
            return ShowOfChangefeed(name, "schema changes")
        if self._word_if("SAMPLE"):
            return ShowOfChangefeed(name, "sample")
        if self._word_if("RESNAPSHOTS"):
            return ShowResnapshots(name)
        if self._word_if("QUARANTINE"):
            return ParkedRows(name)
        return ShowChangefeed(name, progress=self._word_if("PROGRESS"))

    # --- parts of statements ---------------------------------------------------------------------

    def _changefeed(self) -> str:
        self._word("CHANGEFEED")
        return self._name()

    def _name(self) -> str:
        token = self._now
        if token.kind not in (TokenKind.WORD, TokenKind.NUMBER, TokenKind.QUOTED):
            self._expected("the changefeed's name")
        self._at += 1
        return token.text[1:-1].replace("``", "`") if token.kind is TokenKind.QUOTED else token.text

    def _patterns(self) -> tuple[str, ...]:
        """Read `TABLE a.b, c.*, !c.d, '/regex/.*'`: table filter rules, those in quotes as is."""
        self._word("TABLE", "TABLES")
        patterns = [self._pattern()]
        while self._symbol_if(","):
            patterns.append(self._pattern())
        return tuple(patterns)

    def _pattern(self) -> str:
        first = self._now
        if first.kind is TokenKind.TEXT and not self._dotted(first):
            return self._string("a table")
        last = None
        while (token := self._now).kind is not TokenKind.END and not (
            token.kind is TokenKind.SYMBOL and token.text in ",;()"
        ):
            if token.kind is TokenKind.UNFINISHED or (last and token.start != last.end):
                break
            last = token
            self._at += 1
        if last is None:
            self._expected("a table such as db.name or db.*")
        return self.text[first.start : last.end]

    def _dotted(self, token: StatementToken) -> bool:
        """Return whether a quoted text is the first half of `"db"."table"`."""
        return self.text[token.end : token.end + 1] == "."

    def _settings(self) -> tuple[Setting, ...]:
        self._symbol("(")
        settings: dict[tuple[str, ...], Any] = {}
        while True:
            place = self._now
            path = self._key()
            if len(path) > _DEEPEST:
                self._refuse(f"a key has more than {_DEEPEST} parts", place)
            if path in settings:
                self._refuse(f"{'.'.join(path)} is given twice", place)
            self._symbol("=")
            settings[path] = self._value(0)
            if not self._symbol_if(","):
                break
        self._symbol(")", "or a comma")
        return tuple(settings.items())

    def _key(self) -> tuple[str, ...]:
        """Read `sink.csv.delimiter`, the whole in quotes or not."""
        if self._now.kind is TokenKind.TEXT:
            path = tuple(self._string("a key").split("."))
            if not all(path):
                self._refuse("expected a key such as 'sink.protocol'", self._before)
            return path
        parts = [self._key_part()]
        while self._symbol_if("."):
            parts.append(self._key_part())
        return tuple(parts)

    def _key_part(self) -> str:
        if self._now.kind is not TokenKind.WORD:
            self._expected("a key such as sink.protocol")
        self._at += 1
        return self._before.text

    def _value(self, depth: int) -> Any:
        token = self._now
        if depth > _DEEPEST:
            self._refuse(f"lists and objects stand in one another more than {_DEEPEST} deep")
        match token.kind:
            case TokenKind.TEXT:
                return self._string("a value")
            case TokenKind.NUMBER:
                self._at += 1
                return float(token.text) if "." in token.text else int(token.text)
            case TokenKind.WORD:
                self._at += 1
                plain = {"TRUE": True, "FALSE": False, "NULL": None, "DEFAULT": None}
                return plain.get(token.text.upper(), token.text)
        if self._symbol_if("["):
            return self._items("]", lambda: self._value(depth + 1))
        if self._symbol_if("{"):
            return self._object(depth)
        self._expected("a value")

    def _object(self, depth: int) -> dict[str, Any]:
        def pair() -> tuple[str, Any]:
            key = self._string("a key in quotes")
            self._symbol(":")
            return key, self._value(depth + 1)

        place = self._before
        pairs = self._items("}", pair)
        if len(dict(pairs)) < len(pairs):
            self._refuse("a key of this object is given twice", place)
        return dict(pairs)

    def _items(self, end: str, item: Callable[[], Any]) -> list[Any]:
        items: list[Any] = []
        if self._symbol_if(end):
            return items
        while True:
            items.append(item())
            if not self._symbol_if(","):
                self._symbol(end, "or a comma")
                return items

    def _string(self, what: str) -> str:
        token = self._now
        if token.kind is not TokenKind.TEXT:
            self._expected(what)
        self._at += 1
        if token.text[0] == "'":
            return token.text[1:-1].replace("''", "'")
        try:
            return str(json.loads(token.text, strict=False))
        except ValueError:
            self._refuse("a text in double quotes has an escape that JSON does not know", token)

    def _commit_ts(self, what: str = "a commit-ts") -> int:
        token = self._now
        if token.kind is not TokenKind.NUMBER or not token.text.isdecimal() or not int(token.text):
            self._expected(f"{what}, a positive whole number")
        self._at += 1
        return int(token.text)

    # --- tokens ----------------------------------------------------------------------------------

    @property
    def _now(self) -> StatementToken:
        return self._tokens[self._at]

    @property
    def _before(self) -> StatementToken:
        return self._tokens[self._at - 1]

    def _is_word_at(self, ahead: int, *words: str) -> bool:
        token = self._tokens[min(self._at + ahead, len(self._tokens) - 1)]
        return token.kind is TokenKind.WORD and token.text.upper() in words

    def _is_word(self, *words: str) -> bool:
        return self._is_word_at(0, *words)

    def _word(self, *words: str) -> str:
        if not self._is_word(*words):
            self._expected(" or ".join(filter(None, [", ".join(words[:-1]), words[-1]])))
        self._at += 1
        return self._before.text.upper()

    def _word_if(self, word: str) -> bool:
        if not self._is_word(word):
            return False
        self._at += 1
        return True

    def _symbol_if(self, symbol: str) -> bool:
        if self._now.kind is not TokenKind.SYMBOL or self._now.text != symbol:
            return False
        self._at += 1
        return True

    def _symbol(self, symbol: str, more: str = "") -> None:
        if not self._symbol_if(symbol):
            self._expected(f"{symbol!r} {more}".strip())

    def _expected(self, what: str) -> NoReturn:
        self._refuse(f"expected {what}, found {self._now.shown}")

    def _refuse(self, words: str, token: StatementToken | None = None) -> NoReturn:
        start = (token or self._now).start
        line = self.text.count("\n", 0, start) + 1
        column = start - (self.text.rfind("\n", 0, start) + 1) + 1
        raise BadStatement(f"line {line}, column {column}: {words}")
