"""What the user asked for: options, URIs, configuration files. Pure: no I/O but reading the file given.

Comes in: text (flags, URI, TOML/YAML/JSON). Goes out: a frozen, checked `ChangefeedSpec`. It knows no
stage: codecs, sinks and sources declare their own option tables and hand them in.
"""
