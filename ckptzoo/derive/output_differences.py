"""Differences of the outputs of raw and derived weights on sampled inputs, for the equivalence check. Needs torch.

Which checkpoints of a zoo are one network is another question: ``ckptzoo/symmetry/identity`` answers it from the
weights.
"""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from ckptzoo.derive.checks import PRECISIONS, SMALL_BYTES, Precision
from ckptzoo.derive.forward import Forward, Weights
from ckptzoo.errors import Problem, SymmetryError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, fold

TABLE_TOLERANCE = 1e-9
"""Largest relative difference of float64 outputs under a group element of a table that is right."""
_STACK = 64
"""The maximum number of checkpoints that are evaluated at a time."""
_STACK_BYTES = 2**20
"""The maximum number of bytes of weights that are evaluated at a time, unless one checkpoint has more."""
_COPIED_BYTES = 96 * 2**20
"""The bytes of copies of weights that threads evaluate at a time, unless one copy has more."""
_INPUTS_AT_A_TIME, _INPUTS_OF_LARGE = 8, 2
"""The number of inputs that are evaluated at a time, and that of networks that are not small."""


class EquivalenceChecker:
    """Outputs of K checkpoints in evaluation mode, on fixed inputs; threads may share one.

    ``arch`` is an architecture whose forward function is in ``ckptzoo.archs``, or any with a module; ``module`` is the
    network; by default that of ``ckptzoo.archs``. It is copied.
    """

    def __init__(self, arch: Architecture, module: torch.nn.Module | None = None) -> None:
        self._arch = arch
        # the module itself, not another function that computes the same: it is what an architecture is
        self._forward = _AllOutputs(arch, module, vmap=True)
        self._stack = max(1, min(_STACK, _STACK_BYTES // arch.nbytes))
        # convolutions in float64 unfold all inputs of a batch: tens of MiB each
        self._inputs = _INPUTS_AT_A_TIME if arch.nbytes <= SMALL_BYTES else _INPUTS_OF_LARGE
        copied = {precision: self._stack * arch.nbytes * int(precision[5:]) // 32 for precision in PRECISIONS}
        self._room = {name: threading.Semaphore(max(1, _COPIED_BYTES // nbytes)) for name, nbytes in copied.items()}

    def output_differences(
        self, first: Weights, second: Weights, inputs: NDArray[Any], *, precision: Precision = "float64"
    ) -> NDArray[np.float64]:
        """The largest difference of each checkpoint's outputs, relative to its largest output.

            d_k = max_{b,o} |f_o(x_b; second_k) - f_o(x_b; first_k)| / max_{b,o} |f_o(x_b; first_k)|

        over all inputs b and outputs o together. A single output that is near 0 on one input, where its own relative
        rounding is large, does not count for more than that, so that the number means the same for a network with one
        output as for one with ten.

        Returns (K,) float64; NaN where an output of the first is not finite, infinity where one of the second alone is
        not. Two forward passes of K times B inputs, 8 at a time, or 2 of a large network; a copy of one network's
        weights, or of 1 MiB of weights of small ones.

        ``first`` and ``second`` map tensor names to (K, *shape) of any floating dtype; ``inputs`` are (B,
        *input_shape). Both networks are evaluated in ``precision``; the differences are computed in float64.
        """
        K = len(next(iter(first.values())))
        differences = np.zeros(K)
        batches = torch.from_numpy(np.array(inputs, precision)).split(self._inputs)
        for start in range(0, K, self._stack):
            rows = slice(start, start + self._stack)
            with self._room[precision]:
                differences[rows] = _relative(*(self._outputs(weights, rows, batches) for weights in (first, second)))
        return differences

    def check_table(self, symmetry: Symmetry, weights: Weights, inputs: NDArray[Any]) -> bool:
        """Refuse a table whose random group elements change these checkpoints' outputs (float64, 1e-9).

        Returns whether any of these outputs are finite, so that the table was tried.

        Channels in front of a normalisation are only scaled up: a running variance does not allow every scale below 1.
        Raises ``SymmetryError`` if the table is not a symmetry of the network.
        """
        K = len(next(iter(weights.values())))
        element = GroupElement.random(symmetry, K, np.random.default_rng(0), spread=0.5)
        # exponent 2 is a running variance, scaled as scale^2 (v + eps) - eps, which a scale below 1 can make negative
        normalised = {
            segment.group for action in symmetry.actions if action.exponent == 2 for segment in action.segments
        }
        scales = {
            name: np.sign(scale) * np.maximum(np.abs(scale), 1 / np.abs(scale)) if name in normalised else scale
            for name, scale in element.scales.items()
        }
        differences = self.output_differences(
            weights, _moved(replace(element, scales=scales), weights, symmetry), inputs
        )
        # NaN says that the outputs as trained are not finite already
        largest = float(differences[~np.isnan(differences)].max(initial=0.0))
        if not largest <= TABLE_TOLERANCE:
            expected = f"outputs of {self._arch.name} that agree to {TABLE_TOLERANCE:g}"
            got = f"a relative difference of {largest:.3g}"
            step = "Name the network that the zoo is of, or make the zoo again with the table that trace() gives of it."
            raise SymmetryError(Problem("symmetry.json", "random group elements", expected, got, step))
        return not bool(np.isnan(differences).all())

    def _outputs(self, weights: Weights, rows: slice, batches: tuple[torch.Tensor, ...]) -> NDArray[np.float64]:
        """Outputs (K, numbers, 1) of some checkpoints, in the precision of the inputs."""
        chosen = {tensor.name: weights[tensor.name][rows] for tensor in self._arch.tensors}
        outputs = self._forward.outputs(chosen, batches, stacked=self._stack > 1)
        return torch.cat(list(outputs), dim=1).double().numpy()


class _AllOutputs(Forward):
    """Evaluates a network whose outputs are any tensors, with axes in any order, alone or in tuples and dicts."""

    _of_indices = False

    def call(self, module: torch.nn.Module, member: Mapping[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        """(numbers, 1) of one checkpoint: every number of its outputs."""
        refused: ZooError | None = None
        # floats are no indices of an embedding, which the inputs may be where they are whole numbers
        whole = bool((batch == batch.trunc()).all())
        for given in (batch, batch.long())[self._of_indices and whole : 1 + whole]:
            try:
                found = self._numbers(module, member, given).to(batch.dtype)
            except ZooError:
                raise
            except Exception as error:  # of a module whose code is not ours
                refused = refused or self._refused(batch, error)
            else:
                self._of_indices = given is not batch
                return found
        assert refused is not None
        raise refused

    def _refused(self, batch: torch.Tensor, error: Exception) -> ZooError:
        expected, said = "inputs that the network takes", f"{type(error).__name__}: {error}"[:200].rstrip(".")
        step = "Pass them as it takes them. A tensor that it keeps as an attribute is to be a buffer."
        what = f"inputs of shape {tuple(batch.shape)}, as {str(batch.dtype).removeprefix('torch.')}"
        return ZooError(Problem(self._arch.name, what, expected, said, step))

    def _numbers(
        self, module: torch.nn.Module, member: Mapping[str, torch.Tensor], batch: torch.Tensor
    ) -> torch.Tensor:
        outputs = torch.func.functional_call(module, dict(member), (batch,), tie_weights=False)
        found = [item for item in pytree.tree_leaves(outputs) if isinstance(item, torch.Tensor)]
        if not found:
            step = "Return tensors, alone or in tuples and dicts."
            raise ZooError(Problem(self._arch.name, "outputs", "tensors", type(outputs).__name__, step))
        real = (torch.view_as_real(item) if item.is_complex() else item for item in found)
        return torch.cat([item.reshape(-1, 1).double() for item in real])


def _moved(element: GroupElement, weights: Weights, symmetry: Symmetry) -> Weights:
    """Apply a group element to weights in float64; no copy of the weights as they were stays behind."""
    double = {
        name: value.astype(np.float64) if value.dtype.kind not in "iub" else value for name, value in weights.items()
    }
    # matrices of streams keep the function of folded weights alone
    return apply(element, fold(double, symmetry) if symmetry.has_matrices else double, symmetry)


def _relative(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """``max |second - first| / max |first|`` of outputs (K, ...), both over all inputs and outputs."""
    first_finite = np.logical_and.reduce(np.isfinite(first), axis=(1, 2))
    finite = first_finite & np.logical_and.reduce(np.isfinite(second), axis=(1, 2))
    left, right = (np.where(finite[:, None, None], outputs, 0) for outputs in (first, second))
    with np.errstate(over="ignore"):
        difference = np.abs(right - left).max(axis=(1, 2), initial=0)
        size = np.abs(left).max(axis=(1, 2), initial=0)
        ratio = np.divide(difference, size, out=np.where(difference == 0, 0.0, np.inf), where=size != 0)
    return np.where(finite, ratio, np.where(first_finite, np.inf, np.nan))
