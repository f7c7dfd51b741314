"""The MySQL/TiDB sink: changes become multi-row statements in a second database.

Comes in: frames of SQL texts, made by the sql-rows codec. Goes out: transactions, each behind the
fence row of the changefeed. Knows nothing of sources; only `session` talks to the client library.
"""
