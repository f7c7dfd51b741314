"""Rows of a source as a changefeed with masks and computed columns delivers them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from rowferry.change.table import TableSchema
from rowferry.flow.decide.transforms import Transforms
from rowferry.secrets.sources import SecretSources
from rowferry.spec.config_file import read_config
from rowferry.spec.rules.transform import TransformOptions

_SECTION: Final = "transform"
_CASED: Final = "case-sensitive"


@dataclass(frozen=True)
class RowMasks:
    """`[transform]` of a changefeed; small, and without anything that could not be sent to tasks.

    Attributes:
        rules: the section as JSON, with the value of its salt.
    """

    rules: str = field(repr=False)
    case_sensitive: bool

    @classmethod
    def of_file(cls, config: Path | None, secrets: SecretSources) -> RowMasks | None:
        """Return the masks that a changefeed's configuration has; None: it has none.

        Raises:
            BadInput: the file cannot be understood, or a rule cannot be used.
        """
        content = read_config(config) if config is not None else {}
        section = dict(content.get(_SECTION, {}))
        if not section:
            return None
        if salt := section.get(TransformOptions.salt.key):
            section["salt"] = secrets.value(str(salt), f"{_SECTION}.salt")
        masks = cls(json.dumps(section), bool(content.get(_CASED, False)))
        masks.transforms.check_salt()
        return masks

    @property
    def transforms(self) -> Transforms:
        """The rules, ready for use."""
        return _transforms(self.rules, self.case_sensitive)

    def seen(self, schema: TableSchema) -> TableSchema:
        """Return a table as readers of the sink see it."""
        table = self.transforms.look(schema)
        return schema if table is None else table.schema

    def needed(self, schema: TableSchema, wanted: Sequence[str]) -> set[str]:
        """Return the columns of the source that some columns of readers are made of."""
        table = self.transforms.look(schema)
        made = {} if table is None else table.made
        return {name for w in wanted for name in (made[w].needs if w in made else (w,))}

    def made(self, schema: TableSchema, images: pa.StructArray, wanted: Sequence[str]) -> pa.Table:
        """Return the wanted columns of some rows of the source, as readers see them."""
        table = self.transforms.look(schema)
        if table is None:
            return pa.Table.from_struct_array(images)
        columns = tuple(c for c in table.schema.columns if c.name in wanted)
        narrow = replace(table.schema, columns=columns)
        return pa.Table.from_struct_array(self.transforms.images(images, table, narrow))


@lru_cache(maxsize=8)
def _transforms(rules: str, case_sensitive: bool) -> Transforms:
    options = TransformOptions.read(json.loads(rules))
    return Transforms(options, case_sensitive, keeps_keys=False)
