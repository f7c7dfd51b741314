"""How columns become fields of documents; the codec writes by it, and mappings are made by it."""

from __future__ import annotations

from rowferry.spec.option import Section, one_of, option, text


class DocumentOptions(Section, section="sink.search-config"):
    """What documents look like."""

    decimal_columns = option(
        one_of("auto", "double", "scaled-float", "keyword"),
        "auto",
        "How DECIMAL columns are indexed; documents hold their exact text in each case. `auto`: "
        "`double` up to 15 digits, which tells any two values apart, else `keyword`. "
        "`scaled-float`: the same with a scaled whole number.",
        uri=True,
    )
    unsigned_bigint = option(
        one_of("unsigned-long", "keyword"),
        "unsigned-long",
        "How BIGINT UNSIGNED and BIT of more than 63 bits are indexed. Elasticsearch before 7.10 "
        "and OpenSearch before 2.8 have no `unsigned_long`: use `keyword` there.",
        uri=True,
    )
    json_columns = option(
        one_of("stored", "object", "flattened", "keyword"),
        "stored",
        "How JSON columns are kept. `stored`: as a value that is not indexed, and may be anything. "
        "`object`: as fields that the server finds by itself; two documents that differ in a "
        "field's type do not fit together. `flattened`: as one field of words (`flat_object` in "
        "OpenSearch); each value must be an object. `keyword`: as a text.",
        uri=True,
    )
    routing_column = option(
        text(),
        "",
        "The column whose value chooses a document's shard; it must be part of the key of every "
        "captured table, so that a row never changes its shard. Empty: the id does.",
        uri=True,
    )
