"""Distances of blocks of columns, kept as files, so that processes share a comparison and one that was stopped goes on.

::

    FOLDER/<16 digits of what is compared>-<number of the block>.safetensors

Each file is written under another name and renamed, so it is whole or absent; two processes that measure one block
write the same bytes.
"""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.durable import write_file
from ckptzoo.measure.distances import Distances

_TENSOR = "sums"


class SavedDistances:
    """Distances of the blocks of one comparison.

    Parameters
    ----------
    folder : made where there is none.
    key : a digest of what is compared, ``sha256:...``; other comparisons may keep theirs in the same folder.
    m, n : rows of X and of Y.
    """

    def __init__(self, folder: Path, key: str, m: int, n: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._key, self._m, self._n = folder, key, m, n

    def has(self, number: int) -> bool:
        """Whether a block is there."""
        return self._path(number).exists()

    def load(self, number: int, like: Any = None) -> Distances:
        """The distances of a block.

        Parameters
        ----------
        like : see ``Distances.from_sums``.

        Raises
        ------
        IntegrityError
            The file is damaged, or of another comparison.
        """
        path = self._path(number)
        try:
            with safe_open(path, "numpy") as file:
                facts, sums = file.metadata() or {}, file.get_tensor(_TENSOR)
            if facts.get("key") == self._key:
                return Distances.from_sums(self._m, self._n, int(facts["columns"]), sums, like)
            got = "those of another one"
        except (SafetensorError, KeyError, ValueError) as error:
            got = str(error)[:200]
        raise IntegrityError(Problem(str(path), "distances", "those of this comparison", got, "Remove the file."))

    def store(self, number: int, distances: Distances) -> None:
        """Keep the distances of a block."""
        facts = {"key": self._key, "columns": str(distances.columns)}
        write_file(self._path(number), save({_TENSOR: np.ascontiguousarray(distances.sums())}, metadata=facts))

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._key.removeprefix('sha256:')[:16]}-{number:06d}.safetensors"
