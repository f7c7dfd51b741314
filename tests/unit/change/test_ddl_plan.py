"""What DDL statements make of the tables that are there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.statement import parse_create, plan_ddl

T = TableId("d", "t")


class Tables:
    """A few tables; `run` plans a statement and applies it, `plan` only plans it."""

    def __init__(self, *created: str) -> None:
        self.ids = count(100)
        self.known: dict[TableId, TableSchema] = {}
        for sql in created:
            self.run(sql)

    def plan(self, sql: str, database: str = "d") -> list[SchemaChange]:
        return plan_ddl(sql, database, self.known, lambda: next(self.ids))

    def run(self, sql: str) -> list[SchemaChange]:
        changes = self.plan(sql)
        for change in changes:
            self.known.pop(change.previous or change.table, None)
            if change.schema is not None:
                self.known[change.table] = change.schema
        return changes

    def one(self, sql: str) -> SchemaChange:
        (found,) = self.run(sql)
        assert found.commit_ts == 0
        assert found.schema is None or found.schema.version == 0
        return found

    def altered(self, what: str) -> TableSchema:
        """Run `ALTER TABLE t …` and return the new definition."""
        found = self.one(f"ALTER TABLE t {what}").schema
        assert found is not None
        return found


def table(body: str = "id int primary key, a int, b varchar(10)", more: str = "") -> Tables:
    return Tables(f"CREATE TABLE d.t ({body}) {more}")


def names(found: TableSchema) -> list[str]:
    return [c.name for c in found.columns]


# --- databases and whole tables ------------------------------------------------------------------


@pytest.mark.parametrize("word", ["DATABASE", "SCHEMA"])
def test_databases(word: str) -> None:
    tables = Tables()
    assert tables.one(f"CREATE {word} IF NOT EXISTS `x` DEFAULT CHARSET utf8mb4;") == SchemaChange(
        0,
        DdlKind.CREATE_DATABASE,
        f"CREATE {word} IF NOT EXISTS `x` DEFAULT CHARSET utf8mb4",
        TableId("x", ""),
    )
    altered = tables.one(f"ALTER {word} x CHARACTER SET = latin1")
    assert (altered.kind, altered.table) == (DdlKind.DATABASE_CHARSET, TableId("x", ""))
    assert tables.one(f"ALTER {word} COLLATE latin1_bin").table == TableId("d", "")
    dropped = tables.one(f"DROP {word} IF EXISTS x")
    assert (dropped.kind, dropped.table) == (DdlKind.DROP_DATABASE, TableId("x", ""))


def test_drop_database_drops_its_tables_first() -> None:
    tables = Tables(
        "CREATE TABLE d.a (x int)", "CREATE TABLE e.b (x int)", "CREATE TABLE d.c (x int)"
    )
    changes = tables.run("DROP DATABASE d")
    assert [(c.kind, str(c.table), c.dropped_table_id, c.query) for c in changes] == [
        (DdlKind.DROP_TABLE, "d.a", 100, "DROP TABLE `d`.`a`"),
        (DdlKind.DROP_TABLE, "d.c", 102, "DROP TABLE `d`.`c`"),
        (DdlKind.DROP_DATABASE, "d.", 0, "DROP DATABASE d"),
    ]
    assert list(tables.known) == [TableId("e", "b")]


def test_create_table() -> None:
    change = Tables().one(" CREATE TABLE t (id int primary key) ; ")
    assert change.query == "CREATE TABLE t (id int primary key)"
    assert (change.kind, change.table) == (DdlKind.CREATE_TABLE, T)
    assert change.schema is not None
    assert (change.schema.table_id, change.schema.id) == (100, T)


def test_create_table_gives_ids_to_partitions_after_its_own() -> None:
    found = Tables().one("CREATE TABLE t (a int) PARTITION BY HASH(a) PARTITIONS 2").schema
    assert found is not None
    assert (found.table_id, found.physical_ids) == (100, (101, 102))


def test_create_existing_table() -> None:
    tables = table()
    assert tables.run("CREATE TABLE IF NOT EXISTS t (x int)") == []
    with pytest.raises(BadStatement, match=r"table d\.t exists already"):
        tables.run("CREATE TABLE t (x int)")
    dropped, created = tables.run("CREATE OR REPLACE TABLE t (x int)")
    assert (dropped.kind, dropped.dropped_table_id) == (DdlKind.DROP_TABLE, 100)
    assert created.kind == DdlKind.CREATE_TABLE


@pytest.mark.parametrize("form", ["LIKE t", "(LIKE d.t)"])
def test_create_like(form: str) -> None:
    tables = table("id int primary key, a int", "PARTITION BY HASH(id) PARTITIONS 2")
    old = tables.known[T]
    new = tables.one(f"CREATE TABLE u {form}").schema
    assert new is not None
    assert (new.id, new.columns, new.indexes) == (TableId("d", "u"), old.columns, old.indexes)
    assert not {new.table_id, *new.physical_ids} & {old.table_id, *old.physical_ids}


def test_create_like_nothing() -> None:
    with pytest.raises(BadStatement, match=r"no table d\.x"):
        Tables().plan("CREATE TABLE u LIKE x")


def test_drop_table() -> None:
    tables = table()
    assert tables.one("DROP TABLE t") == SchemaChange(
        0, DdlKind.DROP_TABLE, "DROP TABLE t", T, dropped_table_id=100
    )
    assert tables.run("DROP TABLE IF EXISTS t") == []
    with pytest.raises(BadStatement, match=r"no table d\.t"):
        tables.run("DROP TABLE t")


def test_drop_several_tables_gives_each_its_own_text() -> None:
    tables = Tables("CREATE TABLE d.a (x int)", "CREATE TABLE e.b (x int)")
    changes = tables.run("DROP TABLES IF EXISTS a, nope, e.b CASCADE")
    assert [(str(c.table), c.query) for c in changes] == [
        ("d.a", "DROP TABLE `d`.`a`"),
        ("e.b", "DROP TABLE `e`.`b`"),
    ]


@pytest.mark.parametrize("form", ["TRUNCATE TABLE t", "TRUNCATE d.t"])
def test_truncate(form: str) -> None:
    tables = table("id int", "PARTITION BY HASH(id) PARTITIONS 2")
    old = tables.known[T]
    change = tables.one(form)
    assert change.schema is not None
    assert (change.kind, change.dropped_table_id) == (DdlKind.TRUNCATE_TABLE, old.table_id)
    assert change.schema.columns == old.columns
    assert (change.schema.table_id, change.schema.physical_ids) == (103, (104, 105))


def test_rename_table() -> None:
    tables = table()
    change = tables.one("RENAME TABLE t TO `e`.`u`")
    assert (change.kind, change.previous) == (DdlKind.RENAME_TABLE, T)
    assert change.table == TableId("e", "u")
    assert change.schema is not None
    assert (change.schema.id, change.schema.table_id) == (change.table, 100)
    assert change.query == "RENAME TABLE `d`.`t` TO `e`.`u`"
    assert table().one("ALTER TABLE t RENAME AS u").query == "RENAME TABLE `d`.`t` TO `d`.`u`"


def test_rename_swaps_names() -> None:
    tables = Tables("CREATE TABLE d.a (x int)", "CREATE TABLE d.b (y int)")
    changes = tables.run("RENAME TABLE a TO tmp, b TO a, tmp TO b")
    assert [(str(c.previous), str(c.table), c.query) for c in changes] == [
        ("d.a", "d.tmp", "RENAME TABLE `d`.`a` TO `d`.`tmp`"),
        ("d.b", "d.a", "RENAME TABLE `d`.`b` TO `d`.`a`"),
        ("d.tmp", "d.b", "RENAME TABLE `d`.`tmp` TO `d`.`b`"),
    ]
    assert names(tables.known[TableId("d", "a")]) == ["y"]
    assert names(tables.known[TableId("d", "b")]) == ["x"]


def test_rename_onto_another_table() -> None:
    tables = Tables("CREATE TABLE d.a (x int)", "CREATE TABLE d.b (y int)")
    with pytest.raises(BadStatement, match=r"table d\.b exists already"):
        tables.run("RENAME TABLE a TO b")
    with pytest.raises(BadStatement, match=r"table d\.b exists already"):
        tables.run("ALTER TABLE a RENAME TO b")


@pytest.mark.parametrize("form", ["TO u", "AS u", "= u", "d.u", "u"])
def test_alter_table_rename(form: str) -> None:
    change = table().one(f"ALTER TABLE t RENAME {form}")
    assert (change.kind, change.previous) == (DdlKind.RENAME_TABLE, T)
    assert change.table == TableId("d", "u")
    assert change.schema is not None and change.schema.id == change.table


def test_views() -> None:
    created = Tables().one("CREATE ALGORITHM=MERGE DEFINER=`r`@`%` VIEW v AS SELECT 1")
    assert (created.kind, created.table) == (DdlKind.CREATE_VIEW, TableId("d", "v"))
    assert Tables().one("DROP VIEW IF EXISTS v").kind == DdlKind.DROP_VIEW


# --- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "kind", "expected"),
    [
        ("ADD c int", DdlKind.ADD_COLUMN, ["id", "a", "b", "c"]),
        ("ADD COLUMN c int NOT NULL DEFAULT 0", DdlKind.ADD_COLUMN, ["id", "a", "b", "c"]),
        ("ADD COLUMN c int FIRST", DdlKind.ADD_COLUMN, ["c", "id", "a", "b"]),
        ("ADD COLUMN c int AFTER ID", DdlKind.ADD_COLUMN, ["id", "c", "a", "b"]),
        ("ADD c int, ADD e int", DdlKind.MULTI_SCHEMA_CHANGE, ["id", "a", "b", "c", "e"]),
        ("ADD (c int, e int)", DdlKind.MULTI_SCHEMA_CHANGE, ["id", "a", "b", "c", "e"]),
        ("ADD COLUMN (c int)", DdlKind.ADD_COLUMN, ["id", "a", "b", "c"]),
        (
            "ADD c int AFTER id, ADD e int AFTER c",
            DdlKind.MULTI_SCHEMA_CHANGE,
            ["id", "c", "e", "a", "b"],
        ),
        ("ADD c int, ALGORITHM=INSTANT, LOCK=NONE", DdlKind.ADD_COLUMN, ["id", "a", "b", "c"]),
        ("DROP a", DdlKind.DROP_COLUMN, ["id", "b"]),
        ("DROP COLUMN `A` RESTRICT", DdlKind.DROP_COLUMN, ["id", "b"]),
        ("DROP a, DROP COLUMN b", DdlKind.MULTI_SCHEMA_CHANGE, ["id"]),
        ("DROP a, ADD a text", DdlKind.MULTI_SCHEMA_CHANGE, ["id", "b", "a"]),
        ("MODIFY a bigint", DdlKind.MODIFY_COLUMN, ["id", "a", "b"]),
        ("MODIFY COLUMN a bigint FIRST", DdlKind.MODIFY_COLUMN, ["a", "id", "b"]),
        ("MODIFY a bigint AFTER b", DdlKind.MODIFY_COLUMN, ["id", "b", "a"]),
        ("CHANGE a c bigint", DdlKind.MODIFY_COLUMN, ["id", "c", "b"]),
        ("CHANGE COLUMN a c bigint AFTER b", DdlKind.MODIFY_COLUMN, ["id", "b", "c"]),
        ("RENAME COLUMN a TO c", DdlKind.MODIFY_COLUMN, ["id", "c", "b"]),
        ("RENAME COLUMN a TO A", DdlKind.MODIFY_COLUMN, ["id", "A", "b"]),
        (
            "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
            DdlKind.MULTI_SCHEMA_CHANGE,
            ["id", "b", "a"],
        ),
        (
            "CHANGE a b varchar(9), CHANGE b a int",
            DdlKind.MULTI_SCHEMA_CHANGE,
            ["id", "b", "a"],
        ),
    ],
)
def test_columns(what: str, kind: DdlKind, expected: list[str]) -> None:
    change = table().one(f"ALTER TABLE t {what}")
    assert change.kind == kind
    assert change.query == f"ALTER TABLE t {what}"
    assert change.schema is not None
    assert names(change.schema) == expected
    assert (change.schema.table_id, change.previous, change.dropped_table_id) == (100, None, 0)


def test_column_ids_stay_and_are_never_used_again() -> None:
    tables = table()
    assert [c.id for c in tables.altered("MODIFY a text FIRST").columns] == [2, 1, 3]
    assert [c.id for c in tables.altered("RENAME COLUMN a TO z").columns] == [2, 1, 3]
    tables.altered("DROP b")
    assert tables.altered("ADD b int").column("b").id == 4
    tables.altered("DROP b, DROP z")
    round_trip = TableSchema.from_json(tables.known[T].to_json())
    tables.known[T] = round_trip
    assert tables.altered("ADD b int").column("b").id == 5


def test_two_columns_added_at_once_have_two_ids() -> None:
    assert [c.id for c in table().altered("ADD (x int, y int)").columns] == [1, 2, 3, 4, 5]


def test_added_columns_follow_the_tables_character_set() -> None:
    tables = table("id int", "CHARSET=latin1")
    assert tables.altered("ADD s varchar(5)").column("s").type.charset == "latin1"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("ADD A int", "column 'A' is defined twice"),
        ("ADD c int, ADD c int", "column 'c' is defined twice"),
        ("ADD c int AFTER nope", "no column 'nope'"),
        ("DROP nope", "no column 'nope'"),
        ("DROP id, DROP a, DROP b", "at least one column"),
        ("MODIFY nope int", "no column 'nope'"),
        ("CHANGE nope x int", "no column 'nope'"),
        ("CHANGE a b int", "column 'b' is defined twice"),
        ("RENAME COLUMN nope TO x", "no column 'nope'"),
        ("ALTER nope SET DEFAULT 1", "no column 'nope'"),
        ("ALTER a SET", "expected DEFAULT"),
        ("ALTER a SET DEFAULT 'x'", "column 'a': the default does not fit"),
        ("DROP INDEX nope", "no key 'nope'"),
        ("RENAME INDEX nope TO x", "no key 'nope'"),
        ("ALTER INDEX nope VISIBLE", "no key 'nope'"),
        ("ADD PRIMARY KEY (a)", "already has a primary key"),
        ("ADD INDEX (nope)", "unknown column 'nope'"),
        ("ADD PARTITION (PARTITION p VALUES LESS THAN (5))", "is not partitioned"),
        ("TRUNCATE PARTITION p", "is not partitioned"),
        ("EXCHANGE PARTITION p WITH TABLE u", "EXCHANGE is not understood; understood: ADD"),
        ("PARTITION BY HASH(id)", "PARTITION is not understood"),
        ("ADD c int x", "not understood from here"),
        ("CONVERT TO x", "expected CHARACTER SET"),
    ],
)
def test_alterations_that_are_refused(what: str, words: str) -> None:
    with pytest.raises(BadStatement, match=words):
        table().run(f"ALTER TABLE t {what}")


@pytest.mark.parametrize(
    "what",
    [
        "ADD COLUMN IF NOT EXISTS a int",
        "ADD INDEX IF NOT EXISTS `primary` (a)",
        "DROP COLUMN IF EXISTS nope",
        "DROP INDEX IF EXISTS nope",
        "MODIFY COLUMN IF EXISTS nope int",
        "CHANGE COLUMN IF EXISTS nope x int AFTER y",
        "ENGINE=InnoDB",
        "FORCE",
        "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
        "ORDER BY a",
        "DISABLE KEYS",
        "ADD CHECK (a > 0)",
        "ADD CONSTRAINT ck CHECK (a > 0)",
        "DROP CHECK ck",
        "DROP CONSTRAINT ck",
        "",
    ],
)
def test_alterations_that_change_no_definition(what: str) -> None:
    assert table().run(f"ALTER TABLE t {what}") == []


def test_set_and_drop_default() -> None:
    tables = table()
    change = tables.one("ALTER TABLE t ALTER COLUMN a SET DEFAULT 7")
    assert change.kind == DdlKind.SET_DEFAULT
    assert tables.known[T].column("a").default == 7
    assert tables.altered("ALTER a SET DEFAULT (1 + 1)").column("a").expression == "1 + 1"
    assert tables.one("ALTER TABLE t ALTER a DROP DEFAULT").kind == DdlKind.SET_DEFAULT
    assert (tables.known[T].column("a").default, tables.known[T].column("a").expression) == (
        None,
        "",
    )


def test_column_visibility() -> None:
    assert table().altered("ALTER COLUMN a SET INVISIBLE").column("a").invisible


# --- keys ----------------------------------------------------------------------------------------

KEYED = "id int not null, a int, b int, primary key (id), unique key u (a, b), key k (b)"


@pytest.mark.parametrize(
    ("sql", "kind", "expected"),
    [
        ("ALTER TABLE t ADD INDEX x (a)", DdlKind.ADD_INDEX, "PRIMARY u k x"),
        ("ALTER TABLE t ADD KEY (a)", DdlKind.ADD_INDEX, "PRIMARY u k a"),
        ("ALTER TABLE t ADD UNIQUE (a)", DdlKind.ADD_INDEX, "PRIMARY u k a"),
        ("ALTER TABLE t ADD CONSTRAINT c UNIQUE (a)", DdlKind.ADD_INDEX, "PRIMARY u k c"),
        ("ALTER TABLE t ADD FULLTEXT INDEX f (a)", DdlKind.ADD_INDEX, "PRIMARY u k f"),
        (
            "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES x (y)",
            DdlKind.ADD_FOREIGN_KEY,
            "PRIMARY u k",
        ),
        ("ALTER TABLE t DROP FOREIGN KEY f", DdlKind.DROP_FOREIGN_KEY, "PRIMARY u k"),
        ("ALTER TABLE t DROP INDEX U", DdlKind.DROP_INDEX, "PRIMARY k"),
        ("ALTER TABLE t DROP KEY u, DROP KEY k", DdlKind.MULTI_SCHEMA_CHANGE, "PRIMARY"),
        ("ALTER TABLE t DROP CONSTRAINT u", DdlKind.DROP_INDEX, "PRIMARY k"),
        ("ALTER TABLE t DROP PRIMARY KEY", DdlKind.DROP_PRIMARY_KEY, "u k"),
        (
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)",
            DdlKind.MULTI_SCHEMA_CHANGE,
            "u k PRIMARY",
        ),
        ("ALTER TABLE t RENAME INDEX u TO v", DdlKind.RENAME_INDEX, "PRIMARY v k"),
        ("ALTER TABLE t ALTER INDEX u INVISIBLE", DdlKind.INDEX_VISIBILITY, "PRIMARY u k"),
        ("ALTER TABLE t ADD c int UNIQUE", DdlKind.ADD_COLUMN, "PRIMARY u k c"),
        ("ALTER TABLE t ADD (c int, KEY (c))", DdlKind.MULTI_SCHEMA_CHANGE, "PRIMARY u k c"),
        ("CREATE INDEX x ON t (a, b DESC)", DdlKind.ADD_INDEX, "PRIMARY u k x"),
        (
            "CREATE UNIQUE INDEX x USING BTREE ON d.t (a) COMMENT 'c'",
            DdlKind.ADD_INDEX,
            "PRIMARY u k x",
        ),
        ("CREATE FULLTEXT INDEX x ON t (a) LOCK=NONE", DdlKind.ADD_INDEX, "PRIMARY u k x"),
        ("DROP INDEX u ON t ALGORITHM=INPLACE", DdlKind.DROP_INDEX, "PRIMARY k"),
        ("DROP INDEX `PRIMARY` ON t", DdlKind.DROP_PRIMARY_KEY, "u k"),
    ],
)
def test_keys(sql: str, kind: DdlKind, expected: str) -> None:
    change = table(KEYED).one(sql)
    assert change.kind == kind
    assert change.schema is not None
    assert [i.name for i in change.schema.indexes] == expected.split()
    assert len({i.id for i in change.schema.indexes}) == len(change.schema.indexes)


def test_unique_index_statement_makes_a_unique_key() -> None:
    tables = table(KEYED)
    tables.run("CREATE UNIQUE INDEX x ON t (a)")
    tables.run("CREATE INDEX y ON t (a)")
    assert {i.name: i.unique for i in tables.known[T].indexes}["x"]
    assert not {i.name: i.unique for i in tables.known[T].indexes}["y"]


def test_add_primary_key_makes_its_columns_not_null() -> None:
    tables = table("a int, b int")
    change = tables.one("ALTER TABLE t ADD PRIMARY KEY (B)")
    assert change.kind == DdlKind.ADD_PRIMARY_KEY
    assert tables.known[T].primary_key == ("b",)
    assert not tables.known[T].column("b").nullable
    assert not tables.altered("MODIFY b bigint").column("b").nullable


def test_keys_follow_renamed_and_dropped_columns() -> None:
    tables = table(KEYED)
    found = tables.altered("RENAME COLUMN a TO z, DROP b")
    assert {i.name: i.columns for i in found.indexes} == {"PRIMARY": ("id",), "u": ("z",)}


def test_keys_of_swapped_columns_stay_with_their_columns() -> None:
    found = table(KEYED).altered("RENAME COLUMN a TO b, RENAME COLUMN b TO a")
    assert {i.name: i.columns for i in found.indexes}["u"] == ("b", "a")
    assert {i.name: i.columns for i in found.indexes}["k"] == ("a",)


def test_rename_index_onto_another() -> None:
    with pytest.raises(BadStatement, match="already has a key 'k'"):
        table(KEYED).run("ALTER TABLE t RENAME INDEX u TO k")


def test_index_statements_with_if_exists() -> None:
    tables = table(KEYED)
    assert tables.run("CREATE INDEX IF NOT EXISTS k ON t (a)") == []
    assert tables.run("DROP INDEX IF EXISTS nope ON t") == []


# --- table options -------------------------------------------------------------------------------


def test_comment_and_character_set() -> None:
    tables = table()
    assert tables.one("ALTER TABLE t COMMENT = 'new'").kind == DdlKind.TABLE_COMMENT
    assert tables.known[T].comment == "new"
    change = tables.one("ALTER TABLE t DEFAULT CHARSET=latin1 COLLATE=latin1_bin")
    assert change.kind == DdlKind.TABLE_CHARSET
    assert tables.known[T].charset == "latin1"
    assert tables.known[T].column("b").type.charset == "utf8mb4"
    assert tables.altered("ADD n char(3)").column("n").type.collation == "latin1_bin"
    assert tables.altered("CONVERT TO CHARACTER SET gbk COLLATE gbk_bin").charset == "gbk"
    assert tables.known[T].column("b").type.charset == "gbk"
    assert tables.known[T].column("b").type.collation == "gbk_bin"
    assert tables.one("ALTER TABLE t AUTO_INCREMENT = 5").kind == DdlKind.REBASE_AUTO_ID


def test_rename_with_other_changes_keeps_the_old_name() -> None:
    change = table().one("ALTER TABLE t ADD c int, RENAME TO u")
    assert change.kind == DdlKind.MULTI_SCHEMA_CHANGE
    assert (change.previous, change.table) == (T, TableId("d", "u"))


# --- partitions ----------------------------------------------------------------------------------

RANGES = (
    "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))"
)


def parts(found: Mapping[TableId, TableSchema]) -> list[tuple[int, str]]:
    partitioning = found[T].partitioning
    assert partitioning is not None
    return [(p.physical_id, p.name) for p in partitioning.partitions]


def test_partition_changes() -> None:
    tables = table("id int", RANGES)
    assert parts(tables.known) == [(101, "a"), (102, "b")]
    added = tables.one("ALTER TABLE t ADD PARTITION (PARTITION c VALUES LESS THAN MAXVALUE)")
    assert added.kind == DdlKind.ADD_PARTITION
    assert parts(tables.known) == [(101, "a"), (102, "b"), (103, "c")]
    emptied = tables.one("ALTER TABLE t TRUNCATE PARTITION A, c")
    assert emptied.kind == DdlKind.TRUNCATE_PARTITION
    assert parts(tables.known) == [(104, "a"), (102, "b"), (105, "c")]
    dropped = tables.one("ALTER TABLE t DROP PARTITION b")
    assert dropped.kind == DdlKind.DROP_PARTITION
    assert parts(tables.known) == [(104, "a"), (105, "c")]
    tables.run("ALTER TABLE t TRUNCATE PARTITION ALL")
    assert parts(tables.known) == [(106, "a"), (107, "c")]
    assert tables.known[T].table_id == 100


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("ADD PARTITION (PARTITION c VALUES LESS THAN (20))", "'c' must have a higher bound"),
        ("ADD PARTITION (PARTITION a VALUES LESS THAN (30))", "'a' is defined twice"),
        ("DROP PARTITION nope", "no partition 'nope'"),
        ("TRUNCATE PARTITION nope", "no partition 'nope'"),
        ("DROP PARTITION a, b", "one partition must stay"),
        ("DROP COLUMN id", "partitioned by the column 'id'"),
    ],
)
def test_partition_changes_that_are_refused(what: str, words: str) -> None:
    with pytest.raises(BadStatement, match=words):
        table("id int, v int", RANGES).run(f"ALTER TABLE t {what}")


def test_hash_partitions_stay_as_they_are() -> None:
    tables = table("id int, v int", "PARTITION BY HASH (id) PARTITIONS 2")
    with pytest.raises(BadStatement, match="RANGE only"):
        tables.run("ALTER TABLE t ADD PARTITION PARTITIONS 2")
    with pytest.raises(BadStatement, match="RANGE only"):
        tables.run("ALTER TABLE t DROP PARTITION p0")


def test_partition_column_can_be_renamed() -> None:
    found = table("id int, v int", RANGES).altered("RENAME COLUMN id TO n")
    assert found.partitioning is not None
    assert found.partitioning.column == "n"


# --- what is refused, and what is ignored --------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT 1",
        "INSERT INTO t VALUES (1)",
        "GRANT ALL ON *.* TO x",
        "CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET @a = 1",
        "CREATE DEFINER=`r`@`%` PROCEDURE p() SELECT 1",
        "CREATE USER x",
        "DROP TRIGGER x",
        "DROP USER x",
        "RENAME USER a TO b",
        "ALTER USER x",
        "ALTER VIEW v AS SELECT 1",
    ],
)
def test_other_statements_say_what_is_understood(sql: str) -> None:
    with pytest.raises(BadStatement, match="CREATE/DROP/ALTER DATABASE"):
        table().plan(sql)


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("ALTER ONLINE IGNORE TABLE t WAIT 5 ADD x int", DdlKind.ADD_COLUMN),
        ("ALTER TABLE IF EXISTS t NOWAIT DROP a", DdlKind.DROP_COLUMN),
        ("ALTER OFFLINE TABLE t RENAME u", DdlKind.RENAME_TABLE),
        ("RENAME TABLE t NOWAIT TO u", DdlKind.RENAME_TABLE),
        ("TRUNCATE TABLE t WAIT 1 REUSE STORAGE", DdlKind.TRUNCATE_TABLE),
        ("DROP TABLE t WAIT 1 RESTRICT", DdlKind.DROP_TABLE),
        ("CREATE ONLINE INDEX i ON t (a) NOWAIT", DdlKind.ADD_INDEX),
        ("CREATE OR REPLACE UNIQUE INDEX `PRIMARY` ON t (a)", DdlKind.ADD_INDEX),
        ("SET STATEMENT max_statement_time = 1 FOR DROP TABLE t", DdlKind.DROP_TABLE),
    ],
)
def test_what_only_mariadb_or_older_servers_have(sql: str, kind: DdlKind) -> None:
    assert table().one(sql).kind is kind


@pytest.mark.parametrize(
    "sql", ["CREATE OR REPLACE TEMPORARY TABLE t (a int)", "DROP TEMPORARY TABLE t"]
)
def test_temporary_tables_are_nobodys_business(sql: str) -> None:
    assert table().run(sql) == []


def test_names_need_a_database() -> None:
    with pytest.raises(BadStatement, match=r"table 't' has no database; write database\.t"):
        Tables().plan("CREATE TABLE t (a int)", database="")


def test_unknown_tables_are_named() -> None:
    for sql in (
        "ALTER TABLE x ADD a int",
        "TRUNCATE x",
        "RENAME TABLE x TO y",
        "DROP INDEX i ON x",
    ):
        with pytest.raises(BadStatement, match=r"there is no table d\.x"):
            table().plan(sql)


def test_statements_on_nothing_that_allow_it() -> None:
    assert Tables().plan("ALTER TABLE IF EXISTS x ADD a int") == []
    assert Tables().plan("CREATE TEMPORARY TABLE x (a int)") == []
    assert Tables().plan("DROP TEMPORARY TABLE x") == []


def test_the_tables_given_stay_as_they_are() -> None:
    known = {T: parse_create("CREATE TABLE d.t (a int)")}
    before = dict(known)
    plan_ddl("DROP TABLE d.t", "", known, lambda: 1)
    plan_ddl("ALTER TABLE d.t RENAME TO d.u, ADD b int", "", known, lambda: 1)
    assert known == before


def test_changes_survive_their_json_form() -> None:
    tables = table("id int primary key, a enum('x''y') default 'x''y'", RANGES)
    for sql in ("ALTER TABLE t DROP a", "TRUNCATE t", "RENAME TABLE t TO u", "DROP DATABASE d"):
        for change in tables.run(sql):
            assert SchemaChange.from_json(change.to_json()) == change
