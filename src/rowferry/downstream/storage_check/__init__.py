"""Checks a storage directory against the published layout, and nothing else.

In: a place with files, and the settings that the changefeed was given. Out: violations, each of one
named rule. It shares no code with the sink that writes such directories: paths, index, metadata,
schema files and rows are read here by rules of their own, as an outside reader would.
"""
