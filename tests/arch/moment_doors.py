"""Which calls leave the process, and whether each of them has a name (see `rowferry.moment`).

A function that goes through a door names a moment, or is called only by functions that do. Doors
are found by the text of calls; modules that make a door (a client library wrapped in our errors)
are walls: what lies behind them is one door, which their callers name.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache

from source_tree import Sources

_BINLOG, _STORAGE = "rowferry/flow/capture/binlog", "rowferry/flow/sink/storage"

_SOURCE_CALL = r"(session\.)?(connect|connected|rows|one_row|facts|send_command|read_answer)"

# What a call through a door looks like, and where it is one.
DOORS: tuple[tuple[str, str, str], ...] = (
    ("a statement at the source", f"{_BINLOG}/*", _SOURCE_CALL),
    ("a statement at a server", "rowferry/mysql/*", _SOURCE_CALL),
    ("a read of the log", f"{_BINLOG}/*", r"self\._socket\.recv_into"),
    ("a range's leader", "rowferry/flow/capture/range_log/*", r".*\.unary_unary|call\.result"),
    ("the meta database", "rowferry/control/*", r".*database\.(reading|writing)"),
    ("the meta database's engine", "rowferry/control/*", r".*engine\.(connect|begin)"),
    ("a job", "rowferry/control/*", r".*runner\.run"),
    (
        "a storage",
        "rowferry/flow/*",
        r"(self\._)?files\.(get|recall|exists|entries|paths|survey|create|swap|overwrite|delete|"
        r"flush|sweep)",
    ),
    (
        "a file",
        "rowferry/flow/*",
        r"open|os\.(open|link|replace|rename|mkdir|unlink|write)|obstore\..*|tempfile\..*|"
        r".*\.(write_bytes|write_text|read_bytes)",
    ),
    (
        "a statement downstream",
        "rowferry/flow/sink/mysql/*",
        r"connect|(session|notes|guard|self\._open)\.(run|ask|begin|rollback)",
    ),
    (
        "a statement in any database",
        "rowferry/flow/sink/sql/*",
        r"self\.(session_of_its_own|_open)|session\.(ask|rollback)",
    ),
    (
        "a statement in PostgreSQL",
        "rowferry/flow/sink/postgresql/*",
        r"connect|session\.(run|ask|begin|rollback|copy|stage)",
    ),
    (
        "a Kafka broker",
        "rowferry/flow/sink/kafka/*",
        r"self\._(producer|admin)\.(produce\w*|flush|purge|create_topics|list_topics|describe_\w+)",
    ),
    (
        "a Pulsar broker",
        "rowferry/flow/sink/pulsar/*",
        r".*\.(create_producer|get_topic_partitions|send_async|flush_async)|self\._producer\.close",
    ),
    (
        "a Redis server",
        "rowferry/flow/sink/queue/redis_streams.py",
        r"self\._client\.(hget|hsetnx|exists|xadd|xgroup_\w+)|steps\.execute",
    ),
    (
        "a NATS server",
        "rowferry/flow/sink/queue/jetstream.py",
        r"js\.\w+|(self\._client|client)\.(publish|connect|subscribe)",
    ),
    (
        "a RabbitMQ broker",
        "rowferry/flow/sink/queue/rabbitmq.py",
        r".*\.(basic_publish|queue_declare)|made\.connect",
    ),
    ("an HTTP request", "rowferry/flow/*", r".*\.(request|urlopen)"),
    ("a socket", "rowferry/flow/*", r"socket\.create_connection"),
)

# Modules that make doors out of a library: module -> why nothing in it has a name of its own.
WALLS = {
    "rowferry/mysql/connection.py": "pymysql; callers name what they open it for",
    "rowferry/mysql/session.py": "sessions that read; callers name what they ask",
    "rowferry/flow/sink/mysql/session.py": "sessions that write; callers name what they run",
    "rowferry/flow/sink/postgresql/session.py": "psycopg; callers name what they run",
    "rowferry/flow/sink/pulsar/login.py": "web requests; who calls them names what they are for",
    f"{_STORAGE}/local_files.py": "a directory as `Files`; the sink names what it puts",
    f"{_STORAGE}/local_handles.py": "handles of `local_files`",
    f"{_STORAGE}/object_files.py": "a bucket as `Files`; the sink names what it puts",
    f"{_STORAGE}/upload_spool.py": "a nameless file of the task's own: nobody else can reach it",
    f"{_STORAGE}/reader.py": "readers of the output, not a feed",
    "rowferry/control/store/connection.py": "SQLAlchemy's engine; the store names its transactions",
    "rowferry/control/store/backup.py": "an operator's copy of a meta database, not a feed",
    "rowferry/control/store/rekeying.py": "an operator's work on a meta database, not a feed",
    "rowferry/control/store/checking.py": "an operator's check of a meta database, not a feed",
}
_FEED = ("rowferry/flow/*", "rowferry/mysql/*", "rowferry/control/*", "rowferry/spark/job.py")


@dataclass
class _Function:
    """A function or method, with what is inside it."""

    path: str
    name: str
    line: int
    moments: list[str] = field(default_factory=list)
    doors: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)  # every name in it: it may call any of them

    @property
    def called(self) -> str:
        """The word by which others call it: a class's name for its constructor."""
        owner, _, own = self.name.rpartition(".")
        return owner.rpartition(".")[2] if own in ("__init__", "__enter__") else own


