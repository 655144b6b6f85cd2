"""A member's random numbers: key, initial weights, data order, crops and flips, functions of (key, epoch, position).

Nothing here depends on which members train side by side, on the device, or on what was drawn before: the numbers are
those of Philox 4x32-10, a function of a counter and a key without any state. A counter is
``(index, epoch or tensor, purpose, 0)``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo.loader.permutation import derive_key, keyed_permutation
from ckptzoo.schema.architecture import Architecture

VERSION = 1
"""Part of every recipe's digest: raised when the same recipe would draw other numbers."""
_INITIAL, _ORDER, _CROP, _DROPOUT = 0, 1, 2, 3
"""Purposes: initial weights, the order of the data, places of crops and flips, dropped units."""
DRAWS, NOISE, MOMENTA, DRAWN_MASKS, INITIAL_DEVIATIONS = 4, 5, 6, 7, 8
"""Purposes of posterior methods: draws, the noise of steps, resampled momenta, masks of draws, initial deviations."""
# Constants of Philox 4x32: the multipliers, and what the key is raised by in each round (Salmon et al. 2011).
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Any, Any, Any, Any], key: Any) -> tuple[Any, Any, Any, Any]:
    """Four random 32-bit words for each counter and key.

    Ten rounds of ``(c0, c1, c2, c3) <- (high(M1 c2) ^ c1 ^ k0, low(M1 c2), high(M0 c0) ^ c3 ^ k1, low(M0 c0))``,
    after each of which ``k0 += 0x9E3779B9, k1 += 0xBB67AE85``; low and high are the 32-bit halves of the 64-bit product
    (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3).

    ``counter`` has four 32-bit words, integers or int64 arrays, which broadcast with the key of 64 bits (k0 the low
    half): an integer, a numpy uint64 array, or an int64 torch tensor of the same bits.

    The result is four int64 arrays of values in 0 .. 2**32 - 1, of the broadcast shape, at least one-dimensional.

    Integer arithmetic on 32-bit words gives the same bits in numpy, torch, Numba and Triton. It takes about 100
    nanoseconds a counter in numpy. ``tests/builders/test_trainer.py`` has Random123's known answers.
    """
    if not hasattr(key, "new_tensor"):
        key = np.atleast_1d(np.asarray(key, dtype=np.uint64)).view(np.int64)
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    # 0 * key makes every word an array of the key's library and device
    c0, c1, c2, c3 = (word + 0 * key for word in counter)
    # the product of two words fills 64 bits, of which int64 takes the highest for a sign: >> copies it, & removes it
    for _ in range(10):
        low0, low1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((low1 >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((low0 >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = low1 & _MASK, low0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def below(word: Any, n: int) -> Any:
    """Return an integer in ``0 .. n-1`` from a random word: ``(word * n) >> 32``; the bias is below ``n / 2**32``."""
    return (word * n) >> 32


def uniform(words: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
    """Return numbers strictly between 0 and 1, symmetric about 1/2: ``((word >> 8) + 1/2) / 2**24``."""
    return ((words >> 8) + 0.5) * 2.0**-24


def normal_pair(u: Any, v: Any) -> tuple[Any, Any]:
    r"""Return two independent standard normal numbers from two uniform ones, u not 0, in numpy or torch.

    :math:`\sqrt{-2 \log u}\,\cos 2 \pi v` and the same with the sine (Box and Muller, "A note on the generation of
    random normal deviates", 1958, equation 1).
    """
    library: Any = torch if isinstance(u, torch.Tensor) else np
    radius, angle = library.sqrt(-2 * library.log(u)), 2 * np.pi * v
    return radius * library.cos(angle), radius * library.sin(angle)


def normals(keys: Any, draw: int | range, count: int, purpose: int) -> Any:
    """Return (M, count) independent standard normals, a row a function of its key, ``draw`` and ``purpose`` alone.

    Of a range of draws, (M, D, count): each as if it were drawn alone.

    Numbers 4 b to 4 b + 3 of a row are the pairs that ``normal_pair`` makes of words 0 and 1, and 2 and 3, of Philox
    block ``(b, draw, purpose, 0)``, a word w as the uniform number ``(w + 1/2) / 2**32``; none is beyond 6.7.

    ``keys`` are (M,) numpy uint64, or int64 torch of the same bits; the numbers are float64 of the same kind. ``draw``
    is 0 to 2**32 - 1, or a range of such; different draws are independent. ``purpose`` keeps these numbers apart from
    all others of the keys; the used ones are at the top of this module.

    Takes 60 nanoseconds a number, of many members at once.

    >>> keys = member_keys("sha256:" + 64 * "0", [5, 6])
    >>> normals(keys, 0, 3, purpose=9).shape
    (2, 3)
    """
    is_torch = isinstance(keys, torch.Tensor)
    # a block of Philox has four words
    blocks: Any = np.arange(-(-count // 4), dtype=np.int64)
    draws: Any = np.arange(draw.start, draw.stop, dtype=np.int64)[:, None] if isinstance(draw, range) else draw
    if is_torch:
        blocks = torch.from_numpy(blocks).to(keys.device)
        draws = torch.from_numpy(draws).to(keys.device) if isinstance(draw, range) else draw
    words = philox((blocks, draws, purpose, 0), keys[:, None, None] if isinstance(draw, range) else keys[:, None])
    # torch would add 1/2 to integers in float32
    uniforms = [((word.double() if is_torch else word) + 0.5) * 2.0**-32 for word in words]
    values = (*normal_pair(*uniforms[:2]), *normal_pair(*uniforms[2:]))
    stacked = (torch if is_torch else np).stack(values, -1)
    return stacked.reshape(*stacked.shape[:-2], -1)[..., :count]


def member_keys(digest: str, seeds: Sequence[int]) -> NDArray[np.uint64]:
    """Return (M,) one 64-bit key a member, from the recipe's digest (``sha256:...``) and the member's seed."""
    text = digest.removeprefix("sha256:")
    # the 256 bits of the digest as four 64-bit words
    words = [int(text[start : start + 16], 16) for start in range(0, 64, 16)]
    return np.array([derive_key(seed, *words) for seed in seeds], dtype=np.uint64)


def initial_weights(arch: Architecture, keys: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    r"""Return PyTorch's default initialisation of every member, ``{name: (M, *shape)}``.

    Weights and biases of convolutions and linear layers are :math:`U(-1/\sqrt{f}, 1/\sqrt{f})` with the fan-in f of the
    layer's weight (``torch.nn.Linear.reset_parameters``); a normalisation starts as the identity, its buffers at
    mean 0, variance 1 and no batches.
    """
    weights: dict[str, NDArray[Any]] = {}
    for number, tensor in enumerate(arch.tensors):
        weight = f"{tensor.layer}.weight"
        shape = arch[weight].shape if weight in arch else tensor.shape
        size = (len(keys), *tensor.shape)
        # a layer whose weight has one axis is a normalisation
        if len(shape) < 2 or tensor.kind == "buffer":
            is_one = tensor.name.endswith((".weight", ".running_var"))
            weights[tensor.name] = np.full(size, 1 if is_one else 0, dtype=tensor.dtype)
            continue
        blocks = np.arange(-(-tensor.size // 4), dtype=np.int64)
        words = np.stack(philox((blocks, number, _INITIAL, 0), keys[:, None]), axis=-1).reshape(len(keys), -1)
        # kaiming_uniform_ with a = sqrt(5), as torch calls it, is this bound
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        # computed in float64 and rounded once
        values = bound * (2 * uniform(words[:, : tensor.size]) - 1)
        weights[tensor.name] = values.reshape(size).astype(tensor.dtype)
    return weights


def order(keys: Any, epoch: int, positions: Any, count: int) -> Any:
    """Return (M, P), the training items that members meet at these positions (P,) of an epoch of ``count`` items.
    ``keys`` (M,) are numpy uint64, or int64 torch of the same bits; the positions are of the same kind.
    """
    # one block an epoch makes the key of its permutation
    low, high, _, _ = philox((0, epoch, _ORDER, 0), keys)
    key = low + (high << 32)
    return keyed_permutation(
        positions, count, key[:, None] if hasattr(key, "new_tensor") else key.view(np.uint64)[:, None]
    )


def crops(keys: Any, epoch: int, positions: Any, pad: int) -> tuple[Any, Any]:
    """Return rows and columns (M, P), 0 to 2 pad, at which crops of padded images start."""
    down, right, _, _ = philox((positions, epoch, _CROP, 0), keys[:, None])
    return below(down, 2 * pad + 1), below(right, 2 * pad + 1)


def flips(keys: Any, epoch: int, positions: Any) -> Any:
    """Return (M, P) bool: which crops are mirrored, each with probability 1/2. It is the top bit of the third word of
    the block whose first two are the places of ``crops``, so a recipe with flips has the same crops as without.
    """
    _, _, word, _ = philox((positions, epoch, _CROP, 0), keys[:, None])
    return word >= 2**31


def kept_units(keys: Any, epoch: int, positions: Any, units: int, dropout: float, purpose: int = _DROPOUT) -> Any:
    """Return (M, P, U) bool: which of U units dropout keeps for the example at each position of an epoch. A unit is
    kept where its word is at least ``dropout_threshold(dropout)``; the word's number within the counters' blocks of
    four is the unit's.
    """
    words = [philox((positions, epoch, purpose, block), keys[:, None]) for block in range(-(-units // 4))]
    threshold = dropout_threshold(dropout)
    masks = [word >= threshold for block in words for word in block][:units]
    return torch.stack(masks, -1) if hasattr(keys, "new_tensor") else np.stack(masks, -1)


def dropout_threshold(dropout: float) -> int:
    """Return the least 32-bit word that keeps a unit: a smaller one has the probability ``dropout``, within 2**-33."""
    return round(dropout * 2**32)
