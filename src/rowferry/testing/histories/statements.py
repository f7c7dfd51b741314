"""Random statements over the tables that there are: every kind of DML and DDL."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rowferry.testing.histories.facts import (
    ColumnFacts,
    Name,
    Rows,
    TableFacts,
    Value,
    full_name,
    literal,
    quoted,
)
from rowferry.testing.histories.literals import value
from rowferry.testing.histories.schemas import Taste, column, column_type, create_table

MOST_ROWS = 40
MOST_TABLES = 7


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement.

    Attributes:
        kind: what it is counted as.
        loose: a row may change more than once in it, so that the log may tell more than its effect.
    """

    kind: str
    sql: str
    loose: bool = False


@dataclass
class World:
    """What statements can be made of."""

    dice: random.Random
    taste: Taste
    folder: Path
    outside: str  # a database that no feed captures
    databases: list[str]
    tables: Mapping[Name, TableFacts]
    state: Mapping[Name, Rows]
    made: int = 0
    queue: list[Statement] = field(default_factory=list)  # DDL that follows one that was made

    def pick(self, fits: Callable[[TableFacts], bool] = lambda t: True) -> TableFacts | None:
        """Return a captured table."""
        fitting = [t for n, t in sorted(self.tables.items()) if n[0] != self.outside and fits(t)]
        return self.dice.choice(fitting) if fitting else None

    def fresh_name(self) -> Name:
        """Return a name for a table."""
        place = self.dice.choice(self.databases)
        taken = {n[1] for n in self.tables if n[0] == place}
        return (place, self.taste.name(self.dice, taken))

    def fresh_word(self, taken: set[str]) -> str:
        """Return a name for a column, which may differ from others by more than its case."""
        lower = {t.lower() for t in taken}
        for _ in range(30):
            name = self.taste.name(self.dice, taken)
            if name.lower() not in lower:
                return name
        self.made += 1
        return f"c{self.made}"


# --- rows ----------------------------------------------------------------------------------------


def _writable(table: TableFacts) -> list[ColumnFacts]:
    return [c for c in table.columns if not c.generated]


def _is_key(table: TableFacts, column: ColumnFacts) -> bool:
    return column.name in table.unique_columns


def _values(world: World, table: TableFacts) -> str:
    dice = world.dice
    literals = []
    for c in _writable(table):
        if c.auto_increment and dice.random() < 0.7:
            literals.append("NULL")
        else:
            literals.append(value(dice, c, small=_is_key(table, c)))
    return f"({', '.join(literals)})"


def _names(table: TableFacts) -> str:
    return ", ".join(quoted(c.name) for c in _writable(table))


def _known(v: Value) -> str:
    """Return a value of the table as SQL; "" where that is not exact."""
    if isinstance(v, int):
        return str(v)
    if isinstance(v, bytes):
        return f"0x{v.hex()}" if v else "''"
    return literal(v) if isinstance(v, str) else ""


def _where(world: World, table: TableFacts, alias: str = "") -> str:
    """Return a condition that names some rows."""
    dice, rows = world.dice, list(world.state.get(table.name, {}).values())
    prefix = f"{alias}." if alias else ""
    if rows and dice.random() < 0.8:
        row = dice.choice(rows)
        parts = []
        for name in table.key or tuple(c.name for c in table.columns[:1]):
            v = row[name]
            text = "" if v is None else _known(v)
            if table.column(name).family in ("int", "text", "bytes", "time") and text:
                parts.append(f"{prefix}{quoted(name)} = {text}")
        if parts:
            return " AND ".join(parts)
    numbers = [c for c in table.columns if c.family == "int"]
    if numbers and dice.random() < 0.7:
        one = dice.choice(numbers)
        return f"{prefix}{quoted(one.name)} % {dice.choice((2, 3, 5))} = {dice.randrange(2)}"
    return dice.choice(("1 = 1", "RAND(3) < 0.5"))


