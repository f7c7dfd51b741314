"""The search-documents codec: rows as items of a `_bulk` request, and the mapping they fit."""
