"""Topic expressions: fixed text with `{schema}` and `{table}` in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rowferry.change.table import TableId
from rowferry.errors import BadDispatchRule

LONGEST: Final = 249  # bytes of a topic's name
_STATIC: Final = re.compile(r"[A-Za-z0-9._-]+")
_PLAIN: Final = r"[A-Za-z0-9._-]*"
_DYNAMIC: Final = re.compile(rf"{_PLAIN}(\{{schema\}})?({_PLAIN}\{{table\}})?{_PLAIN}")
_BOTH: Final = re.compile(rf"{_PLAIN}\{{schema\}}{_PLAIN}\{{table\}}{_PLAIN}")
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]")
_SLASHES: Final = re.compile(r"[:/]")
_DOTS: Final = {".": "_", "..": "__"}


def wrong_topic(name: str) -> str:
    """Return what is wrong with a topic's name; "" for nothing."""
    if not _STATIC.fullmatch(name):
        return "a topic's name has letters, digits, '.', '_' and '-' only"
    if len(name) > LONGEST:
        return f"a topic's name has {LONGEST} bytes at most"
    return "a topic cannot have this name" if name in _DOTS else ""


@dataclass(frozen=True, slots=True)
class TopicForm:
    """Where the topics of a queue are: what stands before their names.

    Attributes:
        lead: a pattern of that; "": names stand alone.
        home: what stands there where nobody says it.
        words: how people write a whole name.
    """

    lead: str = ""
    home: str = ""
    words: str = "topic"

    def split(self, name: str) -> tuple[str, str]:
        """Return what stands before a name, or would, and the name."""
        match = re.match(self.lead, name) if self.lead else None
        return (match[0], name[match.end() :]) if match else (self.home, name)

    def wrong(self, name: str) -> str:
        """Return what is wrong with a topic's name; "" for nothing."""
        place, local = self.split(name)
        why = "it names no one place" if "{" in place else wrong_topic(local)
        return f"{why}; write it as {self.words}" if why and self.lead else why


PLAIN_NAMES: Final = TopicForm()


@dataclass(frozen=True, slots=True)
class TopicRule:
    """Which topic the rows of a table go to; its expression is a whole name."""

    expression: str

    @classmethod
    def parse(
        cls, expression: str, one_table_per_topic: bool = False, form: TopicForm = PLAIN_NAMES
    ) -> TopicRule:
        """Read an expression.

        Args:
            expression: a topic's name, or text around `{schema}` and `{table}`: each at most once,
                in this order.
            one_table_per_topic: the protocol cannot have two tables in one topic, so that both
                must be there.
            form: where topics are; an expression without a place has the home's.

        Raises:
            BadDispatchRule: it is neither, or names no possible topic.
        """
        lead = f"invalid topic expression: {expression}"
        place, local = form.split(expression)
        flat = _SLASHES.sub("", place) + local
        if one_table_per_topic and not _BOTH.fullmatch(flat):
            raise BadDispatchRule(
                f"{lead}: topic rule for Avro must contain {{schema}} and {{table}}, in this "
                "order: a topic holds one table"
            )
        if _STATIC.fullmatch(flat):
            if why := wrong_topic(local):
                raise BadDispatchRule(f"{lead}: {why}")
        elif not local or not _DYNAMIC.fullmatch(flat):
            before = f", behind {form.words.rpartition('/')[0]}/" if form.lead else ""
            raise BadDispatchRule(
                f"{lead}: it has letters, digits, '.', '_' and '-', and may have {{schema}} and, "
                f"after it, {{table}}{before}"
            )
        return cls(place + local)

    @property
    def static(self) -> bool:
        """Whether all tables go to one topic."""
        return "{" not in self.expression

    def topic_of(self, table: TableId) -> str:
        """Return the topic of a table; what topics cannot have in their names becomes `_`."""
        if self.static:
            return self.expression
        name = self.expression.replace("{schema}", _FOREIGN.sub("_", table.database))
        name = name.replace("{table}", _FOREIGN.sub("_", table.table))
        place, slash, local = name.rpartition("/")
        return place + slash + _DOTS.get(local, local)[:LONGEST]

    def tables_of(self, topic: str) -> Iterator[tuple[str | None, str | None]]:
        """Yield databases and tables whose rows would go to this topic; None: one of any name.

        Names in which a character was replaced are seen as the topic has them.
        """
        if self.static:
            if topic == self.expression:
                yield None, None
            return
        pattern = re.escape(self.expression)
        for name in ("schema", "table"):
            pattern = pattern.replace(rf"\{{{name}\}}", f"(?P<{name}>{_PLAIN})")
        match = re.fullmatch(pattern, topic)
        if match is None:
            return
        names = match.groupdict()
        if len(names) < 2:
            yield names.get("schema"), names.get("table")
            return
        # Every way to cut what stands between head and tail, e.g. `a_b_c` by `{schema}_{table}`.
        middle = self.expression.partition("{schema}")[2].partition("{table}")[0]
        body = topic[match.start("schema") : match.end("table")]
        for cut in range(len(body) - len(middle) + 1):
            if body.startswith(middle, cut):
                yield body[:cut], body[cut + len(middle) :]
