"""Activations of channels on the same inputs, summed for alignment by activations. Needs torch.

A group's channels are recorded where a linear layer or a convolution reads them: the table says which positions of its
weight's input axis are whose. Every position of an image is an example of its channel (git re-basin: Ainsworth et al.,
arXiv 2209.04836, section 3.1), and so is every position that a flattening gives a channel. A group that several layers
read is recorded at each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from ckptzoo.derive.forward import Forward, StackedForward, Weights
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.groups import Fixed
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.alignment.activations import require_activations
from ckptzoo.symmetry.arrays import positions

_RECORDED_BYTES = 32 * 2**20
"""Bytes of activations of a stack of checkpoints that are held at a time, unless one input has more."""
_LINEAR = torch.nn.functional.linear
_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


@dataclass(frozen=True, eq=False)
class _Read:
    """One time that channels of a group are read.

    ``group`` is the group's id; ``values`` are (B, n, positions).
    """

    group: str
    values: torch.Tensor


class _Recording(TorchFunctionMode):
    """Records the inputs of the operations that read channels.

    ``readers`` maps tensor names to what is read on an axis: (axis, group, positions (n, inner)); ``member`` maps them
    to their values, by which a weight is recognised; ``examples`` is the number of inputs in the batch.
    """

    def __init__(
        self,
        readers: Mapping[str, Sequence[tuple[int, str, NDArray[np.int64]]]],
        member: Mapping[str, torch.Tensor],
        examples: int,
    ) -> None:
        super().__init__()
        self._named = [(member.get(name), read) for name, read in readers.items()]
        self._examples = examples
        self.reads: list[_Read] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record an operation's inputs and compute it unchanged."""
        named = kwargs or {}
        linear, transposed = func is _LINEAR, func in _TRANSPOSED
        if linear or transposed or func in _CONVOLUTIONS:
            values, weight = (
                args[place] if len(args) > place else named[key] for place, key in ((0, "input"), (1, "weight"))
            )
            for known, read in self._named:
                if known is weight:
                    for axis, group, places in read:
                        # without an axis of examples first, channels are at another place
                        if axis == (0 if transposed else 1) and values.ndim >= 2 and len(values) == self._examples:
                            self._record(values, values.ndim - 1 if linear else 1, group, places)
        return func(*args, **named)

    def _record(self, values: torch.Tensor, axis: int, group: str, places: NDArray[np.int64]) -> None:
        taken = values.movedim(axis, 1)
        if places.shape != (taken.shape[1], 1) or not np.array_equal(places[:, 0], np.arange(len(places))):
            taken = taken[:, torch.from_numpy(places)]
        self.reads.append(_Read(group, taken.reshape(len(values), len(places), -1)))