def _sets(world: World, table: TableFacts, alias: str = "") -> tuple[str, bool]:
    """Return assignments, and whether they may move keys."""
    dice = world.dice
    own = _writable(table)
    if dice.random() < 0.75:
        own = [c for c in own if not _is_key(table, c)] or own
    chosen = dice.sample(own, min(len(own), dice.choice((1, 1, 2, 3))))
    prefix = f"{alias}." if alias else ""
    parts = []
    for c in chosen:
        name = f"{prefix}{quoted(c.name)}"
        if c.type == "json" and dice.random() < 0.6:
            parts.append(f"{name} = {_json_edit(world, name)}")
        elif c.family == "int" and c.type not in ("year", "bit") and dice.random() < 0.3:
            parts.append(f"{name} = {name} + 1")
        else:
            parts.append(f"{name} = {value(dice, c, small=_is_key(table, c))}")
    return ", ".join(parts), any(_is_key(table, c) for c in chosen)


def _json_edit(world: World, name: str) -> str:
    if not world.taste.mysql:
        return f"JSON_SET({name}, '$.a', {world.dice.randrange(9)})"
    return world.dice.choice(
        (
            f"JSON_SET({name}, '$.a', {world.dice.randrange(100)})",
            f"JSON_REPLACE({name}, '$.name', 'pen')",
            f"JSON_REMOVE({name}, '$.b')",
            f"JSON_SET({name}, '$.tags[1]', 'ü', '$.n.m', 2.5)",
            f"JSON_REPLACE({name}, '$[0]', 7)",
        )
    )


def _small(table: TableFacts) -> bool:
    return not table.triggers


def insert(world: World) -> Statement | None:
    """INSERT of one or several rows."""
    if (t := world.pick(lambda t: len(world.state[t.name]) < MOST_ROWS)) is None:
        return None
    rows = ", ".join(_values(world, t) for _ in range(world.dice.choice((1, 1, 1, 2, 5))))
    ignore = "IGNORE " if world.dice.random() < 0.3 else ""
    sql = f"INSERT {ignore}INTO {full_name(t.name)} ({_names(t)}) VALUES {rows}"
    return Statement("insert", sql, not _small(t))


def replace(world: World) -> Statement | None:
    """REPLACE, which deletes what stands in its way."""
    if (t := world.pick(lambda t: len(world.state[t.name]) < MOST_ROWS)) is None:
        return None
    rows = ", ".join(_values(world, t) for _ in range(world.dice.choice((1, 2, 3))))
    return Statement(
        "replace", f"REPLACE INTO {full_name(t.name)} ({_names(t)}) VALUES {rows}", True
    )


def insert_or_update(world: World) -> Statement | None:
    """INSERT … ON DUPLICATE KEY UPDATE."""
    if (t := world.pick(lambda t: bool(t.key) and len(world.state[t.name]) < MOST_ROWS)) is None:
        return None
    rows = ", ".join(_values(world, t) for _ in range(world.dice.choice((1, 2, 3))))
    sets, _ = _sets(world, t)
    head = f"INSERT INTO {full_name(t.name)} ({_names(t)}) VALUES {rows}"
    return Statement("insert-or-update", f"{head} ON DUPLICATE KEY UPDATE {sets}", True)


def insert_select(world: World) -> Statement | None:
    """INSERT … SELECT out of the same table, with other keys."""
    if (t := world.pick(lambda t: 0 < len(world.state[t.name]) < MOST_ROWS)) is None:
        return None
    parts = []
    for c in _writable(t):
        if c.auto_increment:
            parts.append("NULL")
        elif _is_key(t, c):
            parts.append(value(world.dice, c, small=True).replace("DEFAULT", "NULL"))
        else:
            parts.append(quoted(c.name))
    sql = f"INSERT IGNORE INTO {full_name(t.name)} ({_names(t)}) SELECT {', '.join(parts)}"
    more = f" FROM {full_name(t.name)} LIMIT {world.dice.choice((1, 3))}"
    return Statement("insert-select", sql + more, not _small(t))


def update(world: World) -> Statement | None:
    """UPDATE of one row or of many."""
    if (t := world.pick(lambda t: bool(world.state[t.name]))) is None:
        return None
    sets, moves = _sets(world, t)
    ignore = "IGNORE " if world.dice.random() < 0.3 else ""
    sql = f"UPDATE {ignore}{full_name(t.name)} SET {sets} WHERE {_where(world, t)}"
    more = " ORDER BY 1 DESC LIMIT 2" if world.dice.random() < 0.1 else ""
    return Statement("update", sql + more, moves or not _small(t))


