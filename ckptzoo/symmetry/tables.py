"""The symmetry table of whatever names a network, and what it says of the last layer."""

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.symmetry import AxisAction, Symmetry
from ckptzoo.symmetry.tracing.result import Traced

Arch = Symmetry | Traced | Architecture | str
"""Whatever names a network: its table, what ``trace`` found, an architecture or the name of a registered one."""


def table_of(arch: Arch) -> Symmetry:
    """The symmetry table of a network.

    Parameters
    ----------
    arch : a table, which is returned as it is, or what ``trace`` found; an architecture whose forward function is in
        ``ckptzoo.archs``; or a name there.

    Raises
    ------
    SymmetryError
        No such name in ``ckptzoo.archs``, or nothing that names a network.
    SpecError
        The registry's table does not fit the architecture; every problem is listed.
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
    """How the last tensor that reads channels and writes none reads them; None where the table has no such tensor."""
    written = {action.tensor for action in table.actions if action.role == "out"}
    return next((act for act in reversed(table.actions) if act.role == "in" and act.tensor not in written), None)