class _RecordingForward(Forward):
    """A network whose outputs are all that its recorded layers read, one read after the other."""

    def __init__(self, arch: Architecture, symmetry: Symmetry, module: torch.nn.Module | None) -> None:
        super().__init__(arch, module, vmap=True)
        self._readers = _readers_of(symmetry)

    def call(self, module: torch.nn.Module, member: Mapping[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        """(B, values) of one checkpoint."""
        return torch.cat([read.values.flatten(1) for read in self.reads(module, member, batch)], 1)

    def features(self, shape: Sequence[int]) -> int:
        """The number of values of an input of this shape."""
        return sum(read.values[0].numel() for read in self.layout(shape))

    def layout(self, shape: Sequence[int]) -> list[_Read]:
        """The reads for two inputs of this shape, without values, in the order of the outputs."""
        super().features(shape)  # refuses what does not fit
        module = self.module()
        with torch.no_grad():
            return self.reads(module, module.state_dict(keep_vars=True), torch.empty(2, *shape, device="meta"))

    def reads(self, module: torch.nn.Module, member: Mapping[str, torch.Tensor], batch: torch.Tensor) -> list[_Read]:
        """The reads of a batch."""
        with _Recording(self._readers, member, len(batch)) as recording:
            super().call(module, member, batch)
        return recording.reads


class ActivationProducts:
    """For each group of a table the products of what its channels hold in a reference and in other networks.

    Raises ``ZooError`` if the network does not take such inputs and ``SymmetryError`` if a group that permutations move
    is read by no linear layer and no convolution whose weight is a tensor of the zoo as it is. ``nbytes`` is the size
    of the products of one network. The reference is evaluated again for each call, so that nothing is kept of the
    inputs' activations. Tested in tests/derive/test_activations.py. ``arch`` has a forward function in
    ``ckptzoo.archs``, or a ``module`` is given; ``reference`` maps tensor names to (*shape), and ``inputs`` are (N,
    *input_shape) float32, as the networks take them.
    """

    def __init__(
        self,
        arch: Architecture,
        symmetry: Symmetry,
        reference: Weights,
        inputs: NDArray[np.float32],
        module: torch.nn.Module | None = None,
    ) -> None:
        forward = _RecordingForward(arch, symmetry, module)
        self._layout = [(read.group, *read.values.shape[1:]) for read in forward.layout(inputs.shape[1:])]
        found = {group for group, _, _ in self._layout}
        try:
            require_activations(symmetry, found)
        except SymmetryError as error:
            moved = [group.id for group in symmetry.groups if not isinstance(symmetry.leader(group.id).perm, Fixed)]
            expected = "linear layers or convolutions that read the channels of every group"
            step = "Align by weights: they are all that this needs."
            got = f"{len(found)} of {len(moved)} groups. {error}"
            raise SymmetryError(Problem(arch.name, "activations", expected, got, step)) from error
        self._forward = StackedForward(forward, arch, inputs, most_outputs=_RECORDED_BYTES)
        self._reference = {name: np.asarray(reference[name])[None] for name in arch.names}
        self.nbytes = sum(8 * n * n for n in {group: n for group, n, _ in self._layout}.values())

    def products(self, weights: Weights) -> dict[str, NDArray[np.float64]]:
        """Group id to (K, n, n) of K networks (K, *shape); a network's do not depend on the others."""
        K, size = len(next(iter(weights.values()))), self._forward.size
        sums = {group: np.zeros((K, n, n)) for group, n, _ in self._layout}
        starts = range(0, K, size)
        stacks = [
            self._forward.outputs({name: array[start : start + size] for name, array in weights.items()})
            for start in starts
        ]
        for reference in self._forward.outputs(self._reference):
            theirs = self._split(reference)
            for start, stack in zip(starts, stacks, strict=True):
                for (group, first), (_, second) in zip(theirs, self._split(next(stack)), strict=True):
                    with np.errstate(all="ignore"):  # of networks that are not finite
                        for number, ours in enumerate(second):
                            sums[group][start + number] += first[0] @ ours.T
        return sums

    def _split(self, outputs: NDArray[np.float32]) -> list[tuple[str, NDArray[np.float32]]]:
        """Each read (K, n, examples) of outputs (K, B, values)."""
        found: list[tuple[str, NDArray[np.float32]]] = []
        start = 0
        for group, n, inner in self._layout:
            values = outputs[:, :, start : start + n * inner].reshape(*outputs.shape[:2], n, inner)
            found.append((group, values.swapaxes(1, 2).reshape(len(outputs), n, -1)))
            start += n * inner
        return found


def _readers_of(symmetry: Symmetry) -> dict[str, list[tuple[int, str, NDArray[np.int64]]]]:
    """Tensor name to what it reads on an axis: of the groups whose channels move, at the scale that they have."""
    found: dict[str, list[tuple[int, str, NDArray[np.int64]]]] = {}
    for action in symmetry.actions:
        for group, places in positions(action, symmetry) if action.role == "in" else ():
            moves = symmetry[group].n > 1 and not isinstance(symmetry.leader(group).perm, Fixed)
            if moves and (action.exponent == -1 or symmetry[group].scale == "none"):
                found.setdefault(action.tensor, []).append((action.axis, group, places))
    return found
