"""The preparation of batches for a network: views under group elements, standardised; targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.learning.augment import Augment, ElementDraw, bounded, element_keys, id_hashes
from ckptzoo.learning.forms import Form, form_of
from ckptzoo.learning.group_action import Buffers, Drawn, Mover, Tensors
from ckptzoo.learning.standardization import Statistics
from ckptzoo.learning.target_values import Missing, Target, targets
from ckptzoo.loader.stream import Source, State
from ckptzoo.loader.zoo import Zoo
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
        # torch's function for nested containers, which has no public name
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
    """Prepares batches of rows of ``source``: k views, standardised, with targets ``y`` (N,), (N, m) or None."""

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
        self._draw = None if augment is None or self._table is None else ElementDraw.of(self._table, augment)
        shapes = {tensor.name: tensor.shape for tensor in zoo.arch.tensors}
        self._mover = Mover(shapes, self._table, standardize)
        # by id, so that a checkpoint meets the same elements in every selection of a zoo
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
        """Refuse gains other than 1 where orthogonal matrices act, with a ``SymmetryError``."""
        if self._table is None or not (acting := {name for drawn in matrices for name in drawn}):
            return
        gains = {action.tensor for action in self._table.actions if action.role == "gain"}
        unit_gains({name: self._source.readers[name].gather(places) for name in gains}, self._table, acting)


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
    """The rows that a stream reads, and their preparation."""
    if type(views) is not int or views < 1:
        raise ZooError(Problem(zoo.name, "views", "an integer from 1", repr(views), "Choose another."))
    y = None
    if target is not None:
        zoo, y = targets(zoo, target, missing=missing)
    source = zoo.source((), variant)
    made = form_of(form, zoo.arch, zoo.symmetry) if isinstance(form, str) else form
    return source, Preparation(zoo, source, y, views, made, variant, augment, standardize)
