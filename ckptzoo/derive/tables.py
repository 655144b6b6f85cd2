"""The symmetry table of a zoo: its own, that of its forward function, one that is traced, or one that is declared."""

from pathlib import Path
from typing import Any

from ckptzoo import archs
from ckptzoo.errors import Problem, SymmetryError, require
from ckptzoo.format import durable
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, read_documents
from ckptzoo.schema.documents import seal
from ckptzoo.schema.layout import SYMMETRY
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import trace


def symmetry_of(contents: Contents, module: Any = None) -> Symmetry:
    """The zoo's symmetry table, or that of its forward function in ``ckptzoo.archs``, or that of a module.

    Parameters
    ----------
    module
        the network as a torch module, which is traced where neither the zoo nor the registry has a table.

    Raises
    ------
    SymmetryError
        There is none, or the module cannot be traced.
    SpecError
        The table does not fit the zoo's architecture.
    """
    if contents.symmetry is not None:
        return contents.symmetry
    arch = contents.architecture
    if archs.known(arch.forward):
        symmetry = archs.symmetry(arch.forward)
    elif module is not None and arch.input_shape is not None:
        torch = require("torch", "torch")
        symmetry = trace(module.eval(), torch.zeros(2, *arch.input_shape)).symmetry
    else:
        step = declare_step(contents, "Name the network, --module FILE.py:NAME, so that it is traced")
        location, what = f"{contents.files.name}/{SYMMETRY}", f"symmetry table of {arch.name}"
        raise SymmetryError(Problem(location, what, "one", "none", step))
    symmetry.check(arch)
    return symmetry


def declare_step(contents: Contents, traced: str) -> str:
    """A next step for a zoo without a symmetry table.

    Parameters
    ----------
    traced
        how its network is traced, which needs the shape of an input.
    """
    path = contents.files.name if contents.files.here is None else str(contents.files.here)
    way = "Declare one with" if contents.architecture.input_shape is None else f"{traced}; or declare one with"
    declaration = f"ckptzoo.derive.declare({path!r}, ckptzoo.symmetry.trace(module, inputs).symmetry)"
    return unless_layers(contents, f"{way} {declaration}.")


def unless_layers(contents: Contents, step: str) -> str:
    """A next step for a zoo whose network is not known: of layers that were pulled alone it never is.

    Parameters
    ----------
    step
        what to do for another zoo.
    """
    if not any("pulled" in part.facts for part in contents.raw.parts):
        return step
    return f"If README.md says that layers were pulled alone, pull the zoo that it names without --layers; else: {step}"


def declare(path: str | Path, symmetry: Symmetry) -> None:
    """Write a symmetry table into a zoo that has none; one that is there already stays as it is.

    Parameters
    ----------
    path
        the zoo's folder.
    symmetry
        a table for its architecture, written by hand or traced: ``ckptzoo.symmetry.trace(module, x).symmetry``.

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
    # another process may declare one too; the second to get the lock finds the table of the first
    with durable.locked(root):
        _, _, declared = read_documents(Folder(root))
        if declared is None:
            durable.write_file(root / SYMMETRY, seal(symmetry.to_json()))
        elif declared.digest != symmetry.digest:
            location, expected = f"{root.name}/{SYMMETRY}", f"none or {symmetry.digest}"
            step = "A zoo keeps its table; make a new zoo for another one."
            raise SymmetryError(Problem(location, "symmetry table", expected, declared.digest, step))
