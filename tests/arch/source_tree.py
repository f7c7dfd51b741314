"""Checks over source texts: each takes `{path: text}` and returns one line for each violation.

Paths are relative to `src/`, with slashes. The checks know nothing of the disk, so that the tests
can plant violations.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
Sources = Mapping[str, str]

# Who may import what of ours: first pattern that fits the importing module decides. Patterns are
# matched against dotted names below `rowferry`.
_BOTH_SOURCES = ("flow.capture.announcements", "flow.capture.label_end")
_STAGES = ("capture", "decide", "dispatch", "encode", "sink")
_CONTRACTS = tuple(f"flow.{stage}.contract" for stage in _STAGES)
_BELOW_FLOW = ("change*", "columnar*", "mysql*", "spec*", "answers", "errors", "moment")
_FLOW = (*_BELOW_FLOW, "names", "registry", "flow*")
MAY_IMPORT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("errors", ()),
    ("moment", ()),
    ("answers", ()),
    ("names", ()),
    ("change*", ("change*", "errors")),
    ("columnar*", ("columnar*", "change*", "errors")),
    ("spec*", ("spec*", "change*", "errors", "names")),
    ("mysql*", ("mysql*", "columnar*", "change*", "spec*", "errors", "moment")),
    ("registry", ("errors", "names", *_CONTRACTS)),
    ("flow.assemble", _FLOW),
    ("flow.rereading", _FLOW),
    ("flow.sampling", _FLOW),
    ("flow.parking", _FLOW),
    ("flow.warm", _FLOW),
    ("flow.named_storage", _FLOW),
    ("flow.redo*", _FLOW),
    (
        "flow.capture.range_log*",
        (*_BELOW_FLOW, "flow.capture.range_log*", *_BOTH_SOURCES, "wire*", *_CONTRACTS),
    ),
    (
        "flow.capture.binlog*",
        (*_BELOW_FLOW, "flow.capture.binlog*", *_BOTH_SOURCES, *_CONTRACTS),
    ),
    (
        "flow.sink.mysql*",  # it joins statements of the texts that its own codec wrote
        (
            *_BELOW_FLOW,
            "flow.sink",
            "flow.sink.mysql*",
            "flow.sink.sql*",
            "flow.sink.ddl_choices",
            "flow.sink.lanes",
            "flow.sink.delivered_tables",
            "flow.dispatch*",
            "flow.encode.sql_rows.frame",
            "flow.encode.sql_rows.reader",  # a refused row's key
            *_CONTRACTS,
        ),
    ),
    (
        "flow.sink.postgresql*",  # it streams the lines that its own codec wrote
        (
            *_BELOW_FLOW,
            "flow.sink",
            "flow.sink.postgresql*",
            "flow.sink.sql*",
            "flow.sink.ddl_choices",
            "flow.sink.delivered_tables",
            "flow.encode.copy_rows.options",
            "flow.encode.copy_rows.reader",  # a refused row's key
            "flow.encode.sql_rows.frame",
            *_CONTRACTS,
        ),
    ),
    (
        "flow.sink.sql*",  # rows come in the frames of the codecs of these sinks
        (
            *_BELOW_FLOW,
            "flow.sink",
            "flow.sink.sql*",
            "flow.sink.defaults",
            "flow.sink.delivered_tables",
            "flow.dispatch*",
            "flow.encode.sql_rows.frame",
            *_CONTRACTS,
        ),
    ),
    (
        "flow.sink.search*",  # it sends the items, and makes the mappings, that its own codec wrote
        (
            *_BELOW_FLOW,
            "flow.sink",
            "flow.sink.search*",
            "flow.sink.defaults",
            "flow.sink.lanes",
            "flow.sink.web_calls",
            "flow.dispatch*",
            "flow.encode.search_documents*",
            "flow.encode.sql_rows.frame",
            *_CONTRACTS,
        ),
    ),
    ("flow.sink*", (*_BELOW_FLOW, "flow.sink*", "flow.dispatch*", *_CONTRACTS)),
    (
        "flow.dispatch*",
        (
            *_BELOW_FLOW,
            "flow.dispatch*",
            "flow.decide.table_filter",  # matchers are table filters
            *_CONTRACTS,
        ),
    ),
    (
        "flow.encode.claim_check",  # rows that are too large for a message go to a storage
        (*_BELOW_FLOW, "flow.encode*", "flow.named_storage", "flow.sink.storage*", *_CONTRACTS),
    ),
    (
        "flow.encode.large_message",  # tells which protocols have a form for large rows
        (*_BELOW_FLOW, "registry", "flow.encode*", *_CONTRACTS),
    ),
    *((f"flow.{s}*", (*_BELOW_FLOW, f"flow.{s}*", *_CONTRACTS)) for s in _STAGES),
    ("wire*", ("wire*",)),
    (
        "refstore*",
        (
            "refstore*",
            "change*",
            "columnar*",
            "mysql.ddl*",
            "errors",
            "wire*",
            "flow.capture.range_log",  # the package, for `from … import catalog`
            "flow.capture.range_log.kv*",
            "flow.capture.range_log.catalog",
            "flow.capture.range_log.client*",
        ),
    ),
    (
        "downstream.storage_check*",  # shares nothing with the sink but the names of its settings
        (
            "downstream.storage_check*",
            *_BELOW_FLOW,
            "flow.encode",
            "flow.encode.csv",
            "flow.encode.csv.codec",
            "flow.encode.options",
            "flow.sink.storage",
            "flow.sink.storage.options",
        ),
    ),
    ("secrets*", ("secrets*", *_FLOW)),
    (
        "downstream.rebuild*",
        ("downstream.rebuild*", "downstream.consume.storage", "secrets*", *_FLOW),
    ),
    (
        "downstream.verify*",
        (
            "downstream.verify*",
            "downstream.rebuild*",
            "downstream.consume.storage",
            "secrets*",
            *_FLOW,
        ),
    ),
    ("downstream.trace*", ("downstream.trace*", "downstream.consume*", "secrets*", *_FLOW)),
    ("downstream.consume*", ("downstream.consume*", "secrets*", *_FLOW)),
    (
        "downstream.redo*",
        ("downstream.redo*", "downstream.consume.storage", "secrets*", *_FLOW),
    ),
    ("downstream", ()),
    ("spark*", ("spark*", "downstream.rebuild*", "downstream.verify*", "secrets*", *_FLOW)),
    (
        "control.operator.trace*",  # looks for a row in what a changefeed wrote
        ("control*", "downstream.trace*", "downstream.consume*", "secrets*", *_FLOW),
    ),
    ("control*", ("control*", "spark*", "secrets*", *_FLOW)),
    (
        "face*",
        (
            "face*",
            "control*",
            "downstream*",
            "refstore*",
            "secrets*",
            "spark*",
            "testing*",
            "wire*",
            "warm",
            *_FLOW,
        ),
    ),
    *(  # what judges feeds by random histories shares nothing with the product
        (f"testing.histories.{name}", ("testing.histories*",))
        for name in ("facts", "forms", "judge", "outputs", "statements", "truth")
    ),
    ("testing.histories*", ("testing*", "control*", "secrets*", "spark*", *_FLOW)),
    (
        "testing.nemesis*",
        ("testing*", "downstream*", "refstore*", "control.store*", *_FLOW),
    ),
    ("testing*", ("testing*", "downstream*", "refstore*", *_FLOW)),
    ("warm", ("flow*", "columnar*", "mysql*", "refstore*", "downstream.verify*")),
    ("flow", ()),
    ("__main__", ("face*",)),
    ("", ()),  # the package itself
)

# Which modules own a foreign library; no other may import it.
OWNERS: dict[str, tuple[str, ...]] = {
    "pyspark": ("spark*",),
    "sqlalchemy": ("control.store*", "flow.sink.lake.iceberg.catalog"),
    "pyiceberg": ("flow.sink.lake.iceberg*", "testing.histories.lakes", "testing.nemesis_lake"),
    "alembic": ("control.store*",),
    "psycopg": (
        "control.store*",
        "flow.sink.postgresql.session",
        "testing.nemesis_postgresql",
        "testing.servers*",
    ),
    "grpc": ("refstore*", "wire*", "flow.capture.range_log.client*", "face.rpc*"),
    "sqlglot": ("mysql.ddl*",),
    "re2": ("flow.decide.table_filter", "spec.linear"),
    "obstore": ("flow.sink.storage*", "testing.histories*"),
    "confluent_kafka": ("flow.sink.kafka*", "downstream.consume.kafka_topics", "testing*"),
    "pulsar": ("flow.sink.pulsar*", "testing*"),
    "redis": ("flow.sink.queue.redis_streams", "testing.servers*"),
    "nats": ("flow.sink.queue.jetstream", "testing.servers*"),
    "amqp": ("flow.sink.queue.rabbitmq", "testing.servers*"),
    "urllib3": (
        "flow.encode.avro*",
        "flow.sink.http*",
        "flow.sink.search*",
        "flow.sink.pulsar*",
        "flow.sink.queue.amazon",
        "flow.sink.lake.iceberg.glue.amazon_http",
        "face.cli.remote.client",
        "face.bearer",
        "secrets.vault",
        "testing*",
    ),
    "pymysql": (
        "mysql.connection",
        "mysql.refusals",
        "mysql.guarded_client",
        "mysql.wary_connection",
        "testing.servers*",
        "testing.histories*",
    ),
    "yaml": ("spec*",),
    "fastapi": ("face.rest*",),
    "starlette": ("face.rest*",),
    "pydantic": ("face.rest*",),
    "uvicorn": ("face.rest*",),
    "h11": ("face.rest*",),
    "joserfc": ("face.bearer",),
    "cryptography": ("spec.sealing", "mysql.guarded_client", "testing.servers.certificates"),
    "prometheus_client": ("control.fleet*", "face.rest*"),
    "typer": ("face.cli*",),
    "rich": ("face.cli*",),
    "psutil": (),
    "pandas": (),
}

# The one module that knows Spark's versions; what of PySpark all others may use: documented modules
# and names that all of these versions have.
SPARK_VERSIONS = "rowferry/spark/versions.py"
PUBLIC_SPARK = frozenset(
    {
        "pyspark",
        "pyspark.sql",
        "pyspark.sql.datasource",
        "pyspark.sql.functions",
        "pyspark.sql.streaming",
        "pyspark.sql.types",
    }
)
NEWER_SPARK = frozenset({"repartitionById"})
_INSIDE_SPARK = re.compile(
    r"_(?:gateway|j(?:vm|sc|df|c|rdd|conf|sparkSession|write|read)|sc|temp_dir|ensure_initialized"
    r"|active_spark_context|instantiatedSession)"
)

EMPTY_WORDS = re.compile(
    r"^(Base|Abstract|Common)(?=[A-Z]|$)"
    r"|(Manager|Helper|Utils?|Impl|Processor|Engine|Handler|Info|Data|Context)$"
)
EMPTY_MODULES = re.compile(r"^(utils?|helpers?|common|base|misc|manager)$")
# Prose must stand on its own: nothing about papers that readers do not have, nor about a machine.
FORBIDDEN_PROSE = re.compile(
    r"\b(?:[Ss]eeds?|[Ii]ssues?|DESIGN|STYLE)\b|\.\./shared|/(?:work|root)/"
)
SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bxox[abpr]-[A-Za-z0-9-]{10,}"
    r"|://[^\s/:@\"'`*<{]+:(?!\*)[^\s/:@\"'`{$<]+@"
    r"|(?i:\b(?:password|passwd|secret|token)\b)\s*=\s*[\"'](?!\*{3})[^\"'{}\s]{6,}[\"']"
)


@cache
def read_sources(folder: str = "src/rowferry") -> dict[str, str]:
    """Return our Python files below a folder; generated stubs are not ours."""
    found = sorted((ROOT / folder).rglob("*.py"))
    return {
        p.relative_to(ROOT / "src" if folder.startswith("src") else ROOT).as_posix(): p.read_text()
        for p in found
        if "_pb2" not in p.name and "__pycache__" not in p.parts
    }


def module_name(path: str) -> str:
    """Return the dotted name below `rowferry`; empty for the package itself."""
    parts = path.removesuffix(".py").split("/")[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield line and full dotted name of every import, at any depth of the file."""
    package = ["rowferry", *module_name(path).split(".")]
    if not path.endswith("__init__.py"):
        package = package[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}:{alias.name}") for alias in node.names)


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, p) if p.endswith("*") else name == p for p in patterns)


