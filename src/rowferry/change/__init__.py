"""The vocabulary: what flows, what it is about, where it stands in the source's log.

Rows, schema changes and watermarks flow; nothing else does. This package knows no source, no format
and no sink, and imports nothing of Rowferry but `errors`.
"""
