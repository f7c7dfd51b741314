"""The Kafka sink: rows in order per topic partition, then schema changes, then watermarks."""
