"""The range CDC source: ranges pulled over gRPC, rows in TiDB's key and row encodings.

Comes in: routes from the master, snapshots and logs from range leaders. Goes out: stretches (on the
driver) and chunks (in tasks).
"""
