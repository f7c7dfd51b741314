"""The data plane: a chunk runs down the folders capture, decide, dispatch, encode, sink.

No stage imports another; they meet in `rowferry.change` and in each stage's `contract.py`. Nothing
here imports Spark: `rowferry.spark` runs what `assemble` puts together.
"""
