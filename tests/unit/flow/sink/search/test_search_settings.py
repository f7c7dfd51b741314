"""Names of indexes and fields, ids, mappings, logins."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.columnar.fields import Field
from rowferry.errors import BadInput, BadOption, BadUri, NotAllowed, OptionsConflict
from rowferry.flow.encode.search_documents.document_id import document_ids, key_texts
from rowferry.flow.encode.search_documents.mapping import field_name, mapping
from rowferry.flow.encode.search_documents.options import DocumentOptions
from rowferry.flow.sink.search.index_names import index_name, index_names
from rowferry.flow.sink.search.options import SearchOptions, read_settings
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.reach import Reach
from rowferry.spec.uri import Uri

RULE = "{schema}-{table}"


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (("Shop", "Orders"), "shop-orders"),
        (("shop", "a b/c*"), "shop-a%20b%2fc%2a"),
        (("shop", "50%"), "shop-50%25"),
        (("_shop", "ü"), "%5fshop-ü"),
        (("-", ":#"), "%2d-%3a%23"),
    ],
)
def test_names_of_indexes(table: tuple[str, str], name: str) -> None:
    assert index_name(RULE, TableId(*table)) == name


def test_tables_that_would_be_one_index() -> None:
    for one, other in ((("a", "B-c"), ("a-b", "c")), (("a", "T"), ("a", "t"))):
        with pytest.raises(BadInput, match="would both be index"):
            index_names(RULE, [TableId(*one), TableId(*other)])
    with pytest.raises(BadInput, match="longer than 255 bytes"):
        index_name(RULE, TableId("s" * 200, "ü" * 60))


@pytest.mark.parametrize("rule", ["Prod-{table}", "{tabel}", "a b", "-{table}", "{table}*", ""])
def test_rules_that_make_no_names(rule: str) -> None:
    with pytest.raises(BadOption, match="index"):
        settings(f"es://h:9200?index={rule.replace(' ', '%20')}")


def test_names_of_fields() -> None:
    names = [field_name(name) for name in ("a", "a.b", "_id", "_x", "50%", "A")]
    assert names == ["a", "a%2eb", "%5fid", "_x", "50%25", "A"]


def ids(*columns: tuple[SqlType, list[object]]) -> list[str]:
    named = [Column(i, f"k{i}", kind, nullable=False) for i, (kind, _) in enumerate(columns)]
    index = Index(1, "PRIMARY", tuple(c.name for c in named), unique=True, primary=True)
    table = TableSchema(TableId("s", "t"), 1, 1, tuple(named), (index,))
    values = [pa.array(v, c.type.arrow) for c, (_, v) in zip(named, columns, strict=True)]
    key = [Field(c, v) for c, v in zip(named, values, strict=True)]
    found: list[str] = document_ids(table, key).to_pylist()
    return found


def test_ids_tell_all_keys_apart() -> None:
    text, whole = SqlType("varchar", length=700), SqlType("int")
    assert ids((whole, [-7, 0])) == ["-7", "0"]
    assert ids((text, ["", "%", "%25", "a,b", "%2c", "ß"])) == [
        *("%", "%25", "%2525", "a%2cb", "%252c", "ß")
    ]
    one = ids((text, ["a,b", "a", "", ""]), (text, ["c", "b,c", "", "%"]))
    assert one == ["a%2cb,c", "a,b%2cc", ",", ",%25"]
    assert [key_texts(i) for i in one] == [["a,b", "c"], ["a", "b,c"], ["", ""], ["", "%"]]
    both = [[0.0, -0.0, -1.5]]
    assert ids((SqlType("double"), *both)) == ids((SqlType("float"), *both)) == ["0", "0", "-1.5"]
    long = ids((text, ["x" * 512, "x" * 513, "x" * 514]))
    assert long[0] == "x" * 512
    assert all(i.startswith("%h") and len(i) == 66 for i in long[1:]) and long[1] != long[2]


def test_mappings_follow_the_options() -> None:
    columns = [
        SqlType("decimal", length=15, scale=2),
        SqlType("decimal", length=16, scale=2),
        SqlType("json"),
        SqlType("bigint", unsigned=True),
        SqlType("bit", length=63),
    ]
    table = TableSchema(
        TableId("s", "t"), 1, 1, tuple(Column(i, f"c{i}", k) for i, k in enumerate(columns))
    )

    def types(**raw: str) -> list[str]:
        options = DocumentOptions.read({k.replace("_", "-"): v for k, v in raw.items()})
        fields = mapping(table, options, "flat_object")["properties"]
        return [fields[f"c{i}"]["type"] for i in range(len(columns))]

    assert types() == ["double", "keyword", "object", "unsigned_long", "long"]
    assert types(decimal_columns="scaled-float", json_columns="flattened") == [
        *("scaled_float", "double", "flat_object", "unsigned_long", "long")
    ]
    assert types(decimal_columns="keyword", unsigned_bigint="keyword", json_columns="keyword") == [
        *("keyword", "keyword", "keyword", "keyword", "long")
    ]


def spec(uri: str, **config: str) -> ChangefeedSpec:
    source, sink = Uri.parse("range://127.0.0.1:1", "source"), Uri.parse(uri, "sink")
    own = {key.replace("_", "-"): value for key, value in config.items()}
    return ChangefeedSpec("feed", source, sink, {"sink": {"search-config": own}})


def settings(uri: str, **config: str) -> object:
    return read_settings(spec(uri, **config))


@pytest.mark.parametrize(
    ("uri", "config", "words"),
    [
        ("es://ada:pw@h:9200", {"api_key": "x"}, "the URI's user and api-key each give a login"),
        ("es://h", {"aws_region": "r"}, "aws-region needs aws-access-key-id"),
        ("es://h", {"aws_access_key_id": "k"}, "needs aws-region"),
        ("es+ssl://h?ssl-cert=c", {}, "ssl-cert and ssl-key belong together"),
    ],
)
def test_logins_that_do_not_go_together(uri: str, config: dict[str, str], words: str) -> None:
    with pytest.raises(OptionsConflict, match=words):
        settings(uri, **config)


@pytest.mark.parametrize("uri", ["es://?a=b", "es://h:9200/orders"])
def test_addresses_that_are_none(uri: str) -> None:
    with pytest.raises(BadUri):
        settings(uri)


def test_secrets_are_not_shown() -> None:
    shown = repr(settings("es://ada:sesame@h:9200,i")) + repr(settings("es://h", api_key="a:bc"))
    assert "sesame" not in shown and "a:bc" not in shown
    assert "h:9200,i:9200" in shown


def test_a_server_allows_only_some_hosts() -> None:
    tables = (SearchOptions.TABLE,)
    reach = Reach(hosts=("h:9200", "i"))
    reach.check(spec("opensearch://h,i:9201"), tables)
    for uri in ("es://h:9201", "es+ssl://h,other", "es://other"):
        with pytest.raises(NotAllowed, match="--allow-host"):
            reach.check(spec(uri), tables)
