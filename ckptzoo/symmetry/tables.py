"""The symmetry table of anything that names a network, its last layer, and checks and pieces of stacked checkpoints."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np

from ckptzoo import archs
from ckptzoo.arguments import SELF_CHECKED
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import Stacked, is_float, to_numpy
from ckptzoo.symmetry.traced import Traced

Arch = Annotated[Symmetry | Traced | Architecture | str, SELF_CHECKED]
"""A name of a network: its table, the result of ``trace``, an architecture or the name of a registered one."""


def table_of(arch: Arch) -> Symmetry:
    """Return the symmetry table of a network.

    ``arch`` is a table, which is returned unchanged, or the result of ``trace``; an architecture whose forward function
    is in ``ckptzoo.archs``; or a name there. Raises ``SymmetryError`` for anything else, and ``SpecError`` with every
    problem where the registry's table does not fit the architecture.
    """
    if isinstance(arch, Symmetry):
        return arch
    if isinstance(arch, Traced):
        return arch.symmetry
    if not isinstance(arch, Architecture | str):
        raise SymmetryError(
            f"symmetry table: expected a table, an architecture or a name, got {type(arch).__name__}. "
            "Find a module's table with ckptzoo.symmetry.trace(module, example_input)."
        )
    name = arch if isinstance(arch, str) else arch.forward
    if not archs.known(name):
        raise SymmetryError(
            f"{arch if isinstance(arch, str) else arch.name}: symmetry table: expected one of "
            f"{', '.join(archs.names())} as the forward function, got {name!r}. "
            "Declare a Symmetry for this network, or trace its module with ckptzoo.symmetry.trace."
        )
    table = archs.symmetry(name)
    if isinstance(arch, Architecture):
        table.check(arch)
    return table


def last_layer(table: Symmetry) -> AxisAction | None:
    """Return how the last tensor that reads channels and writes none reads them; None where there is no such tensor."""
    written = {action.tensor for action in table.actions if action.role == "out"}
    return next((act for act in reversed(table.actions) if act.role == "in" and act.tensor not in written), None)


PIECE_BYTES = 128 * 2**20
SMALL = 4 * 2**20
"""Checkpoints are solved in pieces of at most ``PIECE_BYTES`` or one by one, on all cores from ``SMALL`` bytes on."""


def fits(arrays: Mapping[str, np.ndarray], symmetry: Symmetry, arch: Arch) -> None:
    """Raise ``SymmetryError`` for arrays that the scales of a table cannot act on.

    These have another shape than the architecture's, or integers where scales act; or the table has no groups.
    """
    if not symmetry.groups:
        raise SymmetryError("symmetry table: expected at least one group, got none. There is nothing to canonicalize.")
    if isinstance(arch, str):
        arch = archs.architecture(arch)
    if isinstance(arch, Traced):
        arch = arch.architecture
    if isinstance(arch, Architecture):
        for tensor in arch.tensors:
            found = arrays[tensor.name].shape[1:] if tensor.name in arrays else None
            if found is not None and found != tensor.shape:
                raise SymmetryError(
                    f"weights: tensor {tensor.name!r}: expected shape (K, {str(tensor.shape)[1:]}, got "
                    f"(K, {str(found)[1:]}. Pass the weights of {arch.name}."
                )
    for action in symmetry.actions:
        if action.exponent and not is_float(arrays[action.tensor]):
            raise SymmetryError(
                f"weights: tensor {action.tensor!r}: expected floats, got {arrays[action.tensor].dtype}. "
                "Convert it first."
            )


def finite(weights: Stacked, K: int) -> np.ndarray:
    """Return which of the checkpoints (K,) have no infinite element and no NaN."""
    found = np.ones(K, bool)
    for value in weights.values():
        if is_float(array := to_numpy(value)):
            found &= np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    return found


def pieces(rows: np.ndarray, arrays: Mapping[str, np.ndarray], threads: int, small: int = SMALL) -> list[np.ndarray]:
    """Return rows in pieces that keep every thread busy, where the arrays have more than ``small`` bytes."""
    if not len(rows):
        return []
    nbytes = sum(array.nbytes for array in arrays.values())
    count = max(-(-nbytes // PIECE_BYTES), threads if nbytes > small else 1)
    return np.array_split(rows, min(count, len(rows)))


def place_of(rows: np.ndarray) -> slice | np.ndarray:
    """Return a slice of rows that stand side by side, which gives views, else the rows."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows


def take_rows(arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return some of the checkpoints, without a copy where they stand side by side."""
    place = place_of(rows)
    return {name: array[place] for name, array in arrays.items()}
