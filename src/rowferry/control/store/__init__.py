"""The meta database: the only durable state of all changefeeds.

Comes in: specs, claims, plans. Goes out: plain frozen values. `contract` says what is promised and
imports no database library; `sql_store.open_store` opens the one there is. It knows no Spark, no
source and no sink.
"""
