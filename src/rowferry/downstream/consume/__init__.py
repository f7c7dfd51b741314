"""Reads what a changefeed wrote, checks it, and hands it on in an order that can be applied.

In: a sink URI with its settings: Kafka topics, or a storage directory. Out: rows and schema changes
in commit order, and a verdict on order, repeats, partitions and watermarks. It knows nothing of
sources, and stores no progress: each run begins anew.
"""
