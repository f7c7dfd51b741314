"""Random tables: every type, character set, kind of key, partitioning, and odd names."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from rowferry.testing.histories.facts import Name, full_name, quoted

_ODD: Final = (
    "select",
    "Order",
    "order",
    "with space",
    "dot.ted",
    "quo'te",
    'double"quote',
    "back`tick",
    "Ünïcode",
    "日本",
    "per%cent",
    "a-b",
    "semi;colon",
    "$dollar",
    "sla/sh",
    "question?",
    "hash#",
    "CamelCase",
    "camelcase",
    "new",
    "old",
    "key",
    "meta",
    "a" * 60,
)
_PLAIN: Final = ("alpha", "beta", "gamma", "delta", "eps", "zeta", "eta", "theta", "iota", "kappa")
_COMMON: Final = (
    "tinyint",
    "tinyint unsigned",
    "boolean",
    "smallint",
    "smallint unsigned",
    "mediumint",
    "mediumint unsigned",
    "int",
    "int unsigned",
    "int(8) zerofill",
    "bigint",
    "bigint unsigned",
    "float",
    "float unsigned",
    "double",
    "decimal(10,2)",
    "decimal(65,30)",
    "decimal(65,0)",
    "decimal(5,5)",
    "decimal(18,4) unsigned",
    "bit(1)",
    "bit(13)",
    "bit(64)",
    "char(10)",
    "varchar(30)",
    "varchar(300)",
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "binary(7)",
    "varbinary(20)",
    "varbinary(300)",
    "tinyblob",
    "blob",
    "mediumblob",
    "longblob",
    "date",
    "datetime",
    "datetime(3)",
    "datetime(6)",
    "timestamp NULL",
    "timestamp(6) NULL",
    "time",
    "time(4)",
    "year",
    "enum('a','b','it''s','ü','')",
    "set('x','y','z','w w')",
    "json",
    "geometry",
    "point",
)
_MYSQL: Final = ("vector(3)", "json", "json")
_MARIADB: Final = ("uuid", "inet6", "json")
_MARIADB_10_10: Final = ("inet4",)
_CHARSETS: Final = (
    "utf8mb4",
    "utf8mb4",
    "latin1",
    "utf8mb3",
    "ucs2",
    "utf16",
    "utf32",
    "ascii",
    "gbk",
    "big5",
    "sjis",
    "euckr",
    "cp1251",
    "koi8r",
    "latin2",
    "greek",
    "hebrew",
    "tis620",
    "cp932",
    "ujis",
    "utf16le",
    "cp850",
    "macroman",
    "gb2312",
    "binary",
    "utf8mb4 COLLATE utf8mb4_bin",
    "utf8mb4 COLLATE utf8mb4_unicode_ci",
    "latin1 COLLATE latin1_general_cs",
    "latin1 COLLATE latin1_bin",
)
_KEYABLE: Final = (
    "int",
    "bigint unsigned",
    "smallint",
    "varchar(30)",
    "varchar(30) CHARACTER SET latin1",
    "varchar(20) COLLATE utf8mb4_bin",
    "char(10)",
    "varbinary(20)",
    "binary(4)",
    "datetime(3)",
    "date",
    "decimal(10,2)",
    "enum('a','b','c','d')",
    "bit(13)",
)


@dataclass(frozen=True, slots=True)
class Taste:
    """What a history may use.

    Attributes:
        server: mysql, mariadb or mariadb11.
        odd_names: names that need quotes.
        keyless: tables in which rows cannot be told apart.
        specials: types and clauses that another make of server does not know.
        partitions: partitioned tables.
        prefixes: primary keys over the beginning of a text.
    """

    server: str
    odd_names: bool = True
    keyless: bool = True
    specials: bool = True
    partitions: bool = True
    prefixes: bool = True

    @property
    def mysql(self) -> bool:
        """Whether it is MySQL."""
        return self.server == "mysql"

    def types(self) -> tuple[str, ...]:
        """Return the types that a column may have."""
        if not self.specials:
            return _COMMON
        more = _MYSQL if self.mysql else _MARIADB + _MARIADB_10_10
        return _COMMON + more * 2

    def name(self, dice: random.Random, taken: set[str]) -> str:
        """Return a name that is not taken."""
        pool = _PLAIN + _ODD if self.odd_names else _PLAIN
        for _ in range(20):
            name = dice.choice(pool)
            if name not in taken:
                return name
        number = len(taken)
        while f"n{number}" in taken:
            number += 1
        return f"n{number}"


def column_type(dice: random.Random, taste: Taste) -> str:
    """Return a random type with its character set."""
    sql_type = dice.choice(taste.types())
    is_text = sql_type.startswith(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))
    if (is_text or sql_type.startswith(("enum", "set"))) and dice.random() < 0.5:
        charset = dice.choice(_CHARSETS)
        if charset != "binary" or not sql_type.startswith(("enum", "set")):
            sql_type += f" CHARACTER SET {charset}"
    return sql_type


def column(dice: random.Random, taste: Taste, name: str, numbers: list[str]) -> str:
    """Return a column's definition; generated ones build on the integer columns `numbers`."""
    if numbers and dice.random() < 0.12:
        kind = dice.choice(("VIRTUAL", "STORED"))
        base = quoted(dice.choice(numbers))
        if dice.random() < 0.5:
            return f"{quoted(name)} bigint GENERATED ALWAYS AS ({base} + 1) {kind}"
        return f"{quoted(name)} varchar(80) AS (concat('g', {base}, 'é')) {kind}"
    text = column_type(dice, taste)
    null = " NOT NULL" if dice.random() < 0.25 and " NULL" not in text else ""
    more = ""
    if not null and dice.random() < 0.1 and not text.startswith("timestamp"):
        more = " INVISIBLE" if taste.specials else ""
    elif dice.random() < 0.2 and text.startswith(("int", "big", "small", "medium", "tiny")):
        if "text" not in text and "blob" not in text:
            more = f" DEFAULT {dice.randrange(100)}"
    elif text.startswith("varchar") and dice.random() < 0.2:
        more = " DEFAULT 'it''s'"
    elif text.startswith("datetime(6)") and dice.random() < 0.3:
        more = " DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"
    comment = " COMMENT 'a; ''b'' -- c'" if dice.random() < 0.1 else ""
    return f"{quoted(name)} {text}{null}{more}{comment}"


