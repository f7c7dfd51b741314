"""Finds names of sinks, sources and protocols in modules to which they do not belong."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import NamedTuple

from source_tree import Sources, module_name

# By name: the modules that own it, as patterns.
Owners = Mapping[str, Sequence[str]]


class Exempt(NamedTuple):
    """Modules that may say some names, and why; each must be needed."""

    modules: str
    names: str
    why: str


def owners(registries: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return who owns each registered name: the package of its class, or its lone module."""
    found: dict[str, list[str]] = {}
    for places in registries:
        for name, place in places.items():
            module = place.partition(":")[0].removeprefix("rowferry.")
            stage, _, _ = module.rpartition(".")
            # flow.sink.kafka.sink belongs to flow.sink.kafka, flow.sink.blackhole to itself.
            own = [stage, f"{stage}.*"] if stage.count(".") > 1 else [module]
            found.setdefault(name, []).extend(own)
    return found


def said_elsewhere(sources: Sources, owned: Owners, exempt: Sequence[Exempt]) -> list[str]:
    """Return texts that are such a name, or a URI with its scheme, outside of its owner.

    Also exemptions that no module needs any more.
    """
    found, used = [], set()
    for path, text in sources.items():
        module = module_name(path)
        for line, name in _names(text, owned):
            if any(fnmatch(module, own) for own in owned[name]):
                continue
            allowed = [e for e in exempt if fnmatch(module, e.modules) and name in e.names.split()]
            used |= {(e, name) for e in allowed}
            if not allowed:
                found.append(f"{path}:{line}: {name!r} belongs to {', '.join(owned[name])}")
    for one in exempt:
        idle = [name for name in one.names.split() if (one, name) not in used]
        found += [f"{one.modules} says {name!r} no more: take it off the list" for name in idle]
    return found


def kinds_asked(sources: Sources, kinds: Collection[str]) -> list[str]:
    """Return places where somebody compares a sink's kind with a word, outside of sinks."""
    found = []
    for path, text in sources.items():
        if fnmatch(module_name(path), "flow.sink.*"):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            words = {n.value for s in sides for n in ast.walk(s) if isinstance(n, ast.Constant)}
            asks = any(isinstance(s, ast.Attribute) and s.attr == "kind" for s in sides)
            if asks and words & set(kinds):
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)}: ask for a trait instead")
    return found


def _names(text: str, owned: Owners) -> Iterator[tuple[int, str]]:
    scheme = re.compile("(" + "|".join(map(re.escape, owned)) + ")://")
    tree = ast.parse(text)
    for node in ast.walk(tree):  # a list, as it is written in one text
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(words)), attr="split")):
                yield from ((node.lineno, word) for word in words.split() if word in owned)
    defaults = {
        id(node.value)  # a sink says which protocol it has without one
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "default_protocol"
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in defaults:
            continue
        uri = scheme.match(node.value)
        if node.value in owned or uri:
            yield node.lineno, uri[1] if uri else node.value
