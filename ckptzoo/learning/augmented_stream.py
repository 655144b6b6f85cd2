"""Streams of augmented weights and their targets, for networks that learn from weights."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ckptzoo.arguments import checked
from ckptzoo.learning.augment import Augment
from ckptzoo.learning.forms import Form
from ckptzoo.learning.group_action import Buffers
from ckptzoo.learning.preparation import Batch, Preparation, UnencodedBatch, prepared
from ckptzoo.learning.standardization import Statistics
from ckptzoo.learning.target_values import Missing, Target
from ckptzoo.loader import stream as loader
from ckptzoo.loader.checkpoint import import_torch
from ckptzoo.loader.stream import ReaderShard, Remainder, Shuffle, State
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout


class _Views:
    """A loader's stream whose batches are prepared."""

    def __init__(self, stream: loader.Stream, prepare: Preparation) -> None:
        self._stream, self._prepare, self.location = stream, prepare, stream.location
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict
        self.set_epoch = stream.set_epoch

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[UnencodedBatch]:
        buffers = Buffers()
        return (self._prepare(rows, state, buffers) for rows, state in self._stream.turns())


class Stream:
    """An iterable over batches of augmented weights; each complete iteration is one epoch.

    Made by ``learning.stream``. ``state_dict``, ``load_state_dict`` and ``set_epoch`` are those of ``Zoo.stream``:
    a state holds seed, epoch and position, from which the group elements follow too.

    Parameters
    ----------
    batches
        gives batches and can resume; ``learning.stream`` makes it.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        """Batches in the next iteration, as this reader sees it."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            yield batch.with_arrays(_same) if isinstance(batch, UnencodedBatch) else batch

    def state_dict(self) -> State:
        """The position behind the last batch that was handed out."""
        return self._batches.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state, with any batch size and ranks, as ``Zoo.stream``'s.

        Parameters
        ----------
        state
            what ``state_dict`` or a batch's ``state`` gave.

        Raises
        ------
        StateError
            The state belongs to other rows, tensors or another order than this stream's.
        """
        self._batches.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of this epoch.

        Parameters
        ----------
        epoch
            its number, from 0.
        """
        self._batches.set_epoch(epoch)


def _same(array: Any) -> Any:
    return array


@checked
def stream(
    zoo: Zoo,
    *,
    target: Target | None = None,
    missing: Missing = "error",
    views: int = 1,
    form: str | Form | None = None,
    variant: str = layout.RAW,
    augment: Augment | None = None,
    standardize: Statistics | None = None,
    batch_size: int = 64,
    shuffle: Shuffle = True,
    seed: int = 0,
    remainder: Remainder = "error",
    rank: int = 0,
    world_size: int = 1,
    device: Any = None,
) -> Stream:
    """Batches of weights under random group elements, each another network with the same function.

    The element of a checkpoint follows from seed, epoch, its id and the number of the view alone: the bits are the
    same for any batch size, number of workers and of ranks, and after any resume. First matrices and scales act, then
    weights are standardised, then channels are permuted. Halves come as float32.

    Parameters
    ----------
    zoo
        a zoo or a selection, such as the split to train on.
    target, missing
        see ``learning.targets``.
    views
        how many of each checkpoint, under elements of their own. From 2 on ``batch.x`` is a tuple of views.
    form
        what ``batch.x`` is: ``"flat"``, ``"tokens"``, ``"tuples"`` or ``"graph"`` (``ckptzoo.learning.forms``), an
        object with ``encode``, or None for the tensors by name.
    variant
        the gauge; one from which symmetries were removed is not augmented with these.
    augment
        which random elements; None for the weights as they are.
    standardize
        what ``learning.statistics`` gave.
    batch_size, seed, remainder, rank, world_size
        as in ``Zoo.stream``.
    shuffle
        as there, but True by default.
    device
        None for numpy; else torch tensors there, prepared one batch ahead in a thread.

    Returns
    -------
    Stream
        an iterable of Batch. Arrays may be read-only views of files where nothing was changed.

    Raises
    ------
    ZooError
        The zoo has no table of symmetries, or the variant none of those that ``augment`` asks for; targets are
        missing; or ``views`` is no number from 1 on.
    SymmetryError
        While it is iterated: ``rotations`` are drawn for weights whose gains are not 1.

    Notes
    -----
    Memory: the batch as it was read, and one copy of each view. Laws: tests/learning/test_stream.py.

    Examples
    --------
    >>> import ckptzoo
    >>> from ckptzoo import learning
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> augment, scale = learning.Augment(scales=0.3), learning.statistics(zoo, per="orbit")
    >>> for batch in learning.stream(zoo, target="test_accuracy", augment=augment, standardize=scale):
    ...     print(batch.x["conv2.weight"].shape, batch.y.shape, batch.state["position"])
    ...     break
    (64, 10, 1, 5, 5) (64,) 64
    """
    source, prepare = prepared(zoo, target, missing, views, form, variant, augment, standardize)
    shard = ReaderShard(rank, world_size)
    inner = loader.Stream(source, batch_size=batch_size, shuffle=shuffle, seed=seed, remainder=remainder, shard=shard)
    found = _Views(inner, prepare)
    return Stream(found if device is None else import_torch().TorchStream(found, device))


@checked
def to_torch(
    zoo: Zoo,
    *,
    target: Target | None = None,
    missing: Missing = "error",
    views: int = 1,
    form: str | Form | None = None,
    variant: str = layout.RAW,
    augment: Augment | None = None,
    standardize: Statistics | None = None,
    batch_size: int = 64,
    shuffle: Shuffle = True,
    seed: int = 0,
    remainder: Remainder = "error",
    rank: int | None = None,
    world_size: int | None = None,
) -> Any:
    """The batches of ``learning.stream`` as an IterableDataset for ``DataLoader(dataset, batch_size=None)``.

    Parameters
    ----------
    zoo, target, missing, views, form, variant, augment, standardize
        as in ``learning.stream``.
    batch_size, shuffle, seed, remainder, rank, world_size
        as in ``Zoo.to_torch``, and ``shuffle`` is True by default.

    Notes
    -----
    Every worker draws and applies the elements of its batches. Call ``dataset.set_epoch(n)`` before epoch n; order
    and elements of an epoch follow from seed and epoch.
    """
    import_torch()
    source, prepare = prepared(zoo, target, missing, views, form, variant, augment, standardize)
    return import_module("ckptzoo.learning.torch").AugmentedDataset(
        prepare,
        source,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        remainder=remainder,
        rank=rank,
        world_size=world_size,
    )
