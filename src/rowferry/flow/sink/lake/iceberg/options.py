"""Options of Iceberg tables: which catalog has them, and how to log in there."""

from __future__ import annotations

from rowferry.spec.option import Section, option, text, web_address, whole


class IcebergOptions(Section, section="sink.lake"):
    """What Iceberg tables need beside the options of every lake."""

    catalog = option(
        text(),
        "",
        "Iceberg: who knows the tables. `file:///path/catalog.db`: an SQLite file; "
        "`postgresql://user@host/database`: tables of a PostgreSQL database (both as Iceberg's "
        "JDBC catalogs have them); `https://host/path`: a REST catalog; `glue://region`: AWS Glue. "
        "Without it, a directory has `catalog.db` in it.",
        uri=True,
        alterable=False,
        names="storage",
    )
    catalog_name = option(
        text(),
        "",
        "Iceberg: the name under which a SQL catalog keeps its tables (`rowferry` without it), or "
        "the warehouse of a REST catalog.",
        uri=True,
        alterable=False,
    )
    catalog_token = option(
        text(), "", "Iceberg: the bearer token of a REST catalog.", uri=True, secret=True
    )
    catalog_credential = option(
        text(),
        "",
        "Iceberg: `client-id:client-secret`, for which a REST catalog gives tokens.",
        uri=True,
        secret=True,
    )
    catalog_token_uri = option(
        web_address(),
        "",
        "Iceberg: who gives tokens for `catalog-credential`, where the catalog itself does not.",
        uri=True,
        names="url",
    )
    catalog_scope = option(
        text(), "", "Iceberg: the scope of tokens for `catalog-credential`.", uri=True
    )
    history = option(
        whole(1, 100000),
        200,
        "Iceberg: how many snapshots a table keeps, to which readers can travel back; tags and "
        "branches keep theirs.",
        uri=True,
    )
