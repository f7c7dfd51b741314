"""Finds the changes of one row in what a changefeed wrote: in its files, or in its topics.

In: the changefeed's settings, a table as readers see it, a key, limits. Out: the changes that are
there, each with its place, newest first as far as limits allow. It knows nothing of sources, and
of the meta database.
"""
