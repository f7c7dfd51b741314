"""A TiDB server, with its rows in a folder of its own instead of a TiKV cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rowferry.mysql.session import Flavour
from rowferry.testing.servers.child import HOST, free_port
from rowferry.testing.servers.packages import cache
from rowferry.testing.servers.programs import GoModule
from rowferry.testing.servers.server import USER, Server

_MODULE: Final = """module rowferry.test/tidb

go 1.25.4

require (
	github.com/pingcap/tidb v1.1.0-beta.0.20251121075944-8f2630e53d5d
	github.com/pingcap/tidb/pkg/parser v0.0.0-20251121075944-8f2630e53d5d
)

replace (
	github.com/apache/arrow-go/v18 => github.com/joechenrh/arrow-go/v18 v18.0.0-20250911101656-62c34c9a3b82
	github.com/go-ldap/ldap/v3 => github.com/YangKeao/ldap/v3 v3.4.5-0.20230421065457-369a3bab1117
	sourcegraph.com/sourcegraph/appdash => github.com/sourcegraph/appdash v0.0.0-20190731080439-ebfcffb1b5c0
	sourcegraph.com/sourcegraph/appdash-data => github.com/sourcegraph/appdash-data v0.0.0-20151005221446-73f23eafcf67
)
"""  # noqa: E501


class TiDb(Server):
    """TiDB as of November 2025. It has no log: a downstream, or a side of a comparison.

    What is committed survives `kill`.
    """

    flavour = Flavour.TIDB
    first_statements = "--initialize-sql-file"
    # Its sources name forks of libraries, which only a module around it can replace.
    sources = GoModule(
        "tidb-20251121", "github.com/pingcap/tidb/cmd/tidb-server", "tidb-server", _MODULE
    )

    def __init__(self, folder: Path, server_id: int = 1, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder, server_id, options)
        self._status = free_port()

    @classmethod
    def is_there(cls) -> bool:
        """Whether the program was built already."""
        return cls.sources.folder.exists()

    @classmethod
    def ensure(cls) -> Path:
        """Return an empty data directory to copy; build the server if need be: many minutes."""
        cls.sources.ensure()
        template = cache() / cls.sources.name / "data"
        template.mkdir(exist_ok=True)
        return template

    @classmethod
    def program(cls) -> list[str]:
        """Return the start of the server's command line."""
        return cls.sources.command()

    @classmethod
    def initialize(cls, datadir: Path) -> None:
        """Nothing: the server fills its folder itself."""

    def settings(self) -> list[str]:
        """Return what follows the program on the command line."""
        return [
            "--store=unistore",
            f"--path={self.datadir}",
            f"--temp-dir={self.folder}/temp",
            f"--host={HOST}",
            f"-P={self.port}",
            f"--status={self._status}",
            f"--status-host={HOST}",
            "--socket=",
            "-L=error",
            f"--log-slow-query={self.folder}/slow.log",
        ]

    def _arguments(self) -> list[str]:
        return [*self.settings(), *self.options]

    def _write_first_statements(self) -> None:
        self._first.touch(0o600)
        self._first.write_text(
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{self._password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
        )
