"""Debezium's events as Avro with a schema registry."""
