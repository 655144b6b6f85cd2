"""Certificates: do two sets of stacked weights compute the same functions? Answered in float64, with torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply

Weights = Mapping[str, NDArray[Any]]

TABLE_TOLERANCE = 1e-9
"""Largest relative difference of float64 outputs under a group element of a table that is right."""
_STACK_BYTES = 64 * 2**20
_STACK = 32
_SMALL = 2**20
"""Networks of fewer bytes run on one thread: waking others takes longer than their operations."""


class Certifier:
    """Outputs of K checkpoints in float64 and evaluation mode, on fixed inputs.

    Parameters
    ----------
    arch : an architecture whose forward function is in ``ckptzoo.archs``.
    """

    def __init__(self, arch: Architecture) -> None:
        assert arch.forward is not None
        self._arch = arch
        self._model = archs.get(arch.forward)().double().eval()
        self._stack = max(1, min(_STACK, _STACK_BYTES // arch.nbytes))

    def gaps(self, one: Weights, two: Weights, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """For each checkpoint ``max_b ||f(x_b; two) - f(x_b; one)|| / ||f(x_b; one)||``, L2 norms over the outputs.

        Parameters
        ----------
        one, two : tensor name to (K, *shape), of any floating dtype.
        inputs : (B, *input_shape).

        Returns
        -------
        (K,) float64; NaN where an output is not finite.

        Notes
        -----
        Two float64 forward passes of K times B inputs; stacks of at most 32 checkpoints at a time.
        """
        K = len(next(iter(one.values())))
        found = np.zeros(K)
        batch = torch.from_numpy(np.array(inputs, np.float64))
        for start in range(0, K, self._stack):
            rows = slice(start, start + self._stack)
            with _threads(1 if self._arch.nbytes < _SMALL else torch.get_num_threads()):
                first, second = (self._outputs(weights, rows, batch) for weights in (one, two))
            gap, norm = np.linalg.norm(second - first, axis=2), np.linalg.norm(first, axis=2)
            ratio = np.divide(gap, norm, out=np.where(gap == 0, 0.0, np.inf), where=norm != 0)
            ratio[~(np.isfinite(gap) & np.isfinite(norm))] = np.nan
            found[rows] = ratio.max(axis=1, initial=0.0)
        return found

    def check_table(self, symmetry: Symmetry, weights: Weights, inputs: NDArray[Any]) -> None:
        """Refuse a table whose random group elements change these checkpoints' outputs (float64, 1e-9).

        Raises
        ------
        SymmetryError
            The table is not a symmetry of the network.
        """
        double = {
            name: value.astype(np.float64) if value.dtype.kind not in "iub" else value
            for name, value in weights.items()
        }
        K = len(next(iter(double.values())))
        element = GroupElement.random(symmetry, K, np.random.default_rng(0), spread=0.5)
        worst = float(self.gaps(double, apply(element, double, symmetry), inputs).max(initial=0.0))
        if not worst <= TABLE_TOLERANCE:
            raise SymmetryError(
                f"symmetry.json: random group elements: expected outputs of {self._arch.name} that agree to "
                f"{TABLE_TOLERANCE:g}, got a relative difference of {worst:.3g}. Correct the symmetry table."
            )

    def _outputs(self, weights: Weights, rows: slice, inputs: torch.Tensor) -> NDArray[np.float64]:
        state: dict[str, torch.Tensor] = {}
        for tensor in self._arch.tensors:
            array = np.asarray(weights[tensor.name][rows])
            array = array.copy() if array.dtype.kind in "iub" else array.astype(np.float64)
            for name in (tensor.name, *tensor.aliases):
                state[name] = torch.from_numpy(array)

        def forward(member: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(self._model, member, (inputs,))

        with torch.no_grad():
            made = torch.func.vmap(forward)(state)
        return made.reshape(len(made), len(inputs), -1).numpy()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
