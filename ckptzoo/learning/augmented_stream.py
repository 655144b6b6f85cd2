"""Streams of augmented weights and their targets, for networks that learn from weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError
from ckptzoo.learning.augment import Augment, Draw, bounded, element_keys, id_hashes
from ckptzoo.learning.forms import Form, form_of
from ckptzoo.learning.group_action import Buffers, Drawn, Mover, Tensors
from ckptzoo.learning.standardization import Statistics
from ckptzoo.learning.target_values import Missing, Target, targets
from ckptzoo.loader import stream as loader
from ckptzoo.loader.checkpoint import import_torch
from ckptzoo.loader.stream import ReaderShard, Remainder, Shuffle, Source, State
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.symmetry.matrix_action import unit_gains
from ckptzoo.text import brief_repr


@dataclass(frozen=True, eq=False)
class Batch:
    """Weights of B checkpoints as a network takes them, and what it is to predict.

    Not a Mapping or a tuple, because a DataLoader that pins memory rebuilds those.

    Parameters
    ----------
    x
        one view in the stream's form; without a form, ``{tensor: (B, *shape)}``. With ``views=k`` for k of 2 or more a
        tuple of k of them: the same checkpoints under k group elements, as contrastive losses (SimCLR: Chen et al.,
        arXiv 2002.05709) take them: ``first, second = batch.x``.
    y
        targets (B,) or (B, m), float32 or int64; None without.
    ids
        the checkpoints' ids, in order.
    state
        resuming from it continues right behind this batch.
    stream
        the position of its stream among those of a mix, else 0.
    """

    x: Any
    y: Any
    ids: tuple[str, ...]
    state: State
    stream: int = 0

    __repr__ = brief_repr

    def __len__(self) -> int:
        """Checkpoints in the batch."""
        return len(self.ids)

    def pin_memory(self) -> "Batch":
        """The same batch in pinned memory; a DataLoader calls it."""
        pin = import_module("torch.utils.data._utils.pin_memory").pin_memory
        return replace(self, x=pin(self.x), y=pin(self.y))


@dataclass(frozen=True, eq=False)
class UnencodedBatch:
    """Views of a batch as numpy tensors, before they move to a device and take their form."""

    views: tuple[Tensors, ...]
    y: NDArray[Any] | None
    ids: tuple[str, ...]
    state: State
    form: Form | None

    def with_arrays(self, convert: Callable[[Any], Any]) -> Batch:
        """The batch of the arrays that ``convert`` makes of these."""
        converted = [{name: convert(array) for name, array in view.items()} for view in self.views]
        encoded = converted if self.form is None else [self.form.encode(view) for view in converted]
        y = None if self.y is None else convert(self.y)
        return Batch(encoded[0] if len(encoded) == 1 else tuple(encoded), y, self.ids, self.state)


class Preparation:
    """What becomes of each batch of rows: k views of their weights, standardised, with targets.

    Parameters
    ----------
    zoo
        the checkpoints that are streamed.
    source
        what they are read from, in the same order.
    y
        (N,) or (N, m) targets, or None.
    """

    def __init__(
        self,
        zoo: Zoo,
        source: Source,
        y: NDArray[Any] | None,
        views: int,
        form: Form | None,
        variant: str,
        augment: Augment | None,
        standardize: Statistics | None,
    ) -> None:
        self._source, self._y, self._views, self._form = source, y, views, form
        table = None if augment is None else augment.require(zoo.symmetry, variant, location=zoo.name)
        self._table = None if augment is None or table is None else augment.table(table)
        self._draw = None if augment is None or self._table is None else Draw.of(self._table, augment)
        shapes = {tensor.name: tensor.shape for tensor in zoo.arch.tensors}
        self._mover = Mover(shapes, self._table, standardize)
        self._hashes = id_hashes(zoo.ids) if self._draw is not None else np.zeros(0, np.uint64)

    def __call__(self, rows: NDArray[np.int64], state: State, buffers: Buffers) -> UnencodedBatch:
        """The views of the checkpoints at these positions, of which the state is that behind them."""
        # at the end of an epoch the state is the start of the next one
        epoch = state["epoch"] - (state["position"] == 0)
        readers, places = self._source.readers, self._source.rows[rows]
        keys = [self._keys(rows, state["seed"], epoch, view) for view in range(self._views)]
        draws = [self._drawn(key, places) for key in keys]
        matrices = [] if self._draw is None else [self._draw.matrices(key) for key in keys]
        self._require_gains(places, matrices)
        views = self._mover.views(readers, places, draws, buffers, matrices)
        ids = tuple(self._source.ids.take(pa.array(rows)).to_pylist())
        return UnencodedBatch(tuple(views), None if self._y is None else self._y[rows], ids, state, self._form)

    def _keys(self, rows: NDArray[np.int64], seed: int, epoch: int, view: int) -> NDArray[np.uint64]:
        return element_keys(self._hashes[rows], seed, epoch, view) if self._draw is not None else self._hashes

    def _drawn(self, keys: NDArray[np.uint64], places: NDArray[np.int64]) -> Drawn:
        if self._draw is None or self._table is None:
            return {}, {}
        perms, scales = self._draw(keys)
        return perms, bounded(scales, lambda name: self._source.readers[name].gather(places), self._table)

    def _require_gains(self, places: NDArray[np.int64], matrices: Sequence[Mapping[str, Any]]) -> None:
        """Refuse gains other than 1 where orthogonal matrices act.

        Raises
        ------
        SymmetryError
            A gain is another number.
        """
        if self._table is None or not (acting := {name for drawn in matrices for name in drawn}):
            return
        gains = {action.tensor for action in self._table.actions if action.role == "gain"}
        unit_gains({name: self._source.readers[name].gather(places) for name in gains}, self._table, acting)


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


def prepared(
    zoo: Zoo,
    target: Target | None,
    missing: Missing,
    views: int,
    form: str | Form | None,
    variant: str,
    augment: Augment | None,
    standardize: Statistics | None,
) -> tuple[Source, Preparation]:
    """What a stream reads, and what becomes of it."""
    if type(views) is not int or views < 1:
        raise ZooError(Problem(zoo.name, "views", "an integer from 1", repr(views), "Choose another."))
    y = None
    if target is not None:
        zoo, y = targets(zoo, target, missing=missing)
    source = zoo.source((), variant)
    made = form_of(form, zoo.arch, zoo.symmetry) if isinstance(form, str) else form
    return source, Preparation(zoo, source, y, views, made, variant, augment, standardize)