def update_two(world: World) -> Statement | None:
    """UPDATE over two tables."""
    one = world.pick(lambda t: bool(world.state[t.name]))
    if one is None:
        return None
    two = world.pick(lambda t: bool(world.state[t.name]) and t.name != one.name)
    if two is None:
        return None
    first, _ = _sets(world, one, "a")
    second, _ = _sets(world, two, "b")
    tables = f"{full_name(one.name)} a, {full_name(two.name)} b"
    condition = f"{_where(world, one, 'a')} AND {_where(world, two, 'b')}"
    return Statement(
        "update-two", f"UPDATE IGNORE {tables} SET {first}, {second} WHERE {condition}", True
    )


def delete(world: World) -> Statement | None:
    """DELETE."""
    if (t := world.pick(lambda t: bool(world.state[t.name]))) is None:
        return None
    limit = " LIMIT 2" if world.dice.random() < 0.4 else ""
    sql = f"DELETE FROM {full_name(t.name)} WHERE {_where(world, t)}{limit}"
    return Statement("delete", sql, not _small(t))


def delete_two(world: World) -> Statement | None:
    """DELETE over two tables."""
    one = world.pick(lambda t: bool(world.state[t.name]))
    if one is None:
        return None
    two = world.pick(lambda t: bool(world.state[t.name]) and t.name != one.name)
    if two is None:
        return None
    condition = f"{_where(world, one, 'a')} AND {_where(world, two, 'b')}"
    tables = f"{full_name(one.name)} a, {full_name(two.name)} b"
    loose = not (_small(one) and _small(two))
    return Statement("delete-two", f"DELETE a, b FROM {tables} WHERE {condition}", loose)


def load(world: World) -> Statement | None:
    """LOAD DATA, out of a file beside the server."""
    if (t := world.pick(lambda t: len(world.state[t.name]) < MOST_ROWS)) is None:
        return None
    world.made += 1
    path = world.folder / f"load{world.made}.txt"
    lines = []
    columns = _writable(t)
    for _ in range(3):
        fields = [str(world.dice.randrange(1, 60)) if c.family == "int" else "7" for c in columns]
        lines.append("\t".join(fields))
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)
    mode = world.dice.choice(("IGNORE", "REPLACE"))
    sql = f"LOAD DATA INFILE '{path}' {mode} INTO TABLE {full_name(t.name)} ({_names(t)})"
    return Statement("load", sql, mode == "REPLACE" or not _small(t))


# --- schema changes ------------------------------------------------------------------------------


def create(world: World) -> Statement | None:
    """CREATE TABLE."""
    if len(world.tables) >= MOST_TABLES:
        return None
    return Statement("create", create_table(world.dice, world.taste, world.fresh_name()))


def create_like(world: World) -> Statement | None:
    """CREATE TABLE … LIKE."""
    if len(world.tables) >= MOST_TABLES or (t := world.pick()) is None:
        return None
    return Statement(
        "create-like", f"CREATE TABLE {full_name(world.fresh_name())} LIKE {full_name(t.name)}"
    )


def create_select(world: World) -> Statement | None:
    """CREATE TABLE … SELECT, with a key where one is needed."""
    if len(world.tables) >= MOST_TABLES:
        return None
    t = world.pick(lambda t: len(t.primary) == 1 and bool(world.state[t.name]))
    if t is None:
        return None
    key = t.column(t.primary[0])
    part = "" if key.type not in ("text", "blob") else "(10)"
    name = full_name(world.fresh_name())
    sql = f"CREATE TABLE {name} (PRIMARY KEY ({quoted(key.name)}{part})) SELECT * FROM"
    return Statement("create-select", f"{sql} {full_name(t.name)} LIMIT 5")


def drop(world: World) -> Statement | None:
    """DROP TABLE."""
    if len(world.tables) < 3 or (t := world.pick()) is None:
        return None
    exists = "IF EXISTS " if world.dice.random() < 0.3 else ""
    return Statement("drop", f"DROP TABLE {exists}{full_name(t.name)}")