def _imported_module(target: str, ours: set[str]) -> str:
    """Return the module below `rowferry` that `module:name` refers to."""
    base, _, name = target.partition(":")
    inner = base.removeprefix("rowferry").removeprefix(".")
    joined = f"{inner}.{name}".strip(".") if name else inner
    return joined if joined in ours else inner


# What judges promise P4, and what must not be among all that it imports, however far away: the code
# whose work is judged.
JUDGES: tuple[str, ...] = ("testing.validators*", "testing.model", "testing.rebuild")
JUDGED = "downstream.rebuild*"


def shared_with_the_judged(sources: Sources) -> list[str]:
    """Return how a judge comes by the code that it judges: module after module."""
    ours = {module_name(path) for path in sources}
    next_to = {
        module_name(path): {
            _imported_module(target, ours)
            for _, target in imports(path, text)
            if target.split(":")[0].split(".")[0] == "rowferry"
        }
        for path, text in sources.items()
    }
    found = []
    for judge in sorted(name for name in ours if _fits(name, JUDGES)):
        ways = {judge: judge}
        waiting = [judge]
        while waiting:
            here = waiting.pop()
            for there in sorted(next_to.get(here, set()) - ways.keys()):
                ways[there] = f"{ways[here]} > {there}"
                waiting.append(there)
        found += [way for name, way in sorted(ways.items()) if _fits(name, [JUDGED])]
    return found


