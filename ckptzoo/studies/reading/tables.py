"""The symmetry table that a study of raw weights goes by."""

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec.symmetry import Symmetry


def own_table(zoo: Zoo) -> Symmetry:
    """The zoo's table, or where it has none that of its architecture in ``ckptzoo.archs``.

    Raises
    ------
    SymmetryError
        There is neither.
    """
    if zoo.symmetry is not None:
        return zoo.symmetry
    if archs.known(zoo.arch.forward):
        return archs.symmetry(zoo.arch.forward)
    raise SymmetryError(
        f"{zoo.name}: symmetry table: expected one, got none. "
        f"Declare one with ckptzoo.derive.declare({str(zoo.path)!r}, table)."
    )
