"""Whether two places hold the same tables: databases, or what a storage sink's files make.

Rows are hashed where they are read and summed up by buckets of their keys; where sums differ, the
rows of those buckets alone are brought together and compared. It knows nothing of Spark, which only
spreads the work.
"""
