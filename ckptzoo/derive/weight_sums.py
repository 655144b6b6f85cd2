"""Some checkpoints of a zoo as they are averaged: read one by one, aligned, and summed in float64."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.derive.aligned import BARYCENTRE, BEST, reference_of
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.format.header import rounded
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.selection import standing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import align

BATCH_BYTES = 32 * 2**20
"""Bytes of weights that are read at a time, unless one checkpoint has more."""
COUNTER = "num_batches_tracked"
"""The integer buffer of BatchNorm, which does not affect evaluation: that of the first checkpoint is taken."""
_SHARED = (
    "member", "seed", "step", "epoch", "recipe", "recipe_digest", "builder", "commit", "dataset", "dataset_digest",
    "precision", "license", "contributor", "source",
)  # fmt: skip
"""Columns that an average keeps where all its checkpoints agree on them; figures are its own."""

Weights = Mapping[str, NDArray[Any]]
"""Map of tensor names to the arrays of one network."""


class Members:
    """The checkpoints that are averaged: their weights one by one, aligned with a reference where there is one."""

    def __init__(self, zoo: Zoo, variant: str, to: str | None, module: Any) -> None:
        if not len(zoo):
            raise ZooError(Problem(zoo.name, "checkpoints to average", "at least one", "none", "Select others."))
        refuse_gaussians(zoo.arch, zoo.name)
        self.zoo, self.variant, self._module = zoo, variant, module
        self.dtypes = {name: zoo[name, variant].dtype for name in zoo.arch.names}
        tensors = (replace(tensor, dtype=self.dtypes[tensor.name].name) for tensor in zoo.arch.tensors)
        self.arch = replace(zoo.arch, tensors=tuple(tensors))
        self.reference: str | None = None
        self._target: dict[str, NDArray[Any]] = {}
        self._table: Symmetry | None = None
        self.align_to(to)

    def align_to(self, to: str | None) -> None:
        """Align everything read from now on with a reference."""
        if to is None:
            return
        zoo = self.zoo
        self._table = symmetry_of(zoo.contents, self._module)
        whole = Zoo(zoo.contents, {}, standing(zoo.contents))
        if to == BARYCENTRE:
            step = "Run ckptzoo align ZOO --to barycentre, and average its variant; or name a checkpoint."
            raise UnknownNameError("align", "reference of an average", to, (BEST, *whole.ids), step)
        weights, self.reference = reference_of(whole, to, self.variant)
        self._target = dict(weights)

    def aligned(self) -> Iterator[tuple[str, Weights]]:
        """Every checkpoint's id and weights, in the order of the zoo."""
        for batch in self.zoo.batches(variant=self.variant, max_bytes=BATCH_BYTES):
            stack = self._moved(batch.tensors, batch.ids)
            for place, id in enumerate(batch.ids):
                yield id, {name: array[place] for name, array in stack.items()}

    def stacks(self) -> Iterator[tuple[Mapping[str, NDArray[Any]], Sequence[str]]]:
        """The weights as they are stored, and ids, many at a time."""
        return ((batch.tensors, batch.ids) for batch in self.zoo.batches(variant=self.variant, max_bytes=BATCH_BYTES))

    def network(self, id: str) -> Weights:
        """One checkpoint's weights."""
        stored = dict(self.zoo.checkpoint(id, variant=self.variant))
        moved = self._moved({name: array[None] for name, array in stored.items()}, [id])
        return {name: array[0] for name, array in moved.items()}

    def mean(self, name: str) -> NDArray[Any]:
        """The mean of one tensor; no other is read."""
        total = WeightSum(self, [name])
        for batch in self.zoo.batches(name, variant=self.variant):
            for id, array in zip(batch.ids, batch[name], strict=True):
                total.add(id, {name: array})
        return total.mean()[name]

    def checkpoint(self, method: str, ids: Sequence[str], read: Callable[[str], NDArray[Any]]) -> Checkpoint:
        """A checkpoint whose tensors a function provides."""
        names = {name: tensor.name for tensor in self.arch.tensors for name in (tensor.name, *tensor.aliases)}

        def tensor(name: str, private: bool) -> NDArray[Any]:
            array = read(names[name])
            return array.copy() if private else array

        row = {"id": f"{method}-of-{len(ids)}", **_shared_row(self.zoo, ids)}
        return Checkpoint(self.arch, row, self.variant, tensor, lambda: None)

    def _moved(self, stack: Mapping[str, NDArray[Any]], ids: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        if self._table is None:
            return stack
        found = align(stack, self._target, self._table)
        if not found.aligned.all():
            raise _not_finite(self.zoo.name, ids[int(found.aligned.argmin())])
        return found.weights


class WeightSum:
    """Running sums of networks in float64.

    ``members`` is the networks' source; ``names`` are the tensors, by default all. ``ids`` are the ids of the networks
    that were added.
    """

    def __init__(self, members: Members, names: Iterable[str] | None = None) -> None:
        self._zoo, self._dtypes = members.zoo.name, members.dtypes
        self._names = list(self._dtypes if names is None else names)
        self._floats = [name for name in self._names if self._dtypes[name].kind not in "iub"]
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._integers: dict[str, NDArray[Any]] = {}
        self.ids: list[str] = []

    def add(self, id: str, weights: Weights) -> None:
        """Add a network.

        Raises ``ZooError`` if it is not finite, or has other integers than the first.
        """
        self.check_integers(id, weights)
        for name in self._floats:
            array = np.asarray(weights[name])
            if not np.isfinite(array).all():
                raise _not_finite(self._zoo, id, name)
            if name in self._sums:
                # into the sum, without a copy in float64
                np.add(self._sums[name], array, out=self._sums[name])
            else:
                self._sums[name] = array.astype(np.float64)
        self.ids.append(id)

    def check_integers(self, id: str, weights: Weights) -> None:
        """Keep the integers of the first network, which those of the others must equal except for counters."""
        for name in self._names:
            if name in self._floats:
                continue
            array = np.asarray(weights[name])
            kept = self._integers.setdefault(name, array.copy())
            if name.rpartition(".")[2] != COUNTER and not np.array_equal(kept, array):
                step = "Select checkpoints that agree on it: a mean of integers or truth values has no meaning."
                expected, got = f"that of {self.ids[0]!r}", f"another one in {id!r}"
                raise ZooError(Problem(self._zoo, f"tensor {name!r} of {kept.dtype.name}", expected, got, step))

    def mean(self, further: Weights | None = None) -> dict[str, NDArray[Any]]:
        """The mean in the dtypes of the zoo; ``further`` counts as one more network and is not added."""
        count = len(self.ids) + (further is not None)
        means: dict[str, NDArray[Any]] = {}
        for name in self._names:
            if name not in self._sums:
                means[name] = self._integers[name]
                continue
            total = self._sums[name]
            if further is not None:
                total = np.add(total, further[name])
            means[name] = rounded(total / count, self._dtypes[name])
        return means


def _shared_row(zoo: Zoo, ids: Sequence[str]) -> dict[str, Any]:
    """The columns on which some checkpoints agree; of ``extra`` the values."""
    chosen = set(ids)
    names = [name for name in _SHARED if name in zoo.contents.raw.rows.schema.names]
    columns = {name: zoo.column(name).to_pylist() for name in ("id", *names, "extra")}
    places = [place for place, id in enumerate(columns["id"]) if id in chosen]
    row = {
        name: columns[name][places[0]]
        for name in names
        if len({columns[name][place] for place in places}) == 1 and columns[name][places[0]] is not None
    }
    texts = {columns["extra"][place] for place in places}
    first, *others = [parse_extra(text) or {} for text in texts]
    extra = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    return {**row, "extra": json.dumps(extra, sort_keys=True)} if extra else row


def refuse_gaussians(arch: Architecture, location: str) -> None:
    """Refuse checkpoints that are Gaussians over weights, whose means and deviations are no network together.

    Raises ``ZooError`` if the zoo holds Gaussians.
    """
    is_gaussian = archs.base_of(arch.forward) is not None or any(f"{name}{STD}" in arch for name in arch.names)
    if is_gaussian:
        step = "Draw networks from them with ckptzoo.derive.draws, and take those."
        raise ZooError(Problem(location, "checkpoints", "networks", "Gaussians over their weights", step))


def _not_finite(zoo: str, id: str, tensor: str | None = None) -> ZooError:
    what = f"checkpoint {id!r}" if tensor is None else f"tensor {tensor!r} of {id!r}"
    return ZooError(Problem(zoo, what, "finite numbers", "others", 'Leave it out: --where "finite == True".'))