def functions(sources: Sources, walls: bool = False) -> list[_Function]:
    """Return the functions of a feed's code; those inside others belong to the outer ones."""
    found = []
    for path, text in sources.items():
        if any(fnmatch(path, p) for p in _FEED) and (walls or path not in WALLS):
            found += _functions_of(path, text)
    return found


@cache
def _functions_of(path: str, text: str) -> list[_Function]:
    return [_read(path, name, node) for name, node in _outer(ast.parse(text), "")]


def _outer(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _outer(child, f"{prefix}{child.name}.")


def _read(path: str, name: str, node: ast.AST) -> _Function:
    found = _Function(path, name, getattr(node, "lineno", 0))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            found.words.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            found.words.add(inner.attr)
        elif isinstance(inner, ast.Call):
            text = ast.unparse(inner.func)
            if text == "moment":
                found.moments += [a.value for a in inner.args if isinstance(a, ast.Constant)]
            found.doors += [
                what for what, where, call in DOORS if _is_door(path, text, where, call)
            ]
    return found


def _is_door(path: str, text: str, where: str, call: str) -> bool:
    return fnmatch(path, where) and re.fullmatch(call, text, re.DOTALL) is not None


def unnamed_doors(sources: Sources) -> list[str]:
    """Return the functions that go through a door although nobody names that moment."""
    known = functions(sources)
    callers: dict[str, list[_Function]] = defaultdict(list)
    for one in known:
        for word in one.words:
            callers[word].append(one)
    return [
        f"{one.path}:{one.line}: {one.name} goes through a door ({min(one.doors)}) and names no "
        "moment, nor does each of those who call it"
        for one in known
        if one.doors and not _is_named(one, callers, ())
    ]


def _is_named(
    one: _Function, callers: dict[str, list[_Function]], below: tuple[_Function, ...]
) -> bool:
    if one.moments:
        return True
    private = one.called.startswith("_")
    above = [
        c
        for c in callers[one.called]
        if c is not one
        and c not in below
        and (c.path == one.path if private else _may_call(c.path, one.path))
    ]
    return bool(above) and all(_is_named(c, callers, (*below, one)) for c in above)


def _may_call(caller: str, called: str) -> bool:
    """Return whether a module may know another: stages of a flow do not know each other."""
    stages = [re.match(r"rowferry/flow/\w+/", path) for path in (caller, called)]
    return None in stages or len({stage[0] for stage in stages if stage}) == 1


def repeated_names(sources: Sources) -> list[str]:
    """Return the names that more than one call site has."""
    sites: dict[str, list[str]] = defaultdict(list)
    for one in functions(sources, walls=True):
        for name in one.moments:
            sites[name].append(f"{one.path}:{one.name}")
    return [f"{name!r}: {', '.join(found)}" for name, found in sites.items() if len(found) > 1]


def doors_in_use(sources: Sources) -> set[str]:
    """Return the doors that some function goes through."""
    return {what for one in functions(sources, walls=True) for what in one.doors}
