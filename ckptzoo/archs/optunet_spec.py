"""The tensors and symmetry tables of the networks of OptuNet's family, without their forward function."""

from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction, Group, Perm, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry

_IN, _OUT, _HIDDEN = "conv1", "conv2", "hidden"
OPTUNET = (2, 4, 3, 10, 5, 2)
"""The numbers of the published network, which has the shorter name."""


def declare(name: str, *numbers: int) -> tuple[Architecture, Symmetry]:
    """The tensors and symmetries of ``OptuNet(*numbers)``, by default the published network.

    The channels of both convolutions are scaled by positive numbers. With g groups of convolution conv2, blocks of its
    outputs move together with the blocks of conv1's channels that they read; with one group all channels move freely.
    The published network has 2 (5!)^2 = 28,800 permutations and 12 scales. A hidden layer is a group of its own.
    """
    channels1, kernel1, _, channels2, kernel2, groups, *rest = numbers or OPTUNET
    hidden = rest[0] if rest else None
    tensors = [
        Tensor("conv1.weight", (channels1, 1, kernel1, kernel1)),
        # torch stores the inputs of one group on the second axis
        Tensor("conv2.weight", (channels2, channels1 // groups, kernel2, kernel2)),
    ]
    if hidden is not None:
        tensors += [Tensor("hidden.weight", (hidden, channels2)), Tensor("hidden.bias", (hidden,))]
    tensors += [Tensor("fc.weight", (10, channels2 if hidden is None else hidden)), Tensor("fc.bias", (10,))]
    first, second = (Segment(_IN, 0, 1, channels1),), (Segment(_OUT, 0, 1, channels2),)
    moved = [
        Group(_IN, channels1, _blocks(channels1, groups), "positive"),
        Group(_OUT, channels2, _blocks(channels2, groups), "positive"),
    ]
    actions = [
        AxisAction("conv1.weight", 0, first, +1, True, "out"),
        AxisAction("conv2.weight", 0, second, +1, True, "out"),
        AxisAction("conv2.weight", 1, first, -1, True, "in", blocks=groups),
    ]
    if hidden is None:
        actions.append(AxisAction("fc.weight", 1, second, -1, True, "in"))
    else:
        last = (Segment(_HIDDEN, 0, 1, hidden),)
        moved.append(Group(_HIDDEN, hidden, Sym(), "positive"))
        actions += [
            AxisAction("hidden.weight", 0, last, +1, True, "out"),
            AxisAction("hidden.weight", 1, second, -1, True, "in"),
            AxisAction("hidden.bias", 0, last, +1, False, "bias"),
            AxisAction("fc.weight", 1, last, -1, True, "in"),
        ]
    arch = Architecture(name=name, tensors=tuple(tensors), forward=name, input_shape=(1, 28, 28))
    return arch, Symmetry(groups=tuple(moved), actions=tuple(actions))


def _blocks(channels: int, groups: int) -> Perm:
    return Sym() if groups == 1 else Wreath("conv2", groups, channels // groups)
