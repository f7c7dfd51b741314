"""What Debezium's own engine writes, and what a feed writes, of the same server's log."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_feed_kit import KafkaFeed, Scene, scene_of

from rowferry.mysql.session import Flavour
from rowferry.testing.servers import Kafka, SchemaRegistryServer, Server
from rowferry.testing.servers.maven import Jars, java

HERE = Path(__file__).parent
VERSION = "3.5.0.Final"
# Confluent's own converter is in no public Maven repository. Apicurio's makes the same schemas, and
# with `as-confluent` the same bytes.
CONVERTER = "io.apicurio:apicurio-registry-utils-converter:2.6.13.Final"
ENGINE = Jars(
    "debezium-avro-3.5.0",
    (
        *(f"io.debezium:debezium-{n}:{VERSION}" for n in ("embedded", "connector-mysql")),
        f"io.debezium:debezium-connector-mariadb:{VERSION}",
        CONVERTER,
        "org.slf4j:slf4j-simple:1.7.36",
    ),
)
PATIENCE_S = 300
# The settings of each engine, which are options of ours by the same name.
MODES: dict[str, dict[str, str]] = {
    "usual": {},
    "texts": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "connect",
        "bigint.unsigned.handling.mode": "precise",
        "binary.handling.mode": "hex",
        "tombstones.on.delete": "false",
    },
    "iso": {
        "decimal.handling.mode": "double",
        "time.precision.mode": "isostring",
        "binary.handling.mode": "base64-url-safe",
    },
}
AVRO_MODES = ("usual", "texts")  # those that are compared as Avro, too
# What may differ: who wrote it and when, and where the log says it.
OWN_FIELDS = {
    *("connector", "ts_ms", "ts_us", "ts_ns", "server_id", "gtid", "file", "pos", "row"),
    "thread",
}

# column: definition, then three values
TYPES: dict[str, tuple[str, str, str, str]] = {
    "ti": ("tinyint", "-128", "127", "0"),
    "tiu": ("tinyint unsigned", "255", "0", "128"),
    "t1": ("tinyint(1)", "1", "0", "1"),
    "si": ("smallint", "-32768", "32767", "0"),
    "siu": ("smallint unsigned", "65535", "0", "1"),
    "mi": ("mediumint", "-8388608", "8388607", "0"),
    "miu": ("mediumint unsigned", "16777215", "0", "1"),
    "i": ("int", "-2147483648", "2147483647", "0"),
    "iu": ("int unsigned", "4294967295", "0", "1"),
    "bi": ("bigint", "-9223372036854775808", "9223372036854775807", "0"),
    "biu": ("bigint unsigned", "18446744073709551615", "9223372036854775808", "0"),
    "zf": ("int(8) zerofill", "5", "0", "1"),
    "f": ("float", "0.1", "-3.4e38", "16777217"),
    "fd": ("float(7,3)", "1234.567", "-0.5", "0"),
    "d": ("double", "0.1", "1e300", "-0.5"),
    "dd": ("double(10,3)", "1234.567", "0", "-1"),
    "de": ("decimal(10,2)", "-12345678.90", "0", "1"),
    "den": ("decimal(65,30)", "-1.5", "0.000000000000000000000000000001", "1"),
    "dec0": ("decimal(5)", "-129", "128", "127"),
    "b1": ("bit(1)", "1", "0", "1"),
    "b9": ("bit(9)", "257", "0", "1"),
    "b64": ("bit(64)", "18446744073709551615", "1", "0"),
    "y": ("year", "2024", "0", "1901"),
    "da": ("date", "'2024-02-29'", "'0000-00-00'", "'0001-01-01'"),
    "dt": ("datetime", "'2024-02-29 23:59:59'", "'0000-00-00'", "'0001-01-01'"),
    "dt3": ("datetime(3)", "'2024-02-29 23:59:59.120'", "'0000-00-00'", "'2200-12-31 23:59:59.9'"),
    "dt6": ("datetime(6)", "'2024-02-29 23:59:59.123456'", "0", "'0099-12-31 23:59:59.999999'"),
    "ts": ("timestamp null", "'2024-02-29 23:59:59'", "0", "'1970-01-01 00:00:01'"),
    "ts3": ("timestamp(3) null", "'2024-02-29 23:59:59.120'", "0", "'2038-01-19 03:14:07.001'"),
    "ts6": ("timestamp(6) null", "'2024-02-29 23:59:59.123400'", "0", "'2038-01-19 03:14:07'"),
    "tm": ("time", "'-838:59:59'", "0", "'23:59:59'"),
    "tm3": ("time(3)", "'12:34:56.700'", "0", "'-00:00:01'"),
    "tm6": ("time(6)", "'-00:00:00.000001'", "'838:59:59'", "'00:00:00.000001'"),
    "ch": ("char(10)", "'x  '", "''", "'é'"),
    "vc": ("varchar(20)", "'<é😀\\\"\\n'", "''", "'a\\\\b'"),
    "tx": ("text", "'tx'", "''", "'ü'"),
    "lt": ("longtext", "'lt'", "''", "'&'"),
    "l1": ("varchar(20) charset latin1", "'äö'", "''", "'x'"),
    "bn": ("binary(8)", "'ab'", "''", "x'ff'"),
    "vb": ("varbinary(8)", "x'00ff'", "''", "x'fbff'"),
    "bl": ("blob", "x'00ff10'", "''", "x'fbefbe'"),
    "e": ("enum('a','b,c','d''e')", "'b,c'", "'a'", "'d''e'"),
    "s": ("set('a','b','c')", "'a,c'", "''", "'b'"),
    "g": ("geometry", "ST_GeomFromText('POINT(1 -2)')", "null", "null"),
    "ls": ("linestring", "ST_GeomFromText('LINESTRING(0 0,1 1)')", "null", "null"),
}
MYSQL_TYPES = {
    "js": ("json", """'{"b": 1, "a": [1.5, "é", null, true]}'""", "'null'", """'[1, "a/b"]'"""),
    "v": ("vector(3)", "to_vector('[1, -2.5, 0.5]')", "null", "to_vector('[0, 0, 0]')"),
}
DEFAULTS = """
 ti tinyint not null default 5, iu int unsigned default 7, bi bigint not null default -1,
 biu bigint unsigned not null default 18446744073709551615, f float not null default 1.5,
 d double default 2.25, de decimal(10,2) not null default 3.5, b1 bit(1) not null default b'1',
 b9 bit(9) default b'101', y year not null default 2020, da date not null default '2020-01-02',
 dt datetime not null default '2020-01-02 03:04:05',
 dt6 datetime(6) not null default '2020-01-02 03:04:05.678901',
 dtc datetime not null default current_timestamp, dtn datetime default current_timestamp,
 tsc timestamp not null default current_timestamp, tsn timestamp null default current_timestamp,
 tm time not null default '01:02:03', vc varchar(20) not null default 'xy',
 ve varchar(20) default '', vb varbinary(4) default 'z', e enum('a','b') not null default 'b',
 s set('a','b','c') not null default 'a,b', gst int as (ti + 2) stored,
 nn varchar(3) not null, zd date not null default '0000-00-00'
