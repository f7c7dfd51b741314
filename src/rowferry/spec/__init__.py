"""What the user asked for: options, URIs, configuration files. Reads only files that it is given.

Comes in: text (flags, URI, TOML/YAML/JSON). Goes out: a frozen, checked `ChangefeedSpec`. It knows
no stage: codecs, sinks and sources declare their own option tables and hand them in.
"""
