"""What OptuNet is, without its forward function: its tensors and its symmetry table."""

from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.symmetry import AxisAction, Group, Segment, Symmetry, Wreath

_IN, _OUT = "conv1", "conv2"


def declare(name: str) -> tuple[Architecture, Symmetry]:
    """OptuNet's tensors and its symmetries.

    2 (5!)^2 = 28,800 permutations and 12 scales: conv2's two groups move together with conv1's two channels.
    """
    arch = Architecture(
        name=name,
        tensors=(
            Tensor("conv1.weight", (2, 1, 4, 4)),
            Tensor("conv2.weight", (10, 1, 5, 5)),
            Tensor("fc.weight", (10, 10)),
            Tensor("fc.bias", (10,)),
        ),
        forward=name,
        input_shape=(1, 28, 28),
    )
    table = Symmetry(
        groups=(
            Group(_IN, 2, Wreath("conv2", 2, 1), "positive"),
            Group(_OUT, 10, Wreath("conv2", 2, 5), "positive"),
        ),
        actions=(
            AxisAction("conv1.weight", 0, (Segment(_IN, 0, 1, 2),), +1, True, "out"),
            AxisAction("conv2.weight", 0, (Segment(_OUT, 0, 1, 10),), +1, True, "out"),
            AxisAction("conv2.weight", 1, (Segment(_IN, 0, 1, 2),), -1, True, "in", blocks=2),
            AxisAction("fc.weight", 1, (Segment(_OUT, 0, 1, 10),), -1, True, "in"),
        ),
    )
    return arch, table