def drop_some(world: World) -> Statement | None:
    """DROP TABLE of two tables."""
    one = world.pick()
    if one is None or len(world.tables) < 5:
        return None
    two = world.pick(lambda t: t.name != one.name)
    if two is None:
        return None
    return Statement("drop", f"DROP TABLE IF EXISTS {full_name(one.name)}, {full_name(two.name)}")


def replace_table(world: World) -> Statement | None:
    """CREATE OR REPLACE TABLE, which only MariaDB knows."""
    if world.taste.mysql or (t := world.pick(lambda t: not t.parents)) is None:
        return None
    made = create_table(world.dice, world.taste, t.name)
    return Statement("replace-table", made.replace("CREATE TABLE", "CREATE OR REPLACE TABLE", 1))


def no_effect(world: World) -> Statement | None:
    """A statement about what is there, or not there, already."""
    if (t := world.pick()) is None:
        return None
    nothing = full_name((t.name[0], "not there"))
    sql = world.dice.choice(
        (
            f"CREATE TABLE IF NOT EXISTS {full_name(t.name)} (id int)",
            f"DROP TABLE IF EXISTS {nothing}",
            f"DROP VIEW IF EXISTS {nothing}",
            f"CREATE DATABASE IF NOT EXISTS {quoted(t.name[0])}",
        )
    )
    return Statement("no-effect", sql)


def truncate(world: World) -> Statement | None:
    """TRUNCATE TABLE."""
    if (t := world.pick()) is None:
        return None
    return Statement("truncate", f"TRUNCATE TABLE {full_name(t.name)}")


def rename(world: World) -> Statement | None:
    """RENAME of one table."""
    if (t := world.pick(lambda t: not t.triggers)) is None:
        return None
    new = full_name(world.fresh_name())
    if world.dice.random() < 0.5:
        return Statement("rename", f"ALTER TABLE {full_name(t.name)} RENAME TO {new}")
    return Statement("rename", f"RENAME TABLE {full_name(t.name)} TO {new}")


def swap(world: World) -> Statement | None:
    """RENAME of two tables into each other's place."""
    one = world.pick(lambda t: not t.triggers)
    if one is None:
        return None
    two = world.pick(lambda t: not t.triggers and t.name != one.name)
    if two is None:
        return None
    spare = full_name((one.name[0], "swap spare"))
    a, b = full_name(one.name), full_name(two.name)
    return Statement("swap", f"RENAME TABLE {a} TO {spare}, {b} TO {a}, {spare} TO {b}")


def _place(world: World, table: TableFacts) -> str:
    roll = world.dice.random()
    if roll < 0.2:
        return " FIRST"
    return f" AFTER {quoted(world.dice.choice(table.columns).name)}" if roll < 0.6 else ""


def _free(table: TableFacts) -> list[ColumnFacts]:
    return [c for c in table.columns if not _is_key(table, c) and not c.auto_increment]


def _add(world: World, t: TableFacts) -> str:
    name = world.fresh_word({c.name for c in t.columns})
    numbers = [c.name for c in t.columns if c.type == "int" and not c.generated]
    numbers = [n for n in numbers if not t.column(n).auto_increment]
    return f"ADD COLUMN {column(world.dice, world.taste, name, numbers)}{_place(world, t)}"


def _drop(world: World, t: TableFacts) -> str:
    free = _free(t)
    return (
        f"DROP COLUMN {quoted(world.dice.choice(free).name)}" if free and len(t.columns) > 2 else ""
    )


def _modify(world: World, t: TableFacts) -> str:
    free = [c for c in _free(t) if not c.generated]
    if not free:
        return ""
    one = world.dice.choice(free)
    wider = {
        "tinyint": "smallint",
        "smallint": "int",
        "int": "bigint",
        "varchar": "varchar(400)",
        "char": "varchar(50)",
        "text": "mediumtext",
        "blob": "longblob",
        "float": "double",
        "datetime": "datetime(6)",
        "tinytext": "text",
    }
    new = wider.get(one.type, "")
    if not new or world.dice.random() < 0.25:
        new = column_type(world.dice, world.taste)
    elif one.unsigned and "int" in new:
        new += " unsigned"
    null = "" if " NULL" in new else " NULL"
    return f"MODIFY COLUMN {quoted(one.name)} {new}{null}{_place(world, t)}"


