"""MySQL and MariaDB as sources: a parallel snapshot without locks, then the binary log."""