def create_table(dice: random.Random, taste: Taste, name: Name) -> str:
    """Return the CREATE TABLE statement of a random table."""
    taken: set[str] = set()

    def column_name() -> str:
        # column names differ in more than their case
        while True:
            name = taste.name(dice, taken)
            if name.lower() not in taken:
                taken.update((name, name.lower()))
                return name

    keys: list[str] = []
    lines: list[str] = []
    numbers: list[str] = []
    roll = dice.random()
    partition = ""
    if roll < 0.45:  # a number
        key = column_name()
        auto = dice.random() < 0.5
        base = dice.choice(("int", "bigint", "int unsigned", "bigint unsigned"))
        lines.append(f"{quoted(key)} {base} NOT NULL{' AUTO_INCREMENT' if auto else ''}")
        keys.append(f"PRIMARY KEY ({quoted(key)})")
        numbers += [] if auto else [key]
        if taste.partitions and dice.random() < 0.3:
            partition = dice.choice(
                (
                    f" PARTITION BY HASH ({quoted(key)}) PARTITIONS 3",
                    f" PARTITION BY KEY ({quoted(key)}) PARTITIONS 2",
                    f" PARTITION BY RANGE ({quoted(key)}) (PARTITION p0 VALUES LESS THAN (10), "
                    "PARTITION p1 VALUES LESS THAN (20), PARTITION pmax VALUES LESS THAN MAXVALUE)",
                )
            )
    elif roll < 0.75:  # several columns, or text
        count = dice.choice((1, 1, 2, 3))
        names = [column_name() for _ in range(count)]
        lines += [f"{quoted(n)} {dice.choice(_KEYABLE)} NOT NULL" for n in names]
        if taste.prefixes and dice.random() < 0.15:
            names.append(column_name())
            lines.append(f"{quoted(names[-1])} {dice.choice(('text', 'blob'))} NOT NULL")
            parts = [quoted(n) for n in names[:-1]] + [f"{quoted(names[-1])}(12)"]
        else:
            parts = [quoted(n) for n in names]
        kind = dice.choice(("PRIMARY KEY", "UNIQUE KEY uq"))
        if "(12)" in parts[-1] and not taste.keyless:
            kind = "PRIMARY KEY"  # MySQL tells no rows apart by beginnings of another key
        keys.append(f"{kind} ({', '.join(parts)})")
    elif roll < 0.9 or not taste.keyless:
        key = column_name()
        lines.append(f"{quoted(key)} int NOT NULL")
        keys.append(f"UNIQUE KEY {quoted('u k')} ({quoted(key)})")
        numbers.append(key)
    for _ in range(dice.randrange(1, 8)):
        own = column_name()
        lines.append(column(dice, taste, own, numbers))
        if " int" in lines[-1] and "GENERATED" not in lines[-1] and "AS (" not in lines[-1]:
            numbers.append(own)
            if dice.random() < 0.25:
                keys.append(f"{dice.choice(('KEY', 'UNIQUE KEY'))} ({quoted(own)})")
    if partition:
        keys = [k for k in keys if not k.startswith("UNIQUE")]
    elif taste.mysql and taste.specials and numbers and dice.random() < 0.15:
        keys.append(f"KEY fx (({quoted(numbers[0])} + 1))")
    dice.shuffle(lines)
    # a generated column may stand before what it is made of; AUTO_INCREMENT needs its key only
    charset = f" DEFAULT CHARSET={dice.choice(_CHARSETS)}" if dice.random() < 0.35 else ""
    comment = " COMMENT='semi;colon'" if dice.random() < 0.1 else ""
    body = ",\n  ".join(lines + keys)
    return f"CREATE TABLE {full_name(name)} (\n  {body}\n){charset}{comment}{partition}"
