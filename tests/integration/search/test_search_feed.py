"""Feeds from MySQL and MariaDB: types, transactions, schema changes, and what stops them."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import quote

import pytest
from search_kit import SearchScene

from rowferry.errors import (
    BadInput,
    RowRejected,
    SinkOwned,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
    TargetUnfit,
)
from rowferry.testing.receiver import ReceiverFault, Refusal
from rowferry.testing.search_front import FrontRequest, NoRoom, SearchFront

NINES = "9" * 35 + "." + "9" * 30
# Each column's type, a value as SQL writes it, what its document has, and how it is indexed.
TYPES: dict[str, tuple[str, Any, str]] = {
    "tinyint": ("-128", -128, "long"),
    "bigint": ("-9223372036854775808", -9223372036854775808, "long"),
    "bigint unsigned": ("18446744073709551615", 18446744073709551615, "unsigned_long"),
    "float": ("0.1", 0.1, "double"),
    "double": ("-1.7976931348623157e308", -1.7976931348623157e308, "double"),
    "decimal(10,2)": ("1.50", "1.50", "double"),
    "decimal(65,30)": (f"-{NINES}", f"-{NINES}", "keyword"),
    "bit(1)": ("1", 1, "long"),
    "bit(64)": ("18446744073709551615", 18446744073709551615, "unsigned_long"),
    "year": ("2155", 2155, "long"),
    "date": ("'2024-02-29'", "2024-02-29", "date"),
    "date default null": ("'2024-02-00'", None, "date"),
    "datetime": ("0", None, "date"),
    "datetime(6)": ("'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999", "date"),
    "timestamp(3) null": ("'2037-01-19 03:14:07.999'", "2037-01-19T03:14:07.999Z", "date"),
    "time(6)": ("'-838:59:59'", "-838:59:59.000000", "keyword"),
    "varchar(30)": ("'it\\'s \\\\ \"so\" \\0 é\\n'", 'it\'s \\ "so" \0 é\n', "text"),
    "longtext": ("repeat('😀', 9000)", "😀" * 9000, "text"),
    "varbinary(20)": ("x'00275c22ff00'", "ACdcIv8A", "binary"),
    "enum('a','it''s','é')": ("'it\\'s'", "it's", "keyword"),
    "set('a','b','c')": ("'a,c'", "a,c", "keyword"),
    "geometry": ("ST_GeomFromText('POINT(1 2)')", None, "binary"),
}


def test_every_type_arrives(scene: SearchScene) -> None:
    names = [f"c{i}" for i in range(len(TYPES))]
    shape = ", ".join(f"{n} {kind}" for n, kind in zip(names, TYPES, strict=True))
    values = ", ".join(sql for sql, _, _ in TYPES.values())
    wide = "(id int PRIMARY KEY, `a.b` int, `_id` int, j json, " + shape + ")"
    scene.sql(
        "SET SESSION sql_mode = '', time_zone = '+00:00'",
        f"CREATE TABLE wide {wide}",
        f'INSERT INTO wide VALUES (1, 2, 3, \'{{"a": [1, "ß"]}}\', {values})',
        "CREATE TABLE pair (a varchar(20), b int, n int, PRIMARY KEY (b, a))",
        "INSERT INTO pair VALUES ('x,%', 1, 1), ('', 2, 1), ('gone', 3, 1)",
        "CREATE TABLE worded (k varchar(700) PRIMARY KEY, n int)",
        "INSERT INTO worded VALUES ('', 1), (repeat('ß', 600), 2), ('%', 3)",
        "CREATE TABLE `Odd: näme%` (id int PRIMARY KEY)",
        "INSERT INTO `Odd: näme%` VALUES (1)",
    )
    scene.run()
    wanted = {n: value for n, (_, value, _) in zip(names, TYPES.values(), strict=True)}
    found = scene.documents("wide")["1"]
    shape_at = names[list(TYPES).index("geometry")]
    assert found.pop(shape_at).startswith("AAAAAAEB") and wanted.pop(shape_at) is None
    document = found.pop("j")
    assert document in ({"a": [1, "ß"]}, '{"a": [1, "ß"]}')  # MariaDB's is a text
    assert found == {"id": 1, "a%2eb": 2, "%5fid": 3, **wanted}
    fields = {name: facts["type"] for name, facts in scene.fields("wide").items()}
    assert [fields[n] for n in names] == [kind for _, _, kind in TYPES.values()]
    assert scene.index("odd%3a%20näme%25") in scene.indexes()
    scene.sql(
        "DELETE FROM pair WHERE b = 3",
        "UPDATE pair SET n = 2",
        "UPDATE worded SET n = n + 10",
        "UPDATE wide SET id = 9",
    )
    scene.catch_up()
    assert {k: d["n"] for k, d in scene.documents("pair").items()} == {"x%2c%25,1": 2, ",2": 2}
    worded = scene.documents("worded")
    assert (worded["%"]["n"], worded["%25"]["n"], len(worded)) == (11, 13, 3)
    (digest,) = (k for k in worded if k.startswith("%h"))
    assert len(digest) == 66 and worded[digest]["n"] == 12
    assert list(scene.documents("wide")) == ["9"]  # a row that gets another key
    by_day = {"query": {"range": {"c10": {"gte": "2024-02-29", "lte": "2024-02-29"}}}}
    hits = scene.target.ask("POST", f"/{scene.index('wide')}/_search", by_day)
    assert hits["hits"]["total"]["value"] == 1


def test_transactions_and_schema_changes(scene: SearchScene, seed: int) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, note varchar(40))")
    scene.sql(*(f"INSERT INTO t VALUES ({k}, 'n{k}')" for k in range(20)))
    query = "on-rename=copy&on-drop=drop&refresh=batch&worker-count=2&max-bulk-rows=3"
    scene.run(query)
    dice = random.Random(seed)
    for _ in range(30):  # the same rows again and again in one transaction, and keys that move
        work = ["BEGIN"]
        for step in range(dice.randint(2, 12)):
            one, other = dice.randrange(24), dice.randrange(24)
            work.append(
                dice.choice(
                    (
                        f"DELETE FROM t WHERE id = {one}",
                        f"REPLACE INTO t VALUES ({one}, 'r{step}')",
                        f"UPDATE t SET note = 'u{step}' WHERE id = {one}",
                        f"UPDATE IGNORE t SET id = {other} WHERE id = {one}",
                    )
                )
            )
        scene.sql(*work, "COMMIT")
    scene.catch_up()
    assert scene.assert_same("t") > 0
    versions = scene.versions("t")
    assert min(versions.values()) >> 18 > 1_700_000_000_000  # commit-ts
    scene.sql(
        "ALTER TABLE t ADD COLUMN price decimal(8,2)",
        "REPLACE INTO t VALUES (100, 'priced', 9.5)",
        "CREATE TABLE later (id int PRIMARY KEY, note varchar(40))",
        "INSERT INTO later VALUES (1, 'x')",
        "ALTER TABLE t DROP COLUMN price",
        "RENAME TABLE t TO renamed",
        "INSERT INTO renamed VALUES (101, 'after')",
    )
    scene.run(query)  # another process goes on
    assert scene.assert_same("renamed") > 1
    assert scene.assert_same("later") == 1
    assert scene.indexes() == [scene.index("later"), scene.index("renamed")]
    scene.sql("TRUNCATE TABLE renamed", "INSERT INTO renamed VALUES (3, 'new')", "DROP TABLE later")
    scene.catch_up()
    assert scene.assert_same("renamed") == 1
    assert scene.indexes() == [scene.index("renamed")]


@pytest.fixture
def strict(from_mysql: SearchScene) -> SearchScene:
    """An index that somebody made for numbers, and a row that is none."""
    mapping = {"properties": {"note": {"type": "integer"}}, "dynamic": False}
    from_mysql.target.ask("PUT", f"/{from_mysql.index('t')}", {"mappings": mapping})
    from_mysql.sql("CREATE TABLE t (id int PRIMARY KEY, note varchar(40))")
    from_mysql.sql("INSERT INTO t VALUES (1, '1'), (2, '2'), (3, '3'), (4, 'no number')")
    return from_mysql


def test_a_misfit_stops_the_feed(strict: SearchScene) -> None:
    strict.start()
    words = f"{strict.index('t')} refuses the document of key '4': .*note.*no number"
    with pytest.raises(RowRejected, match=words):
        strict.catch_up()


def test_items_without_room_are_sent_again_and_misfits_are_dead_letters(
    strict: SearchScene,
) -> None:
    letters = f"{strict.database}-letters"
    with SearchFront(strict.target.address) as front:
        strict.address = front.address
        front.faults.extend([NoRoom((0, 2)), NoRoom((0,)), None, NoRoom((1,))])
        strict.run(f"worker-count=1&dead-letter-index={letters}")
        bulks = [r.body for r in front.taken if r.path.startswith("/_bulk")]
    sizes = [body.count(b"\n") // 2 for body in bulks if letters.encode() not in body]
    assert sizes == [4, 2, 1]  # only those that found no room
    assert strict.documents("t").keys() == {"1", "2", "3"}
    (letter,) = strict.target.documents(letters).values()
    assert (letter["index"], letter["id"]) == (strict.index("t"), "4")
    assert "no number" in letter["document"] and "no number" in letter["reason"]


def test_what_is_gone_stops_the_feed(from_mysql: SearchScene) -> None:
    scene = from_mysql
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, note varchar(40))", "INSERT INTO t VALUES (1,'')"
    )
    scene.run()
    scene.target.ask("DELETE", f"/{scene.index('t')}")
    scene.sql("INSERT INTO t VALUES (2, '')")
    with pytest.raises(TargetLost, match=scene.index("t")):
        scene.catch_up()
    assert scene.indexes() == []  # it is not made anew
    scene.target.ask("PUT", f"/{scene.index('t')}")
    with pytest.raises(TargetLost, match="made anew"):
        scene.run()
    scene.target.ask("DELETE", f"/{scene.notes}")
    with pytest.raises(TargetLost, match="knows nothing of changefeed"):
        scene.run()


def test_what_cannot_go_is_refused(from_mysql: SearchScene) -> None:
    scene = from_mysql
    scene.sql("CREATE TABLE t (id int, note varchar(40))")
    with pytest.raises(BadInput, match="t.*key"):
        scene.start(config="force-replicate = true")
    scene.sql("DROP TABLE t", "CREATE TABLE `a-b` (id int PRIMARY KEY)")
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, note varchar(40))")
    with pytest.raises(BadInput, match="would both be index one"):
        scene.start("index=one")
    with pytest.raises(BadInput, match="routing-column: note is not in the key"):
        scene.start("routing-column=note")
    with pytest.raises(TargetUnfit, match="there is no index .*create-indexes"):
        scene.start("create-indexes=false")
    scene.run()
    first = scene.name
    scene.name = f"other-{first}"
    with pytest.raises(SinkOwned, match=first):
        scene.start()
    scene.name = first
    scene.run()
    scene.sql("ALTER TABLE t MODIFY note int")
    with pytest.raises(TargetUnfit, match="column note .* is long now, and text in index"):
        scene.catch_up()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (note)", "has the key \\(note\\) now"),
        ("RENAME TABLE t TO u", "on-rename = copy"),
        ("ALTER TABLE t TRUNCATE PARTITION p0", "that the log does not name: .* to its checkpoint"),
    ],
)
def test_schema_changes_that_an_index_cannot_follow_stop(
    from_mysql: SearchScene, statement: str, words: str
) -> None:
    scene = from_mysql
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, note varchar(40) NOT NULL)")
    if "PARTITION p0" in statement:
        scene.sql("ALTER TABLE t PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100))")
    scene.sql("INSERT INTO t VALUES (1, 'a')")
    scene.run()
    scene.sql(statement)
    with pytest.raises(TargetUnfit, match=words):
        scene.catch_up()
    assert scene.documents("t").keys() == {"1"}


def test_another_type_by_a_new_index_behind_an_alias(from_mysql: SearchScene) -> None:
    scene, query = from_mysql, "on-type-change=reindex&on-drop=drop"
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, note int)", "INSERT INTO t VALUES (1, 7), (2, 8)"
    )
    scene.run(query)
    scene.sql("ALTER TABLE t MODIFY note varchar(20)", "UPDATE t SET note = 'a word!' WHERE id = 2")
    scene.catch_up()
    assert scene.indexes() == [scene.index("t-v2")]
    assert scene.fields("t")["note"]["type"] == "text"
    assert scene.assert_same("t") == 2
    scene.sql("DELETE FROM t WHERE id = 1")
    scene.sql("SET SESSION sql_mode = ''", "ALTER TABLE t MODIFY note int")
    with pytest.raises(SinkUnwritable, match="copying index .*t-v2 to .*t-v3 is refused"):
        scene.run(query)  # the source has made a 0 of the word, and the document has it still
    assert scene.documents("t").keys() == {"2"}


def test_a_column_that_comes_back_with_another_type(from_mysql: SearchScene) -> None:
    scene, query = from_mysql, "on-type-change=reindex"
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, note int)", "INSERT INTO t VALUES (1, 7)")
    scene.run(query)
    scene.sql("ALTER TABLE t DROP COLUMN note", "ALTER TABLE t ADD COLUMN note varchar(20)")
    scene.catch_up()
    assert scene.indexes() == [scene.index("t-v2")]
    scene.sql("UPDATE t SET note = 'a word'")
    scene.run(query)  # the new index is none that was made anew by others
    assert scene.assert_same("t") == 1


def test_an_alias_whose_answer_is_lost(from_mysql: SearchScene) -> None:
    scene = from_mysql
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, note int)", "INSERT INTO t VALUES (1, 7)")

    def lose_first(request: FrontRequest) -> None:
        if request.path.startswith("/_aliases") and not front.faults_for_all:
            front.faults_for_all = True
            front.faults.append(ReceiverFault.LOSE_ANSWER)

    with SearchFront(scene.target.address, guard=lose_first) as front:
        scene.address = front.address
        scene.run("on-type-change=reindex")
        scene.sql("ALTER TABLE t MODIFY note varchar(20)", "UPDATE t SET note = 'a word'")
        tried_again = scene.catch_up()
        asked = [r for r in front.taken if r.path.startswith("/_aliases")]
    assert (tried_again, len(asked)) == ([], 2)
    assert scene.indexes() == [scene.index("t-v2")]
    assert scene.assert_same("t") == 1


def test_an_index_of_others_does_not_become_a_copy(from_mysql: SearchScene) -> None:
    scene, query = from_mysql, "on-type-change=reindex"
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, note int)", "INSERT INTO t VALUES (1, 7)")
    other = f"/{scene.index('t-v2')}"
    scene.target.ask("PUT", f"{other}/_doc/9", {"id": 9, "note": "of somebody else"})
    scene.run(query)
    scene.sql("ALTER TABLE t MODIFY note varchar(20)")
    with pytest.raises(TargetUnfit, match="index .*t-v2 already, .*not its copy: delete it"):
        scene.catch_up()
    assert scene.target.documents(scene.index("t-v2")).keys() == {"9"}
    assert scene.documents("t").keys() == {"1"}
    scene.target.ask("DELETE", other)
    scene.run(query)
    assert scene.assert_same("t") == 1
    notes = scene.target.documents(scene.notes)
    assert notes[f"index:{scene.index('t-v2')}"] == {"changefeed": scene.name}


def test_a_new_table_has_no_documents_of_an_old_one(scene: SearchScene) -> None:
    first = "CREATE TABLE t (id int PRIMARY KEY, note varchar(40))"
    scene.sql(first, "INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    scene.run("refresh=batch")
    scene.sql("DROP TABLE t")
    scene.catch_up()
    assert scene.documents("t").keys() == {"1", "2"}  # kept
    scene.sql(first, "INSERT INTO t VALUES (2, 'new'), (3, 'new')")
    scene.run("refresh=batch")
    assert scene.assert_same("t") == 2
    # All of it in one plan, and with another key.
    again = "CREATE TABLE t (note varchar(40) PRIMARY KEY, id int)"
    scene.sql("DROP TABLE t", again, "INSERT INTO t VALUES ('a', 3)")
    scene.catch_up()
    assert scene.assert_same("t", ("note", "id")) == 1
    scene.run("refresh=batch")
    assert scene.assert_same("t", ("note", "id")) == 1


@pytest.mark.parametrize("on_drop", ["keep", "drop"])
def test_a_table_renamed_to_the_name_of_an_index_that_was_kept(
    from_mysql: SearchScene, on_drop: str
) -> None:
    scene, shape = from_mysql, "(id int PRIMARY KEY, note varchar(40))"
    scene.sql(f"CREATE TABLE u {shape}", "INSERT INTO u VALUES (1, 'u')")
    scene.sql(f"CREATE TABLE t {shape}", "INSERT INTO t VALUES (1, 't'), (2, 't')")
    scene.run()
    scene.sql("DROP TABLE t")
    scene.catch_up()
    scene.sql("RENAME TABLE u TO t", "INSERT INTO t VALUES (3, 'after')")
    query = f"on-rename=copy&on-drop={on_drop}"
    if on_drop == "keep":
        with pytest.raises(TargetUnfit, match="has documents of another table.* delete it"):
            scene.run(query)
        assert scene.documents("t").keys() == {"1", "2"}
        scene.target.ask("DELETE", f"/{scene.index('t')}")
    scene.run(query)
    assert scene.assert_same("t") == 2
    kept = [scene.index("u")] if on_drop == "keep" else []
    assert scene.indexes() == [scene.index("t"), *kept]


def test_a_table_renamed_to_the_name_of_an_index_that_waits_for_it(from_mysql: SearchScene) -> None:
    scene = from_mysql
    scene.sql("CREATE TABLE u (id int PRIMARY KEY, note varchar(40))")
    scene.sql("INSERT INTO u VALUES (1, 'u')")
    scene.run("on-rename=copy")
    exact = {"properties": {"note": {"type": "keyword"}}}
    scene.target.ask("PUT", f"/{scene.index('t')}", {"mappings": exact})
    scene.sql("RENAME TABLE u TO t")
    scene.catch_up()
    assert scene.assert_same("t") == 1
    assert scene.fields("t")["note"]["type"] == "keyword"


def test_names_that_are_long_in_an_address(from_mysql: SearchScene) -> None:
    scene = from_mysql
    names = [f"一二三四五六七八九{chr(0x5341 + n)}" for n in range(40)]
    scene.sql(*(f"CREATE TABLE {name} (id int PRIMARY KEY, note int)" for name in names))
    scene.sql(*(f"INSERT INTO {name} VALUES (1, 2)" for name in names))
    scene.run("refresh=batch")
    scene.sql(*(f"UPDATE {name} SET note = 3" for name in names))
    scene.run("refresh=batch")
    for name in names:
        found = scene.target.ask("GET", f"/{quote(scene.index(name))}/_search")["hits"]["hits"]
        assert [hit["_source"]["note"] for hit in found] == [3]


def test_an_index_that_cannot_be_asked_for_is_not_taken_as_missing(
    from_mysql: SearchScene,
) -> None:
    scene = from_mysql
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, note int)", "INSERT INTO t VALUES (1, 2)")

    def refuse(request: FrontRequest) -> Refusal | None:
        asks = request.method == "GET" and request.path.startswith(f"/{scene.index('t')}?")
        words = b'{"error": {"type": "too_long_http_line_exception"}}'
        return Refusal(400, words=words) if asks else None

    with SearchFront(scene.target.address, guard=refuse) as front:
        scene.address = front.address
        with pytest.raises(SinkUnwritable, match="asking for index .* is refused .*too_long"):
            scene.run()


def test_a_server_that_is_away_is_waited_for(from_mysql: SearchScene) -> None:
    scene = from_mysql
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, note varchar(40))", "INSERT INTO t VALUES (1,'')"
    )
    with SearchFront(scene.target.address) as front:
        scene.address = front.address
        front.faults.extend([Refusal(503)] * 8)
        scene.start("max-retry=2")
        (first, *_) = scene.catch_up()
    assert isinstance(first, SinkUnavailable) and "503" in str(first)
    assert scene.assert_same("t") == 1
