"""Delta tables: a log of commits, data files, deletion vectors."""
