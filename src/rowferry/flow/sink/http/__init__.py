"""The HTTP sink: batches of changes as POST requests, in order for each key.

Comes in: packets of encoded messages. Goes out: requests to one address. Knows no format: the
codec says how messages are joined to a body.
"""
