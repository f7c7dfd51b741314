"""Servers that no other process uses: tests here change their settings and read their logs."""

from __future__ import annotations

from own_servers import mariadb_server, mysql_server, source_server

__all__ = ["mariadb_server", "mysql_server", "source_server"]
