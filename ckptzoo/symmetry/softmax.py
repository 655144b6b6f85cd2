"""The shift that a softmax does not change under: the same number added to all logits."""

from collections.abc import Mapping

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.arrays import Stacked, stored_dtype, to_numpy
from ckptzoo.symmetry.tables import Arch, last_layer, table_of


@checked
def remove_softmax_shift(weights: Stacked, arch: Arch) -> dict[str, np.ndarray]:
    """The last layer with logits that sum to zero: the same class probabilities.

    ``W - 1 v^T`` and ``b - c 1`` with v and c the means over the classes: of the fan-in + 1 degrees of freedom of
    (W, b) -> (W + 1 v^T, b + c 1), which a softmax does not see, none is left. It is no symmetry of the
    logits, and no part of a gauge.

    Parameters
    ----------
    weights
        tensor name to (K, *shape).
    arch
        as in ``canonicalize``.

    Returns
    -------
    dict[str, np.ndarray]
        All tensors, those of the last layer as new arrays of at least float32, the others as they are.

    Raises
    ------
    SymmetryError
        The table shows no last layer: no tensor that reads channels and writes none.

    Notes
    -----
    Sums in float64 with one rounding. Commutes with every group element, and is idempotent to rounding.
    """
    last = last_layer(table_of(arch))
    if last is None or last.tensor not in weights:
        raise SymmetryError(
            "weights: the last layer: expected a tensor that reads channels and writes none, got none. "
            "Pass the weights of a network whose table has one."
        )
    made = {name: to_numpy(array) for name, array in weights.items()}
    names = (last.tensor, f"{last.tensor.rpartition('.')[0]}.bias")
    return made | {name: _centred(made, name) for name in names if name in made}


def _centred(made: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    array = made[name].astype(np.float64)
    return (array - array.mean(axis=1, keepdims=True)).astype(stored_dtype(made[name].dtype))