def wrong_layers(sources: Sources) -> list[str]:
    """Return imports of ours that go up, or across from stage to stage."""
    found = []
    ours = {module_name(path) for path in sources}
    for path, text in sources.items():
        name = module_name(path)
        allowed = next((a for p, a in MAY_IMPORT if _fits(name, [p])), None)
        if allowed is None:
            found.append(f"{path}: no rule says what {name} may import")
            continue
        for line, target in imports(path, text):
            if target.split(":")[0].split(".")[0] != "rowferry":
                continue
            module = _imported_module(target, ours)
            if module and not _fits(module, allowed):
                found.append(f"{path}:{line}: {name or 'rowferry'} must not import {module}")
    return found


# Packages that know no database: what they need of one they ask of the source's traits and dialect.
NEUTRAL: tuple[str, ...] = (
    "change*",
    "columnar*",
    "control*",
    "flow.assemble",
    "flow.decide*",
    "flow.dispatch*",
    "flow.encode.contract",
    "flow.sink.contract",
    "names",
    "registry",
    "spark*",
    "spec*",
)
# Which of their modules know MySQL all the same, what of it, and why that is no fact about sources.
KNOW_MYSQL: dict[str, tuple[tuple[str, ...], str]] = {
    "control.store.mysql_kind": (
        ("mysql.connection", "mysql.login"),
        "the meta database may be a MySQL server, whatever the source is",
    ),
    "flow.decide.expression": (
        ("mysql.type_facts",),
        "the language of event filters is MySQL's, and so are its rules of comparison",
    ),
    "flow.decide.expression_syntax": (
        ("mysql.ddl.cursor",),
        "the language of event filters is MySQL's",
    ),
    "flow.decide.row_policy": (
        ("mysql.stamps",),
        "names the triggers that stamp rows; sources of other databases have STAMPED_BY_ROWS false",
    ),
    "control.operator.resnapshots": (
        ("mysql.key_values",),
        "keys are written as MySQL's literals; sources of other databases have `rereads` false",
    ),
    "flow.decide.transformed_ddl": (
        ("mysql.ddl.cursor", "mysql.ddl.difference", "mysql.ddl.table"),
        "writes DDL anew for masked tables, which only MySQL's dialect may have",
    ),
    "flow.decide.transforms": (
        ("mysql.ddl.cursor",),
        "expressions of masks are written in the language of event filters",
    ),
    "flow.decide.typed_result": (
        ("mysql.ddl.statement",),
        "types of computed columns are declared as MySQL writes them",
    ),
    "spark.verify_job": (
        ("mysql.key_ranges",),
        "verify compares servers of MySQL's kind, by ranges of their keys",
    ),
}


