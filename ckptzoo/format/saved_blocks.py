"""Blocks of results, kept as files, so that processes share a computation and one that was stopped goes on.

::

    FOLDER/<16 digits of what is computed>-<number of the block>.safetensors

Each file is written under another name and renamed, so it is whole or absent; two processes that compute one block
write the same arrays. Its metadata has the key, the number and a digest of all that is in it, which are checked.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.durable import write_file

Arrays = dict[str, NDArray[Any]]
"""Arrays by name."""


class SavedBlocks:
    """Blocks of one computation.

    ``folder`` is made where there is none; ``key`` is a digest of what is computed, ``sha256:...``; others may keep
    theirs in the same folder.
    """

    def __init__(self, folder: Path, key: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._key = folder, key

    def has(self, number: int) -> bool:
        """Whether a block is there."""
        return self.path(number).exists()

    def load(self, number: int) -> tuple[Arrays, dict[str, str]]:
        """The arrays of a block, and the facts that were stored with them.

        Raises ``IntegrityError`` if the file is damaged, or of another computation or block.
        """
        try:
            with safe_open(self.path(number), "numpy") as file:
                facts = file.metadata() or {}
                if (facts.get("key"), facts.get("number")) != (self._key, str(number)):
                    raise self.damaged(number, "those of another one")
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
        except SafetensorError as error:
            raise self.damaged(number, str(error)[:200]) from error
        if facts.pop("digest", None) != _digest(arrays, facts):
            raise self.damaged(number, "contents with another digest")
        return arrays, facts

    def store(self, number: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str]) -> None:
        """Store the arrays of a block, and some facts."""
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        facts = {**facts, "key": self._key, "number": str(number)}
        metadata = {**facts, "digest": _digest(contiguous, facts)}
        write_file(self.path(number), save(contiguous, metadata=metadata))

    def path(self, number: int) -> Path:
        """The file of a block."""
        return self.folder / f"{self._key.removeprefix('sha256:')[:16]}-{number:06d}.safetensors"

    def damaged(self, number: int, got: str) -> IntegrityError:
        """The error for a file that does not hold what it should."""
        return IntegrityError(Problem(str(self.path(number)), "block", "results of this one", got, "Remove the file."))


def _digest(arrays: Arrays, facts: Mapping[str, str]) -> str:
    """The digest of facts and of contiguous arrays: their names, types, shapes and bytes."""
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.data)
    return f"sha256:{digest.hexdigest()}"
