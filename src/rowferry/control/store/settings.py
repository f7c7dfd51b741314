"""Settings of changefeeds as the tables hold them: JSON, with encrypted secrets if there is a key.

What was stored before there was one stays readable; the next change, or `rekey`, encrypts it.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from rowferry.control.store.rows import read, to_text
from rowferry.control.store.tables import FeedRow
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.sealing import SecretKeys, key_ids, opened, refuse_locked, sealed

_REMEMBERED: Final = 1024  # a server looks at all changefeeds once a second


class StoredSettings:
    """Reads and writes settings with the keys of this process. Safe for several threads."""

    def __init__(self, keys: SecretKeys | None = None) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        self._known: dict[str, ChangefeedSpec] = {}

    def text(self, spec: ChangefeedSpec) -> str:
        """Return what is stored of settings.

        Raises:
            SecretsLocked: they hold a secret that could not be opened when they were read.
        """
        refuse_locked(spec)
        if self._keys is None:
            return to_text(spec.to_json())
        from rowferry.flow.assemble import secret_tables  # only who has a key waits for the stages

        return to_text(sealed(spec, secret_tables(spec), self._keys).to_json())

    def read(self, text: str, what: str) -> ChangefeedSpec:
        """Return settings; secrets whose key is not here stay encrypted, see `refuse_locked`.

        Raises:
            MetaDamaged: the text is not what was written there; `what` names it.
        """
        with self._lock:
            spec = self._known.get(text)
        if spec is not None:
            return spec

        def build(form: Any) -> ChangefeedSpec:
            return ChangefeedSpec.from_json(opened(form, self._keys))

        spec = read(text, build, what)
        if not key_ids(to_text(spec.to_json())):  # else the key may come
            with self._lock:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[text] = spec
        return spec

    def of(self, row: Any) -> ChangefeedSpec:
        """Return the settings in force of a row of `changefeeds`."""
        return self.read(row.spec, f"settings of changefeed {row.id}")

    def equal(self, row: FeedRow, spec: ChangefeedSpec) -> bool:
        """Return whether these are the settings in force."""
        return self.of(row).to_json() == spec.to_json()
