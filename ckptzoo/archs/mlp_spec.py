"""The tensors and the symmetry table of a multilayer perceptron, without its forward function."""

from ckptzoo.archs.draft import Channels, Draft, channels
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry

# relu(s x) = s relu(x) for s above 0, and tanh(-x) = -tanh(x)
_SCALES = {"relu": "positive", "tanh": "sign"}


def declare(name: str, activation: str, *widths: int) -> tuple[Architecture, Symmetry]:
    """The tensors and symmetries of ``MLP(activation, *widths)``: each hidden layer is a group of its own."""
    draft = Draft()
    reads = Channels(widths[0])
    for number, width in enumerate(widths[1:], 1):
        layer = f"fc{number}"
        writes = channels(layer, width) if number + 1 < len(widths) else Channels(width)
        draft.linear(layer, reads, writes, scale=_SCALES[activation])
        reads = writes
    return draft.finish(name, (widths[0],))
