"""Batches for torch: tensors on a device, a dataset for DataLoader and ranks."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.stream import Batch, ReaderShard, Remainder, Shuffle, Source, State, Stream

_BFLOAT16 = numpy_dtype("bfloat16")
"""A dtype that torch.from_numpy does not take, because numpy has it from ml_dtypes."""
_SHARED = ("seed", "epoch", "position")
"""The fields of a dataset's state that can change; they are in memory that its workers share."""


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """A torch tensor over a writable array's memory; bfloat16 keeps its bits."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def owned(array: NDArray[Any]) -> torch.Tensor:
    """A torch tensor with memory of its own, copied only if the array is a view of a file."""
    # torch.from_numpy warns of a read-only array, since writing to its tensor is undefined
    return tensor_of(array if array.flags.writeable else array.copy())


def device_of(device: Any, location: str) -> torch.device:
    """A device of torch that is there.

    Raises ``ZooError`` if it is not a device, or this machine does not have it.
    """
    try:
        found = torch.device(device)
        torch.zeros((), device=found).item()  # which tensors on "meta" have not
    # AssertionError: a build of torch without CUDA
    except (RuntimeError, TypeError, AssertionError, ValueError, NotImplementedError) as error:
        step = "Choose cpu, or cuda or mps where torch can use them on this machine."
        raise ZooError(Problem(location, "device", "one that torch has here", repr(device)[:80], step)) from error
    return found


class TorchStream:
    """A stream whose batches are torch tensors on a device, read ahead by one batch.

    On a CUDA device the host copy is pinned and the transfer does not block.
    """

    def __init__(self, stream: Stream, device: Any) -> None:
        self._stream, self._device = stream, device_of(device, stream.location)
        self._start = self._state = stream.state_dict()

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Batch]:
        self._stream.load_state_dict(self._start)
        batches = iter(self._stream)

        def prepare() -> Batch | None:
            batch = next(batches, None)
            return None if batch is None else self._moved(batch)

        with ThreadPoolExecutor(1, thread_name_prefix="ckptzoo-stream") as pool:
            pending = pool.submit(prepare)
            while (batch := pending.result()) is not None:
                pending = pool.submit(prepare)
                self._state = batch.state
                yield batch
                del batch  # so that its memory is free before the next one is waited for
        self._start = self._state = self._stream.state_dict()

    def _moved(self, batch: Batch) -> Batch:
        return batch.with_arrays(self._tensor)

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = owned(array)
        if self._device.type == "cuda":
            # torch copies asynchronously from pinned memory alone
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)

    def state_dict(self) -> State:
        """The position behind the last batch that was returned."""
        return dict(self._state)

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state, as ``Stream.load_state_dict``."""
        self._stream.load_state_dict(state)
        self._start = self._state = self._stream.state_dict()

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of this epoch."""
        self._stream.set_epoch(epoch)
        self._start = self._state = self._stream.state_dict()


def refuse_to_collate(batches: list[Any], **_: Any) -> NoReturn:
    """Raise the error of a DataLoader that collates, which does not know that the dataset makes batches."""
    step = "Write DataLoader(dataset, batch_size=None), and the size in zoo.to_torch(..., batch_size=...)."
    got = f"one that puts {len(batches)} batches of up to {len(batches[0])} checkpoints together"
    raise ZooError(
        Problem("to_torch", "DataLoader", "one with batch_size=None, as the dataset gives batches", got, step)
    )


# without an entry of its own, a Batch is a type that torch cannot put together, and the error does not say what to do
default_collate_fn_map[Batch] = refuse_to_collate


class ZooDataset(IterableDataset[Batch]):
    """A zoo's batches for ``torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=...)``.

    A DataLoader with a ``batch_size`` would make batches of batches; it raises ZooError, which says what to write.

    The workers of a rank share its batches, the ranks of ``torch.distributed`` share the zoo, and the order is that
    of ``Zoo.stream`` whatever their number. Use ``batch.state`` to resume: workers run ahead of what was used.
    Call ``set_epoch`` before each epoch, as with a ``DistributedSampler``; workers that live on see it.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        shuffle: Shuffle,
        seed: int,
        remainder: Remainder,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        self._source, self._ranks = source, (rank, world_size)
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "seed": seed,
            "remainder": remainder,
        }
        self._stream = Stream(source, **self._options)
        # DataLoader sends a dataset to its workers once; with persistent_workers they see later epochs in shared memory
        # alone
        self._shared = torch.zeros(len(_SHARED), dtype=torch.int64).share_memory_()
        self._share()

    def _share(self) -> None:
        # the numbers go up to 2**64 - 1, which torch's int64 holds as other numbers with the same bits
        state = self._stream.state_dict()
        self._shared.numpy().view(np.uint64)[:] = [state[name] for name in _SHARED]

    def _rank(self) -> tuple[int, int]:
        rank, world_size = self._ranks
        # a torch built without distributed has no is_initialized
        initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        return (
            (torch.distributed.get_rank() if initialized else 0) if rank is None else rank,
            (torch.distributed.get_world_size() if initialized else 1) if world_size is None else world_size,
        )

    def __getstate__(self) -> dict[str, Any]:
        # a worker that is spawned has no process group to ask
        return {**self.__dict__, "_ranks": self._rank()}

    def stream(self) -> Stream:
        """This worker's share of the zoo, where the next iteration starts, in numpy."""
        info = get_worker_info()
        rank, world_size = self._rank()
        shard = ReaderShard(rank, world_size, *((info.id, info.num_workers) if info is not None else (0, 1)))
        stream = Stream(self._source, **self._options, shard=shard)
        stream.load_state_dict(self.state_dict())
        return stream

    def __iter__(self) -> Iterator[Batch]:
        return (batch.with_arrays(owned) for batch in self.stream())

    def state_dict(self) -> State:
        """Return the position at which the next iteration starts."""
        numbers = self._shared.numpy().view(np.uint64).tolist()
        return self._stream.state_dict() | dict(zip(_SHARED, numbers, strict=True))

    def load_state_dict(self, state: State) -> None:
        """Start the next iteration where ``batch.state`` says."""
        self._stream.load_state_dict(state)
        self._share()

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of this epoch."""
        self._stream.set_epoch(epoch)
        self._share()
