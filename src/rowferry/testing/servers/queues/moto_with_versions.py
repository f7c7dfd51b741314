"""Starts moto; its Glue heeds the version of a table that a change names, as Amazon's does.

moto takes every change, so that of two writers the second would undo what the first has done.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any, Final

_TURN: Final = threading.Lock()


def main() -> None:
    """Serve until the process is ended; arguments are those of moto's own server."""
    responses: Any = importlib.import_module("moto.glue.responses")
    errors: Any = importlib.import_module("moto.glue.exceptions")
    update = responses.GlueResponse.update_table

    def update_table(self: Any) -> Any:
        asked = self.parameters
        with _TURN:
            wanted = asked.get("VersionId")
            name = asked["TableInput"]["Name"]
            table = self.glue_backend.get_table(asked["DatabaseName"], name)
            if wanted is not None and wanted != table.as_dict()["VersionId"]:
                raise errors.GlueClientError(
                    "ConcurrentModificationException",
                    "Update table failed due to concurrent modifications.",
                )
            return update(self)

    responses.GlueResponse.update_table = update_table
    importlib.import_module("moto.server").main(sys.argv[1:])


if __name__ == "__main__":
    main()