def knowing_mysql(sources: Sources) -> list[str]:
    """Return imports of `rowferry.mysql` where no database is known, and reasons that are stale."""
    ours = {module_name(path) for path in sources}
    found, used = [], set()
    for path, text in sources.items():
        name = module_name(path)
        if not _fits(name, NEUTRAL):
            continue
        allowed = KNOW_MYSQL.get(name, ((), ""))[0]
        for line, target in imports(path, text):
            if target.split(":")[0].split(".")[0] != "rowferry":
                continue
            module = _imported_module(target, ours)
            if module in allowed:
                used.add((name, module))
            elif module.split(".")[0] == "mysql":
                found.append(f"{path}:{line}: {name} knows no database, and imports {module}")
    stale = {(n, m) for n, (modules, _) in KNOW_MYSQL.items() for m in modules} - used
    return found + [f"{name} does not import {module} any more" for name, module in sorted(stale)]


# Who may look into positions, places and what a segment reads: the source that made them. Others
# store and hand them on.
OPAQUE: frozenset[str] = frozenset({"place", "position", "read", "until_place"})
LOOK_INSIDE: dict[str, str] = {
    "control.feed.loop": "the number of a resnapshot, which the operator gave it",
    "control.operator.resnapshots": "the numbers of resnapshots and how far they are",
    "downstream.verify.rendezvous": "verify makes the places itself, of MySQL servers",
    "face.cli.downstream.verify_sync": "shows the places that verify made",
    "testing.nemesis_judge": "judges the range source by what it has stored",
}
_READING: frozenset[str] = frozenset({"get", "items", "keys", "values", "pop"})


