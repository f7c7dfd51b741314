"""Tables from change files: which files make a table, and what its rows are after them.

In: a storage directory and the codec that its changefeed used. Out: a table's rows as Arrow, whole
or in shares by key. It knows nothing of Spark, which only spreads the work.
"""
