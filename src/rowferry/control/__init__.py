"""The control plane: who runs a changefeed, how far it is, what to do about errors.

Never on the path of a row. Only the driver talks to the meta database, and only through here.
"""
