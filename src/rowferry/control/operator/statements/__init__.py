"""SQL statements about changefeeds: their words, their syntax, and carrying them out."""
