"""The storage sink: data files in directories, made visible by index, schema and metadata files.

Comes in: encoded frames of one segment, and plans. Goes out: files that TiCDC's consumers read. It
knows no codec (only a file suffix) and no source. `sink.py` is the contract, `paths.py` the layout,
`files.py` the only access to the storage itself, `reader.py` what a consumer sees.
"""
