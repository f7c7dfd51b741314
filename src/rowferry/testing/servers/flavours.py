"""The servers that can be had: what each one's program, first data and settings are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rowferry.errors import SourceUnavailable
from rowferry.mysql.session import Flavour
from rowferry.testing.servers.packages import Packages
from rowferry.testing.servers.server import Server


class MySql(Server):
    """MySQL 9."""

    flavour = Flavour.MYSQL
    packages = Packages("mysql-9", "sid", ("mysql-server-core",))

    @classmethod
    def program(cls) -> list[str]:
        """Return the start of the server's command line."""
        return cls.packages.program("usr/sbin/mysqld")

    @classmethod
    def initialize(cls, datadir: Path) -> None:
        """Fill an empty data directory."""
        command = [*cls.program(), "--no-defaults", "--initialize-insecure", f"--datadir={datadir}"]
        small = ["--innodb-redo-log-capacity=8M", "--disable-log-bin"]
        _initialize([*command, *_places(cls.packages), *small], b"")
        (datadir / "auto.cnf").unlink(missing_ok=True)  # each copy is to have a uuid of its own

    def settings(self) -> list[str]:
        """Return the settings that this flavour adds."""
        return [
            *_places(self.packages),
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--mysqlx=OFF",
            "--innodb-redo-log-capacity=128M",
            "--innodb-use-native-aio=OFF",  # the machine's contexts are few, its test servers many
            "--log-error-verbosity=1",
        ]


class MariaDb(Server):
    """MariaDB 10.11."""

    flavour = Flavour.MARIADB
    packages = Packages("mariadb-10.11", "bookworm", ("mariadb-server",))

    @classmethod
    def program(cls) -> list[str]:
        """Return the start of the server's command line."""
        return cls.packages.program("usr/sbin/mariadbd")

    @classmethod
    def initialize(cls, datadir: Path) -> None:
        """Fill an empty data directory."""
        datadir.mkdir()
        share = _share(cls.packages)
        sql = b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\n"
        for name in ("system_tables", "performance_tables", "system_tables_data", "sys_schema"):
            sql += next(share.glob(f"m*_{name}.sql")).read_bytes() + b"\n"
        command = [*cls.program(), "--no-defaults", "--bootstrap", f"--datadir={datadir}"]
        _initialize([*command, *_places(cls.packages), "--innodb-log-file-size=64M"], sql)

    def settings(self) -> list[str]:
        """Return the settings that this flavour adds."""
        return [
            *_places(self.packages),
            "--binlog-format=ROW",
            "--gtid-strict-mode=1",
            "--log-slave-updates=ON",  # MySQL does so by itself: a promoted replica can be a source
            "--innodb-log-file-size=64M",
            "--innodb-use-native-aio=OFF",
        ]


class MariaDb11(MariaDb):
    """MariaDB 11: newer events than 10.11."""

    packages = Packages("mariadb-11", "sid", ("mariadb-server",))


def ensure_mysql() -> None:
    """Fetch MySQL into the cache if it is not there."""
    MySql.ensure()


def ensure_mariadb() -> None:
    """Fetch MariaDB into the cache if it is not there."""
    MariaDb.ensure()


def _share(packages: Packages) -> Path:
    """Return the folder of SQL files, messages and character sets."""
    return next(packages.folder.glob("usr/share/*/english/errmsg.sys")).parents[1]


def _places(packages: Packages) -> list[str]:
    root = packages.folder
    places = [
        f"--basedir={root}/usr",
        f"--lc-messages-dir={_share(packages)}",
        f"--character-sets-dir={_share(packages)}/charsets",
        f"--plugin-dir={next(root.glob('usr/lib/m*/plugin'))}",
    ]
    return [*places, "--user=root"] if os.geteuid() == 0 else places


def _initialize(command: list[str], sql: bytes) -> None:
    result = subprocess.run(command, input=sql, capture_output=True, check=False)
    if result.returncode != 0:
        last_lines = result.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise SourceUnavailable(f"a data directory cannot be made: {' '.join(last_lines)}")
