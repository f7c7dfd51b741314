"""MySQL, MariaDB and TiDB as servers: sessions, catalog, result sets, character sets, DDL."""
