"""The tensors and the symmetry table of a CIFAR ResNet, without its forward function."""

from ckptzoo.archs.draft import Channels, Draft, channels, padded
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry

_STAGES = (16, 32, 64)


def declare(name: str, shortcut: str, depth: int, classes: int) -> tuple[Architecture, Symmetry]:
    """The tensors and symmetries of ``ResNetCIFAR(shortcut, depth, classes)``.

    Each block has an inner group. Shortcuts with a convolution give each stage a residual stream of its own.
    Zero-padded ones carry the channels of a stage into the next one: the stream of 32 is the 16 of the first stage
    between two runs of 8 new channels, the stream of 64 is those 32 between two runs of 16.
    """
    draft = Draft()
    stream = channels("bn1", _STAGES[0])
    draft.conv_norm("conv1", "bn1", 3, Channels(3), stream)
    for stage, width in enumerate(_STAGES, 1):
        for number in range((depth - 2) // 6):
            block = f"layer{stage}.{number}"
            inner, joined = channels(f"{block}.bn1", width), stream
            # only the first block of a stage changes the number of channels
            if width != stream.n:
                joined = padded(stream, f"{block}.bn2", width) if shortcut == "pad" else channels(f"{block}.bn2", width)
            draft.conv_norm(f"{block}.conv1", f"{block}.bn1", 3, stream, inner)
            draft.conv_norm(f"{block}.conv2", f"{block}.bn2", 3, inner, joined)
            if joined != stream and shortcut == "conv":
                draft.conv_norm(f"{block}.shortcut.0", f"{block}.shortcut.1", 1, stream, joined)
            stream = joined
    draft.linear("linear", stream, Channels(classes))
    return draft.finish(name, (3, 32, 32))