def looking_inside(sources: Sources) -> list[str]:
    """Return places where somebody else than a source reads a source's own form."""
    found, used = [], set()
    for path, text in sources.items():
        name = module_name(path)
        if name.startswith("flow.capture") or not {"position", "place"} & set(
            re.findall(r"\w+", text)
        ):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Subscript(value=held, slice=ast.Constant(value=str())):
                    pass
                case ast.Call(func=ast.Attribute(value=held, attr=attr)) if attr in _READING:
                    pass
                case _:
                    continue
            match held:
                case ast.Attribute(attr=word) | ast.Name(id=word) if word in OPAQUE:
                    used.add(name)
                    if name not in LOOK_INSIDE:
                        found.append(f"{path}:{held.lineno}: looks into {ast.unparse(held)}")
    return found + [
        f"{name} looks into none any more" for name in sorted(LOOK_INSIDE.keys() - used)
    ]


def wrong_owners(sources: Sources) -> list[str]:
    """Return imports of foreign libraries outside the modules that own them."""
    found = []
    for path, text in sources.items():
        for line, target in imports(path, text):
            library = target.split(":")[0].split(".")[0]
            if library in OWNERS and not _fits(module_name(path), OWNERS[library]):
                found.append(f"{path}:{line}: only {OWNERS[library]} may import {library}")
    return found


def private_spark(sources: Sources) -> list[str]:
    """Return uses of PySpark beyond its public interface, outside the module that is made for it.

    Modules of ours that hold objects of Spark use no private name of anything but themselves;
    names that are known to be Spark's are found everywhere.
    """
    found = []
    for path, text in sources.items():
        if path == SPARK_VERSIONS:
            continue
        for line, target in imports(path, text):
            module, _, name = target.partition(":")
            if module in ("pyspark", "pyspark.sql") and name.islower():
                module, name = f"{module}.{name}", ""  # what is written small there is a module
            foreign = module.split(".")[0]
            public = module in PUBLIC_SPARK and not name.startswith("_")
            if foreign == "py4j" or (foreign == "pyspark" and not public):
                found.append(f"{path}:{line}: {target} is not PySpark's public interface")
        near = path.startswith("rowferry/spark/")
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(attr=name):
                    pass
                case ast.Call(
                    func=ast.Name(id="getattr" | "setattr" | "hasattr"),
                    args=[_, ast.Constant(value=str(name)), *_],
                ):
                    pass
                case _:
                    continue
            private = name.startswith("_") and not name.endswith("__") and near
            if private or name in NEWER_SPARK or _INSIDE_SPARK.fullmatch(name):
                found.append(f"{path}:{node.lineno}: .{name} belongs into {SPARK_VERSIONS}")
    return found


