"""The tensors and the symmetry table of a Gaussian over a network's weights, without its forward function."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry

STD = "_std"
"""The suffix of a parameter's name that names its standard deviation."""


def declare(name: str, arch: Architecture, table: Symmetry) -> tuple[Architecture, Symmetry]:
    """A Gaussian with independent weights: each parameter T is a mean, ``T_std`` its standard deviation.

    ``name`` is the Gaussian's and its forward function's; ``arch`` and ``table`` are the network's. Its buffers have no
    deviations. Raises ``SymmetryError`` if gates, or what they multiply, have signs.

    Returns
    -------
    tuple[Architecture, Symmetry]
        Architecture and table. The groups are those of the network. A group element g moves the mean as the weights,
        and the standard deviations by the moduli of its scales,

            mu' = g . mu,   sigma' = |g| . sigma,

        so that ``g . (mu + sigma z) = mu' + sigma' z'`` for standard normal z, where z' is z permuted, with signs.
    """
    tensors = tuple(_tensors(arch))
    doubled = {tensor.name for tensor in arch.tensors if tensor.kind == "parameter"}
    moduli = [_modulus(action, table) for action in table.actions if action.tensor in doubled]
    # the last tensor that reads and does not write is taken for the last layer: that of the mean
    reading, writing = ([item for item in moduli if (item.role == "in") == reads] for reads in (True, False))
    return Architecture(name, tensors, name, arch.input_shape), Symmetry(
        table.groups, (*reading, *table.actions, *writing)
    )


def _tensors(arch: Architecture) -> Iterator[Tensor]:
    """The tensors in the order of a state dict: of each module its means, its standard deviations, its buffers."""
    for _, group in groupby(arch.tensors, lambda tensor: tensor.layer):
        tensors = list(group)
        means = [tensor for tensor in tensors if tensor.kind == "parameter"]
        yield from means
        for tensor in means:
            aliases = tuple(f"{alias}{STD}" for alias in tensor.aliases)
            yield Tensor(f"{tensor.name}{STD}", tensor.shape, aliases=aliases)
        yield from (tensor for tensor in tensors if tensor.kind != "parameter")


def _modulus(action: AxisAction, table: Symmetry) -> AxisAction:
    """The action on a standard deviation, which takes no sign, for an action on its mean."""
    gates = tuple(segment for segment in action.gates if table[segment.group].resizes)
    made = replace(action, tensor=f"{action.tensor}{STD}", signs=(), gates=gates)
    groups = [table[segment.group] for segment in (*action.segments, *gates)]
    if gates and any(group.flips for group in groups):
        what, expected = f"axis {action.axis} of {action.tensor!r}", "channels and gates without signs"
        step = "Give the table without these scales: standard deviations have no signs."
        raise SymmetryError(Problem("gaussian", what, expected, "some with signs", step))
    if not any(group.resizes for group in groups):
        return replace(made, exponent=0)
    return replace(made, absolute=any(group.flips for group in groups) and made.exponent != 0)