"""


TABLES = ("every", "defs", "nopk", "uk")


def types_of(server: Server) -> dict[str, tuple[str, str, str, str]]:
    # MariaDB's JSON is a text, and the engine's parser knows neither its INET6 nor its UUID.
    return {**TYPES, **(MYSQL_TYPES if server.flavour is Flavour.MYSQL else {})}


def tables(server: Server) -> list[str]:
    columns = ", ".join(f"{name} {kind[0]}" for name, kind in types_of(server).items())
    return [
        f"CREATE TABLE every (id int not null, {columns}, PRIMARY KEY (id)) COMMENT 'all'",
        f"CREATE TABLE defs (a int not null, {DEFAULTS}, b char(5) not null, PRIMARY KEY (b, a))",
        "CREATE TABLE nopk (x int, y varchar(5) default 'q')",
        "CREATE TABLE uk (x int not null, z int, y varchar(5) not null, unique key u (y))",
    ]


def changes(server: Server) -> list[str]:
    types = types_of(server)
    found = [
        f"INSERT INTO every (id, {', '.join(types)}) VALUES "
        f"({place}, {', '.join(kind[place] for kind in types.values())})"
        for place in (1, 2, 3)
    ]
    return [
        *found,
        "INSERT INTO every (id) VALUES (4)",
        "UPDATE every SET vc = 'new', de = 1 WHERE id = 1",
        "UPDATE every SET id = 10 WHERE id = 1",
        "DELETE FROM every WHERE id = 2",
        "INSERT INTO defs (a, b, nn) VALUES (1, 'k', 'n')",
        "UPDATE defs SET tm = '-10:00:00', zd = '2020-01-01', iu = NULL WHERE a = 1",
        "INSERT INTO nopk VALUES (1, NULL)",
        "UPDATE nopk SET x = 2",
        "DELETE FROM nopk",
        "INSERT INTO uk VALUES (1, 2, 'a')",
        "UPDATE uk SET y = 'b'",
        "DELETE FROM uk",
        "ALTER TABLE uk ADD COLUMN w int default 3 AFTER x",
        "INSERT INTO uk VALUES (1, 5, 2, 'a')",
        # A table that is there when the engine begins would hide how it was made.
        *(f"DROP TABLE {table}" for table in TABLES),
        "CREATE TABLE endmark (id int primary key)",
        "INSERT INTO endmark VALUES (1)",
    ]


def engine_settings(scene: Scene, mode: str, number: int, folder: Path) -> dict[str, object]:
    server = scene.server
    is_mysql = server.flavour is Flavour.MYSQL
    connector = "mysql.MySqlConnector" if is_mysql else "mariadb.MariaDbConnector"
    status = "SHOW BINARY LOG STATUS" if is_mysql else "SHOW MASTER STATUS"
    row = server.execute(status)[0]
    gtids = row[4] if is_mysql else server.execute("SELECT @@gtid_binlog_pos")[0][0]
    login = server.login
    return {
        "name": mode,
        "topic.prefix": f"{scene.database}_{mode}",
        "connector.class": f"io.debezium.connector.{connector}",
        "database.hostname": login.host,
        "database.port": login.port,
        "database.user": login.user,
        "database.password": login.password,
        "database.server.id": 2_000_000_100 + number,
        "database.include.list": scene.database,
        "snapshot.mode": "recovery",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        # Other tests' tables are on the same server, and its parser does not know all of MariaDB's.
        "schema.history.internal.store.only.captured.tables.ddl": "true",
        "schema.history.internal.store.only.captured.databases.ddl": "true",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": folder / f"{mode}.offsets",
        "offset.flush.interval.ms": 60_000,
        "include.schema.changes": "true",
        "converter.schemas.enable": "true",
        "events.file": row[0],
        "events.offset": row[1],
        "events.gtids": str(gtids or "").replace("\n", ""),
        "events.last": f"{scene.database}_{mode}.{scene.database}.endmark",
        "events.to": folder / f"{mode}.events",
        **MODES[mode],
    }


def avro_settings(
    scene: Scene, mode: str, number: int, folder: Path, registry: SchemaRegistryServer
) -> dict[str, object]:
    """An engine of the same settings, with the converter of Avro."""
    own = engine_settings(scene, mode, number, folder)
    prefix = avro_prefix(scene, mode)
    api = registry.url.removesuffix("ccompat/v7") + "registry/v2"
    return {
        **{k: v for k, v in own.items() if not k.startswith("converter.")},
        "name": f"avro-{mode}",
        "topic.prefix": prefix,
        "offset.storage.file.filename": folder / f"avro-{mode}.offsets",
        "events.last": f"{prefix}.{scene.database}.endmark",
        "events.to": folder / f"avro-{mode}.events",
        "events.format": "avro",
        "schema.name.adjustment.mode": "avro",
        "field.name.adjustment.mode": "avro",
        "converter.apicurio.registry.url": api,
        "converter.apicurio.registry.auto-register": "true",
        "converter.apicurio.registry.as-confluent": "true",
        "converter.apicurio.registry.use-id": "contentId",
        "converter.apicurio.registry.headers.enabled": "false",
    }


def avro_prefix(scene: Scene, mode: str) -> str:
    return f"{scene.database}_avro_{mode}"


def run_engines(settings: list[dict[str, object]], folder: Path) -> None:
    files = []
    for one in settings:
        path = folder / f"{one['name']}.properties"
        path.touch(0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in one.items()))
        files.append(str(path))
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    program = [java(), "-Xmx700m", quiet, "-cp", f"{ENGINE.ensure()}/*"]
    done = subprocess.run(
        [*program, str(HERE / "DebeziumEvents.java"), *files],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


Event = tuple[str, Any, Any]


def engine_events(folder: Path, mode: str) -> Iterator[Event]:
    """Topic, key and value of each event of the log, not of what the engine finds at its start."""
    for line in (folder / f"{mode}.events").read_text("utf-8").splitlines():
        topic, key, value = line.split("\t")
        made = json.loads(value)
        payload = made["payload"] if made else {}
        if payload.get("source", {}).get("snapshot", "false") == "false":
            yield topic, json.loads(key), made


def feed_events(scene: Scene, mode: str) -> Iterator[Event]:
    prefix = f"{scene.database}_{mode}"
    for message in scene.broker.read_all(prefix):
        key = json.loads(message.key) if message.key else None
        value = json.loads(message.value) if message.value else None
        payload = value["payload"] if value else None
        if payload is None:
            table = key["schema"]["name"].split(".")[2]
        else:
            table = payload["source"]["table"]
        is_ddl = payload is not None and "ddl" in payload
        yield prefix if is_ddl else f"{prefix}.{scene.database}.{table}", key, value


def plain_value(value: Any) -> Any:
    """An event without what may differ, and with its JSON documents read."""
    if value is None:
        return None
    found = json.loads(json.dumps(value))
    payload, schema = found["payload"], found["schema"]
    for key in ("ts_ms", "ts_us", "ts_ns"):
        payload.pop(key, None)
    for key in OWN_FIELDS:
        payload["source"].pop(key, None)
    documents = {
        f["field"]
        for part in schema["fields"]
        for f in part.get("fields", [])
        if f.get("name") == "io.debezium.data.Json"
    }
    for image in ("before", "after"):
        for name in documents:
            if payload.get(image) and payload[image][name] is not None:
                payload[image][name] = json.loads(payload[image][name])
    schema["fields"] = [f for f in schema["fields"] if f["field"] != "source"] + [
        dict(f, name=re.sub(r"mariadb", "mysql", f["name"]))
        for f in schema["fields"]
        if f["field"] == "source"
    ]
    return found


def rows_of(events: Iterator[Event], table: str) -> list[tuple[Any, Any]]:
    found = [(key, plain_value(value)) for topic, key, value in events if topic.endswith(table)]
    return [pair for pair in found if pair != (None, None)]  # a tombstone needs a key


def statements(events: Iterator[Event]) -> list[Any]:
    """What schema changes tell; not how a geometry is called, and how a default's number looks."""
    found = []
    for _, key, value in events:
        if value and "endmark" not in value["payload"].get("ddl", "endmark"):
            payload = value["payload"]
            source = {k: v for k, v in payload["source"].items() if k not in OWN_FIELDS}
            for change in payload["tableChanges"]:
                (change["table"] or {}).pop("comment", None)  # told of MariaDB's tables alone
                for column in (change["table"] or {"columns": []})["columns"]:
                    if column["name"] in ("g", "ls"):
                        column |= {"typeName": "", "typeExpression": ""}
                    if column["typeName"] == "DECIMAL" and column["defaultValueExpression"]:
                        number = float(column["defaultValueExpression"])
                        column["defaultValueExpression"] = str(number)
            plain = json.loads(json.dumps(key).replace("mariadb.Schema", "mysql.Schema"))
            found.append((plain, source, payload["databaseName"], payload["tableChanges"]))
    return found


