"""The test kit: what a source committed, what a feed delivered, and validators to compare the two.

In: a `History` noted by whoever changes the source, and a feed's rows, schema changes and
watermarks. Out: failures in words, one list per promise. Nothing here runs a changefeed. The wheel
holds what `docs/validators.md` names; of the product only `rowferry demo` uses it.
"""
