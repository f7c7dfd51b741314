"""The sink for Elasticsearch and OpenSearch: a document for each row.

Comes in: packets of items that the search-documents codec made. Goes out: `_bulk` requests. A
document's version is its row's commit-ts, so that no older change can follow a newer one.
"""