def differences(theirs: list[Any], ours: list[Any]) -> list[str]:
    """Say where two lists of events differ, field by field."""
    found: list[str] = []

    def walk(where: str, a: Any, b: Any) -> None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in [*a, *(k for k in b if k not in a)]:
                walk(f"{where}.{key}", a.get(key, "absent"), b.get(key, "absent"))
        elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
            for place, pair in enumerate(zip(a, b, strict=True)):
                name = a[place].get("field", place) if isinstance(a[place], dict) else place
                walk(f"{where}[{name}]", *pair)
        elif a != b:
            found.append(f"{where}: Debezium {str(a)[:300]} here {str(b)[:300]}")

    if len(theirs) != len(ours):
        found.append(f"Debezium has {len(theirs)} events, here are {len(ours)}")
    for place, (a, b) in enumerate(zip(theirs, ours, strict=False)):
        walk(f"event {place}", a, b)
    return found


# --- as Avro --------------------------------------------------------------------------------------


def avro_topic(database: str, table: str, mode: str) -> str:
    return f"{database}_{table}_{mode}_avro"


def by_table(mode: str) -> str:
    return f"matcher = ['*.*'], topic = '{avro_topic('{schema}', '{table}', mode)}'"


Pair = tuple[bytes | None, bytes | None]


