"""The example of docs/lake.md for AWS Glue, carried out: a bucket of MinIO, the Glue of moto."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from test_iceberg_glue import others_catalog

from page_examples import all_blocks, carried_out, commands
from rowferry.testing.servers import Minio, MySql
from rowferry.testing.servers.queues.amazon import Amazon

WRITTEN = "mysql://cdc@127.0.0.1:3306"


def test_a_reader_can_follow_the_page(
    mysql_server: MySql, s3_server: Minio, amazon_server: Amazon, tmp_path: Path
) -> None:
    """The bucket's keys come from the environment, and are Glue's login, too."""
    mysql_server.script(
        "DROP DATABASE IF EXISTS glue_page",
        "CREATE DATABASE glue_page",
        "CREATE TABLE glue_page.t (id INT PRIMARY KEY, v VARCHAR(10))",
        "INSERT INTO glue_page.t VALUES (1, 'one'), (2, 'two')",
    )
    config = tmp_path / "feed.toml"
    config.write_text("[filter]\nrules = ['glue_page.*']\n")
    blocks = [b for b in all_blocks("sh") if b.page == "lake.md" and "glue://" in b.text]
    ((words,),) = map(commands, blocks)
    place = words.index("--sink-uri") + 1
    region, catalog = (parse_qs(urlsplit(words[place]).query)[k][0] for k in ("region", "catalog"))
    assert (words[place][:18], catalog) == ("iceberg+s3://lake/", f"glue://{region}")
    own = f"{region}-{uuid4().hex}"  # moto has any region
    given = s3_server.parameters()
    keys = {
        "AWS_ACCESS_KEY_ID": given.pop("access-key"),
        "AWS_SECRET_ACCESS_KEY": given.pop("secret-access-key"),
    }
    at = f"glue://{own}?endpoint={amazon_server.endpoint}"
    uri = urlsplit(s3_server.uri(uuid4().hex, catalog=at))
    kept = "&".join(p for p in uri.query.split("&") if "access-key" not in p)
    words[place] = uri._replace(scheme="iceberg+s3", query=kept).geturl()
    words = [w.replace(WRITTEN, mysql_server.uri) for w in words]
    printed = carried_out([*words, "--config", str(config)], tmp_path, **keys)
    assert re.search(r"^done: 2 rows", printed, re.MULTILINE)
    login = {f"s3.{k.removeprefix('AWS_').lower().replace('_', '-')}": v for k, v in keys.items()}
    more = {f"s3.{name}": value for name, value in given.items()}
    table = others_catalog(amazon_server, own, **login, **more).load_table("glue_page.t")
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 1, "v": "one"}, {"id": 2, "v": "two"}]
