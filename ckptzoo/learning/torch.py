"""Augmented weights for torch's DataLoader."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils.collate import default_collate_fn_map

from ckptzoo.learning.group_action import Buffers
from ckptzoo.learning.preparation import Batch, Preparation
from ckptzoo.loader.stream import Source, State
from ckptzoo.loader.torch import ZooDataset, owned, refuse_to_collate

# a DataLoader that makes batches itself, its default, would join batches as if they were examples
default_collate_fn_map[Batch] = refuse_to_collate


class AugmentedDataset(IterableDataset[Batch]):
    """Batches for ``torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=...)``. Made by
    ``learning.to_torch``. Order, workers, ranks and epochs are those of ``Zoo.to_torch``.
    """

    def __init__(self, prepare: Preparation, source: Source, **options: Any) -> None:
        self._prepare, self._dataset = prepare, ZooDataset(source, **options)

    def __iter__(self) -> Iterator[Batch]:
        buffers = Buffers()
        for rows, state in self._dataset.stream().turns():
            yield self._prepare(rows, state, buffers).with_arrays(owned)

    def state_dict(self) -> State:
        """Where the next iteration starts."""
        return self._dataset.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Start the next iteration where ``batch.state`` says."""
        self._dataset.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of this epoch."""
        self._dataset.set_epoch(epoch)