def engine_messages(folder: Path, name: str, table: str) -> list[Pair]:
    """Keys and values that the converter made of a table's events."""
    lines = (folder / f"{name}.events").read_text("utf-8").splitlines()
    parts = (line.split("\t") for line in lines)
    return [
        (_unhex(key), _unhex(value)) for topic, key, value in parts if topic.endswith(f".{table}")
    ]


def _unhex(text: str) -> bytes | None:
    return None if text == "null" else bytes.fromhex(text)


def whole_schema(form: Any, space: str = "") -> Any:
    """A schema with full names, so that equal ones are equal however they are written."""
    if isinstance(form, list):
        return [whole_schema(one, space) for one in form]
    if isinstance(form, str):
        plain = form in ("null", "boolean", "int", "long", "float", "double", "string", "bytes")
        return form if plain or "." in form else f"{space}.{form}"
    found = {k: v for k, v in form.items() if k not in ("name", "namespace", "fields", "items")}
    if form["type"] == "record":
        space = form.get("namespace", space)
        found["name"] = f"{space}.{form['name']}"
        found["fields"] = [
            {**field, "field": field["name"], "type": whole_schema(field["type"], space)}
            for field in form["fields"]
        ]
    if "items" in form:
        found["items"] = whole_schema(form["items"], space)
    return found


