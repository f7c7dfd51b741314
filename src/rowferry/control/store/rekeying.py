"""All secrets of a meta database encrypted anew: with the first key, those in clear text, too."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import select

from rowferry.control.store import quarantine
from rowferry.control.store.connection import Database, has_database
from rowferry.control.store.settings import StoredSettings
from rowferry.control.store.tables import REVISIONS, FeedRow, SpecRow
from rowferry.errors import BadInput
from rowferry.spec.sealing import SecretKeys, key_ids


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """What `rekey` did.

    Attributes:
        settings: how many settings there are, with those of earlier versions, and parked rows.
        written: how many of them were encrypted anew.
    """

    key: str
    settings: int
    written: int


def rekey(url: str, keys: SecretKeys) -> Rekeyed:
    """Encrypt all secrets with the first key; servers may go on.

    On raise: nothing was changed.

    Raises:
        BadInput: there is no meta database at this URL, or one that must be migrated first.
        SecretsLocked: a secret is encrypted with a key that is not among these.
    """
    if not has_database(url):
        raise BadInput("there is no meta database at this URL; check it")
    form, count, written = StoredSettings(keys), 0, 0
    with closing(Database(url, migrate=False)) as database:
        if database.version() != REVISIONS[-1]:
            raise BadInput("the meta database has an older version; run `rowferry meta migrate`")
        with database.writing("encrypt settings") as session:
            feeds = session.scalars(select(FeedRow).order_by(FeedRow.id).with_for_update()).all()
            specs = session.scalars(select(SpecRow).with_for_update()).all()
            rows: list[tuple[str, FeedRow | SpecRow]] = [(row.id, row) for row in feeds]
            rows += [(row.changefeed, row) for row in specs]
            for name, row in rows:
                count += 1
                if key_ids(row.spec) == {keys.first}:
                    continue
                text = form.text(form.read(row.spec, f"settings of changefeed {name}"))
                if key_ids(text):
                    row.spec = text
                    written += 1
            parked, sealed = quarantine.reseal(session, keys)
        database.forget_deleted()
    return Rekeyed(keys.first, count + parked, written + sealed)
