"""The debezium codec."""