def _change(world: World, t: TableFacts) -> str:
    plain = [
        c for c in _free(t) if not c.generated and c.type in ("int", "bigint", "double", "date")
    ]
    if not plain:
        return ""
    one = world.dice.choice(plain)
    new = quoted(world.fresh_word({c.name for c in t.columns}))
    return f"CHANGE COLUMN {quoted(one.name)} {new} {one.full} NULL"


def _rename_column(world: World, t: TableFacts) -> str:
    one = world.dice.choice(t.columns)
    new = quoted(world.fresh_word({c.name for c in t.columns}))
    return f"RENAME COLUMN {quoted(one.name)} TO {new}"


def _add_index(world: World, t: TableFacts) -> str:
    one = world.dice.choice(t.columns)
    part = "(7)" if one.type in ("text", "blob", "mediumtext", "longblob", "longtext") else ""
    world.made += 1
    kind = world.dice.choice(("INDEX", "INDEX", "UNIQUE INDEX"))
    return f"ADD {kind} {quoted(f'ix {world.made}')} ({quoted(one.name)}{part})"


def _drop_index(world: World, t: TableFacts) -> str:
    kept = set() if world.taste.keyless else {name for name, _ in t.uniques}
    own = [i for i in t.indexes if i != "PRIMARY" and i not in kept]
    return f"DROP INDEX {quoted(world.dice.choice(own))}" if own else ""


def _drop_key(world: World, t: TableFacts) -> str:
    return "DROP PRIMARY KEY" if t.primary and world.taste.keyless else ""


def _add_key(world: World, t: TableFacts) -> str:
    if t.primary:
        return ""
    return f"ADD PRIMARY KEY ({quoted(world.dice.choice(t.columns).name)})"


def _default(world: World, t: TableFacts) -> str:
    numbers = [c for c in t.columns if c.type in ("int", "bigint", "smallint") and not c.generated]
    numbers = [c for c in numbers if not c.auto_increment]
    if not numbers:
        return ""
    one = quoted(world.dice.choice(numbers).name)
    return f"ALTER COLUMN {one} SET DEFAULT {world.dice.randrange(9)}"


def _options(world: World, t: TableFacts) -> str:
    return world.dice.choice(
        (
            "COMMENT 'it''s; a comment'",
            "ENGINE=InnoDB",
            "FORCE",
            f"AUTO_INCREMENT={world.dice.randrange(50, 90)}",
            "DEFAULT CHARSET=latin1",
            "ROW_FORMAT=DYNAMIC",
        )
    )


def _convert(world: World, t: TableFacts) -> str:
    if any(c.family == "named" for c in t.columns):
        return ""  # both servers break elements of ENUM and SET in UTF-16 and the like
    return f"CONVERT TO CHARACTER SET {world.dice.choice(('utf8mb4', 'utf8mb3', 'utf16'))}"


def _rename_index(world: World, t: TableFacts) -> str:
    own = [i for i in t.indexes if i != "PRIMARY"]
    world.made += 1
    return f"RENAME INDEX {quoted(world.dice.choice(own))} TO `ri{world.made}`" if own else ""


def _visibility(world: World, t: TableFacts) -> str:
    own = [i for i in t.indexes if i != "PRIMARY"]
    if own and world.dice.random() < 0.5:
        words = ("INVISIBLE", "VISIBLE") if world.taste.mysql else ("IGNORED", "NOT IGNORED")
        return f"ALTER INDEX {quoted(world.dice.choice(own))} {world.dice.choice(words)}"
    free = [c for c in _free(t) if not c.generated and c.nullable and c.type == "int"]
    if not free:
        return ""
    one = world.dice.choice(free)
    return (
        f"MODIFY COLUMN {quoted(one.name)} {one.full} NULL{'' if one.invisible else ' INVISIBLE'}"
    )


def _add_several(world: World, t: TableFacts) -> str:
    taken = {c.name for c in t.columns}
    first = world.fresh_word(taken)
    second = world.fresh_word({*taken, first})
    return f"ADD COLUMN ({quoted(first)} int DEFAULT 5, {quoted(second)} varchar(20) DEFAULT 'ü')"