# What a function calls its results where it does not say what they are.
_VAGUE = re.compile(r"(^|_)(found|told|said)(_|$)", re.IGNORECASE)


MOST_MODULES = 25  # of one room; what has more is two rooms


def crowded_rooms(sources: Sources) -> list[str]:
    """Return folders with more modules of ours than one can look over."""
    rooms: dict[str, int] = {}
    for path in sources:
        room, _, name = path.rpartition("/")
        rooms[room] = rooms.get(room, 0) + (name != "__init__.py")
    return [f"{room}: {n} modules" for room, n in sorted(rooms.items()) if n > MOST_MODULES]


def empty_names(sources: Sources, exempt: Mapping[str, str] | None = None) -> list[str]:
    """Return classes and modules whose names say nothing."""
    found = []
    for path, text in sources.items():
        stem = path.rsplit("/", 1)[-1].removesuffix(".py")
        if EMPTY_MODULES.match(stem):
            found.append(f"{path}: a module called {stem} says nothing")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and EMPTY_WORDS.search(node.name.lstrip("_")):
                if node.name not in (exempt or {}):
                    found.append(f"{path}:{node.lineno}: the name {node.name} says nothing")
    return found


def vague_results(sources: Sources) -> list[str]:
    """Return variables, parameters, attributes and functions that do not say what they hold."""
    lines = []
    for path, text in sources.items():
        if "_pb2" in path:
            continue
        for node in ast.walk(ast.parse(text)):
            name = _named_by(node)
            if name is not None and _VAGUE.search(name):
                lines.append(f"{path}:{getattr(node, 'lineno', 0)}: {name} does not say what it is")
    return lines


def _named_by(node: ast.AST) -> str | None:
    """Return the name that a node gives to something of ours; None: it gives none."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


def repeated_names(sources: Sources) -> list[str]:
    """Return public classes whose name another module has as well, generated ones left out."""
    homes: dict[str, list[str]] = {}
    for path, text in sources.items():
        if path.endswith("_pb2_grpc.py"):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [f"{name}: {', '.join(at)}" for name, at in homes.items() if len(at) > 1]


def options_by_hand(sources: Sources) -> list[str]:
    """Return options that stand alone in a module, and so in no declared section."""
    found = []
    for path, text in sources.items():
        for node in ast.parse(text).body:
            match node:
                case ast.Assign(value=ast.Call(func=ast.Name(id="Option" | "option"))):
                    pass
                case ast.AnnAssign(value=ast.Call(func=ast.Name(id="Option" | "option"))):
                    pass
                case _:
                    continue
            found.append(f"{path}:{node.lineno}: declare it in a Section")
    return found


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments and docstrings with their lines; `code` in back quotes is left out."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _without_code(token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) is not None:
                first = node.body[0]
                yield first.lineno, _without_code(ast.get_docstring(node) or "")


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


def forbidden_prose(sources: Sources) -> list[str]:
    """Return comments, docstrings and pages that speak of what readers do not have."""
    found = []
    for path, text in sources.items():
        pieces = prose(text) if path.endswith(".py") else [(1, _without_code(text))]
        for line, piece in pieces:
            found += [f"{path}:{line}: {m[0]!r}" for m in FORBIDDEN_PROSE.finditer(piece)]
    return found


def secrets(sources: Sources) -> list[str]:
    """Return what looks like a password, key or token."""
    found = []
    for path, text in sources.items():
        for match in SECRETS.finditer(text):
            found.append(f"{path}:{text[: match.start()].count(chr(10)) + 1}: looks like a secret")
    return found
