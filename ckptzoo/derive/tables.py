"""The symmetry table of a zoo: its own, that of its forward function, one that is traced, or one that is declared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SymmetryError, ZooError, require
from ckptzoo.format import durable
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, read_documents
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import seal
from ckptzoo.schema.layout import SYMMETRY
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import Traced, trace
from ckptzoo.symmetry.tables import table_of


def symmetry_of(contents: Contents, module: Any = None, input_shape: Sequence[int] | None = None) -> Symmetry:
    """The zoo's symmetry table, or that of its forward function in ``ckptzoo.archs``, or that of a module.

    ``module`` is the network as a torch module, which is traced where neither the zoo nor the registry has a table;
    ``input_shape`` is that of one input, where the zoo's architecture does not say it. Raises ``SymmetryError`` if
    there is none, or the module cannot be traced, and ``SpecError`` if the table does not fit the zoo's architecture.
    """
    if contents.symmetry is not None:
        return contents.symmetry
    arch = with_input_shape(contents.architecture, input_shape)
    if archs.known(arch.forward):
        symmetry = archs.symmetry(arch.forward)
    elif module is not None and arch.input_shape is not None:
        torch = require("torch", "torch")
        symmetry = trace(module.eval(), torch.zeros(2, *arch.input_shape)).symmetry
    else:
        given = "Name the network" if module is None else "Say the shape of one input"
        step = declare_step(contents, given)
        location, what = f"{contents.files.name}/{SYMMETRY}", f"symmetry table of {arch.name}"
        raise SymmetryError(Problem(location, what, "one", "none", step))
    symmetry.check(arch)
    return symmetry


def with_input_shape(arch: Architecture, input_shape: Sequence[int] | None) -> Architecture:
    """The architecture with the shape of one input, where it does not say that itself.

    Raises ``ZooError`` if the architecture declares another one, or this is not a shape.
    """
    if input_shape is None:
        return arch
    shape = tuple(int(size) for size in input_shape)
    if arch.input_shape not in (None, shape):
        step = "Leave it out: the zoo says it."
        raise ZooError(Problem(arch.name, "shape of one input", str(arch.input_shape), str(shape), step))
    return replace(arch, input_shape=shape)


def traced_shape(
    arch: Architecture, input_shape: Sequence[int] | None, inputs: NDArray[Any] | None
) -> Sequence[int] | None:
    """The shape of one input with which a module is traced: as it is given, or that of real inputs."""
    inferred = input_shape is None and inputs is not None and arch.input_shape is None
    return inputs.shape[1:] if inferred and inputs is not None else input_shape


def _options(contents: Contents) -> str:
    """The options that name the network of a zoo, and what to say of them."""
    if contents.architecture.input_shape is not None:
        return "--module FILE.py:NAME"
    return "--module FILE.py:NAME --input-shape SHAPE (SHAPE of one input, such as 64 or 3x32x32)"


def declare_step(contents: Contents, lacking: str = "") -> str:
    """A next step for a zoo without a symmetry table.

    ``lacking`` describes what the call lacked, in words that go before the command.
    """
    folder = contents.files.here or "FOLDER"
    command = f"ckptzoo derive {quote(str(folder))} {_options(contents)}, which traces your network"
    traced = f"{lacking}: {command}" if lacking else f"Run {command}"
    path = contents.files.name if contents.files.here is None else str(contents.files.here)
    way = f"{traced}; or declare one with"
    declaration = f"ckptzoo.derive.declare({path!r}, ckptzoo.symmetry.trace(module, inputs))"
    return unless_layers(contents, f"{way} {declaration}.")


def unless_layers(contents: Contents, step: str) -> str:
    """A next step for a zoo whose network is not known: of layers that were pulled alone it never is.

    ``step`` says what to do for another zoo.
    """
    if not any("pulled" in part.facts for part in contents.raw.parts):
        return step
    return f"If README.md says that layers were pulled alone, pull the zoo that it names without --layers; else: {step}"


@checked
def declare(path: str | Path, symmetry: Symmetry | Traced, *, input_shape: Sequence[int] | None = None) -> None:
    """Write a symmetry table into a zoo that has none; one that is there already stays as it is.

    The shape of one input is kept with it where the zoo's architecture lacks it.

    Parameters
    ----------
    path
        the zoo's folder.
    symmetry
        a table for its architecture, written by hand, or what ``ckptzoo.symmetry.trace(module, x)`` found.
    input_shape
        of one input; by default that with which the module was traced.

    Raises
    ------
    SpecError
        The table does not fit the architecture; every problem is listed.
    SymmetryError
        The zoo has another table.
    ZooError
        The zoo has another shape, or this is no shape.
    """
    root = Path(path).absolute()
    _, arch, _ = read_documents(Folder(root))
    if input_shape is None and isinstance(symmetry, Traced) and arch.input_shape is None:
        input_shape = symmetry.architecture.input_shape
    shape = with_input_shape(arch, input_shape).input_shape
    symmetry = table_of(symmetry)
    symmetry.check(arch)
    # architecture.json is never rewritten, because zoo.json has its digest
    kept = {} if arch.input_shape is not None or shape is None else {"input_shape": list(shape)}
    # another process may declare one too; the second to get the lock finds the table of the first
    with durable.locked(root):
        _, _, declared = read_documents(Folder(root))
        if declared is None:
            durable.write_file(root / SYMMETRY, seal({**symmetry.to_json(), **kept}))
        elif declared.digest != symmetry.digest:
            location, expected = f"{root.name}/{SYMMETRY}", f"none or {symmetry.digest}"
            step = "A zoo keeps its table; make a new zoo for another one."
            raise SymmetryError(Problem(location, "symmetry table", expected, declared.digest, step))