def _check(world: World, t: TableFacts) -> str:
    world.made += 1
    return (
        f"ADD CONSTRAINT `ck{world.made}` CHECK ({quoted(t.columns[0].name)} IS NOT NULL OR 1 = 1)"
    )


CLAUSES: dict[str, Callable[[World, TableFacts], str]] = {
    "rename-index": _rename_index,
    "visibility": _visibility,
    "add-several": _add_several,
    "check": _check,
    "add-column": _add,
    "drop-column": _drop,
    "modify-column": _modify,
    "change-column": _change,
    "rename-column": _rename_column,
    "add-index": _add_index,
    "drop-index": _drop_index,
    "drop-key": _drop_key,
    "add-key": _add_key,
    "set-default": _default,
    "table-options": _options,
    "convert": _convert,
}


def alter(world: World) -> Statement | None:
    """ALTER TABLE with one clause or two."""
    if (t := world.pick()) is None:
        return None
    kinds = world.dice.sample(sorted(CLAUSES), 2 if world.dice.random() < 0.25 else 1)
    clauses = [c for c in (CLAUSES[k](world, t) for k in kinds) if c]
    if not clauses:
        return None
    comment = world.dice.choice(("", "", "/* why; not */ ", "/*!40000 */ "))
    sql = f"ALTER TABLE {comment}{full_name(t.name)} {', '.join(clauses)}"
    return Statement(kinds[0] if len(kinds) == 1 else "alter-several", sql)


def index_statement(world: World) -> Statement | None:
    """CREATE INDEX and DROP INDEX."""
    if (t := world.pick()) is None:
        return None
    clause = _drop_index(world, t) if world.dice.random() < 0.4 else ""
    if clause:
        return Statement("drop-index", f"{clause} ON {full_name(t.name)}")
    numbers = [c for c in t.columns if c.family == "int"]
    if not numbers:
        return None
    world.made += 1
    one = quoted(world.dice.choice(numbers).name)
    return Statement(
        "add-index", f"CREATE INDEX `ci{world.made}` ON {full_name(t.name)} ({one} DESC)"
    )


def partition(world: World) -> Statement | None:
    """ALTER TABLE … PARTITION of every kind."""
    if (t := world.pick(lambda t: bool(t.partitions))) is None:
        return None
    name = full_name(t.name)
    one = quoted(world.dice.choice(t.partitions))
    dice = world.dice
    if t.partitioned_by == "RANGE":
        clause = dice.choice(
            (
                f"DROP PARTITION {one}",
                f"TRUNCATE PARTITION {one}",
                f"TRUNCATE PARTITION {one}",
                "REORGANIZE PARTITION pmax INTO (PARTITION p2 VALUES LESS THAN (35), "
                "PARTITION pmax VALUES LESS THAN MAXVALUE)",
                "REMOVE PARTITIONING",
                f"REBUILD PARTITION {one}",
            )
        )
    else:
        clause = dice.choice(
            (
                "ADD PARTITION PARTITIONS 1",
                "COALESCE PARTITION 1",
                f"TRUNCATE PARTITION {one}",
                "REMOVE PARTITIONING",
            )
        )
    return Statement("partition", f"ALTER TABLE {name} {clause}")


def exchange(world: World) -> Statement | None:
    """CREATE TABLE … LIKE, REMOVE PARTITIONING; then EXCHANGE PARTITION, there and back."""
    t = world.pick(lambda t: bool(t.partitions) and not t.triggers and not t.parents)
    if t is None or len(world.tables) >= MOST_TABLES:
        return None
    other, one = full_name(world.fresh_name()), quoted(world.dice.choice(t.partitions))
    swap = f"ALTER TABLE {full_name(t.name)} EXCHANGE PARTITION {one} WITH TABLE {other}"
    world.queue += [
        Statement("partition", f"ALTER TABLE {other} REMOVE PARTITIONING"),
        Statement("exchange-partition", swap),
    ]
    if world.dice.random() < 0.5:
        world.queue.append(Statement("exchange-partition", swap))
    return Statement("create-like", f"CREATE TABLE {other} LIKE {full_name(t.name)}")


