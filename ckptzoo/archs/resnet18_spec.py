"""What ResNet-18 for small images is, without its forward function: its tensors and its symmetry table."""

from ckptzoo.archs.draft import Channels, Draft, channels
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry

_STAGES = (64, 128, 256, 512)


def declare(name: str, classes: int) -> tuple[Architecture, Symmetry]:
    """The tensors and symmetries of ``ResNet18(classes)``: a residual stream a stage, an inner group a block."""
    draft = Draft()
    stream = channels("bn1", _STAGES[0])
    draft.conv_norm("conv1", "bn1", 3, Channels(3), stream)
    for stage, width in enumerate(_STAGES, 1):
        for number in range(2):
            block = f"layer{stage}.{number}"
            inner = channels(f"{block}.bn1", width)
            joined = stream if width == stream.n else channels(f"{block}.bn2", width)
            draft.conv_norm(f"{block}.conv1", f"{block}.bn1", 3, stream, inner)
            draft.conv_norm(f"{block}.conv2", f"{block}.bn2", 3, inner, joined)
            if joined != stream:
                draft.conv_norm(f"{block}.downsample.0", f"{block}.downsample.1", 1, stream, joined)
            stream = joined
    draft.linear("fc", stream, Channels(classes))
    return draft.finish(name, (3, 32, 32))
