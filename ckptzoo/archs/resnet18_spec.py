"""The tensors and the symmetry table of ResNet-18 for small images, without its forward function."""

from ckptzoo.archs.draft import Channels, Draft, channels
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry


def declare(name: str, width: int, classes: int) -> tuple[Architecture, Symmetry]:
    """The tensors and symmetries of ``ResNet18(width, classes)``: a residual stream a stage, an inner group a block."""
    draft = Draft()
    stream = channels("bn1", width)
    draft.conv_norm("conv1", "bn1", 3, Channels(3), stream)
    for stage in range(1, 5):
        stage_width = width * 2 ** (stage - 1)
        for number in range(2):
            block = f"layer{stage}.{number}"
            inner = channels(f"{block}.bn1", stage_width)
            joined = stream if stage_width == stream.n else channels(f"{block}.bn2", stage_width)
            draft.conv_norm(f"{block}.conv1", f"{block}.bn1", 3, stream, inner)
            draft.conv_norm(f"{block}.conv2", f"{block}.bn2", 3, inner, joined)
            if joined != stream:
                draft.conv_norm(f"{block}.downsample.0", f"{block}.downsample.1", 1, stream, joined)
            stream = joined
    draft.linear("fc", stream, Channels(classes))
    return draft.finish(name, (3, 32, 32))