def partition_by(world: World) -> Statement | None:
    """ALTER TABLE … PARTITION BY."""
    t = world.pick(lambda t: not t.partitions and len(t.primary) == 1 and len(t.uniques) == 1)
    if (
        t is None
        or not world.taste.partitions
        or t.column(t.primary[0]).type not in ("int", "bigint")
    ):
        return None
    sql = f"ALTER TABLE {full_name(t.name)} PARTITION BY HASH ({quoted(t.primary[0])}) PARTITIONS 2"
    return Statement("partition-by", sql)


def create_database(world: World) -> Statement | None:
    """CREATE DATABASE."""
    if len(world.databases) >= 3:
        return None
    name = world.taste.name(world.dice, {*world.databases, world.outside, "meta"})
    return Statement("create-database", f"CREATE DATABASE {quoted(f'h_{name}'[:60])}")


def alter_database(world: World) -> Statement | None:
    """ALTER DATABASE."""
    name = quoted(world.dice.choice(world.databases))
    charset = world.dice.choice(("latin1", "utf8mb4", "utf8mb3"))
    return Statement("alter-database", f"ALTER DATABASE {name} CHARACTER SET {charset}")


def drop_database(world: World) -> Statement | None:
    """DROP DATABASE, with the tables in it."""
    if len(world.databases) < 2:
        return None
    return Statement("drop-database", f"DROP DATABASE {quoted(world.databases[-1])}")


def trigger(world: World) -> Statement | None:
    """CREATE TRIGGER, which writes into another table, of the third ones one that no feed reads."""
    one = world.pick(lambda t: not t.triggers and not t.parents)
    if one is None:
        return None
    two = world.pick(lambda t: t.name != one.name and not t.triggers)
    if two is None or one.name[0] != two.name[0]:
        return None
    world.made += 1
    others = [t for n, t in sorted(world.tables.items()) if n[0] == world.outside]
    if others and world.made % 3 == 0:
        two = others[0]
    when = world.dice.choice(("INSERT", "UPDATE", "DELETE"))
    body = f"INSERT IGNORE INTO {full_name(two.name)} ({_names(two)}) VALUES {_values(world, two)}"
    if world.dice.random() < 0.4:
        sets, _ = _sets(world, two)
        body = f"UPDATE IGNORE {full_name(two.name)} SET {sets}"
    name = full_name((one.name[0], f"tr{world.made}"))
    sql = f"CREATE TRIGGER {name} AFTER {when} ON {full_name(one.name)} FOR EACH ROW {body}"
    return Statement("trigger", sql)


def foreign_key(world: World) -> Statement | None:
    """ADD FOREIGN KEY; MariaDB's log does not tell what a cascade does, so there it has none."""
    parent = world.pick(lambda t: len(t.primary) == 1 and not t.partitions and not t.triggers)
    if parent is None or (key := parent.column(parent.primary[0])).family != "int":
        return None
    child = world.pick(
        lambda t: not t.partitions and not t.triggers and t.name != parent.name and not t.parents
    )
    if child is None:
        return None
    world.made += 1
    fitting = [c for c in _free(child) if c.full == key.full and not c.generated and c.nullable]
    clauses = []
    if not fitting:
        name = quoted(f"parent {world.made}" if world.taste.odd_names else f"parent{world.made}")
        clauses.append(f"ADD COLUMN {name} {key.full} NULL")
    else:
        name = quoted(world.dice.choice(fitting).name)
    on = ""
    if world.taste.mysql:
        on = world.dice.choice(
            (" ON DELETE CASCADE", " ON DELETE SET NULL ON UPDATE CASCADE", " ON UPDATE CASCADE")
        )
    place = f"REFERENCES {full_name(parent.name)} ({quoted(key.name)}){on}"
    clauses.append(f"ADD CONSTRAINT `fk{world.made}` FOREIGN KEY ({name}) {place}")
    return Statement("foreign-key", f"ALTER TABLE {full_name(child.name)} {', '.join(clauses)}")


