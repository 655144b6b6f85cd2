"""Arrays with a row for each checkpoint, computed block by block; blocks can be shared among processes and kept.

Blocks follow from the zoo alone and each is computed by itself, kept or not, so that no bit depends on who computed it:
the last bits of a product of matrices can depend on how many checkpoints are in it.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.durable import naming
from ckptzoo.format.saved_blocks import SavedBlocks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import Document, digest_of
from ckptzoo.text import Progress

BLOCK_BYTES = 256 * 2**20
"""The maximum number of bytes of weights of the checkpoints of a block, unless one checkpoint has more."""
BLOCK_ROWS = 4096
"""The maximum number of checkpoints of a block: the 256 MiB of 160,000 OptuNets would be one block for one process."""

Rows = dict[str, NDArray[Any]]
"""Arrays by name, each with a row for every checkpoint."""


class DescribedRows:
    """Arrays that are computed of every checkpoint by itself.

    ``what`` has the facts that the arrays depend on besides the weights, and names the files; ``compute`` maps the
    checkpoints of a block to their arrays and calls its second argument with its progress; the arrays of each block are
    kept in the folder ``saved_in``, unless it is None.
    """

    def __init__(
        self, zoo: Zoo, what: Document, compute: Callable[[Zoo, Progress], Rows], saved_in: str | Path | None
    ) -> None:
        self._zoo, self._compute = zoo, compute
        rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // zoo.arch.nbytes))
        self.blocks = [slice(start, min(start + rows, len(zoo))) for start in range(0, len(zoo), rows)]
        self._saved = None
        if saved_in is not None:
            parts = [part.digest for part in zoo.contents.raw.parts]
            identity = {"architecture": zoo.arch.digest, "parts": parts, "ids": list(zoo.ids), "rows": rows}
            self._saved = SavedBlocks(Path(saved_in), digest_of({**identity, **what}))

    def arrays(self, progress: Progress | None = None) -> Rows:
        """The arrays of all checkpoints: those that are kept, and computed ones."""
        found: Rows = {}
        for block, arrays in zip(self.blocks, self._blocks(range(len(self.blocks)), progress), strict=True):
            for name, array in arrays.items():
                if name not in found:
                    found[name] = np.empty((len(self._zoo), *array.shape[1:]), array.dtype)
                found[name][block] = array
        return found

    def mapped(self, name: str, progress: Progress | None = None) -> NDArray[Any]:
        """One of the arrays, mapped from a temporary file, which goes away with it; (0, 0) for no checkpoints."""
        folder = Path(tempfile.gettempdir()) if self._saved is None else self._saved.folder
        with tempfile.TemporaryFile(dir=folder) as file:
            first = None
            for arrays in self._blocks(range(len(self.blocks)), progress):
                first = arrays[name] if first is None else first
                with naming(folder):
                    file.write(np.ascontiguousarray(arrays[name]).data)
            if first is None:
                return np.zeros((0, 0))
            with naming(folder):
                file.flush()
            return np.memmap(file, first.dtype, "r", shape=(len(self._zoo), *first.shape[1:]))

    def share(self, share: tuple[int, int], progress: Progress | None = None) -> tuple[int, int]:
        """Compute and store every n-th block from the i-th, counted from 0; returns how many are stored, and all."""
        if self._saved is None:
            step = "Name a folder that all who share the work share."
            raise ZooError(Problem(self._zoo.name, "folder for blocks", "one, to share them", "none", step))
        for _ in self._blocks(range(share[0], len(self.blocks), share[1]), progress):
            pass
        return sum(map(self._saved.has, range(len(self.blocks)))), len(self.blocks)

    def _blocks(self, numbers: Sequence[int], progress: Progress | None) -> Iterator[Rows]:
        """The arrays of some blocks, one after the other."""
        sizes = [self.blocks[number].stop - self.blocks[number].start for number in numbers]
        for place, number in enumerate(numbers):
            done, total = sum(sizes[:place]), sum(sizes)

            def report(inside: int, _: int, *, done: int = done, total: int = total) -> None:
                if progress is not None:
                    progress(done + inside, total)

            yield self._block(number, report)

    def _block(self, number: int, progress: Progress) -> Rows:
        """The arrays of a block: those that are kept, else computed, and kept where there is a folder."""
        block = self.blocks[number]
        if self._saved is not None and self._saved.has(number):
            arrays, _ = self._saved.load(number)
            if not arrays or any(len(array) != block.stop - block.start for array in arrays.values()):
                raise self._saved.damaged(number, "arrays of other lengths")
            progress(block.stop - block.start, block.stop - block.start)
            return arrays
        arrays = self._compute(self._zoo.take(block), progress)
        if self._saved is not None:
            self._saved.store(number, arrays, {})
        return arrays