def avro_rows(
    sent: list[Pair], registry: SchemaRegistryServer, read: AvroDeserializer
) -> list[Any]:
    """Each message's key and value with their schemas, without what may differ."""
    found = []
    for pair in sent:
        parts: list[Any] = []
        for data, which in zip(pair, (MessageField.KEY, MessageField.VALUE), strict=True):
            if data is None:
                parts.append(None)
                continue
            assert data[0] == 0
            number = int.from_bytes(data[1:5], "big")
            text = registry.ask("GET", f"/schemas/ids/{number}")["schema"]
            schema = whole_schema(json.loads(text.replace("connector.mariadb", "connector.mysql")))
            payload: Any = read(data, SerializationContext("any", which))
            for key in ("ts_ms", "ts_us", "ts_ns"):
                payload.pop(key, None)
            for key in OWN_FIELDS:
                payload.get("source", {}).pop(key, None)
            for image in ("before", "after"):
                if payload.get(image) and payload[image].get("js") is not None:
                    payload[image]["js"] = json.loads(payload[image]["js"])
            parts.append((schema, payload))
        found.append(parts)
    return [parts for parts in found if parts != [None, None]]  # a tombstone needs a key


def images(feed: KafkaFeed, topic: str) -> list[Any]:
    """What our own reader finds in a topic."""
    return [(row.before, row.after) for row in feed.rows(topic)]


