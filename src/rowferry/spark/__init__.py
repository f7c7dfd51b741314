"""The only importer of pyspark: one micro-batch as one Spark job.

Comes in: a plan and its table definitions. Goes out: receipts. It knows nothing of the meta
database.
"""
