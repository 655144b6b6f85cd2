"""OptuNet: 392 parameters, two convolutions and a linear layer, made for MNIST-shaped images; and its family."""

from collections.abc import Mapping

import torch
from torch import nn

from ckptzoo.errors import Problem, ZooError

_SHAPES = {"conv1.weight": (2, 1, 4, 4), "conv2.weight": (10, 1, 5, 5), "fc.weight": (10, 10), "fc.bias": (10,)}
_BLOCKS = {"cpu": (32, 64), "cuda": (64, 1024)}
"""Members and images that are computed at once. On a CPU the largest result, of 9 x 8 places, 2 channels and all of
these, takes 1.2 MB in float32: between what second-level and third-level caches hold. More members make the first
product faster, fewer make small stacks cheaper."""
_CHUNK = 128
"""Members whose matrices of the second convolution, 41 kB each in float32, are kept while the images go by."""


class OptuNet(nn.Module):
    """A convolutional network for 28x28 images and 10 classes; by default the published one of 392 parameters.

    ``conv k x k (1 -> channels), ReLU, max-pool, conv k x k (in groups), ReLU, mean over space, linear``; the
    convolutions have no bias. A hidden layer, where there is one, is followed by ReLU and by the last linear layer. The
    published one has spatial sizes 28, 25, 8, 4, 1. Source: arXiv 2310.08287.

    ``channels1`` and ``kernel1`` are outputs and kernel size of the first convolution; ``pool`` is size and stride of
    the max-pool; ``channels2``, ``kernel2`` and ``groups`` are the second convolution's; ``hidden`` is the number of
    units of a linear layer with bias before the last one, None without.
    """

    def __init__(
        self,
        channels1: int = 2,
        kernel1: int = 4,
        pool: int = 3,
        channels2: int = 10,
        kernel2: int = 5,
        groups: int = 2,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        self._pool = pool
        self.conv1 = nn.Conv2d(1, channels1, kernel1, bias=False)
        self.conv2 = nn.Conv2d(channels1, channels2, kernel2, groups=groups, bias=False)
        self.hidden = None if hidden is None else nn.Linear(channels2, hidden)
        self.fc = nn.Linear(channels2 if hidden is None else hidden, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 1, 28, 28), normalised, to logits (B, 10)."""
        maps = nn.functional.max_pool2d(torch.relu(self.conv1(images)), self._pool, self._pool)
        features = torch.relu(self.conv2(maps)).mean(dim=(-2, -1))
        return self.fc(features if self.hidden is None else torch.relu(self.hidden(features)))


def stacked_outputs(weights: Mapping[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Logits of many OptuNets on the same images, without gradients: ``OptuNet`` of each member, to rounding.

    As all members see the same images, the first convolution of 32 members is one matrix product (64, 16) x (16, places
    x images), and the second a product (80, 64) x (64, images) for each of their groups, whose matrix holds each kernel
    at its 16 places: 2.56 times the arithmetic of that convolution, at many times its speed.

    ``weights`` are ``{name: (K, *shape)}`` of the four tensors, in the dtype and on the device of the images;
    ``images`` are (B, 1, 28, 28), float32 or float64, normalised. Returns (K, B, 10). To the last bit, a member's
    outputs depend neither on the other members nor on their number and order, because all products have the same sizes.
    Where the outputs for an image are not finite they are the module's. Raises ``ZooError`` for other shapes, dtypes or
    devices.

    57,000 floating-point operations for a member and an image. Memory beside the result: 10 MB in float32 on a CPU.
    Fewer than 32 members, or than 64 images, cost as much as 32, or 64. Outputs that are not finite are computed again,
    member by member, by the module. Tested in tests/archs/test_optunet.py.

    Examples
    --------
    >>> weights = {name: torch.randn(3, *value.shape) for name, value in OptuNet().state_dict().items()}
    >>> stacked_outputs(weights, torch.randn(5, 1, 28, 28)).shape
    torch.Size([3, 5, 10])
    """
    members = _check(weights, images)
    outputs = images.new_empty(members, len(images), 10)
    with torch.no_grad():
        for start in range(0, members, _CHUNK):
            rows = slice(start, start + _CHUNK)
            _chunk_outputs({name: weights[name][rows] for name in _SHAPES}, images, outputs[rows])
    return outputs


def _check(weights: Mapping[str, torch.Tensor], images: torch.Tensor) -> int:
    """Return the number of members after checking shapes, dtypes and devices."""
    if missing := _SHAPES.keys() - weights.keys():
        step = "Pass the weights of an OptuNet."
        raise ZooError(Problem("optunet", "tensors", ", ".join(_SHAPES), f"no {', '.join(sorted(missing))}", step))
    members = len(weights["conv1.weight"])
    expected = {"images": (len(images), 1, 28, 28), **{name: (members, *shape) for name, shape in _SHAPES.items()}}
    dtype = images.dtype if images.dtype == torch.float64 else torch.float32
    for name, shape in expected.items():
        tensor = images if name == "images" else weights[name]
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device != images.device:
            wanted, got = f"{dtype} {shape} on {images.device}", f"{tensor.dtype} {tuple(tensor.shape)}"
            step = "Evaluate images of other sizes with the module."
            raise ZooError(Problem("optunet", name, wanted, f"{got} on {tensor.device}", step))
    return members


def _chunk_outputs(weights: dict[str, torch.Tensor], images: torch.Tensor, outputs: torch.Tensor) -> None:
    """Write the outputs (K, B, 10) of up to ``_CHUNK`` members."""
    M, B = _BLOCKS["cpu" if images.device.type == "cpu" else "cuda"]
    K = -(-len(outputs) // M) * M
    # zeros fill up the last block of members and of images: the last bit of a product may depend on its sizes
    filled = {name: images.new_zeros(K, *shape) for name, shape in _SHAPES.items()}
    for name, value in weights.items():
        filled[name][: len(value)] = value
    kernels = filled["conv1.weight"].view(-1, 16)
    matrices = images.new_zeros(2 * K, 80, 64)
    _kernel_places(matrices).copy_(filled["conv2.weight"].view(K, 10, 1, 1, 5, 5))
    heads, biases = filled["fc.weight"].transpose(1, 2), filled["fc.bias"][:, None]

    patches = images.new_empty(8, 16, 72 * B)
    before = images.new_empty(2 * M, 72 * B)
    hidden = images.new_empty(2 * M, 8, 8 * B)
    hidden2 = images.new_empty(2 * M, 80, B)
    features = images.new_empty(M, 10, B)
    for first in range(0, len(images), B):
        batch = images[first : first + B]
        _fill_patches(patches, batch, B)
        for member in range(0, len(outputs), M):
            both = slice(2 * member, 2 * (member + M))
            # one row of pooling windows at a time, so that what is before pooling stays in the cache
            for row in range(8):
                torch.mm(kernels[both], patches[row], out=before)
                # ReLU after the maximum, which is the same and a ninth of the numbers
                torch.amax(before.view(2 * M, 9, 8 * B), 1, out=hidden[:, row])
            torch.bmm(matrices[both], hidden.relu_().view(2 * M, 64, B), out=hidden2)
            torch.sum(hidden2.relu_().view(M, 10, 16, B), 2, out=features)
            rows = slice(member, member + M)
            block = torch.baddbmm(biases[rows], features.div_(16).transpose(1, 2), heads[rows])
            target = outputs[rows, first : first + B]
            target.copy_(block[: target.shape[0], : target.shape[1]])
        _recompute_nonfinite(weights, batch, outputs[:, first : first + B])


def _fill_patches(patches: torch.Tensor, images: torch.Tensor, size: int) -> None:
    """Write the 4x4 patches of images, as many as a block holds: (8, 16, 9 x 8 x size). For each row of pooling
    windows: the pixels of a patch, the places in a window, the windows, the images.
    """
    # 3x3 windows use 24x24 of the 25x25 places of a 4x4 kernel: these see 27x27 pixels
    pixels = images.new_zeros(27, 27, size)
    pixels[..., : len(images)] = images[:, 0, :27, :27].permute(1, 2, 0)
    row = 27 * size
    # row of windows, pixel (i, j) of a patch, place (y, x) in a window, window in the row, image
    strided = pixels.as_strided((8, 4, 4, 3, 3, 8, size), (3 * row, row, size, row, size, 3 * size, 1))
    patches.view(8, 4, 4, 3, 3, 8, size).copy_(strided)


def _kernel_places(matrices: torch.Tensor) -> torch.Tensor:
    """(K, 10, 4, 4, 5, 5): the second kernels at each of their places in matrices (2 K, 80, 64). Row (o, y, x) and
    column (y + i, x + j) hold the weight (i, j) of output o.
    """
    # rows of 64, 16 of them for an o and 4 for a y; y and x each move the 5x5 weights by a row of 8 or a column
    return matrices.as_strided((len(matrices) // 2, 10, 4, 4, 5, 5), (10240, 1024, 256 + 8, 64 + 1, 8, 1))


def _recompute_nonfinite(weights: dict[str, torch.Tensor], images: torch.Tensor, outputs: torch.Tensor) -> None:
    """Replace what is not finite in outputs (K, B, 10) by what the module computes. The zeros around a kernel in its
    matrix turn an infinity that the kernel does not see into NaN.
    """
    finite = outputs.isfinite().all(-1)
    if finite.all():
        return
    with torch.device("meta"):
        module = OptuNet()
    for member in (~finite.all(1)).nonzero().flatten().tolist():
        state = {name: value[member] for name, value in weights.items()}
        exact = torch.func.functional_call(module, state, (images,))
        outputs[member] = torch.where(finite[member, :, None], outputs[member], exact)
