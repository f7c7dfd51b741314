"""The sql-rows codec: rows as SQL texts, for sinks that speak SQL."""
