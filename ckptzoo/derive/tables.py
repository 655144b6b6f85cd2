"""The symmetry table of a zoo: its own, that of its forward function, or one that is declared."""

from pathlib import Path

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.format import durable
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, read_documents
from ckptzoo.schema.documents import seal
from ckptzoo.schema.layout import SYMMETRY
from ckptzoo.schema.symmetry import Symmetry


def symmetry_of(contents: Contents) -> Symmetry:
    """The zoo's symmetry table, or that of its forward function in ``ckptzoo.archs``.

    Raises
    ------
    SymmetryError
        Neither the zoo nor the registry has one.
    SpecError
        The registry's table does not fit the zoo's architecture.
    """
    if contents.symmetry is not None:
        return contents.symmetry
    arch = contents.architecture
    if not archs.known(arch.forward):
        path = contents.files.name if contents.files.here is None else str(contents.files.here)
        raise SymmetryError(
            f"{contents.files.name}/{SYMMETRY}: symmetry table of {arch.name}: expected one, got none. Declare it with "
            f"ckptzoo.derive.declare({path!r}, ckptzoo.symmetry.trace(module, inputs).symmetry)."
        )
    symmetry = archs.symmetry(arch.forward)
    symmetry.check(arch)
    return symmetry


def declare(path: str | Path, symmetry: Symmetry) -> None:
    """Write a symmetry table into a zoo that has none; one that is there already stays as it is.

    Parameters
    ----------
    path : the zoo's folder.
    symmetry : a table for its architecture, written by hand or traced: ``ckptzoo.symmetry.trace(module, x).symmetry``.

    Raises
    ------
    SpecError
        The table does not fit the architecture; every problem is listed.
    SymmetryError
        The zoo has another table.
    """
    root = Path(path).absolute()
    _, arch, _ = read_documents(Folder(root))
    symmetry.check(arch)
    with durable.locked(root):
        _, _, found = read_documents(Folder(root))
        if found is None:
            durable.write_file(root / SYMMETRY, seal(symmetry.to_json()))
        elif found.digest != symmetry.digest:
            raise SymmetryError(
                f"{root.name}/{SYMMETRY}: symmetry table: expected none or {symmetry.digest}, got {found.digest}. "
                "A zoo keeps its table; make a new zoo for another one."
            )
