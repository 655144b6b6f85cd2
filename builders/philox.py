"""Philox 4x32-10: random numbers as a function of a counter and a key, without any state."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Any, Any, Any, Any], key: Any) -> tuple[Any, Any, Any, Any]:
    """Four random 32-bit words for each counter and key.

    Ten rounds of ``(c0, c1, c2, c3) <- (high(M1 c2) ^ c1 ^ k0, low(M1 c2), high(M0 c0) ^ c3 ^ k1, low(M0 c0))``,
    after each of which ``k0 += 0x9E3779B9, k1 += 0xBB67AE85``; low and high are the 32-bit halves of the 64-bit product
    (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3).

    Parameters
    ----------
    counter : four 32-bit words: integers or int64 arrays; they broadcast with the key.
    key : 64 bits, k0 the low half: an integer, a numpy uint64 array, or an int64 torch tensor of the same bits.

    Returns
    -------
    Four int64 arrays of values in 0 .. 2**32 - 1, of the broadcast shape, at least one-dimensional.

    Notes
    -----
    Integer arithmetic on 32-bit words, so that numpy, torch, Numba and Triton give the same bits. About 100
    nanoseconds a counter in numpy. ``tests/contract/test_trainer.py`` holds Random123's known answers.
    """
    if not hasattr(key, "new_tensor"):
        key = np.atleast_1d(np.asarray(key, dtype=np.uint64)).view(np.int64)
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    c0, c1, c2, c3 = (word + 0 * key for word in counter)
    for _ in range(10):
        low0, low1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((low1 >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((low0 >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = low1 & _MASK, low0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def below(word: Any, n: int) -> Any:
    """An integer in ``0 .. n-1`` from a random word: ``(word * n) >> 32``; the bias is below ``n / 2**32``."""
    return (word * n) >> 32


def uniform(words: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
    """Numbers strictly between 0 and 1, symmetric about 1/2: ``((word >> 8) + 1/2) / 2**24``."""
    return ((words >> 8) + 0.5) * 2.0**-24
