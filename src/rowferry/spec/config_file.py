"""Configuration files: TOML, YAML or JSON with the same keys, read into plain nested dicts."""

from __future__ import annotations

import io
import json
import os
import stat
import tomllib
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from rowferry.errors import BadConfigFile, BadFilterRule, BadOption

# Whose values are table filter rules, which may import a file.
RULE_KEYS: Final = ("rules", "matcher", "soft-delete-tables", "active-active-tables")
_MOST_RULES: Final = 16 << 20  # bytes of a file of rules


def read_config(path: str | Path) -> dict[str, Any]:
    """Return a file's content: dicts, lists, texts, numbers, true and false; null counts as absent.

    Raises:
        BadConfigFile: unknown ending, unreadable, wrong syntax, a key given twice, or a value that
            no option can have (a date); one line with the file and, where known, the place.
    """
    file = Path(path)
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        known = ", ".join(sorted(_PARSERS))
        raise BadConfigFile(f"{path}: unknown file type {file.suffix!r}; use one of {known}")
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as err:
        raise BadConfigFile(f"{path}: cannot be read: {err.strerror or err}") from None
    except UnicodeDecodeError as err:
        raise BadConfigFile(f"{path}: not UTF-8 text (at byte {err.start})") from None
    return _content(text, parse, str(path))


def parse_config(text: str, kind: str, name: str) -> dict[str, Any]:
    """Return a text's content, as `read_config` does; `kind` is `toml`, `yaml` or `json`.

    Raises:
        BadConfigFile: as `read_config` does; `name` says in it where the text comes from.
    """
    parse = _PARSERS.get(f".{kind.lower()}")
    if parse is None:
        known = ", ".join(sorted(ending[1:] for ending in _PARSERS))
        raise BadConfigFile(f"{name}: unknown type {kind!r}; use one of {known}")
    return _content(text, parse, name)


def _content(text: str, parse: Callable[[str], Any], name: str) -> dict[str, Any]:
    try:
        document = parse(text)
        if document is None:
            return {}
        plain = _plain(document, name, "")
    except (ValueError, yaml.YAMLError, RecursionError) as err:
        raise BadConfigFile(f"{name}: {_reason(err)}") from None
    if not isinstance(plain, dict):
        raise BadConfigFile(f"{name}: must hold keys with values, not {type(document).__name__}")
    return plain


def write_config(content: Mapping[str, Any], kind: str, option: str) -> str:
    """Return a content as text that `parse_config` reads back; keys keep their order.

    Raises:
        BadOption: no such kind is written; `option` says where it was asked for.
    """
    write = _WRITERS.get(f".{kind.lower()}")
    if write is None:
        known = " | ".join(sorted(ending[1:] for ending in _WRITERS))
        raise BadOption(f"{option} {kind!r}: allowed: {known}")
    return write(content)


def inline_rule_files(config: Mapping[str, Any]) -> dict[str, Any]:
    """Put the lines of imported rule files (`@file`) in the place of the import.

    They may stand in `filter.rules`, in every `matcher`, and in the lists of tables that have soft
    delete or are active-active. A stored changefeed runs on machines that do not have the file, so
    its content is part of what the user asked for. Relative names start at the current directory.
    """
    return {
        key: inline_rule_files(value) if isinstance(value, Mapping) else _inlined(key, value)
        for key, value in config.items()
    }


def _inlined(key: str, value: Any) -> Any:
    """Return a key's value with imported lines; lists of rules are looked into."""
    if not isinstance(value, list):
        return value
    if key in RULE_KEYS:
        return [line for rule in value for line in _lines(rule)]
    return [inline_rule_files(one) if isinstance(one, Mapping) else one for one in value]


def _lines(rule: Any) -> list[Any]:
    name = rule.strip(" \t") if isinstance(rule, str) else ""
    if not name.startswith("@"):
        return [rule]
    # Without any line, a list would be one that was never given, which may mean every table.
    return list(read_rule_file(name[1:])) or [f"# {name}"]


