"""What a member draws: its key, initial weights, data order and crops, each a function of (key, epoch, position).

Nothing here depends on which members train side by side, on the device, or on what was drawn before. A Philox
counter is ``(index, epoch or tensor, purpose, 0)``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builders.philox import below, philox, uniform
from ckptzoo.loader.order import derive_key, keyed_permutation
from ckptzoo.spec.architecture import Architecture

VERSION = 1
"""Part of every recipe's digest: raised when the same recipe would draw other numbers."""
_INITIAL, _ORDER, _CROP = 0, 1, 2


def member_keys(digest: str, seeds: Sequence[int]) -> NDArray[np.uint64]:
    """(M,) one 64-bit key a member, from the recipe's digest (``sha256:...``) and the member's seed."""
    text = digest.removeprefix("sha256:")
    words = [int(text[at : at + 16], 16) for at in range(0, 64, 16)]
    return np.array([derive_key(seed, *words) for seed in seeds], dtype=np.uint64)


def initial_weights(arch: Architecture, keys: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    r"""PyTorch's default initialisation of every member, ``{name: (M, *shape)}``.

    Weights and biases of convolutions and linear layers are :math:`U(-1/\sqrt{f}, 1/\sqrt{f})` with the fan-in f of the
    layer's weight (``torch.nn.Linear.reset_parameters``); a normalisation starts as the identity, its buffers at
    mean 0, variance 1 and no batches.
    """
    made: dict[str, NDArray[Any]] = {}
    for number, tensor in enumerate(arch.tensors):
        weight = f"{tensor.layer}.weight"
        shape = arch[weight].shape if weight in arch else tensor.shape
        size = (len(keys), *tensor.shape)
        if len(shape) < 2 or tensor.kind == "buffer":
            one = tensor.name.endswith((".weight", ".running_var"))
            made[tensor.name] = np.full(size, 1 if one else 0, dtype=tensor.dtype)
            continue
        blocks = np.arange(-(-tensor.size // 4), dtype=np.int64)
        words = np.stack(philox((blocks, number, _INITIAL, 0), keys[:, None]), axis=-1).reshape(len(keys), -1)
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        values = bound * (2 * uniform(words[:, : tensor.size]) - 1)
        made[tensor.name] = values.reshape(size).astype(tensor.dtype)
    return made


def order(keys: Any, epoch: int, positions: Any, count: int) -> Any:
    """(M, P) the training items that members meet at these positions (P,) of an epoch of ``count`` items.

    ``keys`` (M,): numpy uint64, or int64 torch of the same bits; the positions are of the same kind.
    """
    low, high, _, _ = philox((0, epoch, _ORDER, 0), keys)
    key = low + (high << 32)
    return keyed_permutation(
        positions, count, key[:, None] if hasattr(key, "new_tensor") else key.view(np.uint64)[:, None]
    )


def crops(keys: Any, epoch: int, positions: Any, pad: int) -> tuple[Any, Any]:
    """(M, P) each: rows and columns, 0 to 2 pad, at which crops of padded images start."""
    down, right, _, _ = philox((positions, epoch, _CROP, 0), keys[:, None])
    return below(down, 2 * pad + 1), below(right, 2 * pad + 1)
