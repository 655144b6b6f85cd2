"""Forms of descriptions: the descriptions that a table needs, by the kinds of its groups, to be stable under rounding.

Where no matrices act, the gauge settles scales and signs to rounding, and eight numbers describe what an order of
channels leaves. Where matrices act, rounding can change canonical weights a lot: singular vectors and eigenvectors of
values that are almost equal, and signs of sums that are almost 0. There sixteen numbers depend on no sign and no matrix
either, and each is smooth in the weights, as singular values and eigenvalues enter by products alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ckptzoo.schema.groups import Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.identity.tensor_sums import Description, TensorSums, norms, random_signs
from ckptzoo.symmetry.kinds.kind import Kind
from ckptzoo.symmetry.kinds.registry import FACTORS, kinds_of, permutations_of

Arrays = Mapping[str, np.ndarray]
Scaled = tuple[np.ndarray, np.ndarray | float]

REACH = 16.0
"""Invariants of networks that agree differ by at most this many tolerances.

Measured on scaled copies of random networks (OptuNet, ResNet-8, MLPs of up to 8 layers and 512 channels), in float32
and float64: at most 3.4.
"""
FLOOR = 1e-11
"""Invariants of equal weights differ by at most this: float64 sums of up to 2 ** 24 terms, in any order."""
SMALL = 0.1
"""The share of a typical weight that weights count as at least, since small ones may be the rounding of 0."""
SPREAD = 8
"""Sketches are divided by it, so that rounding to float16 at condition 10 stays below the bound of ``BOUNDS``."""
BOUNDS = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}
"""The largest distance between the sketches of one network, by the dtype in which weights are stored.

Measured on elements with matrices of condition 10 (tests/symmetry/identity/test_matrix_invariants.py)."""
NEAR = 10
"""The number of tolerances within which checkpoints that are not the same are near."""


class SettledForm(Description):
    """Descriptions where the gauge has settled all but an order of channels, and how close those of one network are."""

    features = 8
    slope = 1
    """Descriptions are divided by it before they become features, so that no round multiplies rounding by much."""
    near: int | None = None
    """``NEAR`` where near checkpoints are looked for."""

    def kind(self, group: Group) -> Kind:
        # signs are settled too
        return permutations_of(group)

    def values(self, tensors: Sequence[TensorSums], arrays: Arrays, symmetry: Symmetry) -> list[Scaled]:
        """Return the weights of each tensor, scaled, and what its size adds to the sketches."""
        return [(tensor.of_norm_one(arrays[tensor.name]), 0.0) for tensor in tensors]

    def share(self, tensors: int) -> float:
        """Return the number by which sketches are divided."""
        return 1.0

    def sizes(self, arrays: Arrays, symmetry: Symmetry) -> dict[str, np.ndarray]:
        """Return the size (K,) of each tensor, of which a difference of weights is a share."""
        return {name: norms(array) for name, array in arrays.items()}

    def width(self, tolerance: float, rounding: float, dtypes: Iterable[np.dtype[Any]]) -> float:
        """Return how far sketches differ at most in any number, of networks that agree or are near, by all tensors."""
        return REACH * tolerance * float(np.sqrt(len(list(dtypes)))) + FLOOR

    def reach(self, tolerance: float) -> float | None:
        """Return the largest distance of the descriptions of one channel; None where no bound is known."""
        return REACH * tolerance + FLOOR


class _Open(SettledForm):
    """Descriptions that no sign and no matrix changes either."""

    features, slope, near, turns = 16, 4, NEAR, True

    def kind(self, group: Group) -> Kind:
        return FACTORS.get(group.scale) or permutations_of(group)

    def values(self, tensors: Sequence[TensorSums], arrays: Arrays, symmetry: Symmetry) -> list[Scaled]:
        some = {tensor.name: arrays[tensor.name] for tensor in tensors}
        for name in some:  # gains take signs
            if any(action.signs for action in symmetry.actions_on(name)):
                some[name] = np.abs(some[name])
        sizes = self.sizes(some, symmetry)
        signs = {name: random_signs(f"{name} size", 1, self.features) for name in some}
        return [
            (tensor.divided(some[name], sizes[name]), np.log(sizes[name])[:, None] * signs[name])
            for name, tensor in zip(some, tensors, strict=True)
        ]

    def share(self, tensors: int) -> float:
        return SPREAD * np.sqrt(tensors)

    def sizes(self, arrays: Arrays, symmetry: Symmetry) -> dict[str, np.ndarray]:
        # small weights may be the rounding of 0, so that a tensor's size is at least this share of a typical one
        weighted = {action.tensor for action in symmetry.actions if action.in_mass}
        found = {name: norms(array) for name, array in arrays.items()}
        counts = {name: np.sqrt(max(1, array[0].size)) if len(array) else 1.0 for name, array in arrays.items()}
        roots = [found[name] / counts[name] for name in found if name in weighted]
        typical = SMALL * np.median(roots, axis=0) if roots else 0.0
        sizes = {name: np.hypot(norm, typical * counts[name]) for name, norm in found.items()}
        return {name: np.where(size == 0, 1, size) for name, size in sizes.items()}

    def width(self, tolerance: float, rounding: float, dtypes: Iterable[np.dtype[Any]]) -> float:
        # sketches move in proportion to the weights: a wider tolerance needs wider sketches
        bound = max((BOUNDS.get(dtype.name, 0.0) for dtype in dtypes), default=0.0)
        return NEAR * max(1.0, tolerance / rounding) * bound

    def reach(self, tolerance: float) -> float | None:
        # matrices multiply the rounding of descriptions by their condition
        return None


SETTLED, OPEN = SettledForm(), _Open()


def form_of(symmetry: Symmetry) -> SettledForm:
    """Return the form that the kinds of a table need."""
    return OPEN if any(kind.stays_open for group in symmetry.groups for kind in kinds_of(group)) else SETTLED


def rounding_tolerance(dtypes: Iterable[np.dtype[Any]], symmetry: Symmetry) -> float:
    """Return the relative norm by which canonical weights of one network may differ from copy to copy.

    A copy is rounded when it is stored, by a few machine epsilons of the coarsest dtype, and the gauge settles scales
    and matrices to an error of its own, which exceeds the rounding of float64: ``max(4 eps, 8 * 2^-40)``, ``4 eps``
    where no channel has a size, and ``max(32 eps, 1e-11)`` where there are matrices.
    """
    kinds = [kind for group in symmetry.groups for kind in kinds_of(group)]
    eps = max((float(ml_dtypes.finfo(dtype).eps) for dtype in dtypes if dtype.kind not in "iub"), default=0.0)
    stored = eps * max((kind.roundings for kind in kinds), default=Kind.roundings)
    return max([stored, *(kind.gauge_error for kind in kinds)]) if stored else 0.0
