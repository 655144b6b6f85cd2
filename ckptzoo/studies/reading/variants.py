"""Whether a zoo has what a study of its symmetries needs."""

from ckptzoo import archs
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout
from ckptzoo.spec.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES


def table_of(zoo: Zoo, variant: str) -> Symmetry:
    """The symmetry table of a zoo that has checkpoints and this variant.

    Raises
    ------
    UnknownNameError
        There is neither a variant nor a gauge of this name.
    SymmetryError, ZooError
        What is missing, and the command that makes it.
    """
    if not len(zoo):
        raise ZooError(f"{zoo.name}: checkpoints: expected at least one, got none. Select others.")
    derived = [name for name in zoo.variants if name != layout.RAW]
    if variant not in derived and variant not in GAUGES:
        raise UnknownNameError(zoo.name, "variant", variant, list(dict.fromkeys([*derived, *GAUGES])))
    folder = zoo.contents.files.here
    command = f"{'Run' if folder else 'Pull the zoo, then run'} ckptzoo derive {folder or 'FOLDER'} --gauge {variant}"
    if zoo.symmetry is None:
        step = command
        if not archs.known(zoo.arch.forward):
            step = f"Declare one with ckptzoo.derive.declare({str(folder or 'FOLDER')!r}, table). {command}"
        raise SymmetryError(f"{zoo.name}: symmetry table: expected one, got none. {step}.")
    if variant not in derived:
        had = ", ".join(zoo.variants)
        raise ZooError(f"{zoo.name}: variants: expected {variant!r} among them, got {had}. {command}.")
    return zoo.symmetry


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
        f"Declare one with ckptzoo.derive.declare({str(zoo.contents.files.here or 'FOLDER')!r}, table)."
    )