@pytest.mark.parametrize("which", ["mysql", "mariadb"])
def test_every_event_is_the_engines(
    which: str, kafka_broker: Kafka, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{which}_server")
    registry: SchemaRegistryServer = request.getfixturevalue("schema_registry")
    with ExitStack() as stack:
        scene = stack.enter_context(scene_of(server, kafka_broker, tmp_path, f"dbz_{which}"))
        settings = [engine_settings(scene, m, i, tmp_path) for i, m in enumerate(MODES)]
        settings += [
            avro_settings(scene, mode, len(MODES) + i, tmp_path, registry)
            for i, mode in enumerate(AVRO_MODES)
        ]
        feeds = []
        for mode, chosen in MODES.items():
            query = f"protocol=debezium&partition-num=1&debezium-name={scene.database}_{mode}"
            for key, value in chosen.items():
                query += f"&debezium-{key.replace('.', '-')}={value}"
            topic = f"{scene.database}_{mode}"
            feeds.append(scene.feed(query, topic=topic, config="force-replicate = true"))
            if mode in AVRO_MODES:
                where = f"debezium-avro&schema-registry={registry.url}"
                avro = query.replace("debezium&", f"{where}&").replace(
                    topic, avro_prefix(scene, mode)
                )
                config = f"force-replicate = true\n[sink]\ndispatchers = [{{ {by_table(mode)} }}]"
                feeds.append(scene.feed(avro, topic=avro_prefix(scene, mode), config=config))
        for feed in feeds:
            feed.catch_up()  # from here on
        session = ["SET sql_mode = ''", "SET time_zone = '+00:00'"]
        scene.sql(*session, *tables(server), *changes(server))
        for feed in feeds:
            feed.catch_up()
        run_engines(settings, tmp_path)
        found = []
        for mode in MODES:
            for table in TABLES:
                theirs = rows_of(engine_events(tmp_path, mode), f".{table}")
                ours = rows_of(feed_events(scene, mode), f".{table}")
                assert theirs, f"the engine has no events of {table}"
                found += [f"{mode} {table}, {d}" for d in differences(theirs, ours)]
        found += differences(
            statements(engine_events(tmp_path, "usual")), statements(feed_events(scene, "usual"))
        )
        with SchemaRegistryClient({"url": registry.url}) as client:
            read = AvroDeserializer(client)
            for mode, table in product(AVRO_MODES, TABLES):
                theirs = avro_rows(engine_messages(tmp_path, f"avro-{mode}", table), registry, read)
                topic = avro_topic(scene.database, table, mode)
                sent = [(m.key, m.value) for m in scene.broker.read_all(topic)]
                ours = avro_rows(sent, registry, read)
                assert theirs, f"the engine has no Avro events of {table}"
                found += [f"avro {mode} {table}, {d}" for d in differences(theirs, ours)]
                (feed,) = (f for f in feeds if f.topic == avro_prefix(scene, mode))
                (json_feed,) = (f for f in feeds if f.topic == f"{scene.database}_{mode}")
                wanted = [row for row in json_feed.rows() if row.table.id.table == table]
                assert images(feed, topic) == [(row.before, row.after) for row in wanted]
        assert not found, "\n".join(found)
