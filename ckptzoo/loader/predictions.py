"""The stored outputs of a zoo's checkpoints on one set of inputs, read as its tensors are."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.format.predictions import LOGITS, targets_of
from ckptzoo.format.reader import Contents
from ckptzoo.format.table import array_of, filled_with
from ckptzoo.loader.checkpoint import import_torch
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.readers import MmapReader, RemoteReader, TensorReader
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.shard_index import ShardIndex
from ckptzoo.loader.stream import ReaderShard, Remainder, RowIds, Shuffle, Source, Stream
from ckptzoo.schema.layout import PREDICTIONS, predictions_name


class Predictions:
    """Outputs of checkpoints on one set of inputs; made by ``Zoo.predictions``, in the zoo's order.

    Parameters
    ----------
    contents
        of the zoo.
    inputs
        the name of the set.
    ids
        (K,) the checkpoints' ids.
    rows
        (K,) int64, the checkpoints' rows of the predictions' tree.

    Attributes
    ----------
    set
        the name of the set, such as ``mnist/test``.
    """

    def __init__(self, contents: Contents, inputs: str, ids: pa.ChunkedArray, rows: NDArray[np.int64]) -> None:
        self.set, self._contents, self._ids, self._rows = inputs, contents, ids, rows
        self._tree = contents.derived(predictions_name(inputs))
        self._facts = self._tree.parts[0].facts
        files = contents.files
        index = ShardIndex(files, self._tree, contents.architecture)
        locations = index.locations(PREDICTIONS, LOGITS)
        self._reader: TensorReader = (
            RemoteReader(index, locations, files) if isinstance(files, RemoteFiles) else MmapReader(index, locations)
        )

    def __len__(self) -> int:
        """Checkpoints."""
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<predictions {self.set}: {LOGITS} {self.logits.shape} of {self._contents.identity.name}>"

    @property
    def ids(self) -> list[str]:
        """The checkpoints' ids, in order."""
        return self._ids.to_pylist()

    @property
    def logits(self) -> StackedTensor:
        """(K, N, C) float16: the outputs of K checkpoints for N examples, read when indexed."""
        return StackedTensor(self._reader, self._rows, name=LOGITS)

    @property
    def targets(self) -> NDArray[np.int64] | None:
        """(N,) the labels of the examples; None where they are not among the networks' classes."""
        return targets_of(self._facts)

    @property
    def finite(self) -> NDArray[np.bool_]:
        """(K,) whether every output of a checkpoint is finite; float16 ends at 65,504, larger ones are infinities."""
        return filled_with(self._tree.rows["finite"].take(array_of(self._rows)), False)

    @property
    def inputs(self) -> str:
        """The digest of the inputs as the networks saw them: equal for zoos that were shown the same."""
        return self._facts["inputs"]

    def stream(
        self,
        *,
        batch_size: int = 256,
        shuffle: Shuffle = False,
        seed: int = 0,
        remainder: Remainder = "error",
        rank: int = 0,
        world_size: int = 1,
        device: Any = None,
    ) -> Any:
        """Batches of ``{"logits": (batch_size, N, C)}``, in an order that resumes exactly.

        Parameters
        ----------
        batch_size, shuffle, seed, remainder, rank, world_size, device
            as in ``Zoo.stream``.

        Returns
        -------
        Any
            Stream, or TorchStream where a device is given: an iterable of Batch.
        """
        files = self._contents.files
        source = Source(
            {LOGITS: self._reader},
            self._rows,
            RowIds(self._tree.rows, self._rows),
            f"{self._contents.revision} {self.set}",
            self._contents.identity.name,
            files.prefetch if isinstance(files, RemoteFiles) else None,
        )
        shard = ReaderShard(rank, world_size)
        stream = Stream(source, batch_size=batch_size, shuffle=shuffle, seed=seed, remainder=remainder, shard=shard)
        return stream if device is None else import_torch().TorchStream(stream, device)