def read_rule_file(name: str) -> list[str]:
    """Return the lines of a file of table filter rules.

    Raises:
        BadConfigFile: it cannot be read.
        BadFilterRule: it imports another file.
    """
    try:
        # Names may hold what else ends a line in Unicode.
        lines = [line.rstrip("\n") for line in io.StringIO(_rule_text(name), newline=None)]
    except (OSError, ValueError) as err:  # a name with a NUL, too
        why = err.strerror if isinstance(err, OSError) else "no UTF-8 text, or no name"
        raise BadConfigFile(
            f"a table filter imports {name!r}, which cannot be read: {why}"
        ) from None
    for place, line in enumerate(lines, 1):
        if line.strip(" \t").startswith("@"):
            words = "importing filter files recursively is not allowed"
            raise BadFilterRule(f"at {name}:{place}: {words}")
    return lines


def _rule_text(name: str) -> str:
    # Neither a pipe that nobody writes to, nor a device without end, may hold who reads.
    with open(name, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadConfigFile(f"a table filter imports {name!r}, which is no regular file")
        content = file.read(_MOST_RULES + 1)
    if len(content) > _MOST_RULES:
        raise BadConfigFile(
            f"a table filter imports {name!r}, which has more than {_MOST_RULES} bytes"
        )
    return content.decode("utf-8-sig")


def _open_at_once(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)


# --- one parser per file type --------------------------------------------------------------------


def _json(text: str) -> Any:
    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [k for k, _ in members]
        twice = next((k for k in keys if keys.count(k) > 1), None)
        if twice is not None:
            raise ValueError(f"the key {twice!r} is given twice")
        return dict(members)

    return json.loads(text, object_pairs_hook=pairs) if text.strip() else None


_MOST_VALUES: Final = 200_000


class _YamlLoader(yaml.SafeLoader):
    """YAML's plain values; a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                line = key_node.start_mark.line + 1
                raise ValueError(f"line {line}: the key {key!r} is given twice")
            seen.add(key if isinstance(key, Hashable) else id(key))
        return super().construct_mapping(node, deep)


def _yaml(text: str) -> Any:
    loader = _YamlLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_growth(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_growth(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many values a part of a document has when each alias is written out.

    Raises:
        ValueError: more than any settings have; a few lines of aliases can be billions.
    """
    known = sizes.get(id(node))
    if known is not None:
        return known
    sizes[id(node)] = _MOST_VALUES  # of a part that has itself in it
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        inner = node.value
    elif isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    size = 1 + sum(_refuse_growth(part, sizes) for part in inner)
    if size > _MOST_VALUES:
        line = node.start_mark.line + 1
        raise ValueError(f"line {line}: aliases make more than {_MOST_VALUES} values of this")
    sizes[id(node)] = size
    return size


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    ".json": _json,
    ".toml": tomllib.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _as_yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(
        content, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000
    )


_WRITERS: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    ".json": _as_json,
    ".yaml": _as_yaml,
}


def _reason(err: Exception) -> str:
    if isinstance(err, yaml.MarkedYAMLError) and err.problem_mark is not None:
        mark = err.problem_mark
        return f"wrong syntax: {err.problem} (at line {mark.line + 1}, column {mark.column + 1})"
    if isinstance(err, RecursionError):
        return "nested too deeply"
    return f"wrong syntax: {err}"


def _plain(value: Any, file: str, path: str) -> Any:
    """Return the value without nulls; refuse what the meta database could not store as JSON."""
    if isinstance(value, dict):
        plain: dict[str, Any] = {}
        for key, inner in value.items():
            # YAML reads the unquoted key `null` of [sink.csv] as nothing.
            name = "null" if key is None else key
            if not isinstance(name, str):
                raise BadConfigFile(
                    f"{file}: the key {key!r} under {path or 'the top'} is not text"
                )
            _refuse_half_characters(name, file, path or "the top")
            if inner is not None:
                plain[name] = _plain(inner, file, f"{path}.{name}" if path else name)
        return plain
    if isinstance(value, list):
        return [_plain(inner, file, f"{path}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, str):
        _refuse_half_characters(value, file, path)
    if isinstance(value, str | bool | int | float):
        return value
    raise BadConfigFile(f"{file}: {path} = {value}: a {type(value).__name__} is allowed nowhere")


def _refuse_half_characters(text: str, file: str, path: str) -> None:
    """Refuse half of a surrogate pair: an escape can name one, and no text can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadConfigFile(f"{file}: {path}: holds text that is not Unicode") from None
