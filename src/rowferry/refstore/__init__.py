"""The reference store: a small range-sharded database that speaks the range CDC protocol.

Comes in: DDL and transactions from its client. Goes out: snapshots and ordered logs of ranges. It
is the source of the demo and the target of fault injection, not offered as a database. It knows
nothing of changefeeds.
"""
