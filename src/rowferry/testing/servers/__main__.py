"""`python -m rowferry.testing.servers` fetches every server, so that tests find them there."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from rowferry.errors import RowferryError
from rowferry.testing.servers.flavours import MariaDb, MariaDb11, MySql
from rowferry.testing.servers.server import Server


def main() -> int:
    """Fetch what is missing and say where it is; return the exit code."""
    kinds: tuple[type[Server], ...] = (MySql, MariaDb, MariaDb11)
    with ThreadPoolExecutor(2) as workers:
        try:
            for kind, folder in zip(kinds, workers.map(lambda k: k.ensure(), kinds), strict=True):
                print(f"{kind.packages.name}: {folder.parent}")
        except RowferryError as err:
            print(err, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
