"""The symmetry table of whatever names a network."""

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.symmetry import Symmetry


def table_of(arch: Symmetry | Architecture | str) -> Symmetry:
    """The symmetry table of a network.

    Parameters
    ----------
    arch : a table, which is returned as it is; an architecture whose forward function is in ``ckptzoo.archs``; or
        a name there.

    Raises
    ------
    SymmetryError
        No such name in ``ckptzoo.archs``.
    SpecError
        The registry's table does not fit the architecture; every problem is listed.
    """
    if isinstance(arch, Symmetry):
        return arch
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
