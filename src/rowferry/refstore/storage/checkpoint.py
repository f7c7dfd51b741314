"""A range's state at one log index, as a file: what is left when the log before it is dropped."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rowferry.errors import StoreDamaged
from rowferry.refstore.storage.frames import replace_file
from rowferry.refstore.storage.kernels import frozen
from rowferry.refstore.storage.pairs import EMPTY_RUN, Pairs, Run

NAME = "checkpoint"
_COLUMNS = ("blob", "key_at", "key_len", "value_at", "value_len")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The rows at a log index, and the transactions that this range decided up to it."""

    index: int = 0
    run: Run = EMPTY_RUN
    decided: dict[int, int] = field(default_factory=dict)
    forgotten_ts: int = 0

    def write(self, folder: Path, fsync: bool) -> None:
        """Store it in place of the one before, in one step."""
        pairs = self.run.pairs.compact()
        out = io.BytesIO()
        np.savez(
            out,
            facts=np.array([self.index, self.forgotten_ts], np.uint64),
            commit_ts=self.run.commit_ts,
            decided=np.array([*self.decided.items()], np.uint64).reshape(-1, 2),
            **{name: getattr(pairs, name) for name in _COLUMNS},
        )
        replace_file(folder / NAME, [out.getvalue()], fsync)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return a folder's checkpoint, an empty one where there is none.

    Raises:
        StoreDamaged: the file cannot be read.
    """
    path = folder / NAME
    if not path.exists():
        return Checkpoint()
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            pairs = Pairs.make(*(arrays[name] for name in _COLUMNS))
            index, forgotten_ts = arrays["facts"].tolist()
            decided = dict(arrays["decided"].tolist())
            run = Run(pairs, frozen(arrays["commit_ts"]))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as err:
        raise StoreDamaged(
            f"checkpoint of range folder {folder.name} cannot be read ({err}); restore it"
        ) from err
    return Checkpoint(index, run, decided, forgotten_ts)
