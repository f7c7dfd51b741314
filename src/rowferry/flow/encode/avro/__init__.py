"""Rows as Avro with a schema registry: key and value schemas, compiled writer, client, reader."""
