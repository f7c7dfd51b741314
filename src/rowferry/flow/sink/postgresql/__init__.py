"""PostgreSQL as a target: rows come as lines of COPY, pass a staging table, and are merged.

Comes in: frames of the copy-rows codec, and schema changes. Goes out: tables of the same names in
schemas that are called like the source's databases. Knows nothing of the source's log.
"""