def move_out(world: World) -> Statement | None:
    """RENAME of a table to where no feed looks."""
    if len(world.tables) < 4 or (t := world.pick(lambda t: not t.triggers)) is None:
        return None
    taken = {n[1] for n in world.tables if n[0] == world.outside}
    new = (world.outside, world.taste.name(world.dice, taken))
    return Statement("move-out", f"RENAME TABLE {full_name(t.name)} TO {full_name(new)}")


def create_outside(world: World) -> Statement | None:
    """CREATE TABLE where no feed looks."""
    if any(n[0] == world.outside for n in world.tables):
        return None
    name = (world.outside, world.taste.name(world.dice, set()))
    return Statement("create-outside", create_table(world.dice, world.taste, name))


def move_in(world: World) -> Statement | None:
    """RENAME of a table, with its rows, to where feeds look."""
    outside = [n for n in sorted(world.tables) if n[0] == world.outside and world.state[n]]
    if not outside:
        return None
    old, new = world.dice.choice(outside), world.fresh_name()
    return Statement("move-in", f"RENAME TABLE {full_name(old)} TO {full_name(new)}")


def write_outside(world: World) -> Statement | None:
    """INSERT into a table that no feed captures."""
    outside = [t for n, t in sorted(world.tables.items()) if n[0] == world.outside]
    if not outside or len(world.state[outside[0].name]) > MOST_ROWS:
        return None
    t = outside[0]
    sql = f"INSERT IGNORE INTO {full_name(t.name)} ({_names(t)}) VALUES {_values(world, t)}"
    return Statement("write-outside", sql)


def view(world: World) -> Statement | None:
    """CREATE VIEW, which no feed carries rows of."""
    if (t := world.pick()) is None:
        return None
    name = full_name((t.name[0], "a view"))
    return Statement("view", f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {full_name(t.name)}")


def sequence(world: World) -> Statement | None:
    """CREATE SEQUENCE, which is no table though MariaDB stores it as one."""
    if world.taste.mysql:
        return None
    world.made += 1
    name = full_name((world.dice.choice(world.databases), f"sq{world.made}"))
    return Statement("sequence", f"CREATE SEQUENCE {name} START WITH 5 CACHE 3")


def temporary(world: World) -> Statement | None:
    """CREATE TEMPORARY TABLE, which nobody else sees."""
    world.made += 1
    name = full_name((world.dice.choice(world.databases), f"tmp{world.made}"))
    return Statement("temporary", f"CREATE TEMPORARY TABLE {name} (id int PRIMARY KEY)")


def maintain(world: World) -> Statement | None:
    """Statements that stand in the log and change nothing."""
    if (t := world.pick()) is None:
        return None
    verb = world.dice.choice(("ANALYZE", "OPTIMIZE", "ANALYZE NO_WRITE_TO_BINLOG"))
    return Statement("maintain", f"{verb} TABLE {full_name(t.name)}")


DML: dict[Callable[[World], Statement | None], int] = {
    insert: 30,
    replace: 6,
    insert_or_update: 7,
    insert_select: 5,
    update: 30,
    update_two: 4,
    delete: 10,
    delete_two: 2,
    load: 2,
    write_outside: 3,
}


DDL: dict[Callable[[World], Statement | None], int] = {
    create: 14,
    create_like: 4,
    create_select: 5,
    drop: 4,
    truncate: 5,
    rename: 6,
    swap: 4,
    alter: 45,
    index_statement: 4,
    partition: 8,
    partition_by: 2,
    exchange: 4,
    replace_table: 2,
    no_effect: 2,
    drop_some: 1,
    create_database: 3,
    alter_database: 1,
    drop_database: 1,
    trigger: 3,
    foreign_key: 4,
    create_outside: 2,
    move_out: 2,
    move_in: 4,
    view: 1,
    sequence: 2,
    temporary: 1,
    maintain: 2,
}


def draw(world: World, kinds: Mapping[Callable[[World], Statement | None], int]) -> Statement:
    """Return a statement of a random kind that can be made now."""
    if kinds is DDL and world.queue:
        return world.queue.pop(0)
    makers, weights = list(kinds), list(kinds.values())
    for _ in range(50):
        (make,) = world.dice.choices(makers, weights)
        if (statement := make(world)) is not None:
            return statement
    return Statement("create", create_table(world.dice, world.taste, world.fresh_name()))
