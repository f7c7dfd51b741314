"""Tables from change files: versions, renames, keys, times, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from rebuild_kit import Directory

from rowferry.change.chunk import DdlKind, make_rows
from rowferry.change.table import TableId
from rowferry.downstream.rebuild.images import Remaining, shares
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import plan_tables, rebuild_here
from rowferry.errors import (
    BadInput,
    BadOption,
    BadUri,
    DecodeError,
    NoSuchTable,
    OptionsConflict,
    SinkDamaged,
)
from rowferry.flow.encode.parquet.format import Parquet
from rowferry.flow.sink.storage.sink import StorageSink

T = "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(9))"
T2 = "CREATE TABLE d.t (id INT PRIMARY KEY, w INT NOT NULL DEFAULT 7, name VARCHAR(9))"


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "out")


def test_the_last_change_of_a_key_wins(place: Directory) -> None:
    t = place.version(T, 10)
    place.rows(t, 'I 11 1,"a"', 'I 11 2,"b"', 'U 12 1,"c"')
    place.rows(t, 'D 13 2,"b"', "I 14 3,\\N", 'D 15 1,"c"', 'I 15 1,"d"')
    assert place.tables() == {"d.t": [{"id": 1, "v": "d"}, {"id": 3, "v": None}]}
    assert place.tables(as_of=12) == {"d.t": [{"id": 1, "v": "c"}, {"id": 2, "v": "b"}]}
    assert place.tables(as_of=10) == {"d.t": []}
    assert place.tables(as_of=9) == {}


def test_rows_above_the_checkpoint_do_not_count(place: Directory) -> None:
    place.rows(place.version(T, 10), 'I 11 1,"a"', 'U 20 1,"b"')
    place.checkpoint(15)
    assert place.tables() == {"d.t": [{"id": 1, "v": "a"}]}
    with pytest.raises(BadOption, match="complete up to 15 only"):
        place.tables(as_of=16)


def test_files_above_the_index_are_not_visible(place: Directory) -> None:
    t = place.version(T, 10)
    place.rows(t, 'I 11 1,"a"')
    place.rows(t, 'U 12 1,"b"')
    (index,) = place.root.rglob("CDC.index")
    index.write_text(f"CDC{1:020d}.csv\n")
    assert place.tables() == {"d.t": [{"id": 1, "v": "a"}]}
    index.write_text(f"CDC{3:020d}.csv\n")
    with pytest.raises(SinkDamaged, match="no data file of number 3"):
        place.tables()


def test_files_that_nodes_of_ticdc_count_on_their_own(place: Directory) -> None:
    t = place.version(T, 10)
    place.rows(t, 'I 12 1,"b"')
    place.rows(t, 'I 11 1,"a"', 'I 11 2,"a"')
    (index,) = place.root.rglob("CDC.index")
    for number, node in enumerate(("1f-2", "9a-0"), 1):
        home = index.parent.parent
        (home / f"CDC{number:020d}.csv").rename(home / f"CDC_{node}_000001.csv")
        (index.parent / f"CDC_{node}.index").write_text(f"CDC_{node}_000001.csv\n")
    index.unlink()
    assert place.tables() == {"d.t": [{"id": 1, "v": "b"}, {"id": 2, "v": "a"}]}
    with pytest.raises(OptionsConflict, match=r"d\.t: several nodes .*include-commit-ts"):
        plan_tables(open_storage(f"file://{place.root}?protocol=csv"))


def test_columns_are_added_renamed_and_dropped(place: Directory) -> None:
    place.rows(place.version(T, 10), 'I 11 1,"a"', 'I 11 2,"b"')
    query = "ALTER TABLE t ADD w INT NOT NULL DEFAULT 7 AFTER id, RENAME COLUMN v TO name"
    second = place.ddl(20, DdlKind.MULTI_SCHEMA_CHANGE, query, "d.t", T2)
    place.rows(second, 'U 21 2,8,"c"')
    dropped = "CREATE TABLE d.t (id INT PRIMARY KEY, w VARCHAR(5))"
    place.ddl(
        30, DdlKind.MULTI_SCHEMA_CHANGE, "ALTER TABLE t DROP name, MODIFY w …", "d.t", dropped
    )
    assert place.tables() == {"d.t": [{"id": 1, "w": "7"}, {"id": 2, "w": "8"}]}
    assert place.tables(as_of=25) == {
        "d.t": [{"id": 1, "w": 7, "name": "a"}, {"id": 2, "w": 8, "name": "c"}]
    }


def test_tables_end_begin_again_and_change_names(place: Directory) -> None:
    place.rows(place.version(T, 10), 'I 11 1,"a"')
    place.rows(place.version(T.replace("d.t", "d.u"), 10), 'I 11 9,"u"')
    swap = "RENAME TABLE t TO x, u TO t, x TO u"
    place.ddl(20, DdlKind.RENAME_TABLE, swap, "d.t", T)
    place.ddl(20, DdlKind.RENAME_TABLE, swap, "d.u", T.replace("d.t", "d.u"))
    swapped = {"d.t": [{"id": 9, "v": "u"}], "d.u": [{"id": 1, "v": "a"}]}
    assert place.tables(as_of=25) == swapped
    empty = place.ddl(30, DdlKind.TRUNCATE_TABLE, "TRUNCATE TABLE t", "d.t", T)
    place.rows(empty, 'I 31 5,"n"')
    place.ddl(40, DdlKind.DROP_TABLE, "DROP TABLE u", "d.u")
    assert place.tables() == {"d.t": [{"id": 5, "v": "n"}]}
    again = place.ddl(50, DdlKind.CREATE_TABLE, "CREATE TABLE u …", "d.u", T.replace("d.t", "d.u"))
    place.rows(again, 'I 51 6,"z"')
    assert place.tables()["d.u"] == [{"id": 6, "v": "z"}]
    place.ddl(60, DdlKind.DROP_DATABASE, "DROP DATABASE d", "d")
    assert place.tables() == {}
    assert place.tables(as_of=25) == swapped


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE d.t ADD c INT, RENAME TO d.u",
        "ALTER TABLE `d`.`t` RENAME AS d.u, RENAME COLUMN b TO c",
        "alter table if exists d.t add c int, rename d.u",
        "ALTER ONLINE TABLE d.t ADD c INT COMMENT 'RENAME it', RENAME TO d.u",
    ],
)
def test_a_table_that_is_altered_and_renamed_at_once_keeps_its_rows(
    place: Directory, query: str
) -> None:
    old = place.version("CREATE TABLE d.t (a INT PRIMARY KEY, b INT)", 10)
    place.rows(old, "I 11 1,5", "I 12 2,6")
    columns = "(a INT PRIMARY KEY, b INT, c INT)" if "ADD" in query.upper() else None
    create = f"CREATE TABLE d.u {columns or '(a INT PRIMARY KEY, c INT)'}"
    new = place.ddl(20, DdlKind.MULTI_SCHEMA_CHANGE, query, "d.u", create)
    place.rows(new, "U 21 2,7,8" if columns else "U 21 2,7")
    kept = [{"a": 1, "b": 5, "c": None}, {"a": 2, "b": 7, "c": 8}]
    renamed = [{"a": 1, "c": 5}, {"a": 2, "c": 7}]
    assert place.tables() == {"d.u": kept if columns else renamed}


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE d.t ADD c INT COMMENT 'RENAME TO t now', DROP b",
        "ALTER TABLE d.t RENAME COLUMN b TO u, ADD c INT, DROP u",
        "RENAME TABLE d.t TO d.old, d.copy TO d.t",
    ],
)
def test_a_table_that_is_altered_under_its_name_stays(place: Directory, query: str) -> None:
    old = place.version("CREATE TABLE d.t (a INT PRIMARY KEY, b INT)", 10)
    place.rows(old, "I 11 1,5")
    place.version("CREATE TABLE d.copy (a INT PRIMARY KEY)", 15)
    create = "CREATE TABLE d.t (a INT PRIMARY KEY)"
    place.ddl(20, DdlKind.MULTI_SCHEMA_CHANGE, query, "d.t", create)
    assert place.tables() == {"d.copy": [], "d.t": [{"a": 1}]}


def test_a_table_without_a_key_is_counted(tmp_path: Path) -> None:
    place = Directory(tmp_path / "out", "output-old-value = true")
    bag = place.version("CREATE TABLE d.b (a INT, v INT)", 10)
    lines = ["I 11 false,1,1"] * 3 + ["D 12 false,1,1", "D 13 true,1,1", "I 13 true,1,2"]
    place.rows(bag, *lines)
    assert place.tables() == {"d.b": [{"a": 1, "v": 1}, {"a": 1, "v": 2}]}


def test_a_key_may_be_given(place: Directory) -> None:
    t = place.version("CREATE TABLE d.t (id INT NOT NULL UNIQUE, v INT)", 10)
    place.rows(t, "I 11 1,1", "U 12 1,2")
    with pytest.raises(BadInput, match="carry no old row"):
        place.tables()
    assert place.tables(key=["ID"]) == {"d.t": [{"id": 1, "v": 2}]}


def test_another_key_needs_old_rows(tmp_path: Path) -> None:
    second = "CREATE TABLE d.t (id INT, v INT PRIMARY KEY)"
    first = "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)"
    query = "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v)"
    with_old = Directory(tmp_path / "out", "output-old-value = true")
    t = with_old.version(first, 10)
    with_old.rows(t, "I 11 false,1,1", "D 12 true,1,1", "I 12 true,1,2")
    with_old.ddl(20, DdlKind.MULTI_SCHEMA_CHANGE, query, "d.t", second)
    assert with_old.tables() == {"d.t": [{"id": 1, "v": 2}]}
    (tmp_path / "more").mkdir()
    without = Directory(tmp_path / "more" / "out")
    without.rows(without.version(first, 10), "I 11 1,1", "U 12 1,2")
    without.ddl(20, DdlKind.MULTI_SCHEMA_CHANGE, query, "d.t", second)
    with pytest.raises(BadInput, match="carry no old row"):
        without.tables()


@pytest.mark.parametrize(
    ("kind", "query", "create", "words"),
    [
        (DdlKind.ADD_COLUMN, "ADD n INT AUTO_INCREMENT UNIQUE", "n INT", "no file tells"),
        (DdlKind.ADD_COLUMN, "ADD n INT AS (id + 1) STORED", "n INT", "no file tells"),
        (
            DdlKind.ADD_COLUMN,
            "ADD n DATETIME DEFAULT CURRENT_TIMESTAMP",
            "n DATETIME DEFAULT CURRENT_TIMESTAMP",
            "no file tells",
        ),
        (
            DdlKind.ADD_COLUMN,
            "ADD n TIMESTAMP DEFAULT '2020-01-01 00:00:00'",
            "n TIMESTAMP DEFAULT '2020-01-01 00:00:00'",
            "no file tells",
        ),
        (
            DdlKind.ADD_COLUMN,
            "ADD n VARBINARY(3) DEFAULT 0x61FF",
            "n VARBINARY(3) DEFAULT 0x61FF",
            "no file tells",
        ),
        (DdlKind.DROP_PARTITION, "DROP PARTITION p1", "v VARCHAR(9)", "cannot be followed"),
        (DdlKind.MODIFY_COLUMN, "MODIFY v INT", "v INT", "cannot be followed to int"),
    ],
)
def test_what_no_file_tells_is_refused(
    kind: DdlKind, query: str, create: str, words: str, place: Directory
) -> None:
    t = place.version(T, 10)
    after = f"CREATE TABLE d.t (id INT PRIMARY KEY, {create})"
    place.ddl(20, kind, f"ALTER TABLE t {query}", "d.t", after)
    assert place.tables() == {"d.t": []}  # no older row: nothing is unknown
    place.rows(t, 'I 11 1,"a"')
    with pytest.raises(BadInput, match=words):
        place.tables()


@pytest.mark.parametrize(
    ("old", "value", "new", "wanted"),
    [
        ("DATE", '"2020-01-02"', "DATETIME(2)", "2020-01-02 00:00:00.00"),
        ("DATETIME", '"2020-01-02 03:04:05.000000"', "DATE", "2020-01-02"),
        ("DATETIME(3)", '"2020-01-02 03:04:05.400000"', "DATETIME", "2020-01-02 03:04:05"),
        ("TIME(3)", '"-01:00:00.100"', "TIME", "-01:00:00"),
        ("TIME", '"-01:00:00"', "TIME(1)", "-01:00:00.0"),
        ("VARCHAR(30)", '"2020-01-02 03:04:05"', "DATETIME(1)", "2020-01-02 03:04:05.0"),
        ("ENUM('a','b')", '"b"', "VARCHAR(3)", "b"),
        ("SET('a','b')", '"a,b"', "SET('b','a')", 3),
        ("INT", "127", "TINYINT", 127),
        ("VARBINARY(9)", '"YQ=="', "VARCHAR(9)", "a"),
        ("FLOAT", "0.1", "DOUBLE", 0.10000000149011612),
    ],
)
def test_values_follow_their_column(
    old: str, value: str, new: str, wanted: object, place: Directory
) -> None:
    before = place.version(f"CREATE TABLE d.t (id INT PRIMARY KEY, v {old})", 10)
    place.rows(before, f"I 11 1,{value}")
    after = f"CREATE TABLE d.t (id INT PRIMARY KEY, v {new})"
    place.ddl(20, DdlKind.MODIFY_COLUMN, f"ALTER TABLE t MODIFY v {new}", "d.t", after)
    assert place.tables() == {"d.t": [{"id": 1, "v": wanted}]}


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("DATETIME(3)", '"2020-01-01 10:00:00.900000"', "DATETIME"),  # rounded, or cut
        ("DATETIME(3)", '"2020-01-01 23:59:59.900000"', "DATE"),
        ("TIME(3)", '"-01:00:00.500"', "TIME"),
        ("TIMESTAMP", '"2020-01-01 10:00:00.000000"', "DATETIME"),  # by a session's time zone
        ("DATETIME", '"2020-01-01 10:00:00.000000"', "TIMESTAMP"),
        ("TIMESTAMP", '"2020-01-01 10:00:00.000000"', "VARCHAR(30)"),
        ("VARCHAR(30)", '"20200101"', "DATE"),
        ("VARCHAR(9)", '"2.6"', "INT"),
        ("VARCHAR(9)", '" 7"', "INT"),
        ("VARCHAR(9)", '"a "', "CHAR(9)"),
        ("VARCHAR(9)", '"abc"', "VARCHAR(2)"),
        ("VARCHAR(9)", '"[1, 2]"', "JSON"),
        ("VARBINARY(9)", '"YQ=="', "BINARY(9)"),
        ("VARBINARY(9)", '"/w=="', "VARCHAR(9)"),
        ("ENUM('10','20')", '"20"', "INT"),
        ("INT", "300", "TINYINT"),
        ("INT", "-1", "INT UNSIGNED"),
        ("INT", "70", "YEAR"),
        ("DECIMAL(9,2)", '"1000.00"', "DECIMAL(4,2)"),
        ("DOUBLE", "1e20", "VARCHAR(40)"),
        ("DOUBLE", "1.25", "DOUBLE(9,1)"),
    ],
)
def test_values_that_servers_make_different_things_of(
    old: str, value: str, new: str, place: Directory
) -> None:
    before = place.version(f"CREATE TABLE d.t (id INT PRIMARY KEY, v {old})", 10)
    place.rows(before, f"I 11 1,{value}")
    after = f"CREATE TABLE d.t (id INT PRIMARY KEY, v {new})"
    place.ddl(20, DdlKind.MODIFY_COLUMN, f"ALTER TABLE t MODIFY v {new}", "d.t", after)
    with pytest.raises(BadInput, match="cannot be followed to"):
        place.tables()


@pytest.mark.parametrize(
    ("query", "after", "wanted"),
    [
        ("CHANGE COLUMN IF EXISTS v `w` VARCHAR(9)", "w VARCHAR(9)", {"w": "a"}),
        ("RENAME COLUMN IF EXISTS v TO w", "w VARCHAR(9)", {"w": "a"}),
        ("RENAME COLUMN IF EXISTS u TO v", "v VARCHAR(9)", {"v": "a"}),
        ("RENAME COLUMN v /* as told */ TO w", "w VARCHAR(9)", {"w": "a"}),
        ("NOWAIT CHANGE v w VARCHAR(9)", "w VARCHAR(9)", {"w": "a"}),
        (
            "RENAME COLUMN v TO w, ADD v INT DEFAULT 5",
            "w VARCHAR(9), v INT DEFAULT 5",
            {"w": "a", "v": 5},
        ),
        ("DROP v, ADD COLUMN v INT DEFAULT 5", "v INT DEFAULT 5", {"v": 5}),
        (
            "ADD w INT DEFAULT 5 COMMENT ', CHANGE v w INT'",
            "v VARCHAR(9), w INT DEFAULT 5",
            {"v": "a", "w": 5},
        ),
        ("ADD w BINARY(3) DEFAULT 'b'", "v VARCHAR(9), w BINARY(3) DEFAULT 'b'", {"w": b"b\0\0"}),
        ("ADD w BINARY(2) NOT NULL", "v VARCHAR(9), w BINARY(2) NOT NULL", {"w": b"\0\0"}),
    ],
)
def test_whose_values_a_column_has(
    query: str, after: str, wanted: dict[str, object], place: Directory
) -> None:
    place.rows(place.version(T, 10), 'I 11 1,"a"')
    create = f"CREATE TABLE d.t (id INT PRIMARY KEY, {after})"
    place.ddl(20, DdlKind.MULTI_SCHEMA_CHANGE, f"ALTER TABLE t {query}", "d.t", create)
    ((row,),) = place.tables().values()
    assert row == row | {"id": 1, **wanted}


def test_a_copy_in_the_place_of_a_table(place: Directory) -> None:
    """By its text nobody can tell a renamed column from one that was dropped and one added."""
    place.rows(place.version(T, 10), 'I 11 1,"a"')
    swap = "RENAME TABLE t TO _t_del, _t_gho TO t"
    place.ddl(20, DdlKind.MULTI_SCHEMA_CHANGE, swap, "d.t", T.replace("v VAR", "w INT, v VAR"))
    assert place.tables() == {"d.t": [{"id": 1, "w": None, "v": "a"}]}
    place.ddl(30, DdlKind.MULTI_SCHEMA_CHANGE, swap, "d.t", T.replace("v VAR", "w INT, u VAR"))
    with pytest.raises(BadInput, match=r"no file tells whether u has the values of v"):
        place.tables()


def test_rows_of_one_time_are_in_the_order_of_their_files(place: Directory) -> None:
    """A place in a micro-batch, as parquet files tell it, says nothing of the next one."""
    t = place.version(T, 10)
    feed = open_storage(f"file://{place.root}", protocol="parquet")
    home = place.root / "d/t/10"
    (home / "meta").mkdir(parents=True)
    for number, (seq, value) in enumerate([(3 << 40, "old"), (0, "new")], 1):
        pieces: list[bytes] = []
        file = Parquet(feed.spec, StorageSink.TRAITS).file(t, pieces.append)
        file.add(
            make_rows(
                t,
                op=pa.array([0], pa.int8()),
                commit_ts=pa.array([11], pa.uint64()),
                seq=pa.array([seq], pa.int64()),
                before=pa.array([None], t.image),
                after=pa.array([{"id": 1, "v": value}], t.image),
            )
        )
        file.finish()
        (home / f"CDC{number:020d}.parquet").write_bytes(b"".join(pieces))
    (home / "meta/CDC.index").write_text(f"CDC{2:020d}.parquet\n")
    (plan,) = plan_tables(feed)
    assert rebuild_here(plan).to_pylist() == [{"id": 1, "v": "new"}]


def test_both_tables_of_an_exchange_are_refused(place: Directory) -> None:
    """Only one of the two schema files has the statement."""
    other = T.replace("d.t", "d.u")
    for create in (T, other):
        place.rows(place.version(create, 10), 'I 11 1,"a"')
    exchange = "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u"
    place.ddl(20, DdlKind.EXCHANGE_PARTITION, exchange, "d.t", T)
    place.version(other, 20)
    for plan in plan_tables(place.feed()):
        with pytest.raises(BadInput, match="EXCHANGE_PARTITION"):
            rebuild_here(plan)


def test_times_that_rows_do_not_tell(place: Directory) -> None:
    place.rows(place.version(T, 10), 'I 11 1,"a"')
    bare = open_storage(f"file://{place.root}?protocol=csv")
    with pytest.raises(OptionsConflict, match="include-commit-ts"):
        plan_tables(bare, as_of=11)
    canal = open_storage(f"file://{place.root}?protocol=canal-json")
    with pytest.raises(OptionsConflict, match=rf"{(1 << 18) - 1} is the end"):
        plan_tables(canal, as_of=11)
    raw = f"file://{place.root}?protocol=csv"
    config = place.root.parent / "raw.toml"
    config.write_text("[sink.cloud-storage-config]\noutput-raw-change-event = true\n")
    with pytest.raises(OptionsConflict, match="output-old-value"):
        plan_tables(open_storage(raw, config))


def test_what_is_not_there(place: Directory, tmp_path: Path) -> None:
    t = place.version(T, 10)
    place.rows(t, "I 11 1")
    with pytest.raises(NoSuchTable, match=r"d\.x is not in the storage; tables there: d\.t"):
        plan_tables(place.feed(), [TableId("d", "x")])
    with pytest.raises(DecodeError, match=r"CDC0+1\.csv: row 1"):
        place.tables()
    (place.root / "metadata").unlink()
    with pytest.raises(BadInput, match="first checkpoint"):
        place.tables()
    with pytest.raises(BadUri, match="nope is not there"):
        open_storage(f"file://{tmp_path}/nope")
    with pytest.raises(BadUri, match="no storage; known: .*file"):
        open_storage("blackhole://?protocol=csv")
    with pytest.raises(BadUri, match="^.RF-1004. mysql:// is no storage; known: .*file"):
        open_storage("mysql://me@h/")
    with pytest.raises(BadOption, match="settings say canal-json"):
        open_storage(f"file://{tmp_path}?protocol=canal-json", protocol="csv")


def test_files_of_no_protocol_that_can_be_rebuilt(place: Directory) -> None:
    """They are not taken for those of another one."""
    place.rows(place.version(T, 10), 'I 11 1,"a"')
    with pytest.raises(OptionsConflict, match="protocol json: no tables .* known: .*canal-json"):
        plan_tables(open_storage(f"file://{place.root}?protocol=json"))
    with pytest.raises(BadOption, match="'json': allowed: canal-json | csv | parquet"):
        open_storage(f"file://{place.root}", protocol="json")
    (data,) = place.root.rglob("CDC*.csv")
    data.rename(data.with_suffix(".orc"))
    with pytest.raises(BadUri, match=r"\.orc is of no protocol .* files end with: .*\.csv"):
        open_storage(f"file://{place.root}")


def test_shares_hold_each_key_once_and_merge_in_any_order(place: Directory) -> None:
    t = place.version(T, 10)
    for number in range(4):
        place.rows(t, *(f'{"D" if i % 5 == number else "I"} {20 + number} {i},"{number}"'
                        for i in range(50)))  # fmt: skip
    (plan,) = plan_tables(place.feed())
    parts: dict[int, Remaining] = {}
    for images in reversed(list(plan.images(plan.lineage.files))):
        for share, mine in shares(images, plan.schema, plan.key, 7):
            parts.setdefault(share, Remaining(plan.schema, plan.key, most_bytes=100)).add(mine)
    assert len(parts) == 7
    merged = pa.concat_tables([p.rows() for p in parts.values()]).sort_by("id")
    assert merged.num_rows == 40
    assert merged.equals(rebuild_here(plan).sort_by("id"))
